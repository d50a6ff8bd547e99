"""Remembers the rows that a compaction keeps, many of them in a file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

_IN_MEMORY_ROWS = 1 << 20
_READ_ROWS = 1 << 18


class _Sorted:
    """Ascending numbers, which are asked for from the front on once all are there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._held: list[Numbers] = []
        self._held_rows = 0
        self._count = self._read = 0
        self._window = np.empty(0, np.int64)
        self.last = -1

    def add(self, numbers: Numbers) -> None:
        """Take numbers that are higher than all before."""
        self._held.append(numbers)
        self._held_rows += len(numbers)
        self._count += len(numbers)
        self.last = int(numbers[-1])
        if self._held_rows > _IN_MEMORY_ROWS:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            # Without a name: nothing is left of it whatever happens to the process.
            self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - as long as this
        for numbers in self._held:
            self._file.write(np.ascontiguousarray(numbers).data)
        self._held, self._held_rows = [], 0

    def rewind(self) -> None:
        if self._file is None:
            self._window, self._read = np.concatenate([*self._held, np.empty(0, np.int64)]), self._count
            return
        self._spill()
        self._file.seek(0)
        self._read, self._window = 0, np.empty(0, np.int64)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def below(self, end: int) -> Numbers:
        """The next numbers below an end."""
        parts: list[Numbers] = []
        while True:
            at = int(np.searchsorted(self._window, end))
            parts.append(self._window[:at])
            self._window = self._window[at:]
            if len(self._window) or self._read == self._count:
                return parts[0] if len(parts) == 1 else np.concatenate(parts)
            assert self._file is not None
            self._window = np.fromfile(self._file, np.int64, _READ_ROWS)
            self._read += len(self._window)


class KeptRows:
    """The numbers of rows that several passes keep."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sets: list[_Sorted] = []
        self.count = 0

    def add(self, numbers: Numbers) -> None:
        """Take rows in order; many may come a part at a time."""
        if not len(numbers):
            return
        self.count += len(numbers)
        first = int(numbers[0])
        fitting = next((each for each in self._sets if each.last < first), None)
        if fitting is None:
            fitting = _Sorted(self._directory)
            self._sets.append(fitting)
        fitting.add(numbers)

    def rewind(self) -> None:
        """Begin to ask."""
        for each in self._sets:
            each.rewind()

    def close(self) -> None:
        """Give back the disk's space; nothing is asked for any more."""
        for each in self._sets:
            each.close()

    def below(self, end: int) -> Numbers:
        """The kept numbers below an end that were not asked for before, in order."""
        found = [each.below(end) for each in self._sets]
        return found[0] if len(found) == 1 else np.sort(np.concatenate([*found, np.empty(0, np.int64)]))
