"""Schemas: how a value becomes the bytes of a message, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from pulsar_ray.format.payload import DecodedBlock
from pulsar_ray.format.typed_rows import TypedRows
from pulsar_ray.model.enums import SchemaType
from pulsar_ray.model.topic_schema import TopicSchema

_UNREGISTERED = (SchemaType.BYTES, SchemaType.NONE, SchemaType.AUTO_CONSUME, SchemaType.AUTO_PUBLISH)


class SchemaInfo:
    """The type, name and definition of a schema."""

    def __init__(self, schema_type: SchemaType, name: str, schema: str) -> None:
        self._schema_type = schema_type
        self._name = name
        self._schema = schema

    def schema_type(self) -> SchemaType:
        return self._schema_type

    def name(self) -> str:
        return self._name

    def schema(self) -> str:
        """The definition as text; "null" for BYTES and STRING, as in the official client."""
        return self._schema


@runtime_checkable
class KeyedReading(Protocol):
    """Decodes values that are made of a message's key as well."""

    def __call__(self, data: bytes) -> Any:
        """Return the value without its key."""

    def pair(self, data: bytes | None, key: str | None, *, is_encoded: bool) -> Any:
        """Return the value of a message with this key."""


class Schema:
    """Base of all schemas: `encode` and `decode` are what a schema of one's own overrides."""

    typed: TypedRows | None = None
    """The columns that rows share where several are stored together; None: values are bytes."""
    fields_of: Callable[[Any, str | None, int | None], tuple[str | None, int | None]] | None = None
    """Returns key and event time of a message with this value.

    It is given what was said of them. None: that is all."""

    def __init__(
        self, record_cls: Any, schema_type: SchemaType, schema_definition: Any, schema_name: str
    ) -> None:
        self._record_cls = record_cls
        self._schema_info = SchemaInfo(
            schema_type, schema_name, "null" if schema_definition is None else schema_definition
        )

    takes_keys = False
    """Whether values may be made of a message's key as well (`decode_pair`)."""

    def decode_pair(self, data: bytes | None, key: str | None, *, is_encoded: bool) -> Any:
        """Return the value of a message with this key; None for a tombstone.

        `is_encoded`: the key is base64 of its bytes, as producers with a schema of pairs make it.
        """
        return None if data is None else self.decode(data)

    def encode(self, obj: Any) -> bytes:
        """The bytes to send. Raises TypeError for a value the schema cannot take."""
        raise NotImplementedError

    def decode(self, data: bytes) -> Any:
        """The value that `encode` made these bytes of."""
        raise NotImplementedError

    def registered(self) -> TopicSchema | None:
        """Return what a topic's registry is to have of it; None for bytes."""
        info = self._schema_info
        kind = info.schema_type()
        if kind in _UNREGISTERED:
            return None
        return TopicSchema(kind.name, "" if info.schema() == "null" else info.schema())

    def reading(self, writer: TopicSchema | None) -> Callable[[bytes], Any]:
        """Return what decodes values of a writer's schema; None: of one that has none.

        Raises ValueError for a writer's schema that this one cannot read.
        """
        return self.decode

    def rows_reading(self, writer: TopicSchema | None) -> Callable[[pa.RecordBatch], list[Any]] | None:
        """Return what makes values of rows that share columns; None: each is read alone.

        Raises ValueError for a writer's schema that this one cannot read.
        """
        return None

    def values_of_rows(self, decoded: DecodedBlock) -> list[Any]:
        """Return the values of a block whose rows share columns, None for tombstones."""
        return [None if data is None else self.decode(data) for data in decoded.values()]

    def _check_type_of(self, writer: TopicSchema) -> None:
        own = self._schema_info.schema_type().name
        if writer.type != own:
            raise ValueError(f"it was written as {writer.type}, and not as {own}")

    def decode_message(self, msg: Any) -> Any:
        """The value of a received message."""
        return self.decode(msg.data())

    def _validate_object_type(self, obj: Any) -> None:
        if not isinstance(obj, self._record_cls):
            raise TypeError(f"Invalid record obj of type {type(obj)} - expected type is {self._record_cls}")

    def schema_info(self) -> SchemaInfo:
        return self._schema_info

    def attach_client(self, client: Any) -> None:
        """Gives schemas with versions access to the registry; these need none."""

    def __str__(self) -> str:
        return type(self).__name__


class BytesSchema(Schema):
    """The payload as it is."""

    def __init__(self) -> None:
        super().__init__(bytes, SchemaType.BYTES, None, "BYTES")

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        data: bytes = obj
        return data

    def decode(self, data: bytes) -> bytes:
        return data


class StringSchema(Schema):
    """Text as UTF-8."""

    def __init__(self) -> None:
        super().__init__(str, SchemaType.STRING, None, "STRING")

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        data: bytes = obj.encode()
        return data

    def decode(self, data: bytes) -> str:
        return data.decode()
