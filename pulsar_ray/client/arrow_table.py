"""Received blocks as one Arrow table, for `receive_arrow` and for Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from pulsar_ray.client.block_rows import BlockRows, items_of, row_numbers
from pulsar_ray.client.constant_columns import constant_chunks
from pulsar_ray.client.described_columns import TIME, described_columns
from pulsar_ray.format.arrow_payload import BLOCK_SCHEMA
from pulsar_ray.format.payload import DecodedBlock

TABLE_SCHEMA = pa.schema(
    [
        ("key", pa.utf8()),
        ("value", pa.binary()),
        ("ordering_key", pa.utf8()),
        ("properties", pa.map_(pa.utf8(), pa.utf8())),
        ("topic", pa.utf8()),
        ("partition", pa.int32()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("batch_index", pa.int32()),
        ("publish_time", TIME),
        ("event_time", TIME),
        ("sequence_id", pa.int64()),
        ("producer_name", pa.utf8()),
        ("schema_version", pa.binary()),
        ("redelivery_count", pa.int32()),
    ]
)
"""Absent keys, properties, event times and schema versions are null, tombstones a null value; -1 is "no
batch index" and "no partition", as in MessageId.
"""

# Below this many rows a block's own arrays and chunks cost more than a copy of the rows.
_SHORT_BLOCK = 128

_Run = tuple[int, list[pa.Array | None]]
"""So many neighbouring rows, and their columns of BLOCK_SCHEMA; None is one that none of these rows has."""


def received_table(parts: Iterable[BlockRows]) -> pa.Table:
    """The messages of these rows in order, with the columns of TABLE_SCHEMA.

    Values, keys, properties and times of batches are views of the decoded blocks, which therefore stay in
    memory as long as the table; only short blocks and scattered rows are copied. Each column has chunks of
    its own.
    """
    parts = [part for part in parts if part.rows]
    if not parts:
        return TABLE_SCHEMA.empty_table()
    columns = described_columns(parts) | _stored_columns(parts)
    return pa.Table.from_arrays([columns[name] for name in TABLE_SCHEMA.names], schema=TABLE_SCHEMA)


def _stored_columns(parts: Sequence[BlockRows]) -> dict[str, pa.ChunkedArray]:
    """What producers wrote; without sequence ids if all are consecutive."""
    runs = list(_runs(parts))
    columns = {
        name: _joined([(count, arrays[place]) for count, arrays in runs], TABLE_SCHEMA.field(name).type)
        for place, name in enumerate(BLOCK_SCHEMA.names)
    }
    if not any(part.block.decoded.has_sequence_ids for part in parts):
        del columns["sequence_id"]
    return columns


def _runs(parts: Sequence[BlockRows]) -> Iterator[_Run]:
    """Each long block for itself, and all short ones between two of them."""
    short: list[BlockRows] = []
    for part in parts:
        if part.block.message_count < _SHORT_BLOCK:
            short.append(part)
            continue
        if short:
            yield _gathered(short)
            short = []
        yield _stored(part)
    if short:
        yield _gathered(short)


def _stored(part: BlockRows) -> _Run:
    """Rows of a long block."""
    block, rows = part
    columns = [block.decoded.column(name) for name in BLOCK_SCHEMA.names]
    if isinstance(rows, range):
        if len(rows) < block.message_count:
            columns = [column if column is None else column.slice(rows[0], len(rows)) for column in columns]
    else:
        chosen = pa.array(row_numbers(rows))
        columns = [column if column is None else column.take(chosen) for column in columns]
    return len(rows), columns


def _joined(parts: Sequence[tuple[int, pa.Array | None]], kind: pa.DataType) -> pa.ChunkedArray:
    """The parts as chunks, with nulls for those that are None."""
    chunks: list[pa.Array] = []
    missing = 0
    for count, part in parts:
        if part is None:
            missing += count
            continue
        if missing:
            chunks += constant_chunks(None, kind, missing)
            missing = 0
        chunks.append(part if part.type.equals(kind) else part.view(kind))
    if missing:
        chunks += constant_chunks(None, kind, missing)
    return pa.chunked_array(chunks, kind)


def _gathered(parts: Sequence[BlockRows]) -> _Run:
    """Short blocks as one: making Arrow arrays of each would cost more than its rows."""
    values: list[bytes | None] = []
    for block, rows in parts:
        values += items_of(block.values, rows)
    columns = (
        values,
        _gathered_column(parts, DecodedBlock.keys),
        _gathered_column(parts, DecodedBlock.ordering_keys),
        _gathered_column(parts, _property_pairs),
        _gathered_column(parts, DecodedBlock.event_times),
        _gathered_column(parts, DecodedBlock.sequence_ids),
    )
    arrays = [
        column if column is None else pa.array(column, field.type)
        for column, field in zip(columns, BLOCK_SCHEMA, strict=True)
    ]
    return len(values), arrays


def _gathered_column(
    parts: Sequence[BlockRows], column_of: Callable[[DecodedBlock], list[Any] | None]
) -> list[Any] | None:
    """A column that few messages have; None if none has it."""
    gathered: list[Any] = []
    missing = 0
    for block, rows in parts:
        column = column_of(block.decoded)
        if column is None:
            missing += len(rows)
            continue
        gathered += [None] * missing
        missing = 0
        gathered += items_of(column, rows)
    return gathered + [None] * missing if gathered else None


def _property_pairs(decoded: DecodedBlock) -> list[list[tuple[str, str]] | None] | None:
    column = decoded.properties()
    return None if column is None else [list(row.items()) if row else None for row in column]
