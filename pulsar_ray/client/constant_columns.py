"""Columns of a received table that say the same in every row: chunks of arrays that are made once."""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_ray.format.block import MAX_ROWS


def constant_column(value: Any, kind: pa.DataType, count: int) -> pa.ChunkedArray:
    """`count` times the same value, or null for None."""
    return pa.chunked_array(constant_chunks(value, kind, count), kind)


def constant_chunks(value: Any, kind: pa.DataType, count: int) -> list[pa.Array]:
    """Chunks that share their memory with each other and with other tables."""
    whole = _repetition(value, kind)
    chunks = [whole] * (count // MAX_ROWS)
    if count % MAX_ROWS:
        chunks.append(whole.slice(0, count % MAX_ROWS))
    return chunks


@functools.lru_cache(maxsize=256)
def _repetition(value: Any, kind: pa.DataType) -> pa.Array:
    return pa.nulls(MAX_ROWS, kind) if value is None else pa.repeat(pa.scalar(value, kind), MAX_ROWS)


def distinct_values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """What a column contains, in order of appearance; text in chunks that share memory is looked at once."""
    if isinstance(column, pa.ChunkedArray) and pa.types.is_string(column.type):
        longest: dict[tuple[int, ...], pa.Array] = {}
        for chunk in column.chunks:
            place = (chunk.offset, *(0 if buffer is None else buffer.address for buffer in chunk.buffers()))
            if place not in longest or len(longest[place]) < len(chunk):
                longest[place] = chunk
        column = pa.chunked_array(list(longest.values()), column.type)
    values: list[Any] = pc.unique(column).to_pylist()
    return values
