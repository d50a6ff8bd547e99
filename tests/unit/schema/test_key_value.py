from __future__ import annotations

import pytest

from pulsar_ray.schema import Integer, JsonSchema, KeyValue, KeyValueSchema, Record, SchemaType, StringSchema


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
