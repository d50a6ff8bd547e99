from __future__ import annotations

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest

from pulsar_ray.errors import OperationNotSupported
from pulsar_ray.schema import AvroSchema, Bytes, Integer, Record, schema_avro

DEFINITION = {
    "type": "record",
    "name": "A",
    "fields": [
        {"name": "a", "type": "int"},
        {"name": "b", "type": ["null", "string"], "default": None},
    ],
}
TWICE = [{"name": "y", "type": "int"}, {"name": "y", "type": "string"}]


def test_dicts_by_a_definition() -> None:
    schema = AvroSchema(None, DEFINITION)
    assert schema.decode(schema.encode({"a": 1, "zz": 2})) == {"a": 1, "b": None}
    with pytest.raises(ValueError, match="the record data should be dict type"):
        schema.encode(Integer())
    with pytest.raises(ValueError, match="no value and no default for a"):
        schema.encode({})
    with pytest.raises(TypeError):
        schema.encode({"a": "x"})


def test_one_of_both_is_needed() -> None:
    with pytest.raises(AssertionError, match="shouldn't be both None"):
        AvroSchema(None)
    record = type("Own", (Record,), {"x": Integer()})
    assert '"Own"' in AvroSchema(record, DEFINITION).schema_info().schema()


def test_logical_types() -> None:
    fields = [
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "d", "type": {"type": "int", "logicalType": "date"}},
        {"name": "m", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
    ]
    schema = AvroSchema(None, {"type": "record", "name": "L", "fields": fields})
    value = {"t": datetime(2020, 1, 1, tzinfo=timezone.utc), "d": date(2020, 1, 1), "m": Decimal("12.34")}
    encoded = schema.encode(value)
    assert encoded.hex() == "80a0b7e6eb5bac9d020404d2"
    assert schema.decode(encoded) == value


@pytest.mark.parametrize(
    "definition",
    [
        "int",
        {"type": "int"},
        [],
        {"type": "record", "fields": []},
        {"type": "record", "name": "A"},
        {"type": "record", "name": "A", "fields": [{"name": "x", "type": "zork"}]},
        {"type": "record", "name": "A", "fields": [{"type": "int"}]},
        {"type": "record", "name": "A", "fields": 5},
        {"type": "record", "name": "A", "fields": [{"name": "x", "type": "int"}] * 2},
        {"type": "record", "name": "A", "fields": [{"name": "x", "type": [{**DEFINITION, "fields": TWICE}]}]},
        '{"type": "record", "name": "A", "fields": []}',
    ],
)
def test_what_is_no_definition_is_refused_at_once(definition: Any) -> None:
    with pytest.raises(ValueError, match="definition"):
        AvroSchema(None, definition)


def test_a_union_of_100_types() -> None:
    branches = [{"type": "fixed", "name": f"F{size}", "size": size} for size in range(1, 101)]
    schema = AvroSchema(None, {**DEFINITION, "fields": [{"name": "u", "type": branches}]})
    assert schema.decode(schema.encode({"u": b"x" * 99})) == {"u": b"x" * 99}


def test_a_value_of_none_of_100_types_names_its_field_in_few_words() -> None:
    branches = [{"type": "fixed", "name": f"F{size}", "size": size} for size in range(1, 101)]
    schema = AvroSchema(None, {**DEFINITION, "fields": [{"name": "u", "type": branches}]})
    with pytest.raises(ValueError, match=r"do not match .* on field u") as refused:
        schema.encode({"u": "text"})
    assert len(str(refused.value)) < 500


def test_a_text_that_is_no_utf8_names_its_field() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "t", "type": "string"}]}
    fields = [{"name": "i", "type": {"type": "array", "items": inner}}]
    schema = AvroSchema(None, {**DEFINITION, "fields": fields})
    with pytest.raises(ValueError, match=r"field 'i\[1\]\.t' is no UTF-8"):
        schema.encode({"i": [{"t": "x"}, {"t": "\ud800"}]})


def test_a_value_that_holds_itself_is_refused() -> None:
    fields = [{"name": "next", "type": ["null", "A"]}]
    value: dict[str, Any] = {}
    value["next"] = value
    with pytest.raises(ValueError, match="more than 1000 levels, or holds itself"):
        AvroSchema(None, {**DEFINITION, "fields": fields}).encode(value)


def test_bytes_that_do_not_fit() -> None:
    schema = AvroSchema(None, DEFINITION)
    for data in (b"", b"\x02", b"\x02\x08", b"\x02\x02\x20x"):
        with pytest.raises((EOFError, IndexError)):
            schema.decode(data)


def test_what_follows_a_value_is_not_passed_over() -> None:
    schema = AvroSchema(None, DEFINITION)
    data = schema.encode({"a": 1})
    for writer in (None, schema.registered()):
        read = schema.reading(writer)
        assert read(data) == {"a": 1, "b": None}
        with pytest.raises(ValueError, match="1 bytes follow the value"):
            read(data + b"x")


INNER = {"type": "record", "name": "Inner", "fields": [{"name": "q", "type": "bytes", "default": "\xfe"}]}
DEFAULTS = [
    ({"type": "bytes"}, "\xff", b"\xff"),
    ({"type": "fixed", "name": "F", "size": 1}, "\x80", b"\x80"),
    ({"type": "int", "logicalType": "date"}, 1, date(1970, 1, 2)),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}, "\x0f", Decimal("1.5")),
    (["bytes", "null"], "\xff", b"\xff"),
    (["null", {"type": "array", "items": "bytes"}], None, None),
    ({"type": "array", "items": "bytes"}, ["\xff"], [b"\xff"]),
    ({"type": "map", "values": INNER}, {"k": {}}, {"k": {"q": b"\xfe"}}),
    (INNER, {}, {"q": b"\xfe"}),
]


@pytest.mark.parametrize(("kind", "default", "value"), DEFAULTS)
def test_defaults_are_values_of_their_types(kind: Any, default: Any, value: Any) -> None:
    old = AvroSchema(None, {"type": "record", "name": "A", "fields": []})
    field = {"name": "new", "type": kind, "default": default}
    new = AvroSchema(None, {"type": "record", "name": "A", "fields": [field]})
    reading = new.reading(old.registered())
    assert reading(old.encode({})) == {"new": value}
    assert new.decode(new.encode({})) == {"new": value}
    assert new.schema_info().schema() == json.dumps(
        {"type": "record", "name": "A", "fields": [field]}, indent=1
    )


def test_values_share_no_default() -> None:
    old = AvroSchema(None, {"type": "record", "name": "A", "fields": []})
    field = {"name": "new", "type": {"type": "array", "items": "int"}, "default": [1]}
    reading = AvroSchema(None, {"type": "record", "name": "A", "fields": [field]}).reading(old.registered())
    reading(old.encode({}))["new"].append(2)
    assert reading(old.encode({})) == {"new": [1]}


def test_a_class_reads_its_defaults_of_bytes() -> None:
    old = AvroSchema(type("A", (Record,), {}))
    fields = {"new": Bytes(default=b"\xff", required=True, required_default=True)}
    new = AvroSchema(type("A", (Record,), fields))
    assert new.reading(old.registered())(b"").new == b"\xff"


ENUM = {"type": "enum", "name": "E", "symbols": ["a", "b"]}
OLD = {"type": "record", "name": "N", "fields": [{"name": "q", "type": "int"}]}
NEW = {"type": "record", "name": "N", "fields": [{"name": "q", "type": "long"}]}
TREE = {"type": "record", "name": "T", "fields": [{"name": "n", "type": ["null", "T"]}]}


@pytest.mark.parametrize(
    ("written", "read", "value"),
    [
        ([ENUM, "E"], [["E", "null"], [ENUM, "null"]], "b"),
        ([OLD, "N"], [["null", "N"], ["null", NEW]], {"q": 1}),
        ([["null", OLD], "N"], ["N", ["null", NEW]], {"q": 1}),
        ([TREE, "T"], [["T", "null"], [TREE, "null"]], {"n": {"n": None}}),
    ],
)
def test_types_that_are_used_twice_are_read_in_another_order(written: Any, read: Any, value: Any) -> None:
    def record(fields: list[tuple[str, Any]]) -> AvroSchema:
        named = [{"name": name, "type": kind} for name, kind in fields]
        return AvroSchema(None, {"type": "record", "name": "A", "fields": named})

    old = record(list(zip("xy", written, strict=True)))
    new = record(list(zip("yx", reversed(read), strict=True)))
    values = {"x": value, "y": value}
    assert new.reading(old.registered())(old.encode(values)) == values


def test_without_fastavro(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_avro, "HAS_AVRO", False)
    with pytest.raises(OperationNotSupported, match=r"pip install 'pulsar-ray\[schema\]'"):
        AvroSchema(None, DEFINITION)
