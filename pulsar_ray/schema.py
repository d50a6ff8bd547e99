"""`pulsar_ray.schema`: the names of `pulsar.schema`."""

from __future__ import annotations

from pulsar_ray.client.options.schema import (
    Array,
    AvroSchema,
    Boolean,
    Bytes,
    BytesSchema,
    CustomEnum,
    Double,
    Field,
    Float,
    Integer,
    JsonSchema,
    Long,
    Map,
    Null,
    ProtobufNativeSchema,
    Record,
    Schema,
    SchemaInfo,
    String,
    StringSchema,
)
from pulsar_ray.model.enums import SchemaType

__all__ = [
    "Array",
    "AvroSchema",
    "Boolean",
    "Bytes",
    "BytesSchema",
    "CustomEnum",
    "Double",
    "Field",
    "Float",
    "Integer",
    "JsonSchema",
    "Long",
    "Map",
    "Null",
    "ProtobufNativeSchema",
    "Record",
    "Schema",
    "SchemaInfo",
    "SchemaType",
    "String",
    "StringSchema",
]
