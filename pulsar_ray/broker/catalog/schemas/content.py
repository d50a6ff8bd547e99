"""Checks the content of a schema, and compares it with others."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from pulsar_ray.broker.catalog.schemas.avro_types import parse_definition, without_doc
from pulsar_ray.errors import IncompatibleSchema
from pulsar_ray.format.arrow_types import schema_of, schema_text
from pulsar_ray.model.enums import SchemaType
from pulsar_ray.model.topic_schema import KEY_VALUE, MAX_SCHEMA_BYTES, TopicSchema

AVRO_LIKE: Final = (SchemaType.AVRO.name, SchemaType.JSON.name)
"""Types whose texts are definitions of Avro."""
_TEXTLESS: Final = tuple(
    kind.name
    for kind in (
        SchemaType.STRING,
        SchemaType.INT8,
        SchemaType.INT16,
        SchemaType.INT32,
        SchemaType.INT64,
        SchemaType.FLOAT,
        SchemaType.DOUBLE,
    )
)
_WITH_TEXT: Final = (
    *AVRO_LIKE,
    SchemaType.ARROW.name,
    SchemaType.PROTOBUF.name,
    SchemaType.PROTOBUF_NATIVE.name,
    KEY_VALUE,
)


def check_schema(schema: TopicSchema) -> None:
    """Raise IncompatibleSchema, with the reason, for what cannot be a topic's schema."""
    _check_values(schema)
    try:
        size = sum(
            len(text.encode()) for text in (schema.text, *schema.properties, *schema.properties.values())
        )
    except UnicodeEncodeError as error:
        raise IncompatibleSchema(f"the schema has text that is no UTF-8: {error.reason}") from None
    if size > MAX_SCHEMA_BYTES:
        raise IncompatibleSchema(
            f"the schema has {size} bytes, at most {MAX_SCHEMA_BYTES} are kept: divide the record"
        )
    try:
        _check_text(schema)
    except RecursionError:
        raise IncompatibleSchema(f"the {schema.type} schema is nested too deep") from None
    except ValueError as error:
        raise IncompatibleSchema(
            f"Invalid schema definition data for {schema.type} schema: {error}"
        ) from None


def _check_values(schema: TopicSchema) -> None:
    if schema.type not in (*_TEXTLESS, *_WITH_TEXT):
        raise IncompatibleSchema(
            f"{schema.type!r:.50} is no type of schema that a topic has: give one of "
            f"{', '.join((*_TEXTLESS, *_WITH_TEXT))}"
        )
    if not isinstance(schema.text, str):
        raise IncompatibleSchema(f"the text of a schema is a str, not {type(schema.text).__name__}")
    properties: Any = schema.properties
    if not isinstance(properties, dict) or any(
        not (isinstance(name, str) and isinstance(value, str)) for name, value in properties.items()
    ):
        raise IncompatibleSchema(f"the properties of a schema are a dict of str, not {properties!r:.80}")


def _check_text(schema: TopicSchema) -> None:
    if schema.type in AVRO_LIKE:
        parse_definition(json.loads(schema.text))
    elif schema.type == SchemaType.ARROW.name:
        schema_of(schema.text)
    elif schema.type == SchemaType.PROTOBUF_NATIVE.name:
        described = json.loads(schema.text)
        if not isinstance(described, dict) or not isinstance(described.get("rootMessageTypeName"), str):
            raise ValueError("it names no rootMessageTypeName")
    elif schema.type == KEY_VALUE:
        for part in schema.parts():
            if part.type != SchemaType.BYTES.name:
                check_schema(part)


def canonical(schema: TopicSchema) -> str:
    """Return the text that all schemas of the same content have.

    In AVRO and JSON, spaces, the order of keys and `doc` make no difference. A STRING has no content.
    """
    if schema.type in AVRO_LIKE:
        return json.dumps(without_doc(json.loads(schema.text)), sort_keys=True, separators=(",", ":"))
    if schema.type == SchemaType.ARROW.name:
        return schema_text(schema_of(schema.text))
    if schema.type == KEY_VALUE:
        parts = [[part.type, canonical(part)] for part in schema.parts()]
        return json.dumps([*parts, "SEPARATED"] if schema.is_separated else parts)
    return "" if schema.type in (*_TEXTLESS, SchemaType.BYTES.name) else schema.text


def digest(schema: TopicSchema) -> str:
    """Return what all schemas of one type and content have alike.

    Raises ValueError for a damaged one.
    """
    content = f"{schema.type}\n{canonical(schema)}"
    return hashlib.sha256(content.encode()).hexdigest()
