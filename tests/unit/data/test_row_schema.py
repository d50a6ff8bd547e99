from __future__ import annotations

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.data.reading.typed_values import TopicVersions, TypedValues
from pulsar_ray.data.writing.row_schema import row_schema
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.topic_schema import TopicSchema, version_bytes
from pulsar_ray.schema import AvroSchema, BytesSchema

ROWS = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("small", pa.int16()),
        ("at", pa.timestamp("ms", "Europe/Berlin")),
        ("day", pa.date32()),
        ("data", pa.binary()),
        ("parts", pa.list_(pa.struct([("x", pa.float32()), ("counts", pa.map_(pa.utf8(), pa.int32()))]))),
    ]
)
VALUES: list[dict[str, Any] | None] = [
    {
        "id": 1,
        "small": -3,
        "at": datetime(2026, 1, 2, 3, 4, 5, 6000, timezone.utc),
        "day": date(1900, 1, 1),
        "data": b"\0\xff",
        "parts": [{"x": 0.5, "counts": [("a", 1)]}, None],
    },
    None,
    {"id": 2, "small": None, "at": None, "day": None, "data": None, "parts": []},
]


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_payloads_of_rows_are_read_as_the_same_columns(kind: str) -> None:
    schema = row_schema(kind, ROWS)
    assert schema is not None
    made = schema.made(pa.table({"value": pa.array(VALUES, ROWS), "key": ["a", "b", "c"]}))
    assert made.column("key").to_pylist() == ["a", "b", "c"]
    values = TypedValues("t", TopicVersions(schema.registered, {0: schema.registered}))
    payloads = made.column("value").combine_chunks()
    payloads = payloads if isinstance(payloads, pa.Array) else payloads.chunk(0)
    found, reasons = values.decode(payloads, pa.array([version_bytes(0)] * 3, pa.binary()))
    assert (found.to_pylist(), reasons) == (VALUES, {})
    assert found.type.field("at").type == pa.timestamp("us", "UTC")


def test_decimals_are_for_avro() -> None:
    rows = pa.struct([("price", pa.decimal128(9, 2))])
    schema = row_schema("avro", rows)
    assert schema is not None
    made = schema.made(pa.table({"value": pa.array([{"price": Decimal("-1.25")}], rows)}))
    values = TypedValues("t", TopicVersions(schema.registered, {0: schema.registered}))
    found, _ = values.decode(made.column("value").chunk(0), pa.array([version_bytes(0)], pa.binary()))
    assert found.to_pylist() == [{"price": Decimal("-1.25")}]
    with pytest.raises(InvalidConfiguration, match="column 'price' is a decimal"):
        row_schema("json", rows)


@pytest.mark.parametrize("kind", [pa.decimal128(5, -2), pa.decimal128(2, 5)])
def test_a_decimal_that_avro_has_not_is_named(kind: pa.DataType) -> None:
    with pytest.raises(InvalidConfiguration, match=r"column 'price' is of type decimal128.* cast it"):
        row_schema("avro", pa.struct([("price", kind)]))


def test_columns_that_may_be_null_can_be_added_and_removed_later() -> None:
    schema = row_schema("avro", pa.struct([pa.field("a", pa.int32(), nullable=False), ("b", pa.utf8())]))
    assert schema is not None
    assert json.loads(schema.registered.text)["fields"] == [
        {"name": "a", "type": "int"},
        {"name": "b", "type": ["null", "string"], "default": None},
    ]


@pytest.mark.parametrize(
    ("given", "kind", "reason"),
    [
        (None, ROWS, "give schema='avro', 'json' or 'arrow'"),
        ("avro", pa.utf8(), "is of rows, and value is of type string"),
        ("thrift", ROWS, "give 'avro', 'json' or 'arrow'"),
        (BytesSchema(), pa.binary(), "give 'avro', 'json' or 'arrow'"),
        (TopicSchema("AVRO", "{}"), ROWS, "has to be payloads"),
        ("avro", pa.struct([("a b", pa.int64())]), "column 'a b' has no name"),
        ("avro", pa.struct([("a", pa.struct([("t", pa.time64("us"))]))]), "column 'a_t' is of type time64"),
        ("json", pa.struct([]), "has no columns"),
    ],
)
def test_values_without_a_schema_of_that_kind_are_refused(
    given: object, kind: pa.DataType, reason: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=reason):
        row_schema(given, kind)


def test_bytes_have_none_and_payloads_that_of_the_schema_object() -> None:
    assert row_schema(None, pa.binary()) is None
    definition = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    schema = row_schema(AvroSchema(None, definition), pa.binary())
    assert schema is not None
    assert json.loads(schema.registered.text) == definition
    table = pa.table({"value": pa.array([b"\2"])})
    assert schema.made(table).column("value").to_pylist() == [b"\2"]


def test_a_value_that_its_schema_cannot_take_is_refused_in_words() -> None:
    rows = pa.struct([("x", pa.float64())])
    schema = row_schema("json", rows)
    assert schema is not None
    with pytest.raises(ValueError, match="a value does not fit the schema: ValueError"):
        schema.made(pa.table({"value": pa.array([{"x": float("nan")}], rows)}))
