"""A file of delayed rows in the order of their keys, written once.

    chunk   1,024 rows of 40 bytes, the last one fewer, each followed by
    u64     their checksum

The first key of each chunk is kept in memory: 8 bytes for 1,024 rows. One chunk is, too.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pulsar_ray.errors import CorruptData
from pulsar_ray.format.checksum import checksum
from pulsar_ray.ledger.disk import SYSTEM_DISK, Disk, write_fully
from pulsar_ray.managed_ledger.delayed.delayed_rows import (
    NO_KEY,
    ROW_BYTES,
    RowKey,
    count_up_to,
    empty_rows,
    entries_in,
    key_at,
    rows_of_bytes,
)
from pulsar_ray.numpy_on_demand import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK_ROWS = 1024
_CHECKSUM_BYTES = 8
_CHUNK_BYTES = CHUNK_ROWS * ROW_BYTES + _CHECKSUM_BYTES


class RunInfo(NamedTuple):
    """The record of a run: its file, and how much is in it."""

    name: str
    rows: int
    entries: int
    last: RowKey


class RunWriter:
    """Writes a run from rows that come in order, in arrays of any length."""

    def __init__(self, path: Path, disk: Disk = SYSTEM_DISK) -> None:
        self._path = path
        self._disk = disk
        self._fd = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._rest: list[NDArray[Any]] = []
        self._rest_rows = 0
        self._rows = 0
        self._entries = 0
        self._last = NO_KEY

    def write(self, rows: NDArray[Any]) -> None:
        """Append rows behind those that were written."""
        if not len(rows):
            return
        self._rows += len(rows)
        self._entries += entries_in(rows)
        self._last = key_at(rows, len(rows) - 1)
        self._rest.append(rows)
        self._rest_rows += len(rows)
        if self._rest_rows >= CHUNK_ROWS:
            joined = np.concatenate(self._rest)
            whole = len(joined) // CHUNK_ROWS * CHUNK_ROWS
            self._put(joined[:whole])
            self._rest = [joined[whole:]]
            self._rest_rows = len(joined) - whole

    def _put(self, rows: NDArray[Any]) -> None:
        buffers = []
        for start in range(0, len(rows), CHUNK_ROWS):
            data = rows[start : start + CHUNK_ROWS].tobytes()
            buffers += [data, checksum(data).to_bytes(_CHECKSUM_BYTES, "little")]
        write_fully(self._disk, self._fd, b"".join(buffers))

    def finish(self) -> RunInfo:
        """Make the run durable. Its name is not: whoever records it syncs the directory."""
        try:
            if self._rest_rows:
                self._put(np.concatenate(self._rest))
            self._disk.fdatasync(self._fd)
        finally:
            self.close()
        return RunInfo(self._path.name, self._rows, self._entries, self._last)

    def close(self) -> None:
        """Leave the file as it is."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)


def write_run(path: Path, parts: Iterable[NDArray[Any]]) -> RunInfo:
    """Write a whole run, durably."""
    writer = RunWriter(path)
    try:
        for rows in parts:
            writer.write(rows)
        return writer.finish()
    finally:
        writer.close()


class SortedRun:
    """A run that is read from its place on, which can be set anew."""

    def __init__(self, directory: Path, info: RunInfo) -> None:
        """Open the file. Raises CorruptData unless it is as long as was recorded."""
        self.info = info
        self.path = directory / info.name
        self._chunks = -(-info.rows // CHUNK_ROWS)
        try:
            self._fd = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise CorruptData(str(self.path), 0, str(error)) from error
        expected = info.rows * ROW_BYTES + self._chunks * _CHECKSUM_BYTES
        size = os.fstat(self._fd).st_size
        if size != expected:
            self.close()
            raise CorruptData(str(self.path), min(size, expected), f"{size} bytes instead of {expected}")
        self._firsts = array("q")
        """When the first row of each chunk is due."""
        self._chunk = empty_rows()
        self._number = -1
        self._next = 0
        """The first row that was not taken, counted from the start of the run."""

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    @property
    def rows_left(self) -> int:
        """How many rows are behind its place."""
        return self.info.rows - self._next

    def _load(self, number: int) -> NDArray[Any]:
        if number == self._number:
            return self._chunk
        start = number * _CHUNK_BYTES
        length = min(CHUNK_ROWS, self.info.rows - number * CHUNK_ROWS) * ROW_BYTES
        try:
            data = os.pread(self._fd, length + _CHECKSUM_BYTES, start)
        except OSError as error:
            raise CorruptData(str(self.path), start, str(error)) from error
        rows, found = data[:length], data[length:]
        if len(found) != _CHECKSUM_BYTES or checksum(rows) != int.from_bytes(found, "little"):
            raise CorruptData(str(self.path), start, "checksum of delayed rows does not match")
        self._chunk, self._number = rows_of_bytes(rows), number
        return self._chunk

    def verify(self) -> None:
        """Read all of it. Raises CorruptData at the first chunk whose checksum does not match."""
        for number in range(self._chunks):
            self._load(number)

    def _first_of(self, number: int) -> int:
        """When the first row of a chunk is due."""
        firsts = self._firsts
        while len(firsts) <= number:
            start = len(firsts) * _CHUNK_BYTES
            data = os.pread(self._fd, 8, start)
            if len(data) != 8:
                raise CorruptData(str(self.path), start, "the file is shorter than before")
            firsts.append(int.from_bytes(data, "little", signed=True))
        return firsts[number]

    def go_behind(self, key: RowKey) -> None:
        """Set the place behind the last row at or below a key."""
        low, high = 0, self._chunks
        # The last chunk whose first row is due before the key's time: no row before it is above the key.
        while low < high:
            middle = (low + high) // 2
            if self._first_of(middle) < key.deliver_at:
                low = middle + 1
            else:
                high = middle
        number = max(low - 1, 0)
        while number < self._chunks:
            rows = self._load(number)
            count = count_up_to(rows, key)
            if count < len(rows):
                self._next = number * CHUNK_ROWS + count
                return
            number += 1
        self._next = self.info.rows

    def next_time(self) -> int | None:
        """When the row at its place is due; None at the end."""
        if self._next >= self.info.rows:
            return None
        number, within = divmod(self._next, CHUNK_ROWS)
        return int(self._load(number)["deliver_at"][within])

    def peek(self, until_ms: int, limit: int) -> NDArray[Any]:
        """Return at most `limit` rows from its place on that are due until then."""
        parts: list[NDArray[Any]] = []
        at, count = self._next, 0
        while at < self.info.rows and count < limit:
            number, within = divmod(at, CHUNK_ROWS)
            rows = self._load(number)[within : within + limit - count]
            due = int(np.searchsorted(rows["deliver_at"], until_ms, "right"))
            if due:
                parts.append(rows[:due])
            count += due
            at += due
            if due < len(rows):
                break
        if not parts:
            return empty_rows()
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def rows_due(self, until_ms: int) -> int:
        """Count the rows from its place on that are due until then.

        It is exact within the chunk that is in memory, and off by less than a chunk elsewhere: no other chunk
        is read for it.
        """
        at = self._next
        if at >= self.info.rows:
            return 0
        number, within = divmod(at, CHUNK_ROWS)
        due = int(np.searchsorted(self._load(number)["deliver_at"][within:], until_ms, "right"))
        if due < min(CHUNK_ROWS, self.info.rows - number * CHUNK_ROWS) - within:
            return due
        low, high = number + 1, self._chunks
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._first_of(middle) <= until_ms else (low, middle)
        return min(low * CHUNK_ROWS, self.info.rows) - at

    def take(self, count: int) -> None:
        """Move the place on."""
        self._next += count
