"""A node keeps pieces of offloaded segments, up to so many bytes (ADR 0142)."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path

from pulsar_ray.format.checksum import Buffer

MEMORY_BYTES = 64 * 1024 * 1024
"""Pieces take so much memory at most, while the disk has no room for them."""


class PieceCache:
    """It keeps files without names, of which the least recently used go first.

    Methods may be called from any thread. A reader of a piece has a descriptor of its own, so what goes here
    is not pulled away from anybody, and nothing is left of the cache behind a kill. A disk with less than
    `least_free_bytes` is not filled further: then pieces are kept in memory.
    """

    def __init__(self, directory: Path, limit_bytes: int, least_free_bytes: int) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._least_free_bytes = least_free_bytes
        self._lock = threading.Lock()
        self._pieces: OrderedDict[str, tuple[int, int, bool]] = OrderedDict()
        """Descriptors with their lengths, and whether they are in memory."""
        self.bytes = self._memory_bytes = 0
        self.evicted = 0

    def open(self, key: str) -> int | None:
        """Return a new descriptor of a piece, for reading; None if it is not here."""
        with self._lock:
            kept = self._pieces.get(key)
            if kept is None:
                return None
            self._pieces.move_to_end(key)
            return os.open(f"/proc/self/fd/{kept[0]}", os.O_RDONLY | os.O_CLOEXEC)

    def has(self, key: str) -> bool:
        """Return whether a piece is here."""
        return key in self._pieces

    def keep(self, key: str, data: Buffer) -> None:
        """Keep a piece, and let others go for it; the newest always stays. Raises OSError."""
        fd, is_in_memory = self._written(data)
        with self._lock:
            self._forget(key)
            self._pieces[key] = (fd, len(data), is_in_memory)
            self.bytes += len(data)
            self._memory_bytes += len(data) * is_in_memory
            self._make_room(key)

    def _make_room(self, newest: str) -> None:
        for key in list(self._pieces):
            is_over = self.bytes > self._limit_bytes
            if key == newest or not (is_over or self._memory_bytes > MEMORY_BYTES):
                return
            if is_over or self._pieces[key][2]:
                self._forget(key)
                self.evicted += 1

    def _forget(self, key: str) -> None:
        if (kept := self._pieces.pop(key, None)) is not None:
            fd, length, is_in_memory = kept
            self.bytes -= length
            self._memory_bytes -= length * is_in_memory
            os.close(fd)

    def _written(self, data: Buffer) -> tuple[int, bool]:
        if shutil.disk_usage(self._directory).free - len(data) >= self._least_free_bytes:
            try:
                return self._file_of(data), False
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
        fd = os.memfd_create("piece", os.MFD_CLOEXEC)
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        return fd, True

    def _file_of(self, data: Buffer) -> int:
        with tempfile.TemporaryFile(dir=self._directory, buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            return os.dup(file.fileno())

    def close(self) -> None:
        """Give all pieces up."""
        with self._lock, contextlib.suppress(OSError):
            for key in list(self._pieces):
                self._forget(key)
