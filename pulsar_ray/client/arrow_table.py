"""Received blocks as one Arrow table, for `receive_arrow` and for Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_ray.client.message import RowSpan
from pulsar_ray.format.arrow_payload import BLOCK_SCHEMA
from pulsar_ray.format.payload import DecodedBlock

_TIME = pa.timestamp("ms", tz="UTC")
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
        ("publish_time", _TIME),
        ("event_time", _TIME),
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
_Int64s = npt.NDArray[np.int64]


def received_table(spans: Sequence[RowSpan]) -> pa.Table:
    """The messages of these spans in order, with the columns of TABLE_SCHEMA.

    Values, keys, properties and times of batches are views of the decoded blocks, which therefore stay in
    memory as long as the table; only short blocks are copied.
    """
    spans = [span for span in spans if span[1] < span[2]]
    if not spans:
        return TABLE_SCHEMA.empty_table()
    stored = _stored_columns(spans)
    described = _described_columns(spans)
    return pa.table(
        [stored[field.name] if field.name in stored else described[field.name] for field in TABLE_SCHEMA],
        schema=TABLE_SCHEMA,
    )


def _stored_columns(spans: Sequence[RowSpan]) -> dict[str, pa.ChunkedArray]:
    """The columns that producers wrote: one chunk per long block, one per run of short ones."""
    batches: list[pa.RecordBatch] = []
    short: list[RowSpan] = []
    for span in spans:
        block, first, end = span
        if block.message_count < _SHORT_BLOCK:
            short.append(span)
            continue
        if short:
            batches.append(_gathered(short))
            short = []
        batch = block.decoded.record_batch()
        batches.append(batch if end - first == block.message_count else batch.slice(first, end - first))
    if short:
        batches.append(_gathered(short))
    table = pa.Table.from_batches(batches, BLOCK_SCHEMA)
    columns = {name: table.column(name) for name in table.column_names}
    times = [chunk.view(_TIME) for chunk in columns["event_time"].chunks]
    return columns | {"event_time": pa.chunked_array(times, _TIME)}


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


def _described_columns(spans: Sequence[RowSpan]) -> dict[str, pa.Array]:
    """The columns that say where a message stands, all rows at once."""
    blocks = [span[0] for span in spans]
    firsts = _int64s([first for _, first, _ in spans])
    counts = _int64s([end for _, _, end in spans]) - firsts
    starts = np.cumsum(counts) - counts
    rows = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(firsts - starts, counts)
    in_batch = np.repeat(np.array([block.is_batch for block in blocks], dtype=bool), counts)
    entry_ids = np.repeat(_int64s([block.first_entry_id for block in blocks]), counts)
    publish_times = np.repeat(_int64s([block.publish_time_ms for block in blocks]), counts)
    partitions = np.repeat(np.array([block.partition for block in blocks], dtype=np.int32), counts)
    redeliveries = np.repeat(np.array([block.redelivery_count for block in blocks], dtype=np.int32), counts)
    return {
        "topic": _repeated([block.topic_name for block in blocks], counts, pa.utf8()),
        "partition": pa.array(partitions),
        "ledger_id": pa.array(np.repeat(_int64s([block.ledger_id for block in blocks]), counts)),
        "entry_id": pa.array(entry_ids + np.where(in_batch, 0, rows)),
        "batch_index": pa.array(np.where(in_batch, rows, -1).astype(np.int32)),
        "publish_time": pa.array(publish_times).view(_TIME),
        "producer_name": _repeated([block.producer_name for block in blocks], counts, pa.utf8()),
        "schema_version": _repeated([block.schema_version or None for block in blocks], counts, pa.binary()),
        "redelivery_count": pa.array(redeliveries),
    }


def _int64s(numbers: Sequence[int]) -> _Int64s:
    return np.array(numbers, dtype=np.int64)


def _repeated(items: Sequence[Any], counts: _Int64s, kind: pa.DataType) -> pa.Array:
    """Each item as often as its count says."""
    places: dict[Any, int] = {}
    indices = [places.setdefault(item, len(places)) for item in items]
    if len(places) == 1:
        return pa.repeat(pa.scalar(items[0], kind), int(counts.sum()))
    return pa.array(list(places), kind).take(pa.array(np.repeat(_int64s(indices), counts)))
