"""Pairs of a key and a value with a schema each."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from pulsar_ray.client.options.given_schema import as_schema, check_schema
from pulsar_ray.client.options.schema import Schema
from pulsar_ray.model.enums import SchemaType
from pulsar_ray.model.topic_schema import TopicSchema

_NULL = 0xFFFFFFFF


class KeyValue(NamedTuple):
    """A key and a value; either may be None."""

    key: Any
    value: Any


class KeyValueSchema(Schema):
    """A `KeyValue`, as Java writes it.

    INLINE, both are in the payload: length and bytes of the key, then of the value. `separated=True`, Java's
    SEPARATED, the key is the message's, base64 of its bytes, and the payload is the value, so that messages
    go by their keys and a value of None is a tombstone.

    Decoding raises ValueError for bytes that are no such pair, and making one for schemas that are none of a
    key or a value.
    """

    def __init__(self, key_schema: Any, value_schema: Any, *, separated: bool = False) -> None:
        check_schema("key_schema", key_schema)
        check_schema("value_schema", value_schema)
        self.key_schema: Schema = as_schema(key_schema)
        self.value_schema: Schema = as_schema(value_schema)
        self.takes_keys = separated
        if separated:
            self.fields_of = self._fields_of
        infos = self.key_schema.schema_info(), self.value_schema.schema_info()
        for info in infos:
            if info.schema_type() in (SchemaType.AUTO_CONSUME, SchemaType.KEY_VALUE):
                # A consumer would give an idle topic a schema of bytes, or one that is none.
                raise ValueError(
                    f"{info.name()} is no schema of a key or a value: AutoSchema() reads pairs by itself"
                )
        text = b"".join(_part(info.schema().encode()) for info in infos).decode("latin-1")
        super().__init__(KeyValue, SchemaType.KEY_VALUE, text, "KEY_VALUE")

    def _fields_of(self, obj: Any, key: str | None, event_time: int | None) -> tuple[str | None, int | None]:
        self._validate_object_type(obj)
        if key:
            raise ValueError("the key of a separated pair is that of its message: leave partition_key out")
        given = None if obj.key is None else self.key_schema.encode(obj.key)
        return None if given is None else base64.b64encode(given).decode(), event_time

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        value = None if obj.value is None else self.value_schema.encode(obj.value)
        if self.takes_keys:
            # None is a tombstone, which producers take as well.
            return cast("bytes", value)
        return _part(None if obj.key is None else self.key_schema.encode(obj.key)) + _part(value)

    def decode(self, data: bytes) -> KeyValue:
        if self.takes_keys:
            return self._own_reading()(data)
        return decode_pair(data, self.key_schema.decode, self.value_schema.decode)

    def decode_pair(self, data: bytes | None, key: str | None, *, is_encoded: bool) -> Any:
        return self._own_reading().pair(data, key, is_encoded=is_encoded)

    def _own_reading(self) -> SeparatedReading:
        return SeparatedReading(self.key_schema.decode, self.value_schema.decode)

    def registered(self) -> TopicSchema:
        key, value = (
            schema.registered() or TopicSchema(SchemaType.BYTES.name, "")
            for schema in (self.key_schema, self.value_schema)
        )
        return TopicSchema.of_parts(key, value, separated=self.takes_keys)

    def reading(self, writer: TopicSchema | None) -> Callable[[bytes], Any]:
        if writer is None:
            return self._own_reading() if self.takes_keys else self.decode
        self._check_type_of(writer)
        if writer.is_separated != self.takes_keys:
            raise ValueError(
                "the key is in the payload with one of the schemas, and the message's with the other"
            )
        key, value = writer.parts()
        read_key, read_value = self.key_schema.reading(key), self.value_schema.reading(value)
        if writer.is_separated:
            return SeparatedReading(read_key, read_value)
        return lambda data: decode_pair(data, read_key, read_value)


class SeparatedReading:
    """Decodes pairs whose key is the message's."""

    def __init__(self, read_key: Callable[[bytes], Any], read_value: Callable[[bytes], Any]) -> None:
        self._read_key = read_key
        self._read_value = read_value

    def __call__(self, data: bytes) -> KeyValue:
        """Return the value with None for a key."""
        return KeyValue(None, self._read_value(data))

    def pair(self, data: bytes | None, key: str | None, *, is_encoded: bool) -> KeyValue:
        """Return the pair of a message. Raises ValueError for a key that is no base64."""
        value = None if data is None else self._read_value(data)
        if key is None:
            return KeyValue(None, value)
        try:
            given = base64.b64decode(key, validate=True) if is_encoded else key.encode()
        except ValueError:
            raise ValueError(f"the key {key!r:.60} of a separated pair is no base64") from None
        return KeyValue(self._read_key(given), value)


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
