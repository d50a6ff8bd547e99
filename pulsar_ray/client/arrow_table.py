"""Received blocks as one Arrow table, for `receive_arrow` and for Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from pulsar_ray.client.described_columns import TIME, described_rows, described_span
from pulsar_ray.client.message import RowSpan
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


def received_table(spans: Sequence[RowSpan]) -> pa.Table:
    """The messages of these spans in order, with the columns of TABLE_SCHEMA.

    Values, keys, properties and times of batches are views of the decoded blocks, which therefore stay in
    memory as long as the table; only short blocks are copied.
    """
    batches: list[pa.RecordBatch] = []
    short: list[RowSpan] = []
    for span in spans:
        block, first, end = span
        if first >= end:
            continue
        if block.message_count < _SHORT_BLOCK:
            short.append(span)
            continue
        if short:
            batches.append(_batch(_gathered(short), described_rows(short)))
            short = []
        stored = block.decoded.record_batch()
        if end - first < block.message_count:
            stored = stored.slice(first, end - first)
        batches.append(_batch(stored, described_span(span)))
    if short:
        batches.append(_batch(_gathered(short), described_rows(short)))
    return pa.Table.from_batches(batches, TABLE_SCHEMA)


def _batch(stored: pa.RecordBatch, described: dict[str, pa.Array]) -> pa.RecordBatch:
    columns = dict(zip(BLOCK_SCHEMA.names, stored.columns, strict=True)) | described
    columns["event_time"] = columns["event_time"].view(TIME)
    return pa.RecordBatch.from_arrays([columns[name] for name in TABLE_SCHEMA.names], schema=TABLE_SCHEMA)


def _gathered(spans: Sequence[RowSpan]) -> pa.RecordBatch:
    """Short blocks as one batch: making Arrow arrays of each would cost more than its rows."""
    values: list[bytes | None] = []
    sequence_ids: list[int] = []
    for block, first, end in spans:
        values += block.values[first:end]
        sequence_ids += block.sequence_ids[first:end]
    columns = (
        values,
        _gathered_column(spans, DecodedBlock.keys),
        _gathered_column(spans, DecodedBlock.ordering_keys),
        _gathered_column(spans, _property_pairs),
        _gathered_column(spans, DecodedBlock.event_times),
        sequence_ids,
    )
    arrays = [
        pa.nulls(len(values), field.type) if column is None else pa.array(column, field.type)
        for column, field in zip(columns, BLOCK_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=BLOCK_SCHEMA)


def _gathered_column(
    spans: Sequence[RowSpan], column_of: Callable[[DecodedBlock], list[Any] | None]
) -> list[Any] | None:
    """A column that few messages have; None if none has it."""
    gathered: list[Any] = []
    missing = 0
    for block, first, end in spans:
        column = column_of(block.decoded)
        if column is None:
            missing += end - first
            continue
        gathered += [None] * missing
        missing = 0
        gathered += column[first:end]
    return gathered + [None] * missing if gathered else None


def _property_pairs(decoded: DecodedBlock) -> list[list[tuple[str, str]] | None] | None:
    column = decoded.properties()
    return None if column is None else [list(row.items()) if row else None for row in column]
