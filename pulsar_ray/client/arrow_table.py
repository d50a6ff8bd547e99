"""Received blocks as one Arrow table, for `receive_arrow` and for Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from pulsar_ray.client.block_rows import BlockRows, items_of, row_numbers
from pulsar_ray.client.described_columns import TIME, described_blocks, described_rows
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


def received_table(parts: Iterable[BlockRows]) -> pa.Table:
    """The messages of these rows in order, with the columns of TABLE_SCHEMA.

    Values, keys, properties and times of batches are views of the decoded blocks, which therefore stay in
    memory as long as the table; only short blocks and scattered rows are copied.
    """
    batches: list[pa.RecordBatch] = []
    short: list[BlockRows] = []
    for part in parts:
        if not part.rows:
            continue
        if part.block.message_count < _SHORT_BLOCK:
            short.append(part)
            continue
        if short:
            batches.append(_batch(_gathered(short), described_blocks(short)))
            short = []
        batches.append(_batch(_stored(part), described_rows(part)))
    if short:
        batches.append(_batch(_gathered(short), described_blocks(short)))
    return pa.Table.from_batches(batches, TABLE_SCHEMA)


def _stored(part: BlockRows) -> pa.RecordBatch:
    block, rows = part
    stored = block.decoded.record_batch()
    if len(rows) == block.message_count:
        return stored
    if isinstance(rows, range):
        return stored.slice(rows.start, len(rows))
    return stored.take(pa.array(row_numbers(rows)))


def _batch(stored: pa.RecordBatch, described: dict[str, pa.Array]) -> pa.RecordBatch:
    columns = dict(zip(BLOCK_SCHEMA.names, stored.columns, strict=True)) | described
    columns["event_time"] = columns["event_time"].view(TIME)
    return pa.RecordBatch.from_arrays([columns[name] for name in TABLE_SCHEMA.names], schema=TABLE_SCHEMA)


def _gathered(parts: Sequence[BlockRows]) -> pa.RecordBatch:
    """Short blocks as one batch: making Arrow arrays of each would cost more than its rows."""
    values: list[bytes | None] = []
    sequence_ids: list[int] = []
    for block, rows in parts:
        values += items_of(block.values, rows)
        sequence_ids += items_of(block.sequence_ids, rows)
    columns = (
        values,
        _gathered_column(parts, DecodedBlock.keys),
        _gathered_column(parts, DecodedBlock.ordering_keys),
        _gathered_column(parts, _property_pairs),
        _gathered_column(parts, DecodedBlock.event_times),
        sequence_ids,
    )
    arrays = [
        pa.nulls(len(values), field.type) if column is None else pa.array(column, field.type)
        for column, field in zip(columns, BLOCK_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=BLOCK_SCHEMA)


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
