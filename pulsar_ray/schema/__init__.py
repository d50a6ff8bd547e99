"""`pulsar_ray.schema`: the names of `pulsar.schema`, and schemas that Python and Java have besides."""

from __future__ import annotations

from pulsar_ray.model.enums import SchemaType
from pulsar_ray.model.topic_schema import SchemaVersion, TopicSchema
from pulsar_ray.schema.arrow_schema import ArrowSchema
from pulsar_ray.schema.auto import AutoSchema
from pulsar_ray.schema.definition import (
    Array,
    Boolean,
    Bytes,
    CustomEnum,
    Double,
    Field,
    Float,
    Integer,
    Long,
    Map,
    Null,
    Record,
    String,
)
from pulsar_ray.schema.key_value import KeyValue, KeyValueSchema
from pulsar_ray.schema.schema import BytesSchema, JsonSchema, Schema, SchemaInfo, StringSchema
from pulsar_ray.schema.schema_avro import AvroSchema
from pulsar_ray.schema.schema_protobuf import ProtobufNativeSchema

__all__ = [
    "Array",
    "ArrowSchema",
    "AutoSchema",
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
    "KeyValue",
    "KeyValueSchema",
    "Long",
    "Map",
    "Null",
    "ProtobufNativeSchema",
    "Record",
    "Schema",
    "SchemaInfo",
    "SchemaType",
    "SchemaVersion",
    "String",
    "StringSchema",
    "TopicSchema",
]
