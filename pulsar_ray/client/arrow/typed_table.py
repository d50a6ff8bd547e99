"""Received rows as one table with columns of their own types (ADR 0129)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from pulsar_ray.client.arrow.received_table import (
    FEW_BLOCKS,
    STORED_BUT_VALUE,
    TABLE_SCHEMA,
    constant_array,
    described_columns,
    message_columns,
    stored_columns,
)
from pulsar_ray.client.received.message import BlockRows, items_of, row_numbers
from pulsar_ray.client.schemas.readings import WrittenValues
from pulsar_ray.errors import PulsarException
from pulsar_ray.format.typed_rows import TOMBSTONE, TypedRows

_BOOL = pa.bool_()
_MESSAGE_FIELDS = [field for field in TABLE_SCHEMA if field.name != "value"]


class UnreadableRows(Exception):
    """The values of a part cannot be read; `error` says why."""

    def __init__(self, place: int, error: PulsarException) -> None:
        super().__init__(place)
        self.place = place
        self.error = error


@functools.lru_cache(maxsize=256)
def typed_schema(typed: TypedRows) -> pa.Schema:
    """Return the columns of tables: those of the rows, then those of messages."""
    own = [pa.field(TOMBSTONE, pa.bool_()), *_MESSAGE_FIELDS]
    names = typed.table_column_names([field.name for field in own])
    renamed = [field.with_name(name) for field, name in zip(own, names, strict=True)]
    return pa.schema([*typed.schema, *renamed])


def typed_table(parts: Sequence[BlockRows], typed: TypedRows) -> pa.Table:
    """The messages of these rows in order, with the columns of `typed_schema`.

    Rows that were stored together are views of the decoded blocks. Raises UnreadableRows.
    """
    schema = typed_schema(typed)
    if len(parts) <= FEW_BLOCKS:
        batches = []
        for place, part in enumerate(parts):
            values, tombstones = _values([part], typed, place)
            own = [_chosen(column, part) for column in message_columns(part.block)]
            batches.append(pa.RecordBatch.from_arrays([*values.columns, tombstones, *own], schema=schema))
        return pa.Table.from_batches(batches, schema)
    columns_by_name = described_columns(parts) | stored_columns(parts, STORED_BUT_VALUE)
    values, tombstones = [], []
    for place, run in _runs(parts):
        batch, gone = _values(run, typed, place)
        values.append(batch)
        tombstones.append(gone)
    columns = pa.Table.from_batches(values, typed.schema).columns
    return pa.Table.from_arrays(
        [*columns, pa.chunked_array(tombstones), *(columns_by_name[field.name] for field in _MESSAGE_FIELDS)],
        schema=schema,
    )


def _runs(parts: Sequence[BlockRows]) -> Iterator[tuple[int, list[BlockRows]]]:
    """Yield pieces of a table with the place of their first block.

    A block whose rows share columns is one, and so are neighbouring single messages of a version.
    """
    place = 0
    for _, run in groupby(enumerate(parts), lambda each: _run_key(*each)):
        found = [part for _, part in run]
        yield place, found
        place += len(found)


def _run_key(place: int, part: BlockRows) -> tuple[int, Any]:
    block = part.block
    return (place, None) if block.is_columnar or block.message_count > 1 else (-1, block.schema)


def _values(parts: list[BlockRows], typed: TypedRows, place: int) -> tuple[pa.RecordBatch, pa.Array]:
    """The columns of these rows, and which of them are tombstones."""
    block = parts[0].block
    reading = block.schema
    assert isinstance(reading, WrittenValues)
    try:
        if block.is_columnar:
            stored = block.decoded.rows()
            batch = reading.read_rows(stored, typed)
            gone = stored.is_null() if stored.null_count else constant_array(False, _BOOL, len(stored))
            return _chosen(batch, parts[0]), _chosen(gone, parts[0])
        payloads = [payload for part in parts for payload in items_of(part.block.values, part.rows)]
        batch = reading.read_payloads(payloads, typed)
        return batch, pa.array([payload is None for payload in payloads])
    except PulsarException as error:
        if len(parts) > 1:
            return _first_unreadable(parts, typed, place)
        raise UnreadableRows(place, error) from error


def _first_unreadable(
    parts: list[BlockRows], typed: TypedRows, place: int
) -> tuple[pa.RecordBatch, pa.Array]:
    """Find which of several messages it is."""
    batches, tombstones = [], []
    for index, part in enumerate(parts):
        batch, gone = _values([part], typed, place + index)
        batches.append(batch)
        tombstones.append(gone)
    table = pa.Table.from_batches(batches, typed.schema).combine_chunks()
    return table.to_batches()[0], pa.concat_arrays(tombstones)


def _chosen(columns: Any, part: BlockRows) -> Any:
    """The rows of a part, of a column or of several of a whole block."""
    block, rows = part
    if len(rows) == block.message_count:
        return columns
    if isinstance(rows, range):
        return columns.slice(rows.start, len(rows))
    return columns.take(pa.array(row_numbers(rows)))
