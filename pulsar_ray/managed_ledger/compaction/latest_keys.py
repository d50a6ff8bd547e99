"""Finds the newest message of each key, in passes where memory is short."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Marks = npt.NDArray[np.int64]
"""Twice the number of each row in the log, plus one for a tombstone."""

_ALL_HASHES = 1 << 64
_LEAST_MERGED_ROWS = 1 << 19
_MOST_WAITING = 65_536
_HASHED_AT_ONCE = 16_384
_MIX = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.random.default_rng(128).integers(0, 1 << 63, 256, np.uint64) << np.uint64(1) | np.uint64(1)


class LatestKeys:
    """Finds the newest row of each key, one range of hashes after the other.

    The log is read once for each: `begin` a pass, `add` all of its rows, `end` it, until `is_done`. The range
    of a pass shrinks as soon as its keys take more than `max_bytes`; at most twice as many are in memory.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._low = 0
        self._high = _ALL_HASHES
        self._known: pa.Table | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self.passes = 0

    @property
    def is_done(self) -> bool:
        """Whether every key was in the range of a pass that has ended."""
        return self._low == _ALL_HASHES

    def begin(self) -> None:
        """Begin a pass over the keys that no pass has found yet."""
        self._high = _ALL_HASHES
        self._known = None
        self.passes += 1

    def add(self, keys: pa.Array, marks: Marks) -> None:
        """Take rows, each with its key."""
        table = pa.table({"key": keys, "mark": marks})
        if self._low or self._high != _ALL_HASHES:
            table = self._in_range(table)
        if not table.num_rows:
            return
        self._waiting.append(table)
        self._waiting_rows += table.num_rows
        self._waiting_bytes += table.nbytes
        known = 0 if self._known is None else self._known.num_rows
        if (
            self._waiting_rows >= max(_LEAST_MERGED_ROWS, known)
            or self._waiting_bytes > self._max_bytes
            or len(self._waiting) >= _MOST_WAITING
        ):
            self._merge()

    def end(self) -> npt.NDArray[np.int64]:
        """End the pass; returns the numbers of the rows that are kept, in order."""
        self._merge()
        self._low = self._high
        known, self._known = self._known, None
        if known is None:
            return np.empty(0, np.int64)
        marks = known.column("mark").to_numpy()
        return np.sort(marks[marks & 1 == 0] >> 1)

    def _merge(self) -> None:
        if self._waiting:
            tables = self._waiting if self._known is None else [self._known, *self._waiting]
            grouped = pa.concat_tables(tables).group_by("key", use_threads=False).aggregate([("mark", "max")])
            self._known = grouped.select(["key", "mark_max"]).rename_columns(["key", "mark"])
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        while (
            self._known is not None
            and self._known.nbytes > self._max_bytes
            and self._known.num_rows > 1
            and self._high - self._low > 1
        ):
            self._high = (self._low + self._high) // 2
            self._known = self._in_range(self._known)

    def _in_range(self, table: pa.Table) -> pa.Table:
        hashes = np.concatenate([*_hashes(table.column("key")), np.empty(0, np.uint64)])
        is_in = hashes >= np.uint64(self._low)
        if self._high != _ALL_HASHES:
            is_in &= hashes < np.uint64(self._high)
        return table.filter(pa.array(is_in)).combine_chunks()


def _hashes(keys: pa.ChunkedArray) -> Iterator[npt.NDArray[np.uint64]]:
    """Yield a number for each key, spread over all there are; none is empty."""
    for chunk in keys.chunks:
        for start in range(0, len(chunk), _HASHED_AT_ONCE):
            yield _hashed(chunk.slice(start, _HASHED_AT_ONCE))


def _hashed(keys: pa.Array) -> npt.NDArray[np.uint64]:
    _, offsets_buffer, data = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    starts, ends = offsets[:-1], offsets[1:]
    characters = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]].astype(np.uint64)
    places = np.arange(offsets[0], offsets[-1]) - np.repeat(starts, ends - starts)
    characters += np.uint64(1)
    characters *= _FACTORS[places & 255]
    sums = np.add.reduceat(characters, starts - offsets[0])
    sums ^= sums >> np.uint64(32)
    sums *= _MIX
    sums ^= sums >> np.uint64(29)
    sums *= _MIX
    mixed: npt.NDArray[np.uint64] = sums ^ (sums >> np.uint64(32))
    return mixed


def lengths_of(column: pa.Array) -> npt.NDArray[np.int32]:
    """How many bytes each text or binary value has; a null has none."""
    if column.null_count:
        lengths: Any = pc.fill_null(pc.binary_length(column), 0)
        return cast("npt.NDArray[np.int32]", lengths.to_numpy(zero_copy_only=False))
    if not len(column):
        return np.empty(0, np.int32)
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    return np.diff(offsets)


def with_key(keys: pa.Array) -> npt.NDArray[np.bool_]:
    """Whether each row has a key that counts: an empty one does not."""
    return lengths_of(keys) > 0
