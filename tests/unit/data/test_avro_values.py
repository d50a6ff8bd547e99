from __future__ import annotations

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer

from pulsar_ray.data.reading.avro_values import AvroValues
from pulsar_ray.errors import InvalidConfiguration

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "before", "type": ["null", "shop.Kind"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {
            "name": "place",
            "type": {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "double"}]},
        },
    ],
}


def order(**changes: Any) -> dict[str, Any]:
    return {
        "id": 2**62,
        "note": None,
        "at": datetime(1969, 12, 31, 23, 59, 59, 500_000, timezone.utc),
        "day": date(1900, 1, 1),
        "price": Decimal("-12.34"),
        "kind": "OLD",
        "before": "NEW",
        "tags": ["ä", ""],
        "counts": {"a": 1},
        "hash": b"\0\xff",
        "uuid": "b7d8f2b0-0000-4000-8000-000000000000",
        "place": {"x": 0.5},
        **changes,
    }


def encoded(row: dict[str, Any]) -> bytes:
    stream = BytesIO()
    schemaless_writer(stream, parse_schema(ORDER), row)
    return stream.getvalue()


def test_values_are_structs_with_the_types_of_the_schema() -> None:
    avro = AvroValues(json.dumps(ORDER))
    late = order(note="n", at=datetime(2500, 1, 1, tzinfo=timezone.utc), tags=[], counts={})
    found, unread = avro.decode(pa.array([encoded(order()), None, encoded(late)], pa.binary()))
    found.validate(full=True)
    rows = found.to_pylist()
    assert rows[1] is None
    assert rows[0] == order(counts=[("a", 1)])
    assert rows[2] == {**late, "counts": []}
    assert unread.null_count == 3
    assert found.type.field("price").type == pa.decimal128(9, 2)
    assert found.type.field("at").type == pa.timestamp("us", tz="UTC")


def test_bytes_that_are_no_such_value_are_kept_as_they_are() -> None:
    avro = AvroValues(json.dumps(ORDER))
    good = encoded(order())
    wrong = [b"", b"\xff" * 40, good[:-1], good + b"\0"]
    found, unread = avro.decode(pa.array([*wrong, good], pa.binary()))
    assert found.to_pylist()[:4] == [None] * 4
    assert found.to_pylist()[4]["id"] == 2**62
    assert unread.to_pylist() == [*wrong, None]


def field(kind: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]})


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "is no Avro schema"),
        ('"thing"', "is no Avro schema"),
        ('"long"', "is no record"),
        (field(["int", "string"]), "only null and one other"),
        (field(["null", "R"]), "'R' holds itself"),
        (field({"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 0}), "40 digits"),
        (field({"type": "bytes", "logicalType": "decimal"}), "is no Avro schema: 'precision' is missing"),
        (field({"type": "bytes", "logicalType": "decimal", "precision": 0}), "is no Avro schema: precision"),
        ('{"type": "record", "name": "R"}', "is no Avro schema: 'fields' is missing"),
    ],
)
def test_schemas_without_column_types_are_refused(schema: str, reason: str) -> None:
    with pytest.raises(InvalidConfiguration, match=reason):
        AvroValues(schema)
