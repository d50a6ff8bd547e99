"""Avro that may be nested without end: its levels are counted before fastavro's C code follows them."""

from __future__ import annotations

import io
import random
from typing import Any

import fastavro
import pytest

from pulsar_ray.schema import AutoSchema, AvroSchema
from pulsar_ray.schema.nested_avro import MOST_LEVELS, holds_itself, reader_of, writer_of

CHAIN = {"type": "record", "name": "Chain", "fields": [{"name": "next", "type": ["null", "Chain"]}]}
TREE = {
    "type": "record",
    "name": "Tree",
    "namespace": "a.b",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["X", "Y"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 3}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "weight", "type": ["null", "double", {"type": "array", "items": "float"}]},
        {"name": "is_leaf", "type": "boolean"},
        {"name": "kids", "type": {"type": "array", "items": "Tree"}},
        {"name": "named", "type": {"type": "map", "values": ["null", "Tree"]}},
        {"name": "again", "type": "Kind"},
    ],
}


def chain(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {"next": None}
    for _ in range(levels):
        value = {"next": value}
    return value


def tree(rng: random.Random, levels: int) -> dict[str, Any]:
    kids = [tree(rng, levels - 1) for _ in range(rng.randrange(3))] if levels else []
    return {
        "name": "n" * rng.randrange(200),
        "kind": rng.choice("XY"),
        "hash": b"abc",
        "at": rng.randrange(2**40),
        "weight": rng.choice([None, 1.5, [0.5] * rng.randrange(100)]),
        "is_leaf": not kids,
        "kids": kids,
        "named": {f"k{number}": rng.choice([None, *kids]) for number in range(rng.randrange(4))},
        "again": "Y",
    }


def test_which_definitions_hold_themselves() -> None:
    assert holds_itself(CHAIN)
    assert holds_itself(fastavro.parse_schema(TREE))
    used_twice = {"type": "record", "name": "B", "fields": [{"name": "x", "type": "int"}]}
    fields = [{"name": "b", "type": used_twice}, {"name": "c", "type": ["null", "B"]}]
    assert not holds_itself({"type": "record", "name": "A", "fields": fields})


def test_what_is_too_deep_to_be_written_is_refused() -> None:
    schema = AvroSchema(None, CHAIN)
    assert schema.decode(schema.encode(chain(900))) == chain(900)
    for value in (chain(2 * MOST_LEVELS), chain(100_000)):
        with pytest.raises(ValueError, match="more than 1000 levels, or holds itself: send it in parts"):
            schema.encode(value)
        while value["next"]:  # taken apart here, for else it would be by recursion
            value = value["next"]


@pytest.mark.parametrize("definition", [CHAIN, TREE], ids=["chain", "tree"])
def test_bytes_that_go_too_deep_are_an_error_and_no_crash(definition: dict[str, Any]) -> None:
    step = b"\x02" if definition is CHAIN else b"\x00\x00abc\x00\x00\x00\x02"
    schema = AvroSchema(None, definition)
    writer = schema.registered()
    for decode in (schema.decode, schema.reading(writer), AutoSchema().reading(writer)):
        with pytest.raises(ValueError, match="more than 1000 levels"):
            decode(step * 100_000)
        with pytest.raises((EOFError, IndexError)):
            decode(step * 100)


def test_large_values_come_back() -> None:
    parsed = fastavro.parse_schema(TREE)
    for seed in range(30):
        value = tree(random.Random(seed), 5)
        stream = io.BytesIO()
        writer_of(parsed)(stream, parsed, value)
        read = reader_of(parsed)(io.BytesIO(stream.getvalue()), parsed, None)
        own = fastavro.schemaless_reader(io.BytesIO(stream.getvalue()), parsed, None)
        assert read == own


def test_damage_ends_as_it_does_in_fastavro() -> None:
    parsed = fastavro.parse_schema(TREE)
    stream, rng = io.BytesIO(), random.Random(8)
    value = {**tree(rng, 0), "kids": [tree(rng, 3) for _ in range(20)]}
    fastavro.schemaless_writer(stream, parsed, value)
    data = stream.getvalue()
    assert len(data) > MOST_LEVELS
    for _ in range(500):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 5)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            expected = fastavro.schemaless_reader(io.BytesIO(damaged), parsed, None)
        except Exception:  # noqa: BLE001 - bytes of any kind lead fastavro anywhere
            with pytest.raises(Exception):  # noqa: B017
                reader_of(parsed)(io.BytesIO(damaged), parsed, None)
        else:
            assert repr(reader_of(parsed)(io.BytesIO(damaged), parsed, None)) == repr(expected)


def test_an_array_that_says_to_have_more_items_than_bytes_is_refused() -> None:
    parsed = fastavro.parse_schema(TREE)
    items = b"\x00\x00abc\x00\x00\x00" + b"\xfe\xff\xff\xff\x0f" + bytes(2000)
    with pytest.raises(ValueError, match="items in"):
        reader_of(parsed)(io.BytesIO(items), parsed, None)


NOTHING = {"type": "record", "name": "Nothing", "fields": [{"name": "n", "type": "null"}]}


@pytest.mark.parametrize(
    ("items", "item"),
    [("null", None), (NOTHING, {"n": None}), ({"type": "fixed", "name": "F", "size": 0}, b"")],
    ids=["null", "record", "fixed"],
)
def test_a_few_bytes_make_no_billions_of_items(items: Any, item: Any) -> None:
    fields = [{"name": "a", "type": {"type": "array", "items": items}}]
    schema = AvroSchema(None, {"type": "record", "name": "R", "fields": fields})
    writer = schema.registered()
    for decode in (schema.decode, schema.reading(writer), AutoSchema().reading(writer)):
        assert decode(schema.encode({"a": [item] * 1000})) == {"a": [item] * 1000}
        assert decode(b"\x02\x02\x00") == {"a": [item] * 2}, "blocks follow each other"
        with pytest.raises(ValueError, match="more than 1000000 items that take no bytes"):
            decode(b"\xfe\xff\xff\xff\x0f\x00")


def test_nulls_in_what_holds_itself_are_read() -> None:
    nulls = {"name": "nulls", "type": {"type": "array", "items": "null"}}
    next_one = {"name": "next", "type": ["null", "Chain"]}
    schema = AvroSchema(None, {"type": "record", "name": "Chain", "fields": [nulls, next_one]})
    value: dict[str, Any] = {"nulls": [None] * 5000, "next": None}
    for _ in range(500):
        value = {"nulls": [], "next": value}
    assert schema.decode(schema.encode(value)) == value
