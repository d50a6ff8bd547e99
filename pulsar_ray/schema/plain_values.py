"""Writes plain values, as JSON has them, by a topic's schema."""

from __future__ import annotations

import json
from typing import Any

from pulsar_ray.broker.catalog.schemas.avro_types import AvroType, parse_definition
from pulsar_ray.client.options.schema import Schema, StringSchema
from pulsar_ray.errors import OperationNotSupported
from pulsar_ray.model.enums import SchemaType
from pulsar_ray.model.topic_schema import TopicSchema
from pulsar_ray.schema.arrow_schema import PlainRows
from pulsar_ray.schema.schema_avro import HAS_AVRO, AvroSchema, parsed_writer


def plain_schema(found: TopicSchema) -> Schema:
    """Return a schema whose values are dicts and the like. Raises OperationNotSupported for other types."""
    if found.type == SchemaType.STRING.name:
        return StringSchema()
    if found.type == SchemaType.JSON.name:
        return _PlainJson(found)
    if found.type == SchemaType.AVRO.name:
        return _PlainAvro(found)
    if found.type == SchemaType.ARROW.name:
        return PlainRows(found)
    raise OperationNotSupported(
        f"values of type {found.type} cannot be given as JSON: write a program with their class"
    )


class _PlainAvro(AvroSchema):
    def __init__(self, found: TopicSchema) -> None:
        super().__init__(None, json.loads(found.text))
        self._found = found
        self._type = parse_definition(json.loads(found.text))

    def registered(self) -> TopicSchema:
        return self._found

    def encode(self, obj: Any) -> bytes:
        return super().encode(_with_bytes(obj, self._type))


class _PlainJson(Schema):
    def __init__(self, found: TopicSchema) -> None:
        super().__init__(dict, SchemaType.JSON, found.text, "JSON")
        self._found = found
        self._parsed: Any = parsed_writer(found) if HAS_AVRO else None
        self._type = parse_definition(json.loads(found.text))

    def registered(self) -> TopicSchema:
        return self._found

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        if self._parsed is not None:
            from fastavro.validation import ValidationError, validate  # noqa: PLC0415 - if it is installed

            try:
                validate(_with_bytes(obj, self._type), self._parsed)
            except ValidationError as error:
                raise ValueError(" ".join(str(error).split())) from None
        return json.dumps(obj, allow_nan=False).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


def _with_bytes(value: Any, kind: AvroType) -> Any:
    """A value of JSON with bytes where its type has them, and JSON has text."""
    if isinstance(value, str):
        kinds = [branch.kind for branch in kind.branches] or [kind.kind]
        return value.encode() if "bytes" in kinds and "string" not in kinds else value
    if kind.kind == "union":
        whole = [branch for branch in kind.branches if branch.kind in ("record", "array", "map")]
        return _with_bytes(value, whole[0]) if len(whole) == 1 else value
    if isinstance(value, dict) and kind.kind == "record":
        fields = kind.fields
        return {
            name: _with_bytes(each, fields[name].type) if name in fields else each
            for name, each in value.items()
        }
    if isinstance(value, dict) and kind.items is not None:
        return {name: _with_bytes(each, kind.items) for name, each in value.items()}
    if isinstance(value, list) and kind.items is not None:
        return [_with_bytes(each, kind.items) for each in value]
    return value
