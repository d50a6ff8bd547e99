"""The system calls that make bytes durable.

They stand behind a small protocol so that tests can inject faults.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from pulsar_ray.errors import BrokerPersistenceError, NetworkFileSystem
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

    def note_durable(self, path: Path) -> None:
        """Hear of a file that another process has made durable, before a record names it."""


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

    def note_durable(self, path: Path) -> None:
        pass


_libc = ctypes.CDLL(None, use_errno=True)
SYSTEM_DISK: Disk = SystemDisk()


def write_fully(disk: Disk, fd: int, data: Buffer) -> None:
    """Write all of one buffer at the descriptor's offset, looping on short writes."""
    view = memoryview(data).cast("B")
    while len(view):
        view = view[disk.writev(fd, [view]) :]


def write_whole(disk: Disk, path: Path, content: Buffer) -> None:
    """Replace a small file, wholly and durably, or not at all. Raises OSError."""
    staged = path.with_name(path.name + ".new")
    fd = disk.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_fully(disk, fd, content)
        disk.fdatasync(fd)
    finally:
        disk.close(fd)
    disk.rename(staged, path)
    disk.fsync_dir(path.parent)


@contextlib.contextmanager
def persistent(path: Path) -> Iterator[None]:
    """Raise BrokerPersistenceError for an error of the disk, with a path that lies there."""
    try:
        yield
    except OSError as error:
        raise BrokerPersistenceError(f"{path}: {error}: see to the disk") from None


def make_closed(path: Path, disk: Disk = SYSTEM_DISK) -> None:
    """Make a directory that group and others cannot enter, whatever the umask.

    Those above it that are missing are made as closed. Each name is durable before anything is put below it.
    Raises OSError.
    """
    path = path.absolute()
    for missing in reversed([place for place in (path, *path.parents) if not place.exists()]):
        missing.mkdir(0o700, exist_ok=True)
        # Some may be written to, and not be read.
        with contextlib.suppress(PermissionError):
            disk.fsync_dir(missing.parent)


def create_closed(path: Path) -> BinaryIO:
    """Open a file to be written anew, for its owner alone.

    The umask does not matter; a file that is there keeps its mode. A link is refused (OSError).
    """
    return open(path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600))


# statfs(2) f_type of file systems whose locks, caches or fsync do not hold between two machines.
_NETWORK_FILE_SYSTEMS = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB2",
    0xFF534D42: "CIFS",
    0x01021997: "9p",
    0x00C36400: "CephFS",
    0x5346414F: "AFS",
    0x6B414653: "kAFS",
    0x73757245: "Coda",
    0x564C: "NCP",
    0x0BD00BD0: "Lustre",
    0x19830326: "FhGFS (BeeGFS)",
    0x47504653: "GPFS",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
    0xAAD7AAEA: "PanFS",
    0x65735546: "FUSE",
}
_FUSE = 0x65735546
# FUSE carries local and remote file systems alike; only these subtypes are known to be local.
_LOCAL_FUSE_TYPES = {"fuseblk", "fuse.ntfs", "fuse.exfat", "fuse.fuse-overlayfs", "fuse.lxcfs"}


def file_system_type(path: Path) -> int:
    """The f_type of statfs(2) for a path."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.statfs(os.fsencode(path), buffer) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF


def mount_type(path: Path) -> str:
    """The file system of the mount a path is on; '' if unknown.

    As /proc/mounts names it.
    """
    real = str(path.resolve())
    best, best_type = "", ""
    for line in Path("/proc/mounts").read_text("utf-8", "surrogateescape").splitlines():
        _, point, kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, best_type = point, kind
    return best_type


def require_local_file_system(
    path: Path,
    *,
    probe: Callable[[Path], int] = file_system_type,
    probe_mount: Callable[[Path], str] = mount_type,
) -> None:
    """Raise NetworkFileSystem unless a directory is on a file system of this machine."""
    kind = probe(path)
    name = _NETWORK_FILE_SYSTEMS.get(kind)
    if name is None:
        return
    if kind == _FUSE:
        mounted_as = probe_mount(path)
        if mounted_as in _LOCAL_FUSE_TYPES:
            return
        name = mounted_as or name
    raise NetworkFileSystem(
        f"{path} is on {name}, which cannot keep two machines from writing the same ledger; "
        "put data_dir on a local disk"
    )
