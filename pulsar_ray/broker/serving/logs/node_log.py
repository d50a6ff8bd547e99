"""The file that all broker actors of a node log to.

One file per node, and not one per process: a topic's story goes on in it when Ray restarts the topic's actors
elsewhere on the node, and it is found without knowing a process. Every line is one append, so that processes
do not get into each other's lines.

Ray lets everybody write in the directory. So the file is opened without following a link, and not written to
if somebody else has put it there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from pulsar_ray.closed_places import open_own_file, open_trusted_directory

NODE_LOG = "pulsar_ray.log"
MAX_BYTES = 32 * 1024 * 1024
FORMER_FILES = 3


class NodeLog:
    """Appends lines to a file, and keeps three former ones when it is large."""

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = directory / NODE_LOG
        self._directory = -1
        self._max_bytes = max_bytes
        self._fd = -1

    def write(self, line: str) -> None:
        """Append one line.

        Raises OSError where the disk does not take it, UntrustedPath where the file is another user's.
        """
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
            there = os.stat(NODE_LOG, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._fd))

    def _open(self) -> None:
        self.close()
        self._directory = open_trusted_directory(self.path.parent)
        self._fd = open_own_file(NODE_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, dir_fd=self._directory)

    def _roll(self) -> None:
        """Rename the full file, unless another process has just done so."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            if self._is_current():
                names = [NODE_LOG, *(f"{NODE_LOG}.{number}" for number in range(1, FORMER_FILES + 1))]
                for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
                    with contextlib.suppress(FileNotFoundError):
                        os.replace(newer, older, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give the file up; the next line opens it again."""
        for descriptor in (self._fd, self._directory):
            if descriptor >= 0:
                os.close(descriptor)
        self._fd = self._directory = -1
