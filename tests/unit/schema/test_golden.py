"""Texts and bytes that the official client makes of the same records."""

from __future__ import annotations

import hashlib
import json
from enum import Enum
from typing import Any

import pytest

from pulsar_ray.schema import (
    Array,
    AvroSchema,
    Boolean,
    Bytes,
    CustomEnum,
    Double,
    Field,
    Float,
    Integer,
    JsonSchema,
    Long,
    Map,
    Null,
    Record,
    String,
)


class Color(Enum):
    red = 1
    green = 2


class Sub(Record):
    i = Integer()
    s = String()


class All(Record):
    n = Null()
    bo = Boolean()
    i = Integer()
    l = Long()  # noqa: E741
    f = Float()
    d = Double()
    by = Bytes()
    s = String()
    ar = Array(Integer())
    m = Map(String())
    e = Color
    sub = Sub()
    arr = Array(Sub())


COLOR = '{"type": "enum", "name": "Color", "symbols": ["red", "green"]}'
EVERYTHING = All(
    bo=True,
    i=-7,
    l=2**40,
    f=1.5,
    d=-2.25,
    by=b"ab",
    s="hé",
    ar=[1, -2],
    m={"k": "v"},
    e="green",
    sub=Sub(i=1, s="x"),
    arr=[Sub(i=2)],
)


def one(field: Any) -> type[Record]:
    return type("One", (Record,), {"f": field})


@pytest.mark.parametrize(
    ("kind", "value", "nullable", "required", "text"),
    [
        (Null, None, "00", "", "null"),
        (Boolean, True, "0201", "01", "true"),
        (Boolean, False, "0200", "00", "false"),
        (Integer, -7, "020d", "0d", "-7"),
        (Long, 2**40, "02808080808040", "808080808040", "1099511627776"),
        (Float, 1.5, "020000c03f", "0000c03f", "1.5"),
        (Double, -2.25, "0200000000000002c0", "00000000000002c0", "-2.25"),
        (Bytes, b"ab", "02046162", "046162", '"ab"'),
        (String, "hé", "020668c3a9", "0668c3a9", '"h\\u00e9"'),
    ],
)
def test_simple_fields(kind: type[Field], value: object, nullable: str, required: str, text: str) -> None:
    for field, avro in ((kind(), nullable), (kind(required=True), required)):
        record = one(field)
        obj = record(f=value)
        assert AvroSchema(record).encode(obj).hex() == avro
        assert JsonSchema(record).encode(obj) == f'{{\n "f": {text}\n}}'.encode()
        assert JsonSchema(record).decode(JsonSchema(record).encode(obj)) == obj
        assert AvroSchema(record).decode(bytes.fromhex(avro)) == obj


@pytest.mark.parametrize(
    ("field", "value", "avro"),
    [
        (CustomEnum(Color), Color.green, "0202"),
        (CustomEnum(Color, required=True), Color.green, "02"),
        (Array(Integer()), [1, 2, -3], "020602040500"),
        (Array(Integer()), [], "0200"),
        (Array(String(), required=True), ["a", "b"], "040261026200"),
        (Array(Array(Integer())), [[1], [2, 3]], "02040202000404060000"),
        (Array(Map(Integer())), [{"a": 1}], "0202020261020000"),
        (Array(Double()), [1, 2.5], "0204000000000000f03f000000000000044000"),
        (Array(Sub()), [Sub(i=1, s="x")], "0202020202027800"),
        (Map(Integer()), {"k": 1, "l": 2}, "0204026b02026c0400"),
        (Map(Integer()), {}, "0200"),
        (Map(Sub()), {"k": Sub(i=1)}, "0202026b02020000"),
        (Map(Array(String())), {"k": ["v"]}, "0202026b0202760000"),
        (Sub(), Sub(i=1, s="x"), "020202020278"),
        (Sub(required=True), Sub(i=1, s="x"), "0202020278"),
    ],
)
def test_fields_of_fields(field: Any, value: object, avro: str) -> None:
    record = one(field)
    obj = record(f=value)
    assert AvroSchema(record).encode(obj).hex() == avro
    assert AvroSchema(record).decode(bytes.fromhex(avro)) == obj
    assert JsonSchema(record).decode(JsonSchema(record).encode(obj)) == obj


def test_an_unset_record_has_unset_fields() -> None:
    nullable, required = one(Sub()), one(Sub(required=True))
    assert AvroSchema(nullable).encode(nullable()).hex() == "020000"
    assert AvroSchema(required).encode(required()).hex() == "0000"
    assert json.loads(JsonSchema(nullable).encode(nullable())) == {"f": {"i": None, "s": None}}
    assert AvroSchema(nullable).encode(nullable(f=None)).hex() == "00"


def test_all_in_one() -> None:
    avro, text = AvroSchema(All), JsonSchema(All)
    assert avro.encode(EVERYTHING).hex() == (
        "000201020d02808080808040020000c03f0200000000000002c002046162020668c3a9020402030002"
        "02026b0276000202020202020278020202040000"
    )
    assert avro.encode(All()).hex() == "00020000000000000000000002000000"
    definition = text.schema_info().schema()
    assert definition == avro.schema_info().schema()
    assert len(definition) == 1409
    assert hashlib.sha256(definition.encode()).hexdigest() == (
        "d93ebad2ab4b87a17d25c64c4945e6a611cbae8a3ae4fb338e934ffb35558f0a"
    )
    assert text.encode(EVERYTHING).decode() == (
        '{\n "n": null,\n "bo": true,\n "i": -7,\n "l": 1099511627776,\n "f": 1.5,\n "d": -2.25,\n '
        '"by": "ab",\n "s": "h\\u00e9",\n "ar": [\n  1,\n  -2\n ],\n "m": {\n  "k": "v"\n },\n "e": 2,\n'
        ' "sub": {\n  "i": 1,\n  "s": "x"\n },\n "arr": [\n  {\n   "i": 2,\n   "s": null\n  }\n ]\n}'
    )
    assert text.encode(EVERYTHING) == text.encode(EVERYTHING)
    assert text.decode(text.encode(EVERYTHING)) == avro.decode(avro.encode(EVERYTHING)) == EVERYTHING


def test_the_text_of_one_field() -> None:
    record = type("A", (Record,), {"f": Integer()})
    assert JsonSchema(record).schema_info().schema() == (
        '{\n "type": "record",\n "name": "A",\n "fields": [\n  {\n   "name": "f",\n   "type": [\n'
        '    "null",\n    "int"\n   ]\n  }\n ]\n}'
    )


@pytest.mark.parametrize(
    ("field", "entry", "unset"),
    [
        (Integer(), '{"name": "f", "type": ["null", "int"]}', None),
        (Integer(required=True), '{"name": "f", "type": "int"}', None),
        (Integer(default=3), '{"name": "f", "type": ["null", "int"]}', 3),
        (Integer(default=3, required=True), '{"name": "f", "type": "int"}', 3),
        (Integer(required_default=True), '{"name": "f", "default": null, "type": ["null", "int"]}', None),
        (
            Boolean(required_default=True),
            '{"name": "f", "default": false, "type": ["null", "boolean"]}',
            False,
        ),
        (Integer(3, required_default=True), '{"name": "f", "default": 3, "type": ["null", "int"]}', 3),
        (Integer(3, True, True), '{"name": "f", "default": 3, "type": "int"}', 3),
        (Null(), '{"name": "f", "type": ["null", "null"]}', None),
        (Null(required=True), '{"name": "f", "type": "null"}', None),
        (Bytes(b"\xff", True, True), '{"name": "f", "default": "\\u00ff", "type": "bytes"}', b"\xff"),
        (
            CustomEnum(Color, "green", True, True),
            f'{{"name": "f", "default": "green", "type": {COLOR}}}',
            Color.green,
        ),
        (
            Array(CustomEnum(Color), required=True),
            f'{{"name": "f", "type": {{"type": "array", "items": {COLOR}}}}}',
            None,
        ),
    ],
)
def test_entries_of_fields(field: Any, entry: str, unset: object) -> None:
    record = one(field)
    assert json.dumps(record.schema()["fields"][0]) == entry
    assert record().f == unset  # type: ignore[attr-defined]


def test_a_record_as_the_default_of_a_field() -> None:
    record = one(Sub(default=Sub(i=1), required=True, required_default=True))
    assert record.schema()["fields"][0]["default"] == {"i": 1, "s": None}
    assert record().f == Sub(i=1)  # type: ignore[attr-defined]


def test_named_types_are_spelled_out_once() -> None:
    class Ns(Record):
        _avro_namespace = "c.d"
        x = Integer()

    class Two(Record):
        a = Ns(required=True)
        b = Array(Ns(), required=True)
        c = Color
        d = Map(Color)

    fields = Two.schema()["fields"]
    assert list(fields[0]["type"]) == ["type", "name", "namespace", "fields"]
    assert fields[1]["type"] == {"type": "array", "items": "c.d.Ns"}
    assert fields[3]["type"] == ["null", {"type": "map", "values": "Color"}]
    obj = Two(a=Ns(x=1), b=[Ns(x=2)], c=Color.red, d={"k": Color.green})
    for schema in (AvroSchema(Two), JsonSchema(Two)):
        assert schema.decode(schema.encode(obj)) == obj


def test_sorted_fields_change_avro_and_not_json() -> None:
    class Sorted(Record):
        _sorted_fields = True
        b = Integer(required=True)
        a = String(required=True)

    obj = Sorted(b=1, a="x")
    assert AvroSchema(Sorted).encode(obj).hex() == "027802"
    assert JsonSchema(Sorted).encode(obj) == b'{\n "b": 1,\n "a": "x"\n}'


def test_a_tree() -> None:
    class Tree(Record):
        x = Integer()

    Tree._fields["kids"] = Array(Tree())
    tree = Tree(x=1, kids=[Tree(x=2, kids=[])])
    assert AvroSchema(Tree).encode(tree).hex() == "020202020204020000"
    assert AvroSchema(Tree).decode(bytes.fromhex("020202020204020000")) == tree
