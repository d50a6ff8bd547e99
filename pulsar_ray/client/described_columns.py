"""The columns of a received table that say where a message stands, which no producer wrote."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_ray.client.block_rows import BlockRows, row_numbers
from pulsar_ray.format.block import MAX_ROWS

TIME = pa.timestamp("ms", tz="UTC")
_Int64s = npt.NDArray[np.int64]


def described_rows(part: BlockRows) -> dict[str, pa.Array]:
    """The columns of rows of one long block, nearly all of them slices of arrays made once."""
    block, rows = part
    count = len(rows)
    if block.is_batch or block.first_entry_id < 0:
        entry_ids = pa.repeat(pa.scalar(block.first_entry_id, pa.int64()), count)
    else:
        entry_ids = pa.array(row_numbers(rows) + block.first_entry_id)
    indexes = (
        pa.array(row_numbers(rows).astype(np.int32)) if block.is_batch else _constant(-1, pa.int32(), count)
    )
    return {
        "topic": _constant(block.topic_name, pa.utf8(), count),
        "partition": _constant(block.partition, pa.int32(), count),
        "ledger_id": _constant(block.ledger_id, pa.int64(), count),
        "entry_id": entry_ids,
        "batch_index": indexes,
        "publish_time": pa.repeat(pa.scalar(block.publish_time_ms, TIME), count),
        "producer_name": _constant(block.producer_name, pa.utf8(), count),
        "schema_version": _constant(block.schema_version or None, pa.binary(), count),
        "redelivery_count": _constant(block.redelivery_count, pa.int32(), count),
    }


def _constant(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return _repetition(value, kind).slice(0, count)


@functools.lru_cache(maxsize=256)
def _repetition(value: Any, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), MAX_ROWS)


def described_blocks(parts: Sequence[BlockRows]) -> dict[str, pa.Array]:
    """The same for many short blocks: all rows at once."""
    blocks = [part.block for part in parts]
    counts = _int64s([len(part.rows) for part in parts])
    rows = _int64s(list(chain.from_iterable(part.rows for part in parts)))
    in_batch = np.repeat(np.array([block.is_batch for block in blocks], dtype=bool), counts)
    entry_ids = np.repeat(_int64s([block.first_entry_id for block in blocks]), counts)
    publish_times = np.repeat(_int64s([block.publish_time_ms for block in blocks]), counts)
    partitions = np.repeat(np.array([block.partition for block in blocks], dtype=np.int32), counts)
    redeliveries = np.repeat(np.array([block.redelivery_count for block in blocks], dtype=np.int32), counts)
    return {
        "topic": _repeated([block.topic_name for block in blocks], counts, pa.utf8()),
        "partition": pa.array(partitions),
        "ledger_id": pa.array(np.repeat(_int64s([block.ledger_id for block in blocks]), counts)),
        "entry_id": pa.array(entry_ids + np.where(in_batch | (entry_ids < 0), 0, rows)),
        "batch_index": pa.array(np.where(in_batch, rows, -1).astype(np.int32)),
        "publish_time": pa.array(publish_times).view(TIME),
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
