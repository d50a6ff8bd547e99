"""Values that are rows of columns, as dicts or objects of a class (ADR 0129)."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from enum import Enum
from typing import Any

import pyarrow as pa

from pulsar_ray.client.options.schema import Schema
from pulsar_ray.format.arrow_types import schema_of
from pulsar_ray.format.columnar import row_of_bytes
from pulsar_ray.format.typed_rows import TypedRows
from pulsar_ray.model.enums import SchemaType
from pulsar_ray.model.topic_schema import TopicSchema
from pulsar_ray.schema.arrow_classes import ArrowClass
from pulsar_ray.schema.arrow_values import python_values, take_fields

__all__ = ["ArrowSchema", "PlainRows", "row_values", "rows_reading"]


class ArrowSchema(Schema):
    """Values that are rows of a `pa.Schema`, stored as columns.

    `send` takes dicts, `send_arrow` a table with these columns, and `receive_arrow` returns one. Of a
    dataclass or a pydantic model, whose columns follow from its hints, values are its objects. `key` names a
    column whose values are the messages' keys, and `event_time` one with their times, unless they are given.

    Raises ValueError for columns of types that are not sent.
    """

    typed: TypedRows

    def __init__(
        self, schema: pa.Schema | type, *, key: str | None = None, event_time: str | None = None
    ) -> None:
        self._class = None if isinstance(schema, pa.Schema) else ArrowClass(schema)
        self.typed = TypedRows(schema if self._class is None else self._class.schema, key, event_time)
        self._take = take_fields(self.typed.plain)
        if key is not None or event_time is not None:
            self.fields_of = self._fields_of
        super().__init__(dict if self._class is None else schema, SchemaType.ARROW, self.typed.text, "ARROW")

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns of a row."""
        return self.typed.schema

    def registered(self) -> TopicSchema:
        return TopicSchema(SchemaType.ARROW.name, self.typed.text)

    def encode(self, obj: Any) -> bytes:
        """The row alone: an Arrow record batch without schema and dictionaries.

        Raises TypeError and ValueError, with the path to the column.
        """
        plain = self.typed.plain
        return bytes(_batch(self._taken(obj), plain).serialize().to_pybytes())

    def _taken(self, obj: Any) -> dict[str, Any]:
        if self._class is not None:
            self._validate_object_type(obj)
            obj = self._class.write(obj)
        taken: dict[str, Any] = self._take(obj, "")
        return taken

    def _fields_of(self, obj: Any, key: str | None, event_time: int | None) -> tuple[str | None, int | None]:
        """The key and event time of a row, unless they are given."""

        def find(name: str) -> Any:
            return obj.get(name) if isinstance(obj, dict) else getattr(obj, name, None)

        if self.typed.key is not None and not key:
            value = find(self.typed.key)
            key = None if value is None else value.name if isinstance(value, Enum) else str(value)
        if self.typed.event_time is not None and event_time is None:
            value = find(self.typed.event_time)
            event_time = _milliseconds(value) if isinstance(value, datetime.datetime) else value
        return key, event_time

    def decode(self, data: bytes) -> Any:
        return self._reading_of(self.typed.schema)(data)

    def reading(self, writer: TopicSchema | None) -> Callable[[bytes], Any]:
        return self.decode if writer is None else self._reading_of(self._written(writer))

    def rows_reading(self, writer: TopicSchema | None) -> Callable[[pa.RecordBatch], list[Any]]:
        if writer is not None:
            self._check_type_of(writer)
        return self.values_of

    def _written(self, writer: TopicSchema) -> pa.Schema:
        self._check_type_of(writer)
        return schema_of(writer.text)

    def _reading_of(self, written: pa.Schema) -> Callable[[bytes], Any]:
        def decode(data: bytes) -> Any:
            return self.values_of(row_of_bytes(data, written))[0]

        return decode

    def values_of(self, batch: pa.RecordBatch) -> list[Any]:
        """Return rows of any version as dicts or objects.

        Raises ValueError for columns that do not fit.
        """
        read = self.typed.read(batch)
        self.typed.check_nulls(read.columns)
        values = row_values(read)
        if (own := self._class) is None:
            return values
        lacking = set(read.schema.names).difference(batch.schema.names)
        return [own.read(value, lacking) for value in values]


class PlainRows(ArrowSchema):
    """Rows of a topic's version that come as JSON has them."""

    def __init__(self, found: TopicSchema) -> None:
        super().__init__(schema_of(found.text))
        self._take = take_fields(self.typed.plain, is_json=True)
        self._found = found

    def registered(self) -> TopicSchema:
        return self._found


def row_values(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as dicts."""
    names = batch.schema.names
    columns = [python_values(column) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def rows_reading(writer: TopicSchema) -> Callable[[bytes], Any]:
    """Return what decodes rows of a version to dicts."""
    written = schema_of(writer.text)
    return lambda data: row_values(row_of_bytes(data, written))[0]


def _milliseconds(time: datetime.datetime) -> int:
    zoned = time if time.utcoffset() is not None else time.replace(tzinfo=datetime.timezone.utc)
    return (zoned - _EPOCH) // datetime.timedelta(milliseconds=1)


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def _batch(taken: dict[str, Any], plain: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in plain:
        value = taken[field.name]
        try:
            columns.append(pa.array([value], field.type))
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            raise ValueError(
                f"{value!r:.60} does not fit column {field.name!r} of type {field.type}: {error}"
            ) from None
    return pa.RecordBatch.from_arrays(columns, schema=plain)
