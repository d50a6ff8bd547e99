"""Brings rows of one schema to the columns that are stored, and back (ADR 0129)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from pulsar_ray.format.arrow_types import (
    check_names,
    fitted,
    has_required,
    null_places,
    plain_field,
    schema_text,
    stored_field,
)
from pulsar_ray.format.columnar import plain_schema, row_of_bytes, rows_of
from pulsar_ray.format.table import IGNORED_COLUMNS, SENT_COLUMNS, normalize_table

TOMBSTONE: Final = "tombstone"
"""A column of tables: whether a message is one, and has no row."""
OWN: Final = "__"
"""Stands before the name of a message's column where rows have one of that name."""
_MAX_DICTIONARY_BYTES: Final = 64 * 1024
_MESSAGE_COLUMNS: Final = frozenset({*SENT_COLUMNS, *IGNORED_COLUMNS, TOMBSTONE} - {"value"})


class TypedRows:
    """The columns of a topic's values.

    `key` and `event_time` name columns that give messages theirs, where nothing else does.
    """

    def __init__(self, schema: pa.Schema, key: str | None = None, event_time: str | None = None) -> None:
        """Raises ValueError for columns that cannot be sent."""
        if not isinstance(schema, pa.Schema) or not len(schema):
            raise ValueError(f"rows need a pa.Schema with columns, not {schema!r:.100}")
        self.text = schema_text(schema)
        for name in schema.names:
            if name.startswith(OWN):
                raise ValueError(f"column {name!r:.80} begins with {OWN}, as those of messages do: rename it")
        for option, name in (("key", key), ("event_time", event_time)):
            if name is not None and name not in schema.names:
                raise ValueError(f"{option}={name!r:.80} is no column: there are {', '.join(schema.names)}")
        if key is not None and not _is_key(schema.field(key).type):
            raise ValueError(
                f"key={key!r} is of type {schema.field(key).type}: keys are of texts or integers"
            )
        if event_time is not None and not _is_time(schema.field(event_time).type):
            raise ValueError(
                f"event_time={event_time!r} is of type {schema.field(event_time).type}: give a timestamp, or "
                "ms since 1970 as an integer"
            )
        self.schema = pa.schema(list(schema))
        """Without metadata, which no topic keeps."""
        self.plain = plain_schema(self.schema)
        self.key = key
        self.event_time = event_time
        self._stored = [stored_field(field) for field in schema]
        self._stored_schema = pa.schema(self._stored)
        self._has_required = has_required(pa.struct(self._stored))
        self._has_plain_columns = self.plain.equals(self._stored_schema)
        check_names(self._stored, "")

    def check_nulls(self, columns: Sequence[pa.Array], first_row: int = 0) -> None:
        """Raise ValueError, which names column and row, for a null where there must be none."""
        for field, column in zip(self.schema, columns, strict=True):
            for place, row in null_places(column, field, field.name):
                at = f" in row {first_row + row}" if row >= 0 else ""
                raise ValueError(f"column {place!r} of type {field.type} is null{at}, and has no nulls")

    def gathered(self, values: Iterable[bytes | None]) -> pa.StructArray:
        """Return payloads of messages alone, which were made here, as rows; None is a tombstone."""
        nothing: pa.RecordBatch | None = None
        batches, tombstones = [], []
        for value in values:
            tombstones.append(value is None)
            if value is not None:
                batches.append(pa.ipc.read_record_batch(value, self.plain))
                continue
            if nothing is None:
                nothing = nulls_of(self.plain, 1)
            batches.append(nothing)
        table = pa.Table.from_batches(batches, self.plain).combine_chunks()
        columns = [
            fitted(column.chunk(0), field, field.name)
            for column, field in zip(table.columns, self._stored, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._stored_schema)
        return rows_of(batch, pa.array(tombstones) if True in tombstones else None)

    # --- tables that are sent ---------------------------------------------------------------------

    def of_table(self, data: pa.Table | pa.RecordBatch) -> pa.Table:
        """Return a table with rows as its column value, and the stored other columns.

        Columns of smaller types are made wider, and those that are missing null. Raises ValueError, which
        names the column, its type and the row, for what does not fit.
        """
        table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
        if self.key is None and self.event_time is None and self._may_pass(table.schema):
            return self._of_stored_columns(table)
        check_names(table.schema, "")
        others = [name for name in table.column_names if name not in self.schema.names]
        for name in others:
            if self._message_column(name) is None:
                raise ValueError(
                    f"column {name!r} of type {table.schema.field(name).type} is no column of this topic's "
                    f"rows ({', '.join(self.schema.names)}), and none of a message: drop or rename it"
                )
        values, key, event_time = self._values(table)
        given = {str(self._message_column(name)): table.column(name) for name in others}
        if len(given) < len(others):
            raise ValueError(f"of the columns {', '.join(others)} one is given twice: drop one")
        given.pop(TOMBSTONE, None)
        if key is not None and not {"key", "partition_key"} & given.keys():
            given["key"] = key
        if event_time is not None and not {"event_time", "event_timestamp"} & given.keys():
            given["event_time"] = event_time
        given["value"] = pa.chunked_array([pa.nulls(table.num_rows, pa.binary())])
        stored = normalize_table(pa.table(given))
        return stored.set_column(0, pa.field("value", values.type), values)

    def _may_pass(self, schema: pa.Schema) -> bool:
        """Whether a table is as it is stored; dictionaries may have become too large."""
        return self._has_plain_columns and bool(schema.equals(self._stored_schema))

    def _of_stored_columns(self, table: pa.Table) -> pa.Table:
        """A table of the rows' columns alone, of their own types: nothing is copied."""
        chunks, first_row = [], 0
        for batch in table.to_batches():
            if self._has_required:
                self.check_nulls(batch.columns, first_row)
            chunks.append(rows_of(batch))
            first_row += batch.num_rows
        return pa.Table.from_arrays([pa.chunked_array(chunks, pa.struct(self._stored))], names=["value"])

    def _message_column(self, name: str) -> str | None:
        """Return the column of messages that a table's column is; None if it is none."""
        if name.startswith(OWN):
            name = name.removeprefix(OWN)
            return name if name in self.schema.names and name in _MESSAGE_COLUMNS else None
        return name if name in _MESSAGE_COLUMNS else None

    def _values(
        self, table: pa.Table
    ) -> tuple[pa.ChunkedArray, pa.ChunkedArray | None, pa.ChunkedArray | None]:
        """The rows, and the columns that give keys and times."""
        tombstone = OWN + TOMBSTONE if TOMBSTONE in self.schema.names else TOMBSTONE
        names = [name for name in (*self.schema.names, tombstone) if name in table.column_names]
        fields = [
            plain_field(field) if _has_large_dictionary(table, field.name) else field
            for field in self._stored
        ]
        chunks, first_row = [], 0
        for batch in table.select(names).to_batches():
            chunks.append(self._rows_of(batch, fields, tombstone, first_row))
            first_row += batch.num_rows
        values = pa.chunked_array(chunks, pa.struct(fields))
        return values, self._part(values, self.key), self._part(values, self.event_time)

    def _rows_of(
        self, batch: pa.RecordBatch, fields: list[pa.Field], tombstone: str, first_row: int
    ) -> pa.StructArray:
        columns = []
        for field in fields:
            place = batch.schema.get_field_index(field.name)
            column = pa.nulls(batch.num_rows, field.type) if place < 0 else batch.column(place)
            columns.append(fitted(column, field, field.name))
        gone = None
        if tombstone in batch.schema.names:
            gone = batch.column(tombstone)
            if not pa.types.is_boolean(gone.type):
                raise ValueError(f"column {tombstone!r} of type {gone.type} is to be of booleans")
            gone = gone.fill_null(False)
        if gone is None:
            self.check_nulls(columns, first_row)
        else:
            present = gone.to_pylist()
            kept = pa.array([row for row, is_gone in enumerate(present) if not is_gone], pa.int64())
            self.check_nulls([column.take(kept) for column in columns], first_row)
        return rows_of(pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)), gone)

    def _part(self, values: pa.ChunkedArray, name: str | None) -> pa.ChunkedArray | None:
        if name is None:
            return None
        place = self.schema.get_field_index(name)
        chunks = [chunk.flatten()[place] for chunk in values.chunks]
        column = pa.chunked_array(chunks, values.type.field(place).type)
        if name != self.key:
            return column
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        return column.cast(pa.string()) if pa.types.is_integer(column.type) else column

    # --- rows that were received ------------------------------------------------------------------

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return columns of another version as those of this schema.

        Columns that are new are null. Raises ValueError, which names the column, for one that does not fit.
        """
        if batch.schema.equals(self.schema):
            return batch
        columns = []
        for field in self.schema:
            place = batch.schema.get_field_index(field.name)
            if place >= 0:
                columns.append(fitted(batch.column(place), field, field.name))
            elif field.nullable:
                columns.append(pa.nulls(batch.num_rows, field.type))
            else:
                raise ValueError(f"what was written has no column {field.name!r}, which has no nulls")
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def table_column_names(self, names: Sequence[str]) -> list[str]:
        """Return the names of messages' own columns beside those of the rows."""
        return [OWN + name if name in self.schema.names else name for name in names]


def _has_large_dictionary(table: pa.Table, name: str) -> bool:
    """Whether a column's dictionary is too large to be written again with each entry."""
    if name not in table.column_names or not pa.types.is_dictionary(table.schema.field(name).type):
        return False
    return any(chunk.dictionary.nbytes > _MAX_DICTIONARY_BYTES for chunk in table.column(name).chunks)


def _is_key(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_integer(kind))


def nulls_of(schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return rows of nulls."""
    return pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in schema], schema=schema)


def rows_of_payloads(payloads: Sequence[Any], writer: pa.Schema) -> pa.RecordBatch:
    """Return payloads of messages alone as columns; None is a row of nulls.

    They were written with this schema. Raises ValueError for a payload that is none.
    """
    batches = [
        nulls_of(plain_schema(writer), 1) if payload is None else row_of_bytes(payload, writer)
        for payload in payloads
    ]
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches, plain_schema(writer)).combine_chunks()
    return pa.RecordBatch.from_arrays([column.chunk(0) for column in table.columns], schema=table.schema)
