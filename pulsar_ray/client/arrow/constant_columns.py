"""Columns with the same value in every row: chunks of arrays that are made once."""

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


def constant_array(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """A constant column in one piece, of at most the rows of a block."""
    return _repetition(value, kind).slice(0, count)


@functools.lru_cache(maxsize=256)
def _repetition(value: Any, kind: pa.DataType) -> pa.Array:
    return pa.nulls(MAX_ROWS, kind) if value is None else pa.repeat(pa.scalar(value, kind), MAX_ROWS)


def distinct_values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The distinct values of a column without nulls, in order of appearance."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    values: dict[Any, None] = {}
    for chunk in chunks:
        if not len(chunk):
            continue
        first = chunk[0].as_py()
        # A chunk of a received table is recognized by its memory, without a look at its rows.
        same = pa.types.is_string(chunk.type) and _data(chunk) == _data(_repetition(first, chunk.type))
        values |= dict.fromkeys([first] if same else pc.unique(chunk).to_pylist())
    return list(values)


def _data(text: pa.Array) -> int:
    """The address of the characters."""
    characters = text.buffers()[2]
    return 0 if characters is None else int(characters.address)
