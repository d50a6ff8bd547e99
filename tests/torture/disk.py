"""A disk that fails under chosen directories: full, errors of writes and syncs, read-only, torn writes.

It takes the place of the package's disk as long as a round lasts: everything below the actors goes through
that seam, but for the catalog's database.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pulsar_ray.format.checksum import Buffer
from pulsar_ray.ledger import disk as disks
from pulsar_ray.ledger.disk import SystemDisk

FULL, WRITE_ERROR, SYNC_ERROR, READ_ONLY, TORN = (
    "disk full",
    "write EIO",
    "sync EIO",
    "read-only",
    "torn write",
)
DISK_FAULTS = (FULL, WRITE_ERROR, SYNC_ERROR, READ_ONLY, TORN)
_METHODS = ("open", "close", "writev", "pwrite", "fdatasync", "fsync_dir", "reserve", "rename", "unlink")


class TorturedDisk(SystemDisk):
    """The real disk; a fault holds for all paths under a directory until it is healed.

    After a failed sync nothing that was written since the last good one is there, as kernels do it. A torn
    write ends in the middle, and kills who wrote.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._faults: dict[Path, str] = {}
        self._kill: dict[Path, Callable[[], None]] = {}
        self._synced: dict[int, int] = {}
        """By file number, the size at the last good sync."""

    @contextmanager
    def installed(self) -> Iterator[TorturedDisk]:
        """Take the place of the system's disk, for whoever has a reference to that."""
        for name in _METHODS:
            setattr(disks.SYSTEM_DISK, name, getattr(self, name))
        try:
            yield self
        finally:
            for name in _METHODS:
                delattr(disks.SYSTEM_DISK, name)

    def fail(self, directory: Path, fault: str, kill: Callable[[], None]) -> None:
        """Begin a fault; `kill` ends the actor whose write is torn."""
        with self._lock:
            self._faults[directory] = fault
            self._kill[directory] = kill

    def heal(self, directory: Path | None = None) -> None:
        """End a directory's fault, or all of them."""
        with self._lock:
            if directory is None:
                self._faults.clear()
            else:
                self._faults.pop(directory, None)

    def _fault(self, path: Path) -> str:
        if not self._faults:
            return ""
        with self._lock:
            return next((f for d, f in self._faults.items() if path.is_relative_to(d)), "")

    def _refuse(self, path: Path, codes: dict[str, int]) -> None:
        code = codes.get(self._fault(path), 0)
        if code:
            raise OSError(code, os.strerror(code), str(path))

    def open(self, path: Path, flags: int) -> int:
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            self._refuse(path, {READ_ONLY: errno.EROFS})
        if flags & os.O_CREAT and not path.exists():
            self._refuse(path, {FULL: errno.ENOSPC})
        return super().open(path, flags)

    def writev(self, fd: int, buffers: Sequence[Buffer]) -> int:
        if self._faults:
            path = _path_of(fd)
            self._refuse(path, {FULL: errno.ENOSPC, WRITE_ERROR: errno.EIO, READ_ONLY: errno.EROFS})
            self._tear(path, fd, buffers)
        return os.writev(fd, buffers)

    def _tear(self, path: Path, fd: int, buffers: Sequence[Buffer]) -> None:
        if self._fault(path) != TORN:
            return
        with self._lock:
            torn = next((d for d, f in self._faults.items() if f == TORN and path.is_relative_to(d)), None)
            if torn is None:
                return
            del self._faults[torn]
            kill = self._kill[torn]
        whole = b"".join(bytes(buffer) for buffer in buffers)
        os.write(fd, whole[: self._rng.randrange(len(whole))])
        killed = threading.Thread(target=kill, daemon=True)
        killed.start()
        killed.join(0.3)  # by then it is dead to everybody else, though its threads still end
        raise OSError(errno.EIO, "torn", str(path))

    def pwrite(self, fd: int, data: Buffer, offset: int) -> int:
        if self._faults:
            self._refuse(_path_of(fd), {WRITE_ERROR: errno.EIO, READ_ONLY: errno.EROFS})
        return super().pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        found = os.fstat(fd)
        if self._faults and self._fault(_path_of(fd)) == SYNC_ERROR:
            synced = self._synced.get(found.st_ino)
            if synced is not None and synced < found.st_size:
                os.ftruncate(fd, synced)
                os.ftruncate(fd, found.st_size)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(_path_of(fd)))
        os.fdatasync(fd)
        self._synced[found.st_ino] = found.st_size

    def fsync_dir(self, path: Path) -> None:
        self._refuse(path, {SYNC_ERROR: errno.EIO})
        super().fsync_dir(path)

    def reserve(self, fd: int, offset: int, length: int) -> None:
        if self._faults:
            self._refuse(_path_of(fd), {FULL: errno.ENOSPC, READ_ONLY: errno.EROFS})
        super().reserve(fd, offset, length)

    def rename(self, source: Path, target: Path) -> None:
        self._refuse(target, {READ_ONLY: errno.EROFS, FULL: errno.ENOSPC})
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._refuse(path, {READ_ONLY: errno.EROFS})
        number = path.stat().st_ino
        super().unlink(path)
        self._synced.pop(number, None)  # the next file may have it


def _path_of(fd: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)"))
