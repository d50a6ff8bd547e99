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
    """Ascending numbers, which are asked for from the front on."""

    def __init__(self, numbers: Numbers, directory: Path) -> None:
        self._count = len(numbers)
        self._file: IO[bytes] | None = None
        self._read = self._count
        if self._count > _IN_MEMORY_ROWS:
            # Without a name: nothing is left of it whatever happens to the process.
            self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - as long as this
            numbers.tofile(self._file)
        self._window = numbers if self._file is None else np.empty(0, np.int64)

    def rewind(self) -> None:
        if self._file is not None:
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
        """Take the rows that one pass keeps, in order."""
        self._sets.append(_Sorted(numbers, self._directory))
        self.count += len(numbers)

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
