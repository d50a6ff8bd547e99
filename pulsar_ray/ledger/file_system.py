"""Which file systems a ledger may live on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from pulsar_ray.errors import NetworkFileSystem

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


_libc = ctypes.CDLL(None, use_errno=True)


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
