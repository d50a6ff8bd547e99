"""Values that records take and refuse, and records as classes."""

from __future__ import annotations

import json
from enum import Enum, IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.schema import (
    Array,
    ArrowSchema,
    AvroSchema,
    Boolean,
    Bytes,
    CustomEnum,
    Double,
    Float,
    Integer,
    JsonSchema,
    Long,
    Map,
    Null,
    ProtobufNativeSchema,
    Record,
    String,
)


class Col(Enum):
    red = 1
    green = 2


class Word(Enum):
    a = "b"
    b = "a"
    c = "z"


class Sub(Record):
    i = Integer()
    s = String()


class R(Record):
    i = Integer()
    lo = Long()
    f = Float()
    d = Double()
    bo = Boolean()
    by = Bytes()
    s = String(default="dd")
    n = Null()
    ai = Array(Integer())
    aa = Array(Array(Integer()))
    m = Map(Integer())
    e = Col
    sub = Sub()
    subs = Array(Sub())
    req = Array(Integer(), required=True)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("i", "x", "Invalid type '<class 'str'>' for field 'i'. Expected: int"),
        ("i", True, "Invalid type '<class 'bool'>' for field 'i'. Expected: int"),
        ("bo", 1, "Invalid type '<class 'int'>' for field 'bo'. Expected: bool"),
        ("d", "x", "Invalid type '<class 'str'>' for field 'd'. Expected: (<class 'float'>, <class 'int'>)"),
        ("s", 5, "Invalid type '<class 'int'>' for field 's'. Expected a string"),
        ("s", bytearray(b"x"), "Invalid type '<class 'bytearray'>' for field 's'. Expected a string"),
        ("by", 1, "Invalid type '<class 'int'>' for field 'by'. Expected: bytes"),
        ("n", 1, "Field n is set to be None"),
        ("ai", (1,), "Invalid type '<class 'tuple'>' for field 'ai'. Expected: list"),
        ("ai", [1, "x"], "Array field ai items should all be of type int: item 1 is 'x'"),
        ("ai", [None], "Array field ai items should all be of type int: item 0 is None"),
        ("aa", [[1], [2, "x"]], "Array field aa[1] items should all be of type int: item 1 is 'x'"),
        ("m", [], "Invalid type '<class 'list'>' for field 'm'. Expected: dict"),
        ("m", {"k": "x"}, "Map values for field m should all be of type int: item 'k' is 'x'"),
        ("m", {1: 1}, "Map keys for field m  should all be strings: one is 1"),
        ("e", "blue", "Invalid enum value 'blue' for field 'e'. Expected: dict_keys(['red', 'green'])"),
        ("e", 3, "Invalid enum value '3' for field 'e'. Expected: dict_keys([1, 2])"),
        ("e", 1.0, "Invalid type '<class 'float'>' for field 'e'. Expected: Col"),
        ("sub", 5, "Invalid type '<class 'int'>' for sub-record field 'sub'. Expected: Sub"),
        ("req", None, "Invalid type '<class 'NoneType'>' for field 'req'. Expected: list"),
    ],
)
def test_wrong_values(name: str, value: object, text: str) -> None:
    for assign in (lambda: R(**{name: value}), lambda: setattr(R(), name, value)):
        with pytest.raises(TypeError) as raised:
            assign()
        assert str(raised.value) == text


@pytest.mark.parametrize(
    ("name", "value"),
    [("i", 2**31), ("i", -(2**31) - 1), ("lo", 2**63), ("f", 1e300), ("d", 10**400), ("ai", [2**31])],
)
def test_numbers_out_of_range_name_the_field(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"field '{name}"):
        R(**{name: value})


def test_promotions() -> None:
    record: Any = R(f=1, d=2, by="é", s=b"ab", e="red")
    assert (record.f, record.d, record.by, record.s, record.e) == (1, 2, b"\xc3\xa9", "ab", Col.red)
    record.e = 2
    record.by = memoryview(b"x")
    assert (record.e, record.by) == (Col.green, b"x")
    record.s = None
    assert record.s == "dd"


def test_a_dict_becomes_a_record_in_the_constructor_alone() -> None:
    record: Any = R(sub={"i": 1}, subs=[{"i": 2}])
    assert (record.sub, record.subs) == (Sub(i=1), [Sub(i=2)])
    with pytest.raises(TypeError, match=r"Expected: Sub"):
        record.sub = {"i": 1}
    with pytest.raises(TypeError, match=r"field 'sub\.i'"):
        R(sub={"i": "x"})
    with pytest.raises(TypeError, match=r"field 'subs\[0\]\.i'"):
        R(subs=[{"i": "x"}])


def test_undeclared_names() -> None:
    with pytest.raises(TypeError, match="Sub has no field 'zz'; its fields are: i, s"):
        Sub(zz=1)
    with pytest.raises(TypeError, match="Sub has no field 'zz'"):
        R(sub={"zz": 1})
    with pytest.raises(AttributeError, match="Cannot set undeclared field zz on record"):
        Sub().zz = 1


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Integer(default="x"), "for field 'default'"),
        (lambda: Array(Integer(), default=[1, "x"]), "Array field default items"),
        (lambda: Null(default=1), "Field default is set to be None"),
        (lambda: Bytes(default=1), "for field 'default'"),
        (lambda: Sub(default=5), "sub-record field 'default'"),
        (lambda: Sub(5), "sub-record field 'default'"),
        (lambda: Array(Integer), "Argument Integer is not a Record or a Field"),
        (lambda: Array("x"), "Argument x is not a Record or a Field"),
        (lambda: Map(int), "Argument int is not a Record or a Field"),
        (lambda: CustomEnum(int), "is not a valid Enum type"),  # type: ignore[arg-type]
        (lambda: CustomEnum("x"), "x is not a valid Enum type"),  # type: ignore[arg-type]
        (lambda: type("X", (Record,), {"f": int}), r"Field f of X is no field: write Long\(\)"),
        (lambda: type("X", (Record,), {"f": list[int]}), r"Field f of X is no field: write Array\("),
        (lambda: type("X", (Record,), {"f": Integer}), r"Field f of X is a class: write Integer\(...\)"),
        (lambda: JsonSchema(dict), "needs a Record class, a dataclass or a pydantic model"),
        (lambda: JsonSchema(list[int]), "needs a Record class, a dataclass or a pydantic model"),
        (lambda: ArrowSchema(set[int]), "needs a pa.Schema, a dataclass or a pydantic model"),
        (lambda: ProtobufNativeSchema(list[int]), "must be a protobuf Message subclass"),
        (lambda: JsonSchema(None), "needs a Record class, a dataclass or a pydantic model"),
    ],
)
def test_wrong_declarations(make: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        make()


def test_fields_are_inherited() -> None:
    class Base(Record):
        a = Integer()

    class Derived(Base):
        b = Integer()

    assert [field["name"] for field in Derived.schema()["fields"]] == ["a", "b"]
    obj = Derived(a=1, b=2)
    assert AvroSchema(Derived).decode(AvroSchema(Derived).encode(obj)) == obj
    assert JsonSchema(Base).encode(obj) == b'{\n "a": 1\n}'


def test_instances_share_nothing() -> None:
    class P(Record):
        sub = Sub()
        items = Array(Integer(), default=[1])

    one: Any = P()
    one.sub.i = 5
    one.items.append(2)
    other: Any = P()
    assert (other.sub.i, other.items) == (None, [1])


def test_equality() -> None:
    class SameFields(Record):
        i = Integer()
        s = String()

    class FewerFields(Record):
        i = Integer()

    assert Sub(i=1) == SameFields(i=1)
    assert Sub(i=1) != Sub(i=2)
    assert Sub(i=1) != FewerFields(i=1)
    assert FewerFields(i=1) != Sub(i=1)
    assert Sub() != None  # noqa: E711
    assert Sub() != 5
    with pytest.raises(TypeError, match="unhashable"):
        hash(Sub())


def test_how_a_record_prints() -> None:
    assert str(Sub(i=1)) == (
        "{'_required_default': False, '_default': None, '_required': False, 'i': 1, 's': None}"
    )
    assert repr(Sub(i=1)) == "Sub(i=1, s=None)"


def test_fields_may_be_called_like_settings_and_methods() -> None:
    class Odd(Record):
        default = Integer()  # type: ignore[assignment]
        required = String()  # type: ignore[assignment]
        type = String()  # type: ignore[assignment]
        schema = Integer()  # type: ignore[assignment]

    class Outer(Record):
        odd = Odd()

    obj = Outer(odd=Odd(default=1, required="x", type="t", schema=2))
    for schema in (AvroSchema(Outer), JsonSchema(Outer)):
        assert schema.decode(schema.encode(obj)) == obj


def test_a_required_field_without_a_value_cannot_be_sent() -> None:
    class Inner(Record):
        a = Integer(required=True)

    class Outer(Record):
        inner = Inner()

    for schema in (AvroSchema(Outer), JsonSchema(Outer)):
        with pytest.raises(TypeError, match=r"Field 'inner\.a' of Inner is required and has no value"):
            schema.encode(Outer())


class D(Record):
    a = Integer(required=True)
    b = String(default="dd")
    sub = Sub()


def test_decoding_json_is_lenient_about_names() -> None:
    schema = JsonSchema(D)
    assert schema.decode(b"{}") == schema.decode(b'{"x": 1, "sub": {"y": 2}, "_default": 1}')
    assert schema.decode(b'{"a": 1, "a": 2, "b": null}') == D(a=2)
    assert schema.decode(b'{"sub": null}').sub is None
    for bad in (b'{"a": null}', b'{"a": "x"}', b'{"a": 1.0}', b"[1]", b"5", b"null", b'"x"'):
        with pytest.raises(TypeError):
            schema.decode(bad)
    with pytest.raises(TypeError, match=r"D\(\) argument after \*\* must be a mapping, not list"):
        schema.decode(b"[1]")
    with pytest.raises(json.JSONDecodeError, match="Expecting value: line 1 column 1"):
        schema.decode(b"")


def test_wrong_objects_are_refused() -> None:
    for schema in (AvroSchema(D), JsonSchema(D)):
        for wrong in ({"a": 1}, "x", None, Sub()):
            with pytest.raises(TypeError, match=r"Invalid record obj of type .* - expected type is"):
                schema.encode(wrong)


class Number(IntEnum):
    one = 1


class Share(Enum):
    half = 0.5


class Odd(Enum):
    pair = (1, 2)
    nothing = None
    yes = True
    raw = b"x"
    many = [1]  # noqa: RUF012 - a member


class Enums(Record):
    w = Word
    ws = Array(Word)
    number = CustomEnum(Number)
    share = CustomEnum(Share)


def test_enums_come_back() -> None:
    obj = Enums(w=Word.a, ws=[Word.b, Word.c], number=1, share="half")
    for schema in (JsonSchema(Enums), JsonSchema(Enums, java=True), AvroSchema(Enums)):
        assert schema.decode(schema.encode(obj)) == obj
    assert JsonSchema(Enums).decode(b'{"w": "c"}').w == Word.c


def test_members_whose_values_json_lacks_go_by_their_names() -> None:
    record = type("Odds", (Record,), {"one": CustomEnum(Odd), "all": Array(CustomEnum(Odd))})
    for schema in (JsonSchema(record), JsonSchema(record, java=True), AvroSchema(record)):
        for member in Odd:
            obj = record(one=member, all=list(Odd))
            assert schema.decode(schema.encode(obj)) == obj


def test_java_has_base64_and_names() -> None:
    class J(Record):
        by = Bytes()
        bs = Array(Bytes())
        e = Col

    java = JsonSchema(J, java=True)
    assert java.decode(b'{"by": "/wE=", "bs": ["YWI="], "e": "green"}') == J(
        by=b"\xff\x01", bs=[b"ab"], e=Col.green
    )
    assert json.loads(java.encode(J(by=b"ab", e=Col.red))) == {"by": "YWI=", "bs": None, "e": "red"}
    with pytest.raises(ValueError, match="field 'by' is not base64"):
        java.decode(b'{"by": "?"}')


def test_numbers_that_json_lacks() -> None:
    class N(Record):
        ds = Array(Double())

    with pytest.raises(ValueError, match=r"nan in field 'ds\[1\]'"):
        JsonSchema(N).encode(N(ds=[1.0, float("nan")]))
    assert AvroSchema(N).decode(AvroSchema(N).encode(N(ds=[float("inf")]))).ds == [float("inf")]


@pytest.mark.parametrize("schema", [JsonSchema(R), JsonSchema(R, java=True), AvroSchema(R)])
@pytest.mark.parametrize(
    ("field", "changed", "says"),
    [
        ("aa", lambda aa: aa[0].append("x"), r"aa\[0\] items should all be of type int: item 1 is 'x'"),
        ("aa", lambda aa: aa.append(None), r"aa items should all be of type array: item 1 is None"),
        ("m", lambda m: m.update({5: 1}), "Map keys for field m  should all be strings: one is 5"),
        ("m", lambda m: m.update(k="x"), "Map values for field m should all be of type int: item 'k' is 'x'"),
        ("subs", lambda subs: subs.append("x"), "subs items should all be of type Sub: item 1 is 'x'"),
        ("req", lambda req: req.append(True), "req items should all be of type int: item 1 is True"),
    ],
)
def test_what_was_put_into_a_list_or_map_later_is_checked_when_it_is_sent(
    schema: Any, field: str, changed: Any, says: str
) -> None:
    obj = R(aa=[[1]], m={"a": 1}, subs=[Sub(i=1)], req=[1])
    schema.encode(obj)
    changed(getattr(obj, field))
    with pytest.raises(TypeError, match=says):
        schema.encode(obj)


def test_one_class_may_lie_in_several_namespaces() -> None:
    class Inner(Record):
        _avro_namespace = "a.b"
        e = Col
        sub = Sub()

    class Other(Record):
        _avro_namespace = "c.d"
        e = Col
        sub = Sub()
        again = Sub()

    class Outer(Record):
        inner = Inner()
        other = Other()
        e = Col
        sub = Sub()

    member = next(iter(Col))
    sent = Outer(inner=Inner(e=member, sub=Sub(i=1)), other=Other(again=Sub(i=2)), e=member, sub=Sub(i=3))
    for schema in (JsonSchema(Outer), AvroSchema(Outer)):
        AvroSchema(None, json.loads(schema.schema_info().schema()))
        assert schema.decode(schema.encode(sent)) == sent
    assert Outer.schema()["fields"][1]["type"][1]["fields"][2]["type"] == ["null", "Sub"]


def test_two_classes_of_one_name_are_refused_unless_they_are_the_same() -> None:
    def colour(*names: str) -> Any:
        return Enum("Colour", list(names))

    class Same(Record):
        a = colour("red", "green")
        b = colour("red", "green")

    class Differ(Record):
        a = colour("red", "green")
        b = colour("red", "blue")

    for kind in (JsonSchema, AvroSchema):
        kind(Same)
        with pytest.raises(TypeError, match="Two classes are called Colour"):
            kind(Differ)


VALUES = st.fixed_dictionaries(
    {},
    optional={
        "i": st.integers(-(2**31), 2**31 - 1),
        "lo": st.integers(-(2**63), 2**63 - 1),
        "f": st.floats(
            width=32, allow_nan=False, allow_infinity=False, max_value=2.0**100, min_value=-(2.0**100)
        ),
        "d": st.floats(allow_nan=False, allow_infinity=False),
        "bo": st.booleans(),
        "by": st.binary(),
        "s": st.text(st.characters(exclude_categories=["Cs"])),
        "aa": st.lists(st.lists(st.integers(-(2**31), 2**31 - 1))),
        "m": st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 9)),
        "e": st.sampled_from(Col),
        "subs": st.lists(st.builds(Sub, i=st.integers(0, 9))),
    },
)


@given(VALUES)
def test_all_values_come_back(values: dict[str, Any]) -> None:
    obj = R(**values, req=[1])
    for schema in (JsonSchema(R), JsonSchema(R, java=True), AvroSchema(R)):
        assert schema.decode(schema.encode(obj)) == obj
