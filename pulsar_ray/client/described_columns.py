"""The columns of a received table that say where a message stands, which no producer wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_ray.client.block_rows import BlockRows, row_numbers
from pulsar_ray.client.constant_columns import constant_column
from pulsar_ray.client.received_block import ReceivedBlock
from pulsar_ray.format.block import MAX_ROWS

TIME = pa.timestamp("ms", tz="UTC")
_Int64s = npt.NDArray[np.int64]
_ROW_NUMBERS = pa.array(np.arange(MAX_ROWS, dtype=np.int32))


def described_columns(parts: Sequence[BlockRows]) -> dict[str, pa.ChunkedArray | pa.Array]:
    """For all rows of these parts at once; what all have in common costs nothing per row.

    The sequence ids are those of blocks that have no column for them.
    """
    if len(parts) == 1 and isinstance(rows := parts[0].rows, range):
        return _of_one_block(parts[0].block, rows)
    blocks = [part.block for part in parts]
    counts = _int64s([len(part.rows) for part in parts])
    numbers = _numbers(parts, counts)
    in_batch = np.repeat(np.array([block.is_batch for block in blocks], dtype=bool), counts)
    entry_ids = np.repeat(_int64s([block.first_entry_id for block in blocks]), counts)
    publish_times = np.repeat(_int64s([block.publish_time_ms for block in blocks]), counts)
    sequence_ids = np.repeat(_int64s([block.first_sequence_id for block in blocks]), counts)
    return {
        "topic": _repeated([block.topic_name for block in blocks], counts, pa.utf8()),
        "partition": _repeated([block.partition for block in blocks], counts, pa.int32()),
        "ledger_id": _repeated([block.ledger_id for block in blocks], counts, pa.int64()),
        "entry_id": pa.array(entry_ids + np.where(in_batch | (entry_ids < 0), 0, numbers)),
        "batch_index": pa.array(np.where(in_batch, numbers, -1).astype(np.int32)),
        "publish_time": pa.array(publish_times).view(TIME),
        "sequence_id": pa.array(sequence_ids + numbers),
        "producer_name": _repeated([block.producer_name for block in blocks], counts, pa.utf8()),
        "schema_version": _repeated([block.schema_version or None for block in blocks], counts, pa.binary()),
        "redelivery_count": _repeated([block.redelivery_count for block in blocks], counts, pa.int32()),
    }


def _of_one_block(block: ReceivedBlock, rows: range) -> dict[str, pa.ChunkedArray | pa.Array]:
    """The same for neighbouring rows of one block, which is what somebody gets who keeps up."""
    count = len(rows)
    entry_id, first_id = block.first_entry_id, block.first_sequence_id
    if block.is_batch or entry_id < 0:
        entry_ids = np.full(count, entry_id)
    else:
        entry_ids = np.arange(entry_id + rows.start, entry_id + rows.stop)
    return {
        "topic": constant_column(block.topic_name, pa.utf8(), count),
        "partition": constant_column(block.partition, pa.int32(), count),
        "ledger_id": constant_column(block.ledger_id, pa.int64(), count),
        "entry_id": pa.array(entry_ids),
        "batch_index": _ROW_NUMBERS.slice(rows.start, count)
        if block.is_batch
        else constant_column(-1, pa.int32(), count),
        "publish_time": pa.array(np.full(count, block.publish_time_ms)).view(TIME),
        "sequence_id": pa.array(np.arange(first_id + rows.start, first_id + rows.stop)),
        "producer_name": constant_column(block.producer_name, pa.utf8(), count),
        "schema_version": constant_column(block.schema_version or None, pa.binary(), count),
        "redelivery_count": constant_column(block.redelivery_count, pa.int32(), count),
    }


def _numbers(parts: Sequence[BlockRows], counts: _Int64s) -> _Int64s:
    """Each row's number in its block."""
    if not all(isinstance(part.rows, range) for part in parts):
        return np.concatenate([row_numbers(part.rows) for part in parts])
    # Neighbours need no array for each part.
    firsts = _int64s([part.rows[0] for part in parts])
    starts = np.cumsum(counts) - counts
    numbers: _Int64s = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(firsts - starts, counts)
    return numbers


def _repeated(items: Sequence[Any], counts: _Int64s, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    """Each item as often as its count says."""
    places: dict[Any, int] = {}
    indices = [places.setdefault(item, len(places)) for item in items]
    if len(places) == 1:
        return constant_column(items[0], kind, int(counts.sum()))
    return pa.array(list(places), kind).take(pa.array(np.repeat(_int64s(indices), counts)))


def _int64s(numbers: Sequence[int]) -> _Int64s:
    return np.array(numbers, dtype=np.int64)
