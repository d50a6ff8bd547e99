"""Schemas of rows as text, and columns as those of another schema."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.format.arrow_types import fitted, null_places, plain_type, schema_of, schema_text

KINDS = [
    pa.null(),
    pa.bool_(),
    pa.uint8(),
    pa.int64(),
    pa.float16(),
    pa.float64(),
    pa.string(),
    pa.large_binary(),
    pa.binary(7),
    pa.date32(),
    pa.time64("ns"),
    pa.timestamp("ms"),
    pa.timestamp("ns", "Europe/Berlin"),
    pa.duration("us"),
    pa.decimal128(12, 2),
    pa.decimal256(50, 3),
    pa.dictionary(pa.int16(), pa.string(), ordered=True),
    pa.list_(pa.field("element", pa.int8(), nullable=False)),
    pa.large_list(pa.string()),
    pa.list_(pa.float32(), 3),
    pa.struct(
        [pa.field("a", pa.int8(), nullable=False), pa.field("b", pa.list_(pa.struct([("c", pa.int8())])))]
    ),
    pa.map_(pa.string(), pa.field("value", pa.decimal128(5, 1), nullable=False)),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_schema_comes_back_from_its_text(kind: pa.DataType) -> None:
    schema = pa.schema([pa.field("x", kind), pa.field("y", kind, nullable=kind == pa.null())])
    assert schema_of(schema_text(schema)).equals(schema)


def test_metadata_are_no_part_of_a_schema() -> None:
    field = pa.field("x", pa.int64(), metadata={"a": "b"})
    assert schema_text(pa.schema([field], metadata={"pandas": "{}"})) == schema_text(
        pa.schema([("x", pa.int64())])
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "no list of fields"),
        ('{"fields": []}', "no list of fields"),
        ('{"fields": [{"name": "a"}]}', "is no field"),
        ('{"fields": [{"name": "a", "type": "int65"}]}', "column 'a': 'int65' is no type"),
        ('{"fields": [{"name": "a", "type": "decimal128(99, 1)"}]}', "column 'a'"),
        ('{"fields": [{"name": "a", "type": {"type": "list"}}]}', "column 'a'"),
        ('{"fields": [{"name": "a", "type": {"type": "union"}}]}', "column 'a'"),
        ('{"fields": [{"name": "a", "type": {}}]}', "column 'a'"),
        ('{"fields": [{"name": "a", "type": 7}]}', "column 'a'"),
        ('{"fields": [{"name": "a", "type": "null", "nullable": 1}]}', "nulls"),
        ('{"fields": [{"name": "a", "type": "null"}, {"name": "a", "type": "null"}]}', "'a' is there twice"),
    ],
)
def test_texts_that_describe_nothing_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        schema_of(text)


def test_types_nested_too_deep_are_refused() -> None:
    form: Any = "int8"
    for _ in range(100):
        form = {"type": "list", "item": {"name": "item", "type": form}}
    with pytest.raises(ValueError, match="deeper than 64"):
        schema_of(json.dumps({"fields": [{"name": "a", "type": form}]}))


@pytest.mark.parametrize(
    "kind",
    [pa.dense_union([pa.field("a", pa.int8())]), pa.string_view()] if hasattr(pa, "string_view") else [],
)
def test_types_that_are_not_sent_are_refused_with_their_place(kind: pa.DataType) -> None:
    with pytest.raises(ValueError, match=r"column 'x\[\]'"):
        schema_text(pa.schema([("x", pa.list_(kind))]))


@pytest.mark.parametrize(
    ("values", "source", "target"),
    [
        ([1, None], pa.int8(), pa.int64()),
        (["a", None, "a"], pa.string(), pa.dictionary(pa.int8(), pa.large_string())),
        (["a", None, "a"], pa.dictionary(pa.int32(), pa.string()), pa.string()),
        ([[1], None, [], [2, 3]], pa.list_(pa.int8()), pa.large_list(pa.int64())),
        ([[1, 2], None], pa.list_(pa.int8(), 2), pa.list_(pa.int64(), 2)),
        ([[("a", 1)], None, []], pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int32())),
        ([["a"], None], pa.list_(pa.dictionary(pa.int8(), pa.string())), pa.list_(pa.string())),
    ],
    ids=str,
)
@pytest.mark.parametrize("start", [0, 1])
def test_columns_become_wider(values: list[Any], source: Any, target: Any, start: int) -> None:
    column = pa.array(values, source).slice(start)
    found = fitted(column, pa.field("x", target), "x")
    found.validate(full=True)
    assert found.type == target
    assert found.to_pylist() == values[start:]


def test_parts_of_structs_come_and_go() -> None:
    source = pa.array(
        [{"a": 1, "gone": 2}, None, {"a": 3, "gone": 4}], pa.struct([("a", pa.int8()), ("gone", pa.int8())])
    )
    target = pa.struct([("new", pa.string()), ("a", pa.int64())])
    assert fitted(source.slice(1), pa.field("x", target), "x").to_pylist() == [None, {"new": None, "a": 3}]
    required = pa.struct([pa.field("new", pa.string(), nullable=False)])
    with pytest.raises(ValueError, match=r"column 'x.new' is missing"):
        fitted(source, pa.field("x", required), "x")
    with pytest.raises(ValueError, match=r"column 'x.a' of type string cannot be made int64"):
        fitted(pa.array([{"a": "z"}]), pa.field("x", target), "x")


def test_nulls_are_found_where_there_must_be_none() -> None:
    inner = pa.struct([pa.field("a", pa.int8(), nullable=False)])
    field = pa.field("x", pa.list_(inner))
    assert list(null_places(pa.array([[{"a": 1}], None, [None]], field.type), field, "x")) == []
    assert list(null_places(pa.array([[{"a": None}]], field.type), field, "x")) == [("x[].a", -1)]
    plain = pa.field("x", pa.int8(), nullable=False)
    assert list(null_places(pa.array([1, None]), plain, "x")) == [("x", 1)]
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None]))
    assert list(null_places(coded, pa.field("x", coded.type, nullable=False), "x")) == [("x", 1)]


def test_nulls_are_found_in_maps() -> None:
    field = pa.field("x", pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False)))
    nullable = pa.map_(pa.string(), pa.int8())

    def found(*maps: list[tuple[str, int | None]] | None, start: int = 0, end: int | None = None) -> Any:
        return list(null_places(pa.array(maps, nullable)[start:end], field, "x"))

    assert found([("a", 1)], None, []) == found(None) == found() == []
    assert found([("a", 1)], [("b", None)]) == found(None, [("b", None)]) == [("x{}", -1)]
    assert found([("a", None)], [("b", 1)], [("c", None)], start=1, end=2) == []
    nested = pa.field("x", pa.map_(pa.string(), field.type))
    assert list(null_places(pa.array([[("k", [("a", 1)])]], nested.type), nested, "x")) == []


def test_plain_types_have_no_dictionaries() -> None:
    kind = pa.struct(
        [
            ("a", pa.list_(pa.dictionary(pa.int8(), pa.string()))),
            ("b", pa.map_(pa.string(), pa.dictionary(pa.int8(), pa.int64()))),
        ]
    )
    assert plain_type(kind) == pa.struct(
        [("a", pa.list_(pa.string())), ("b", pa.map_(pa.string(), pa.int64()))]
    )
