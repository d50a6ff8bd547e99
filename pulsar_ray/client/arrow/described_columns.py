"""Columns of a received table that no producer wrote: the places of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_ray.client.arrow.constant_columns import constant_column
from pulsar_ray.client.arrow.table_schema import NUMBERS, TIME
from pulsar_ray.client.received.block_rows import BlockRows, row_numbers

_Int64s = npt.NDArray[np.int64]


def described_columns(parts: Sequence[BlockRows]) -> dict[str, pa.ChunkedArray | pa.Array]:
    """The described columns for all rows of these parts at once.

    Values that all rows share cost nothing per row. The sequence ids are those of blocks that have no column
    for them.
    """
    blocks = [part.block for part in parts]
    counts = _int64s([len(part.rows) for part in parts])
    publish_times = np.repeat(_int64s([block.publish_time_ms for block in blocks]), counts)
    return {
        "topic": _repeated([block.topic_name for block in blocks], counts, pa.utf8()),
        "partition": _repeated([block.partition for block in blocks], counts, pa.int32()),
        "ledger_id": _repeated([block.ledger_id for block in blocks], counts, pa.int64()),
        "publish_time": pa.array(publish_times).view(TIME),
        "producer_name": _repeated([block.producer_name for block in blocks], counts, pa.utf8()),
        "schema_version": _repeated([block.schema_version or None for block in blocks], counts, pa.binary()),
        "redelivery_count": _repeated([block.redelivery_count for block in blocks], counts, pa.int32()),
        **_numbered_columns(parts, counts),
    }


def _numbered_columns(parts: Sequence[BlockRows], counts: _Int64s) -> dict[str, pa.ChunkedArray | pa.Array]:
    """A number that counts on from row to row."""
    blocks = [part.block for part in parts]
    entry_ids = np.repeat(_int64s([block.first_entry_id for block in blocks]), counts)
    if all(block.is_batch and isinstance(rows, range) for block, rows in parts):
        # Most tables, and of these hardly anything has to be counted.
        first_ids = _int64s([block.first_sequence_id + rows[0] for block, rows in parts])
        return {
            "entry_id": pa.array(entry_ids),
            "batch_index": pa.chunked_array([NUMBERS.slice(rows[0], len(rows)) for _, rows in parts]),
            "sequence_id": pa.array(_counted(first_ids, counts)),
        }
    numbers = _numbers(parts, counts)
    in_batch = np.repeat(np.array([block.is_batch for block in blocks], dtype=bool), counts)
    sequence_ids = np.repeat(_int64s([block.first_sequence_id for block in blocks]), counts)
    return {
        "entry_id": pa.array(entry_ids + np.where(in_batch | (entry_ids < 0), 0, numbers)),
        "batch_index": pa.array(np.where(in_batch, numbers, -1).astype(np.int32)),
        "sequence_id": pa.array(sequence_ids + numbers),
    }


def _numbers(parts: Sequence[BlockRows], counts: _Int64s) -> _Int64s:
    """The number of each row in its block."""
    if not all(isinstance(part.rows, range) for part in parts):
        return np.concatenate([row_numbers(part.rows) for part in parts])
    # Neighbours need no array for each part.
    return _counted(_int64s([part.rows[0] for part in parts]), counts)


def _counted(firsts: _Int64s, counts: _Int64s) -> _Int64s:
    """From each first number on, as many numbers as its count."""
    offsets = firsts - (np.cumsum(counts) - counts)
    total = int(counts.sum())
    numbers: _Int64s
    if (offsets == offsets[0]).all():
        numbers = np.arange(firsts[0], firsts[0] + total)
    else:
        numbers = np.arange(total) + np.repeat(offsets, counts)
    return numbers


def _repeated(items: Sequence[Any], counts: _Int64s, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    """Each item as often as its count."""
    if items.count(items[0]) == len(items):
        return constant_column(items[0], kind, int(counts.sum()))
    places: dict[Any, int] = {}
    indices = [places.setdefault(item, len(places)) for item in items]
    return pa.array(list(places), kind).take(pa.array(np.repeat(_int64s(indices), counts)))


def _int64s(numbers: Sequence[int]) -> _Int64s:
    return np.array(numbers, dtype=np.int64)
