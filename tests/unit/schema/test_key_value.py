from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pulsar_ray.broker.catalog.schemas.content import digest
from pulsar_ray.schema import (
    AutoSchema,
    Integer,
    JsonSchema,
    KeyValue,
    KeyValueSchema,
    Record,
    SchemaType,
    StringSchema,
)


class V(Record):
    x = Integer()


PAIRS = KeyValueSchema(StringSchema(), JsonSchema(V))


def test_pairs_come_back() -> None:
    assert PAIRS.encode(KeyValue("k", None)) == b"\0\0\0\1k\xff\xff\xff\xff"
    for pair in (KeyValue("k", V(x=1)), KeyValue(None, V()), KeyValue("", None)):
        assert PAIRS.decode(PAIRS.encode(pair)) == pair
    assert PAIRS.schema_info().schema_type() == SchemaType.KEY_VALUE


@pytest.mark.parametrize("data", [b"", b"\0\0\0", b"\0\0\0\5k", b"\0\0\0\1k\0", b"\0\0\0\0\0\0\0\0x"])
def test_bytes_that_are_no_pair(data: bytes) -> None:
    with pytest.raises(ValueError, match="pair of key and value"):
        PAIRS.decode(data)


def test_only_pairs_are_taken() -> None:
    with pytest.raises(TypeError, match="Invalid record obj"):
        PAIRS.encode(("k", "v"))


SEPARATED = KeyValueSchema(StringSchema(), JsonSchema(V), separated=True)


def test_a_separated_pair_has_its_key_in_the_message() -> None:
    pair = KeyValue("ü", V(x=1))
    assert SEPARATED.encode(pair) == b'{\n "x": 1\n}'
    assert SEPARATED.fields_of is not None
    key, at = SEPARATED.fields_of(pair, None, 5)
    assert (key, at) == ("w7w=", 5)
    assert SEPARATED.decode_pair(SEPARATED.encode(pair), key, is_encoded=True) == pair
    assert SEPARATED.decode_pair(None, key, is_encoded=True) == KeyValue("ü", None)
    # As of a producer without the schema, whose keys are texts.
    assert SEPARATED.decode_pair(SEPARATED.encode(pair), "ü", is_encoded=False) == pair


def test_a_separated_pair_registers_as_java_does() -> None:
    registered = SEPARATED.registered()
    assert registered.properties["kv.encoding.type"] == "SEPARATED"
    assert registered.is_separated
    assert digest(registered) != digest(PAIRS.registered())


def test_a_separated_pair_takes_no_other_key() -> None:
    assert SEPARATED.fields_of is not None
    with pytest.raises(ValueError, match="leave partition_key out"):
        SEPARATED.fields_of(KeyValue("a", None), "b", None)
    with pytest.raises(ValueError, match="no base64"):
        SEPARATED.decode_pair(b"{}", "no base64", is_encoded=True)
    with pytest.raises(ValueError, match="in the payload"):
        SEPARATED.reading(PAIRS.registered())


@pytest.mark.parametrize("part", [AutoSchema(), PAIRS], ids=str)
def test_what_is_no_schema_of_a_key_or_value_is_refused(part: Any) -> None:
    for pair in ((part, StringSchema()), (StringSchema(), part)):
        with pytest.raises(ValueError, match="is no schema of a key or a value"):
            KeyValueSchema(*pair)
    with pytest.raises(ValueError, match="value_schema"):
        KeyValueSchema(StringSchema(), int)


def test_a_class_stands_for_its_json_in_a_pair_too() -> None:
    @dataclass
    class Item:
        x: int

    pairs = KeyValueSchema(StringSchema(), Item)
    pair = KeyValue("k", Item(1))
    assert pairs.encode(pair) == KeyValueSchema(StringSchema(), JsonSchema(Item)).encode(pair)
    assert pairs.decode(pairs.encode(pair)) == pair
