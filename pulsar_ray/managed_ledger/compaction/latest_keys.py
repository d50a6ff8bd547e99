"""Finds the newest message of each key, in passes where memory is short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_ray.format.arrow_memory import bool_array, bools_of, int32s_of, offsets_of

Marks = npt.NDArray[np.int64]
"""Twice the number of each row in the log, plus one for a tombstone."""

_ALL_HASHES = 1 << 64
_LEAST_MERGED_ROWS = 1 << 19
_MOST_WAITING = 65_536
_HASHED_AT_ONCE = 16_384
_MIX = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.random.default_rng(128).integers(0, 1 << 63, 256, np.uint64) << np.uint64(1) | np.uint64(1)


class _Rows(NamedTuple):
    """Keys and marks of rows, in the order of the log."""

    keys: pa.ChunkedArray
    marks: Marks

    @property
    def nbytes(self) -> int:
        return int(self.keys.nbytes) + self.marks.nbytes


_NO_ROWS = _Rows(pa.chunked_array([], pa.utf8()), np.empty(0, np.int64))


class LatestKeys:
    """Finds the newest row of each key, one range of hashes after the other.

    The log is read once for each: `begin` a pass, `add` all of its rows in order, `end` it, until `is_done`.
    The range of a pass shrinks as soon as its keys take more than `max_bytes`; at most twice as many are in
    memory.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._low = 0
        self._high = _ALL_HASHES
        self._known = _NO_ROWS
        self._waiting: list[_Rows] = []
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
        self._known = _NO_ROWS
        self.passes += 1

    def add(self, keys: pa.Array, marks: Marks) -> None:
        """Take rows, each with its key."""
        rows = _Rows(pa.chunked_array([keys]), marks)
        if self._low or self._high != _ALL_HASHES:
            rows = self._in_range(rows)
        if not len(rows.marks):
            return
        self._waiting.append(rows)
        self._waiting_rows += len(rows.marks)
        self._waiting_bytes += rows.nbytes
        if (
            self._waiting_rows >= max(_LEAST_MERGED_ROWS, len(self._known.marks))
            or self._waiting_bytes > self._max_bytes
            or len(self._waiting) >= _MOST_WAITING
        ):
            self._merge()

    def end(self) -> npt.NDArray[np.int64]:
        """End the pass; returns the numbers of the rows that are kept, in order."""
        self._merge()
        self._low = self._high
        marks, self._known = self._known.marks, _NO_ROWS
        return np.sort(marks[marks & 1 == 0] >> 1)

    def _merge(self) -> None:
        if self._waiting:
            self._known = _latest([self._known, *self._waiting])
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        while (
            self._known.nbytes > self._max_bytes and len(self._known.marks) > 1 and self._high - self._low > 1
        ):
            self._high = (self._low + self._high) // 2
            self._known = self._in_range(self._known)

    def _in_range(self, rows: _Rows) -> _Rows:
        hashes = np.concatenate([*_hashes(rows.keys), np.empty(0, np.uint64)])
        is_in = hashes >= np.uint64(self._low)
        if self._high != _ALL_HASHES:
            is_in &= hashes < np.uint64(self._high)
        keys = rows.keys.combine_chunks().filter(bool_array(is_in))
        return _Rows(pa.chunked_array([keys]), rows.marks[is_in])


def _latest(rows: Sequence[_Rows]) -> _Rows:
    """Return the last row of each key.

    Arrow's own grouping would first load all of its data sets and file systems.
    """
    chunks = [chunk for each in rows for chunk in each.keys.chunks]
    encoded = pa.chunked_array(chunks, pa.utf8()).dictionary_encode()
    # All chunks have the same dictionary.
    keys = encoded.chunk(encoded.num_chunks - 1).dictionary
    places = np.concatenate([int32s_of(chunk.indices) for chunk in encoded.chunks])
    marks = np.empty(len(keys), np.int64)
    # Of several marks for one place the last one stays.
    marks[places] = np.concatenate([each.marks for each in rows])
    return _Rows(pa.chunked_array([keys]), marks)


def _hashes(keys: pa.ChunkedArray) -> Iterator[npt.NDArray[np.uint64]]:
    """Yield a number for each key, spread over all there are; none is empty."""
    for chunk in keys.chunks:
        for start in range(0, len(chunk), _HASHED_AT_ONCE):
            yield _hashed(chunk.slice(start, _HASHED_AT_ONCE))


def _hashed(keys: pa.Array) -> npt.NDArray[np.uint64]:
    offsets, data = offsets_of(keys), keys.buffers()[2]
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
    if not len(column):
        return np.empty(0, np.int32)
    lengths = np.diff(offsets_of(column))
    if column.null_count:
        lengths *= bools_of(column.is_valid())
    return lengths


def with_key(keys: pa.Array) -> npt.NDArray[np.bool_]:
    """Whether each row has a key that counts: an empty one does not."""
    return lengths_of(keys) > 0
