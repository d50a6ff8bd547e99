"""The system calls that make bytes durable.

They stand behind a small protocol so that tests can inject faults.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from pulsar_ray.format.checksum import Buffer

_FALLOC_FL_KEEP_SIZE = 1


class Disk(Protocol):
    """The file-system calls of ledgers and record logs; every method raises OSError."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file; the descriptor is not inherited by child programs."""

    def close(self, fd: int) -> None: ...

    def writev(self, fd: int, buffers: Sequence[Buffer]) -> int:
        """Write at the descriptor's own offset; may write less than asked."""

    def pwrite(self, fd: int, data: Buffer, offset: int) -> int: ...

    def fdatasync(self, fd: int) -> None: ...

    def fsync_dir(self, path: Path) -> None:
        """Make names created, renamed or removed in a directory durable."""

    def reserve(self, fd: int, offset: int, length: int) -> None:
        """Reserve space without changing the file's size; a file system that cannot is no error."""

    def rename(self, source: Path, target: Path) -> None: ...

    def unlink(self, path: Path) -> None: ...


class SystemDisk:
    """The real one."""

    def open(self, path: Path, flags: int) -> int:
        # os.open sets O_CLOEXEC by itself: a child that kept a descriptor would keep locks and disk space.
        # No link is followed, which another user may have put into a directory whose place was taken.
        return os.open(path, flags | os.O_NOFOLLOW, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    # Every message waits for these two.
    writev: staticmethod[[int, Sequence[Buffer]], int] = staticmethod(os.writev)
    fdatasync: staticmethod[[int], None] = staticmethod(os.fdatasync)

    def pwrite(self, fd: int, data: Buffer, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def fsync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def reserve(self, fd: int, offset: int, length: int) -> None:
        # os.posix_fallocate would change the size, and readers would see zeros behind the last record.
        if _libc.fallocate(fd, _FALLOC_FL_KEEP_SIZE, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
            code = ctypes.get_errno()
            if code not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise OSError(code, os.strerror(code))

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink()


_libc = ctypes.CDLL(None, use_errno=True)
SYSTEM_DISK: Disk = SystemDisk()


def write_fully(disk: Disk, fd: int, data: Buffer) -> None:
    """Write all of one buffer at the descriptor's offset, looping on short writes."""
    view = memoryview(data).cast("B")
    while len(view):
        view = view[disk.writev(fd, [view]) :]


def make_closed(path: Path) -> None:
    """Make a directory that group and others cannot enter, whatever the umask.

    Those above it that are missing are made as closed. Raises OSError.
    """
    for missing in reversed([place for place in (path, *path.parents) if not place.exists()]):
        missing.mkdir(0o700, exist_ok=True)


def create_closed(path: Path) -> BinaryIO:
    """Open a file to be written anew, for its owner alone.

    The umask does not matter; a file that is there keeps its mode. A link is refused (OSError).
    """
    return open(path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600))
