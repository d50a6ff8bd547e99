"""Writes plain values, as JSON has them, by a topic's schema."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from pulsar_ray.client.options.schema import Schema, StringSchema
from pulsar_ray.clock import written_time
from pulsar_ray.errors import OperationNotSupported
from pulsar_ray.format.arrow_types import joined
from pulsar_ray.model.enums import SchemaType
from pulsar_ray.model.topic_schema import TopicSchema
from pulsar_ray.schema.arrow_schema import PlainRows
from pulsar_ray.schema.nested_avro import named_types
from pulsar_ray.schema.schema_avro import HAS_AVRO, AvroSchema, parsed_filling

_LONGEST_TEXT, _END_OF_TEXT = 300, 100


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
        self._rules = _Rules(found, takes_logical=True)

    def registered(self) -> TopicSchema:
        return self._found

    def encode(self, obj: Any) -> bytes:
        return super().encode(self._rules.checked(obj))


class _PlainJson(Schema):
    def __init__(self, found: TopicSchema) -> None:
        super().__init__(dict, SchemaType.JSON, found.text, "JSON")
        self._found = found
        self._rules = _Rules(found, takes_logical=False) if HAS_AVRO else None

    def registered(self) -> TopicSchema:
        return self._found

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        if self._rules is not None:
            self._rules.checked(obj)
        return json.dumps(obj, allow_nan=False).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


class _Rules:
    """Values of JSON as fastavro takes them, checked by a definition.

    Bytes are text in JSON. With `takes_logical` so are decimals, times and UUIDs, as they are printed; values
    that are stored as JSON have there what they are given.
    """

    def __init__(self, found: TopicSchema, *, takes_logical: bool) -> None:
        self._parsed = parsed_filling(json.loads(found.text))
        self._named = named_types(self._parsed)
        self._takes_logical = takes_logical

    def checked(self, obj: Any) -> Any:
        from fastavro.validation import ValidationError, validate  # noqa: PLC0415 - if it is installed

        value = self._of_json(obj, self._parsed, "")
        try:
            validate(value, self._parsed)
        except ValidationError as error:
            text = "; ".join(map(str, error.errors))
            # It has the whole value, between the field and the type.
            cut = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ... {text[-_END_OF_TEXT:]}"
            raise ValueError(cut) from None
        return value

    def _of_json(self, value: Any, kind: Any, place: str) -> Any:
        kind = self._spelled(kind)
        if isinstance(kind, list):
            branch = self._branch(value, kind, place)
            return value if branch is None else self._of_json(value, branch, place)
        if isinstance(value, dict | list):
            return self._parts_of_json(value, kind, place)
        if (take := self._logical(kind)) is not None:
            return take(value, place)
        is_binary = _kind_name(kind) in ("bytes", "fixed")
        return value.encode() if is_binary and isinstance(value, str) else value

    def _parts_of_json(self, value: Any, kind: Any, place: str) -> Any:
        name = _kind_name(kind)
        if name == "array" and isinstance(value, list):
            items = kind["items"]
            return [self._of_json(each, items, f"{place}[{index}]") for index, each in enumerate(value)]
        if name == "map" and isinstance(value, dict):
            items = kind["values"]
            return {key: self._of_json(each, items, f"{place}[{key!r}]") for key, each in value.items()}
        if name == "record" and isinstance(value, dict):
            fields = {field["name"]: field["type"] for field in kind["fields"]}
            return {
                key: self._of_json(each, fields[key], joined(place, key)) if key in fields else each
                for key, each in value.items()
            }
        return value

    def _spelled(self, kind: Any) -> Any:
        """A type that is named, or in a type, as its definition."""
        while True:
            if isinstance(kind, str) and kind in self._named:
                kind = self._named[kind]
            elif isinstance(kind, dict) and not isinstance(kind["type"], str):
                kind = kind["type"]
            else:
                return kind

    def _logical(self, kind: Any) -> _Take | None:
        if not (self._takes_logical and isinstance(kind, dict)):
            return None
        return _LOGICAL.get(f"{kind['type']}-{kind.get('logicalType')}")

    def _branch(self, value: Any, branches: list[Any], place: str) -> Any:
        """Return the branch of a union that takes a value.

        It is None if the value stays as it is.
        """
        kinds = [self._spelled(branch) for branch in branches if branch != "null"]
        if value is None or len(kinds) == 1:
            return None if value is None else kinds[0]
        if isinstance(value, dict):
            records = [kind for kind in kinds if _kind_name(kind) == "record" and _has_names(kind, value)]
            return next(iter(records + [kind for kind in kinds if _kind_name(kind) == "map"]), None)
        if isinstance(value, list):
            return next((kind for kind in kinds if _kind_name(kind) == "array"), None)
        plain = _AS_THEY_ARE.get(type(value), ())
        if any(self._logical(kind) is None and _kind_name(kind) in plain for kind in kinds):
            return None
        return next((kind for kind in kinds if self._takes(kind, value, place)), None)

    def _takes(self, kind: Any, value: Any, place: str) -> bool:
        try:
            return self._of_json(value, kind, place) is not value
        except ValueError:
            return False


_Take = Callable[[Any, str], Any]
"""take(value, place) returns a value as fastavro takes it. Raises ValueError."""
_AS_THEY_ARE: dict[type, tuple[str, ...]] = {
    str: ("string", "enum"),
    int: ("int", "long", "float", "double"),
    float: ("float", "double"),
    bool: ("boolean",),
}
"""Types whose values are in JSON as they are in Avro."""


def _kind_name(kind: Any) -> str:
    name: str = kind["type"] if isinstance(kind, dict) else kind
    return name


def _has_names(record: Any, value: dict[str, Any]) -> bool:
    fields = {field["name"]: "default" in field for field in record["fields"]}
    return value.keys() <= fields.keys() and all(
        name in value or has_default for name, has_default in fields.items()
    )


def _decimal(value: Any, place: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return value
    try:
        return Decimal(str(value))
    except InvalidOperation:
        raise ValueError(f"{value!r:.60} is no number for the field {place!r}") from None


def _uuid(value: Any, place: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return UUID(value)
    except ValueError:
        raise ValueError(f"{value!r:.60} is no UUID for the field {place!r}") from None


def _time(what: type, *, is_zoned: bool) -> _Take:
    def take(value: Any, place: str) -> Any:
        if not isinstance(value, str):
            return value
        try:
            time = written_time(value, what)
        except ValueError:
            raise ValueError(f"{value!r:.60} is no time for the field {place!r}: give ISO 8601") from None
        if (time.tzinfo is not None) != is_zoned:
            wrong = "has no time zone, and needs one" if is_zoned else "has a time zone, and may have none"
            raise ValueError(f"The time {value!r} for the field {place!r} {wrong}")
        return time

    return take


_LOGICAL: dict[str, _Take] = {
    "bytes-decimal": _decimal,
    "fixed-decimal": _decimal,
    "string-uuid": _uuid,
    "int-time-millis": _time(datetime.time, is_zoned=False),
    "long-time-micros": _time(datetime.time, is_zoned=False),
    "long-timestamp-millis": _time(datetime.datetime, is_zoned=True),
    "long-timestamp-micros": _time(datetime.datetime, is_zoned=True),
    "long-local-timestamp-millis": _time(datetime.datetime, is_zoned=False),
    "long-local-timestamp-micros": _time(datetime.datetime, is_zoned=False),
}
