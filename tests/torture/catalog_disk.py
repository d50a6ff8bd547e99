"""Errors of the disk below the catalog's database, by the descriptor that SQLite writes commits through.

SQLite makes its own system calls. Its descriptor of the write-ahead log is exchanged for one with which each
write fails, or for one that takes writes, keeps nothing of them and cannot be synced. SQLite is told another
number than EIO, and answers an I/O error to its user all the same.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WRITE_ERROR, SYNC_ERROR = "write EIO of the catalog", "sync EIO of the catalog"
CATALOG_FAULTS = (WRITE_ERROR, SYNC_ERROR)


class CatalogDisk:
    """The disk below the catalogs that this process has open at a path."""

    def __init__(self, catalog: Path) -> None:
        self._log = f"{catalog}-wal"
        self._lock = threading.Lock()
        self._kept: dict[int, int] = {}
        """By SQLite's descriptor, ours of the same file."""

    def fail(self, fault: str) -> bool:
        """Begin a fault; False if the catalog is not open, or fails already."""
        with self._lock:
            if self._kept:
                return False
            for fd in self._descriptors():
                try:
                    other = (
                        os.open(self._log, os.O_RDONLY)
                        if fault == WRITE_ERROR
                        else os.open(os.devnull, os.O_RDWR)
                    )
                except FileNotFoundError:
                    break  # the catalog was closed just now
                self._kept[fd] = os.dup(fd)
                os.dup2(other, fd, inheritable=False)
                os.close(other)
            return bool(self._kept)

    def _descriptors(self) -> list[int]:
        found = []
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{name}") == self._log:
                    found.append(int(name))
            except FileNotFoundError:
                continue  # that of the listing itself
        return found

    def heal(self) -> None:
        """Give SQLite its file back."""
        with self.healed():
            pass

    @contextmanager
    def healed(self) -> Iterator[None]:
        """Give SQLite its file back, and let no fault begin meanwhile: the catalog is closed there."""
        with self._lock:
            for fd, kept in self._kept.items():
                os.dup2(kept, fd, inheritable=False)
                os.close(kept)
            self._kept.clear()
            yield
