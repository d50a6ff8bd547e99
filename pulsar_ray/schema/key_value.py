"""Pairs of a key and a value with a schema each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pulsar_ray.client.options.schema import Schema
from pulsar_ray.model.enums import SchemaType
from pulsar_ray.model.topic_schema import TopicSchema

_NULL = 0xFFFFFFFF


class KeyValue(NamedTuple):
    """A key and a value; either may be None."""

    key: Any
    value: Any


class KeyValueSchema(Schema):
    """A `KeyValue` in one payload, as Java's INLINE.

    Length and bytes of the key come first, then those of the value.

    Decoding raises ValueError for bytes that are no such pair.
    """

    def __init__(self, key_schema: Schema, value_schema: Schema) -> None:
        self.key_schema = key_schema
        self.value_schema = value_schema
        infos = key_schema.schema_info(), value_schema.schema_info()
        text = b"".join(_part(info.schema().encode()) for info in infos).decode("latin-1")
        super().__init__(KeyValue, SchemaType.KEY_VALUE, text, "KEY_VALUE")

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        key = None if obj.key is None else self.key_schema.encode(obj.key)
        value = None if obj.value is None else self.value_schema.encode(obj.value)
        return _part(key) + _part(value)

    def decode(self, data: bytes) -> KeyValue:
        return decode_pair(data, self.key_schema.decode, self.value_schema.decode)

    def registered(self) -> TopicSchema:
        parts = (
            schema.registered() or TopicSchema(SchemaType.BYTES.name, "")
            for schema in (self.key_schema, self.value_schema)
        )
        return TopicSchema.of_parts(*parts)

    def reading(self, writer: TopicSchema | None) -> Callable[[bytes], Any]:
        if writer is None:
            return self.decode
        self._check_type_of(writer)
        key, value = writer.parts()
        read_key, read_value = self.key_schema.reading(key), self.value_schema.reading(value)
        return lambda data: decode_pair(data, read_key, read_value)


def decode_pair(
    data: bytes, read_key: Callable[[bytes], Any], read_value: Callable[[bytes], Any]
) -> KeyValue:
    """Return the pair in a payload. Raises ValueError for bytes that are none."""
    key, end = _read_part(data, 0, "key")
    value, end = _read_part(data, end, "value")
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes follow the value of a pair of key and value")
    return KeyValue(
        None if key is None else read_key(key),
        None if value is None else read_value(value),
    )


def _part(data: bytes | None) -> bytes:
    return _NULL.to_bytes(4, "big") if data is None else len(data).to_bytes(4, "big") + data


def _read_part(data: bytes, begin: int, part: str) -> tuple[bytes | None, int]:
    length = int.from_bytes(data[begin : begin + 4], "big")
    if len(data) < begin + 4:
        raise ValueError(f"The {part} of a pair of key and value is cut off: {len(data)} bytes")
    if length == _NULL:
        return None, begin + 4
    end = begin + 4 + length
    if len(data) < end:
        raise ValueError(
            f"The {part} of a pair of key and value has {length} bytes, of which some are missing"
        )
    return data[begin + 4 : end], end
