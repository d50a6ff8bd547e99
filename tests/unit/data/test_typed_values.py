from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from enum import Enum
from io import BytesIO
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer

from pulsar_ray.data.reading.avro_values import CORRUPT_COLUMN
from pulsar_ray.data.reading.rows import StoredRows
from pulsar_ray.data.reading.typed_values import (
    REASON_COLUMN,
    TopicVersions,
    TypedValues,
    typed_batches,
)
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.format.arrow_types import schema_text
from pulsar_ray.format.metadata import BlockMetadata
from pulsar_ray.format.payload import decode_block, encode_batch, encode_rows, encode_single
from pulsar_ray.model.topic_schema import TopicSchema, version_bytes
from pulsar_ray.schema import JsonSchema


def record(*fields: dict[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def avro(definition: Any, value: Any) -> bytes:
    stream = BytesIO()
    schemaless_writer(stream, parse_schema(definition), value)
    return stream.getvalue()


def typed(*definitions: Any, kind: str = "AVRO", java: bool = False) -> TypedValues:
    properties = {"__alwaysAllowNull": "true"} if java else {}
    schemas = [TopicSchema(kind, json.dumps(each), properties) for each in definitions]
    return TypedValues("orders", TopicVersions(schemas[-1], dict(enumerate(schemas))))


def decoded(values: TypedValues, *written: tuple[int | bytes | None, bytes | None]) -> tuple[list[Any], Any]:
    versions = [version_bytes(version) if isinstance(version, int) else version for version, _ in written]
    payloads = pa.array([payload for _, payload in written], pa.binary())
    found, reasons = values.decode(payloads, pa.array(versions, pa.binary()))
    found.validate(full=True)
    assert found.type == values.type
    return found.to_pylist(), reasons


EVERY_TYPE = record(
    field("int", "int"),
    field("long", "long"),
    field("float", "float"),
    field("double", "double"),
    field("string", "string"),
    field("bytes", "bytes"),
    field("boolean", "boolean"),
    field("kind", {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}),
    field("array", {"type": "array", "items": "int"}),
    field("map", {"type": "map", "values": "long"}),
    field("place", record(field("x", "double"), field("of", ["null", "Kind"]), name="Place")),
    field("union", ["null", "string"], default=None),
    field("millis", {"type": "long", "logicalType": "timestamp-millis"}),
    field("micros", {"type": "long", "logicalType": "timestamp-micros"}),
    field("day", {"type": "int", "logicalType": "date"}),
    field("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    field("id", {"type": "string", "logicalType": "uuid"}),
)
TYPES = {
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.utf8(),
    "bytes": pa.binary(),
    "boolean": pa.bool_(),
    "kind": pa.utf8(),
    "array": pa.list_(pa.int32()),
    "map": pa.map_(pa.utf8(), pa.int64()),
    "place": pa.struct([("x", pa.float64()), ("of", pa.utf8())]),
    "union": pa.utf8(),
    "millis": pa.timestamp("us", "UTC"),
    "micros": pa.timestamp("us", "UTC"),
    "day": pa.date32(),
    "price": pa.decimal128(9, 2),
    "id": pa.utf8(),
}
ID = "b7d8f2b0-0000-4000-8000-000000000000"
MILLIS = datetime(1969, 12, 31, 23, 59, 59, 500_000, timezone.utc)
MICROS = datetime(2500, 1, 1, 0, 0, 0, 1, timezone.utc)
VALUE = {
    "int": -(2**31),
    "long": 2**62,
    "float": 0.5,
    "double": -1e300,
    "string": "ä\n\U0001f511",
    "bytes": b"\0\xff",
    "boolean": True,
    "kind": "OLD",
    "array": [1, 2],
    "map": [("a", 1)],
    "place": {"x": 0.25, "of": "NEW"},
    "union": None,
    "millis": MILLIS,
    "micros": MICROS,
    "day": date(1900, 1, 1),
    "price": Decimal("-12.34"),
    "id": ID,
}


def test_every_type_of_avro_has_a_column() -> None:
    values = typed(EVERY_TYPE)
    assert values.type == pa.struct(list(TYPES.items()))
    payload = avro(EVERY_TYPE, {**VALUE, "map": {"a": 1}, "id": UUID(ID)})
    assert decoded(values, (0, payload), (0, None)) == ([VALUE, None], {})


@pytest.mark.parametrize("java", [False, True])
def test_every_type_of_json_has_the_same_column(java: bool) -> None:
    written = {
        **VALUE,
        "map": {"a": 1},
        "bytes": "AP8=" if java else "\0\udcff",
        "millis": -500,
        "micros": (MICROS - datetime(1970, 1, 1, tzinfo=timezone.utc)).days * 86_400_000_000 + 1,
        "day": -25567,
        "price": -12.34,
        "extra": [{}],
    }
    values = typed(EVERY_TYPE, kind="JSON", java=java)
    assert decoded(values, (0, json.dumps(written, indent=1).encode())) == ([VALUE], {})


class Kind(Enum):
    NEW = 1
    OLD = 2


@dataclass
class Line:
    item: str
    count: int = 1


@dataclass
class Order:
    lines: list[Line]
    kind: Kind
    paid: datetime
    data: bytes


def test_json_of_classes_is_read_as_they_write_it() -> None:
    schema = JsonSchema(Order)
    registered = schema.registered()
    assert registered is not None
    values = TypedValues("orders", TopicVersions(registered, {3: registered}))
    order = Order([Line("pen"), Line("ink", 2)], Kind.OLD, MICROS, b"\xff")
    (found,), reasons = decoded(values, (3, schema.encode(order)))
    assert reasons == {}
    # The registry knows the names of an enum, and Python writes its values.
    lines = [{"item": "pen", "count": 1}, {"item": "ink", "count": 2}]
    assert found == {"lines": lines, "kind": "2", "paid": MICROS, "data": b"\xff"}


OLD = record(field("id", "int"), field("gone", "string"), field("at", record(field("x", "int"), name="P")))
MIDDLE = record(
    field("id", "long"), field("at", record(field("x", "int"), name="Q")), field("n", "int", default=7)
)
NEW = record(
    field("key", "long", aliases=["id"]),
    field("at", record(field("x", "double"), field("y", "double", default=0.5), name="P")),
    field("n", "int", default=8),
    field("note", ["null", "string"], default=None),
    field("tags", {"type": "array", "items": "string"}, default=["a"]),
    field("more", record(field("z", "bytes"), name="M"), default={"z": "\xff"}),
    field("either", ["string", "null"], default="e"),
)
ADDED = {"note": None, "tags": ["a"], "more": {"z": b"\xff"}, "either": "e"}
NOW = {
    "key": 3,
    "at": {"x": 3.5, "y": 4.5},
    "n": 9,
    "note": "n",
    "tags": [],
    "more": {"z": b""},
    "either": None,
}
ROWS = [
    {"key": 1, "at": {"x": 1.0, "y": 0.5}, "n": 8, **ADDED},
    {"key": 2, "at": {"x": 2.0, "y": 0.5}, "n": 5, **ADDED},
    NOW,
]


def test_versions_of_avro_in_one_read_have_the_newest_columns_and_its_defaults() -> None:
    payloads = [
        (0, avro(OLD, {"id": 1, "gone": "g", "at": {"x": 1}})),
        (1, avro(MIDDLE, {"id": 2, "at": {"x": 2}, "n": 5})),
        (2, avro(NEW, NOW)),
    ]
    mixed = [payloads[2], (None, None), payloads[0], payloads[1], payloads[0]]
    values = typed(OLD, MIDDLE, NEW)
    assert decoded(values, *mixed) == ([ROWS[2], None, ROWS[0], ROWS[1], ROWS[0]], {})


@pytest.mark.parametrize("java", [False, True])
def test_versions_of_json_in_one_read_have_the_newest_columns_and_its_defaults(java: bool) -> None:
    payloads = [
        (0, b'{"id": 1, "gone": "g",\n "at": {"x": 1}}'),
        (1, b'{"n": 5, "at": {"x": 2}, "id": 2}'),
        (2, json.dumps({**NOW, "more": {"z": ""}}).encode()),
    ]
    assert decoded(typed(OLD, MIDDLE, NEW, kind="JSON", java=java), *payloads) == (ROWS, {})


def test_what_does_not_fit_is_null_with_a_reason_and_leaves_others_alone() -> None:
    one = record(field("a", "long"), field("kind", {"type": "enum", "name": "K", "symbols": ["A", "B"]}))
    other = record(field("a", "long"), field("kind", {"type": "enum", "name": "K", "symbols": ["A"]}))
    good = avro(other, {"a": 5, "kind": "A"})
    found, reasons = decoded(
        typed(one, other),
        (1, good),
        (1, b""),
        (1, good + b"\0"),
        (0, avro(one, {"a": 6, "kind": "B"})),
        (0, avro(one, {"a": 7, "kind": "A"})),
        (9, good),
        (b"odd", good),
        (None, good),
        (None, b"\xff" * 40),
    )
    assert [row and row["a"] for row in found] == [5, None, None, None, 7, None, None, 5, None]
    assert sorted(reasons) == [1, 2, 3, 5, 6, 8]
    assert "version 1: " in reasons[1]
    assert "1 bytes follow the value" in reasons[2]
    assert "version 0: ValueError: kind is 'B', which is no symbol" in reasons[3]
    assert reasons[5] == "version 9: the topic has no schema of that number, or it was deleted by force"
    assert "none that a registry gives" in reasons[6]
    assert reasons[8].startswith("without a version, read by the newest: ")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"{",
        b'{"a":1}{"a":2}',
        b'{"a":1},"n":0}\n{"v":{"a":2}',
        b'{"a":1},"x":{"a":2}',
        b'{"a":"x',
        b'{"a":true}',
        b'{"a":1.5}',
        b'{"a":99999999999999999999}',
        b'{"a":null}',
        b'{"a":1,"t":"\xff"}',
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_damaged_json_moves_no_other_value(payload: bytes) -> None:
    values = typed(record(field("a", "long"), field("t", ["null", "string"], default=None)), kind="JSON")
    written = [(0, b'{"a":%d}' % number) for number in range(9)]
    written[4] = (0, payload)
    found, reasons = decoded(values, *written)
    assert list(reasons) == [4]
    assert [row and row["a"] for row in found] == [0, 1, 2, 3, None, 5, 6, 7, 8]


def test_fields_of_json_that_its_version_does_not_know_are_left_out() -> None:
    values = typed(record(field("a", "long"), field("t", ["null", "string"], default=None)), kind="JSON")
    written = [(0, b'{"a":1,"x":{"a":2}}'), (0, b'{"a":2,"t":"t","x":[5]}'), (0, b'{"a":3,"t":"u"}')]
    found, reasons = decoded(values, *written)
    assert (found, reasons) == ([{"a": 1, "t": None}, {"a": 2, "t": "t"}, {"a": 3, "t": "u"}], {})


def test_a_decimal_that_avro_has_not_is_a_reason() -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 5}
    _, reasons = decoded(typed(record(field("a", kind))), (0, b"\x04xx"))
    assert "its schema is none of Avro: decimal scale must be" in reasons[0]


@pytest.mark.parametrize(
    ("old", "reason"),
    [
        (record(field("a", "string")), "a was written as string, and is now long"),
        (record(field("b", "string")), "a is new, and has no default"),
        (record(field("a", ["int", "string"])), "a: a union of 2 types has no one type of a column"),
    ],
)
def test_versions_that_cannot_become_the_newest_say_why(old: Any, reason: str) -> None:
    new = record(field("a", "long"))
    found, reasons = decoded(typed(old, new), (0, b"\2"), (1, avro(new, {"a": 4})))
    assert found == [None, {"a": 4}]
    assert reasons == {0: f"version 0: {reason}"}


def test_types_without_columns_matter_only_where_they_are_read() -> None:
    node = record(field("a", "long"), field("next", ["null", "Order"], default=None))
    wide = record(
        field("a", "long"), field("u", ["null", "int", "string", *([{"type": "map", "values": "int"}])])
    )
    new = record(field("a", "long"))
    payloads = [
        (0, avro(node, {"a": 1, "next": {"a": 2, "next": None}})),
        (1, avro(wide, {"a": 3, "u": "x"})),
    ]
    assert decoded(typed(node, wide, new), *payloads) == ([{"a": 1}, {"a": 3}], {})
    for definition, reason in ((node, "next: Order holds itself"), (wide, "u: a union of 4 types")):
        with pytest.raises(InvalidConfiguration, match=f"orders has no columns: {reason}"):
            typed(definition)


@pytest.mark.parametrize(
    ("kind", "payload", "value", "wrong"),
    [
        ("STRING", "ä".encode(), "ä", b"\xff"),
        ("INT8", b"\xff", -1, b""),
        ("INT64", b"\0" * 7 + b"\2", 2, b"\0"),
        ("DOUBLE", b"\x3f\xe0" + b"\0" * 6, 0.5, b"\0" * 9),
    ],
)
def test_plain_types_are_a_column_without_fields(kind: str, payload: bytes, value: Any, wrong: bytes) -> None:
    schema = TopicSchema(kind, "")
    values = TypedValues("t", TopicVersions(schema, {0: schema}))
    found, reasons = decoded(values, (0, payload), (0, wrong), (0, None))
    assert found == [value, None, None]
    assert list(reasons) == [1]


@pytest.mark.parametrize("text", ["{", "[]", '"Thing"', '{"type": "record", "name": "R"}', "3"])
def test_texts_that_are_no_definitions_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="the schema of t has no columns"):
        TypedValues("t", TopicVersions(TopicSchema("AVRO", text), {}))


def columnar(first: int, rows: pa.Array, version: int) -> StoredRows:
    payload, columns = encode_rows(rows)
    buffers = encode_batch(
        payload,
        columns,
        message_count=len(rows),
        incarnation=1,
        entry_seq=first,
        first_sequence_id=first,
        last_sequence_id=first + len(rows) - 1,
        publish_time_ms=1,
        metadata=BlockMetadata(schema_version=version_bytes(version)),
    )
    return StoredRows(decode_block(b"".join(buffers)), 5, first, 0, len(rows))


def alone(first: int, payload: bytes | None, version: int) -> StoredRows:
    buffers = encode_single(
        payload,
        incarnation=1,
        entry_seq=first,
        sequence_id=first,
        publish_time_ms=1,
        metadata=BlockMetadata(schema_version=version_bytes(version)),
    )
    return StoredRows(decode_block(b"".join(buffers)), 5, first, 0, 1)


def test_rows_stored_by_column_are_read_as_the_newest_columns() -> None:
    first = pa.schema([("id", pa.int32()), ("gone", pa.utf8())])
    second = pa.schema(
        [
            ("id", pa.int64()),
            ("state", pa.dictionary(pa.int8(), pa.utf8())),
            ("at", pa.timestamp("ns")),
            ("parts", pa.list_(pa.struct([("n", pa.uint32()), ("day", pa.date64())]))),
        ]
    )
    schemas = {number: TopicSchema("ARROW", schema_text(each)) for number, each in enumerate((first, second))}
    typed = TypedValues("rows", TopicVersions(schemas[1], schemas))
    assert typed.type == pa.struct(
        [
            ("id", pa.int64()),
            ("state", pa.utf8()),
            ("at", pa.timestamp("us", "UTC")),
            ("parts", pa.list_(pa.struct([("n", pa.int64()), ("day", pa.date32())]))),
        ]
    )
    new = {"id": 3, "state": "x", "at": 1_000_001_001, "parts": [{"n": 4, "day": date(2026, 1, 2)}]}
    new_rows = pa.array([new, None], pa.struct(list(second)))
    payload = pa.RecordBatch.from_pylist([{"id": 9, "gone": "g"}], schema=first).serialize().to_pybytes()
    stored = [
        columnar(0, pa.array([{"id": 1, "gone": "g"}, {"id": 2, "gone": None}], pa.struct(list(first))), 0),
        columnar(2, new_rows, 1),
        alone(4, payload, 0),
        alone(5, b"damaged", 1),
        alone(6, None, 1),
        columnar(7, pa.array([{"id": "text"}], pa.struct([("id", pa.utf8())])), 1),
    ]
    (batch,) = typed_batches(stored, 0, 1 << 20, ("value", "entry_id"), typed)
    batch.validate(full=True)
    rows = batch.column("value").to_pylist()
    at = datetime(1970, 1, 1, 0, 0, 1, 1, timezone.utc)
    nothing = {"state": None, "at": None, "parts": None}
    assert rows[:2] == [{"id": 1, **nothing}, {"id": 2, **nothing}]
    assert rows[2:5] == [{**new, "at": at}, None, {"id": 9, **nothing}]
    assert rows[5:] == [None, None, None]
    assert batch.column(CORRUPT_COLUMN).to_pylist()[5] == b"damaged"
    reasons = batch.column(REASON_COLUMN).to_pylist()
    assert [*reasons[:5], reasons[6]] == [None] * 6
    assert reasons[5] == "version 1: MetadataCutOff: bad Arrow: IPC metadata is cut off"
    assert "column 'id' of type string cannot be made int64" in reasons[7]
