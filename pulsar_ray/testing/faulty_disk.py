"""A disk that fails and is slow where a test wants it.

It lies about nothing.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from pulsar_ray.format.checksum import Buffer
from pulsar_ray.ledger.disk import SystemDisk


class FaultyDisk(SystemDisk):
    """The real disk with faults: errors by call name, short writes, a hook.

    The hook runs before each call.
    """

    def __init__(self) -> None:
        self.errors: dict[str, list[int]] = {}
        """By call name, errno values of the next calls; 0 lets one pass."""
        self.short_write_bytes = 0
        """writev writes at most so many bytes, 0 for no limit."""
        self.before: Callable[[str], None] = _nothing
        """Called with the name of each call before it: to delay, pause or count it."""
        self.calls: list[str] = []
        self._lock = threading.Lock()

    def fail(self, call: str, *codes: int) -> None:
        """Let the next calls of that name fail with these errno values."""
        self.errors.setdefault(call, []).extend(codes or (errno.EIO,))

    def _enter(self, call: str) -> None:
        self.before(call)
        with self._lock:
            self.calls.append(call)
            waiting = self.errors.get(call)
            code = waiting.pop(0) if waiting else 0
        if code:
            raise OSError(code, os.strerror(code))

    def open(self, path: Path, flags: int) -> int:
        self._enter("open")
        return super().open(path, flags)

    def writev(self, fd: int, buffers: Sequence[Buffer]) -> int:
        self._enter("writev")
        if not self.short_write_bytes:
            return super().writev(fd, buffers)
        joined = b"".join(bytes(buffer) for buffer in buffers)
        return super().writev(fd, [joined[: self.short_write_bytes]])

    def pwrite(self, fd: int, data: Buffer, offset: int) -> int:
        self._enter("pwrite")
        return super().pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self._enter("fdatasync")
        super().fdatasync(fd)

    def fsync_dir(self, path: Path) -> None:
        self._enter("fsync_dir")
        super().fsync_dir(path)

    def reserve(self, fd: int, offset: int, length: int) -> None:
        self._enter("reserve")
        super().reserve(fd, offset, length)

    def rename(self, source: Path, target: Path) -> None:
        self._enter("rename")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._enter("unlink")
        super().unlink(path)


def _nothing(_call: str) -> None:
    pass
