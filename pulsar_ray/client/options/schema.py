"""Schemas: how a value becomes the bytes of a message, and back."""

from __future__ import annotations

from typing import Any

from pulsar_ray.errors import OperationNotSupported
from pulsar_ray.model.enums import SchemaType


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
        """The definition as JSON text; empty for BYTES and STRING."""
        return self._schema


class Schema:
    """Base of all schemas: `encode` and `decode` are what a schema of one's own overrides."""

    def __init__(
        self, record_cls: Any, schema_type: SchemaType, schema_definition: Any, schema_name: str
    ) -> None:
        self._record_cls = record_cls
        self._schema_info = SchemaInfo(schema_type, schema_name, schema_definition or "")

    def encode(self, obj: Any) -> bytes:
        """The bytes to send. Raises TypeError for a value the schema cannot take."""
        raise NotImplementedError

    def decode(self, data: bytes) -> Any:
        """The value that `encode` made these bytes of."""
        raise NotImplementedError

    def decode_message(self, msg: Any) -> Any:
        """The value of a received message."""
        return self.decode(msg.data())

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
        if not isinstance(obj, bytes):
            raise TypeError(f"BytesSchema takes bytes, not {type(obj).__name__}: {obj!r:.100}")
        return obj

    def decode(self, data: bytes) -> bytes:
        return data


class StringSchema(Schema):
    """Text as UTF-8."""

    def __init__(self) -> None:
        super().__init__(str, SchemaType.STRING, None, "STRING")

    def encode(self, obj: Any) -> bytes:
        if not isinstance(obj, str):
            raise TypeError(f"StringSchema takes str, not {type(obj).__name__}: {obj!r:.100}")
        return obj.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


def _not_yet(name: str) -> OperationNotSupported:
    return OperationNotSupported(
        f"{name} is not supported yet; use BytesSchema or StringSchema and encode the values yourself"
    )


class JsonSchema(Schema):
    """Not supported yet: raises OperationNotSupported."""

    def __init__(self, record_cls: Any) -> None:
        raise _not_yet("JsonSchema")


class AvroSchema(Schema):
    """Not supported yet: raises OperationNotSupported."""

    def __init__(self, record_cls: Any, schema_definition: Any = None) -> None:
        raise _not_yet("AvroSchema")


class ProtobufNativeSchema(Schema):
    """Not supported yet: raises OperationNotSupported."""

    def __init__(self, record_cls: Any) -> None:
        raise _not_yet("ProtobufNativeSchema")


class Record:
    """Base of JSON and Avro records. Not supported yet: raises OperationNotSupported, for subclasses too."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        raise _not_yet(type(self).__name__)


class Field:
    """Base of a record's fields. Not supported yet: raises OperationNotSupported."""

    def __init__(self, *args: Any, **options: Any) -> None:
        raise _not_yet(type(self).__name__)


class Null(Field):
    """The Avro type null."""


class Boolean(Field):
    """The Avro type boolean."""


class Integer(Field):
    """The Avro type int."""


class Long(Field):
    """The Avro type long."""


class Float(Field):
    """The Avro type float."""


class Double(Field):
    """The Avro type double."""


class Bytes(Field):
    """The Avro type bytes."""


class String(Field):
    """The Avro type string."""


class Array(Field):
    """The Avro type array."""


class Map(Field):
    """The Avro type map."""


class CustomEnum(Field):
    """A Python enum as a field."""
