"""Finds the latest message of each key of a log.

That is for those who keep or read these alone. The form that was compacted before is read in place of its
part of the log, which may be trimmed. The log is read once, more often where its keys take more memory than
they may, and again where a message is kept; of each 4 MiB the place is remembered. Costs are by the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_ray.errors import InvalidMessage, UnsupportedFormatVersion
from pulsar_ray.format.arrow_memory import bool_array, bools_of, text_array
from pulsar_ray.format.block import CHUNK, ENCRYPTED
from pulsar_ray.format.payload import DecodedBlock, decode_block
from pulsar_ray.managed_ledger.compaction.kept_rows import KeptRows
from pulsar_ray.managed_ledger.compaction.latest_keys import LatestKeys, lengths_of, with_key
from pulsar_ray.managed_ledger.compaction.stored_blocks import BlockReader, SourceSegment, StoredBlock, Window
from pulsar_ray.model.message_id import Position

_ROWS_AT_ONCE = 32_768
_BYTES_AT_ONCE = 16 * 1024 * 1024
"""Keys that are not put together yet keep their blocks in memory."""
Rows = npt.NDArray[np.int64]


class _Rows(NamedTuple):
    """Columns of a block's messages, as far as compaction has to know."""

    keys: pa.Array
    is_empty: npt.NDArray[np.bool_]
    """Whether a message removes its key."""
    is_there: npt.NDArray[np.bool_] | None
    """Whether no compaction before has removed it; None if none has removed any."""


class Chunks:
    """The messages in chunks, of which all chunks are kept or none."""

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}
        """The number of the last chunk of each chunk's message, if all are there."""
        self._open: dict[int, tuple[str, list[int]]] = {}

    def add(self, block: StoredBlock) -> bool:
        """Take a chunk; whether its message is whole with it."""
        info = block.header.metadata().chunk
        assert info is not None
        uuid, numbers = self._open.get(block.header.incarnation, ("", []))
        if info.chunk_id == 0:
            uuid, numbers = info.uuid, []
            self._open[block.header.incarnation] = (uuid, numbers)
        if uuid != info.uuid or info.chunk_id != len(numbers):
            return False  # sent twice, or without those before: nobody is ever given it
        numbers.append(block.number)
        if len(numbers) < info.num_chunks:
            return False
        self.ends.update(dict.fromkeys(numbers, block.number))
        del self._open[block.header.incarnation]
        return True

    def open_numbers(self) -> list[int]:
        """The chunks of messages whose rest may be behind the horizon."""
        return sorted(number for _, numbers in self._open.values() for number in numbers)


class LatestMessages:
    """Finds the messages of a log up to a horizon that are kept.

    The `segments` of an earlier compaction end with the entry `behind`. `watch` is called often, with the
    share of a reading that is done; it may raise to end it. Many rows are remembered in a file of `directory`
    without a name.
    """

    def __init__(
        self,
        segments: Sequence[SourceSegment],
        behind: Position,
        horizon: Position,
        *,
        retains_null_key: bool,
        max_key_bytes: int,
        directory: Path,
        watch: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._log = BlockReader(segments, behind, horizon)
        self._windows: list[Window] = []
        self._retains_null_key = retains_null_key
        self._watch = watch
        self._keys = LatestKeys(max_key_bytes)
        self._kept = KeptRows(directory)
        self.chunks = Chunks()
        self.total_bytes = max(sum(segment.end_offset for segment in segments), 1)
        self.lasts: dict[int, int] = {}
        """The last entry of each ledger."""
        self.seen = 0
        """How many messages there are."""

    def find(self) -> None:
        """Read all keys. Raises CorruptData for what cannot be read, SegmentGone, OSError."""
        while not self._keys.is_done:
            self._pass()

    def keep_open_chunks(self) -> None:
        """Keep the chunks of messages whose rest may be behind the horizon."""
        self._kept.add(np.array(self.chunks.open_numbers(), np.int64))

    def kept(self) -> Iterator[list[tuple[StoredBlock, Rows]]]:
        """Yield the blocks that have kept rows, with the places of these.

        They come in order, some MiB at once.
        """
        found: deque[Rows] = deque()
        for blocks in self._log.read_again(self._windows_of_kept(found)):
            numbers = found.popleft()
            if blocks:
                firsts = np.array([block.number for block in blocks])
                ends = firsts + np.array([block.header.message_count for block in blocks])
                places = zip(np.searchsorted(numbers, firsts), np.searchsorted(numbers, ends), strict=True)
                yield [
                    (block, numbers[first:end] - block.number)
                    for block, (first, end) in zip(blocks, places, strict=True)
                    if first < end
                ]

    def _windows_of_kept(self, found: deque[Rows]) -> Iterator[Window]:
        """Yield the windows that have kept rows.

        The numbers of these rows are in `found` by then.
        """
        self._kept.rewind()
        read = 0
        for window in self._windows:
            numbers = self._kept.below(window.end)
            if len(numbers):
                found.append(numbers)
                yield window
            read += window.length
            self._watch(min(read / self.total_bytes, 1))

    def close(self) -> None:
        """Give back what was remembered."""
        self._kept.close()

    def _pass(self) -> None:
        keys, gathered = self._keys, _Gathered(self._keys)
        is_first = not keys.passes
        keys.begin()
        if is_first:
            self.chunks = Chunks()
        read = 0
        keyless = _Numbers(self._keep)
        self._windows = []
        for blocks in self._log.read(self._windows.append):
            for block in blocks:
                read += block.header.total_length
                self.lasts[block.ledger_id] = block.entry_id + block.header.entries - 1
                if block.header.flags & CHUNK and block.number not in self.chunks.ends:
                    if not is_first or not self.chunks.add(block):
                        continue
                elif block.header.flags & CHUNK and self.chunks.ends[block.number] != block.number:
                    continue
                rows = _rows_of(block)
                if rows is None:
                    if is_first:
                        keyless.add(np.arange(block.number, block.number + block.header.message_count))
                        self.seen += block.header.message_count
                    continue
                if is_first:
                    gone = 0 if rows.is_there is None else np.count_nonzero(~rows.is_there)
                    self.seen += len(rows.keys) - int(gone)
                    if self._retains_null_key:
                        keyless.add(_keyless(block, rows))
                gathered.add(block, rows)
            self._watch(min(read / self.total_bytes, 1))
        gathered.flush()
        self._keep(keys.end())
        keyless.flush()

    def _keep(self, numbers: npt.NDArray[np.int64]) -> None:
        """Keep these rows; of a message in chunks the last one stands for all."""
        self._kept.add(numbers)
        if ends := self.chunks.ends:
            last = np.fromiter(ends.values(), np.int64, len(ends))
            all_chunks = np.fromiter(ends, np.int64, len(ends))
            others = all_chunks[np.isin(last, numbers) & (all_chunks != last)]
            self._kept.add(np.sort(others))


class _Numbers:
    """Gathers rows that are kept whatever comes; there may be as many as messages."""

    def __init__(self, keep: Callable[[Rows], None]) -> None:
        self._keep = keep
        self._parts: list[Rows] = []
        self._rows = 0

    def add(self, numbers: Rows) -> None:
        if len(numbers):
            self._parts.append(numbers)
            self._rows += len(numbers)
            if self._rows >= _ROWS_AT_ONCE:
                self.flush()

    def flush(self) -> None:
        if self._parts:
            self._keep(np.concatenate(self._parts))
            self._parts, self._rows = [], 0


class _Gathered:
    """Gathers keys of many blocks: a group of them costs little more than one."""

    def __init__(self, keys: LatestKeys) -> None:
        self._keys = keys
        self._columns: list[pa.Array] = []
        self._marks: list[npt.NDArray[np.int64]] = []
        self._rows = 0
        self._bytes = 0

    def add(self, block: StoredBlock, rows: _Rows) -> None:
        marks = np.arange(block.number, block.number + len(rows.keys)) * 2 + rows.is_empty
        keys = rows.keys
        if rows.is_there is not None:
            marks, keys = marks[rows.is_there], keys.filter(bool_array(rows.is_there))
        self._columns.append(keys)
        self._marks.append(marks)
        self._rows += len(keys)
        self._bytes += max(block.header.total_length, block.header.uncompressed_length)
        if self._rows >= _ROWS_AT_ONCE or self._bytes >= _BYTES_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        if not self._columns:
            return
        keys, marks = pa.concat_arrays(self._columns), np.concatenate(self._marks)
        self._columns, self._marks, self._rows, self._bytes = [], [], 0, 0
        is_keyed = with_key(keys)
        if not is_keyed.all():
            keys, marks = keys.filter(bool_array(is_keyed)), marks[is_keyed]
        if len(keys):
            self._keys.add(keys, marks)


def _rows_of(block: StoredBlock) -> _Rows | None:
    """The keys of a block; None for one that nobody can read, which stays."""
    header = block.header
    count = header.message_count
    if count == 1 and not header.columns:
        key = header.metadata().key
        is_empty = np.array([not header.uncompressed_length])
        return _Rows(text_array(key), is_empty, None)
    if header.flags & ENCRYPTED:
        return None
    try:
        decoded = decode_block(block.data)
        is_empty = _empty_of(decoded)
    except (InvalidMessage, UnsupportedFormatVersion):
        return None
    removed_rows = decoded.metadata.removed_rows
    is_there = None if removed_rows is None else rows_there(removed_rows, count)
    return _Rows(_keys_of(decoded), is_empty, is_there)


def _keys_of(decoded: DecodedBlock) -> pa.Array:
    keys = decoded.column("key")
    return pa.nulls(decoded.message_count, pa.utf8()) if keys is None else keys


def _empty_of(decoded: DecodedBlock) -> npt.NDArray[np.bool_]:
    if decoded.is_columnar:
        return bools_of(decoded.rows().is_null())
    empty: npt.NDArray[np.bool_] = lengths_of(decoded.column("value")) == 0
    return empty


def rows_there(removed_rows: bytes | None, count: int) -> npt.NDArray[np.bool_]:
    """Which of a block's rows were not removed by a compaction."""
    if removed_rows is None:
        return np.ones(count, np.bool_)
    bits = np.unpackbits(np.frombuffer(removed_rows, np.uint8), count=count, bitorder="little")
    there: npt.NDArray[np.bool_] = bits == 0
    return there


def _keyless(block: StoredBlock, rows: _Rows) -> npt.NDArray[np.int64]:
    is_keyless = ~with_key(rows.keys)
    if rows.is_there is not None:
        is_keyless &= rows.is_there
    found: npt.NDArray[np.int64] = np.flatnonzero(is_keyless) + block.number
    return found
