"""The file that all broker actors of a node log to.

One file per node, and not one per process: a topic's story goes on in it when Ray restarts the topic's actors
elsewhere on the node, and it is found without knowing a process. Every line is one append, so that processes
do not get into each other's lines.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

NODE_LOG = "pulsar_ray.log"
MAX_BYTES = 32 * 1024 * 1024
FORMER_FILES = 3


class NodeLog:
    """Appends lines to a file, and keeps three former ones when it is large."""

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = directory / NODE_LOG
        self._max_bytes = max_bytes
        self._fd = -1

    def write(self, line: str) -> None:
        """Append one line. Raises OSError where the disk does not take it."""
        fd = self._current()
        os.write(fd, line.encode("utf-8", "backslashreplace") + b"\n")

    def _current(self) -> int:
        """Return the file of the moment: another process, or an administrator, may have renamed it."""
        if not self._is_current():
            self._open()
        if os.fstat(self._fd).st_size >= self._max_bytes:
            self._roll()
            self._open()
        return self._fd

    def _is_current(self) -> bool:
        if self._fd < 0:
            return False
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._fd))

    def _open(self) -> None:
        self.close()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o600)

    def _roll(self) -> None:
        """Rename the full file, unless another process has just done so."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            if self._is_current():
                names = [self.path, *(Path(f"{self.path}.{number}") for number in range(1, FORMER_FILES + 1))]
                for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
                    if newer.exists():
                        os.replace(newer, older)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the file up; the next line opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
