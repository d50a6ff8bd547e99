"""The data directory of a node: its identity, who may use it, and how much space it has left."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.errors import (
    BrokerPersistenceError,
    CorruptData,
    DataDirectoryInUse,
    NotOurDataDirectory,
    UnsupportedFormatVersion,
    WrongNode,
)
from pulsar_ray.ledger.disk import SYSTEM_DISK
from pulsar_ray.ledger.file_system import require_local_file_system
from pulsar_ray.ledger.owner_lock import FileLock, try_lock

STORE_FORMAT_VERSION = 1
_RETRY_SECONDS = 0.05
_GIB = 1024 * 1024 * 1024
# What a file system or a desktop leaves in a directory that is empty as far as we care.
_IGNORED = {"lost+found", ".DS_Store", "store.json.new", "store.lock", "cluster.lock", "run"}


class StoreDirectory:
    """A data directory this process holds. Exactly one broker of one cluster uses a directory at a time."""

    def __init__(self, path: Path, store_id: str, lock: FileLock, cluster_lock: FileLock) -> None:
        self.path = path
        self.store_id = store_id
        self._locks = (lock, cluster_lock)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        address: str,
        wait_s: float = 5.0,
        cluster_id: str = "",
        expected_store_id: str | None = None,
    ) -> StoreDirectory:
        """Hold a directory, creating it if it is missing or empty; blocks up to `wait_s` while one ends.

        `address` tells people where we are. `cluster_id` (default: the address) tells a restart within our
        cluster, whose other processes are still there, from a second cluster. Raises DataDirectoryInUse
        with pid and address of the holder, NotOurDataDirectory, WrongNode if it is not the expected store
        or that one's data is missing, NetworkFileSystem, UnsupportedFormatVersion, BrokerPersistenceError
        if it cannot be written.
        """
        deadline = time.monotonic() + wait_s
        try:
            if expected_store_id is None:
                path.mkdir(0o700, parents=True, exist_ok=True)
            elif not (path / "store.json").is_file():
                raise WrongNode(f"{path} should be store {expected_store_id} but is not there: wrong disk")
            require_local_file_system(path)
            _refuse_foreign(path)
            lock = _lock(path / "store.lock", address, deadline)
            try:
                store_id = _read_or_create_identity(path)
                if expected_store_id is not None and store_id != expected_store_id:
                    raise WrongNode(
                        f"{path} is store {store_id}, not {expected_store_id}: wrong node or disk"
                    )
                cluster_lock = _lock_cluster(path, cluster_id or address, address, deadline)
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise BrokerPersistenceError(f"{path} cannot be used as data directory: {error}") from error
        return cls(path, store_id, lock, cluster_lock)

    def close(self) -> None:
        """Give the directory up."""
        for lock in self._locks:
            lock.release()


def check_store_directory(path: Path) -> None:
    """Look at a directory before anything is put into it; a missing or empty one is fine.

    Raises NotOurDataDirectory, NetworkFileSystem, BrokerPersistenceError if it cannot be made or read.
    """
    try:
        path.mkdir(0o700, parents=True, exist_ok=True)
        require_local_file_system(path)
        _refuse_foreign(path)
    except OSError as error:
        raise BrokerPersistenceError(f"{path} cannot be used as data directory: {error}") from error


def hold_cluster_lock(path: Path) -> FileLock:
    """Keep other clusters out while this process lives; for every process that works in a data directory.

    Raises DataDirectoryInUse if another cluster has taken it.
    """
    fd = os.open(path / "cluster.lock", os.O_RDWR | os.O_CREAT, 0o600)
    if try_lock(fd, is_shared=True):
        return FileLock(fd)
    holder = _holder(fd)
    os.close(fd)
    raise DataDirectoryInUse(f"{path} is being taken over by {holder}")


def _refuse_foreign(path: Path) -> None:
    if (path / "store.json").exists():
        return
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in _IGNORED)
    if others:
        raise NotOurDataDirectory(
            f"{path} has no store.json but holds {', '.join(others[:3])}: give data_dir its own"
        )


def _read_or_create_identity(path: Path) -> str:
    identity = path / "store.json"
    if not identity.exists():
        staged = path / "store.json.new"
        content = {"store_id": str(uuid.uuid4()), "format_version": STORE_FORMAT_VERSION}
        with staged.open("w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        staged.rename(identity)
        SYSTEM_DISK.fsync_dir(path)
    try:
        content = json.loads(identity.read_text())
        store_id, version = str(content["store_id"]), int(content["format_version"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptData(str(identity), 0, f"not a store identity ({error})") from None
    if version != STORE_FORMAT_VERSION:
        raise UnsupportedFormatVersion(
            f"{path} has format version {version}, this build uses {STORE_FORMAT_VERSION}"
        )
    return store_id


def _lock(path: Path, address: str, deadline: float) -> FileLock:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while not try_lock(fd):
            if time.monotonic() >= deadline:
                raise DataDirectoryInUse(
                    f"{path.parent} is used by {_holder(fd)}: stop that broker or use another data_dir"
                )
            time.sleep(_RETRY_SECONDS)
        _name_holder(fd, {"pid": os.getpid(), "address": address})
    except BaseException:
        os.close(fd)
        raise
    return FileLock(fd)


def _lock_cluster(path: Path, cluster_id: str, address: str, deadline: float) -> FileLock:
    """Hold the cluster's lock shared; another cluster's processes must all be gone before."""
    fd = os.open(path / "cluster.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while not try_lock(fd):
            if _read_holder(fd).get("cluster_id") == cluster_id:
                break
            if time.monotonic() >= deadline:
                raise DataDirectoryInUse(f"{path} is used by processes of the cluster of {_holder(fd)}")
            time.sleep(_RETRY_SECONDS)
        _name_holder(fd, {"pid": os.getpid(), "address": address, "cluster_id": cluster_id})
        if not try_lock(fd, is_shared=True):
            raise DataDirectoryInUse(f"{path} is being taken over by {_holder(fd)}")
    except BaseException:
        os.close(fd)
        raise
    return FileLock(fd)


def _name_holder(fd: int, fields: dict[str, object]) -> None:
    content = json.dumps(fields).encode()
    os.pwrite(fd, content, 0)
    os.ftruncate(fd, len(content))


def _read_holder(fd: int) -> dict[str, object]:
    with contextlib.suppress(ValueError):
        fields = json.loads(os.pread(fd, 4096, 0))
        if isinstance(fields, dict):
            return fields
    return {}


def _holder(fd: int) -> str:
    fields = _read_holder(fd)
    return f"process {fields.get('pid', '?')} at {fields.get('address', 'an unknown address')}"


class Space(NamedTuple):
    """What a file system has, in bytes; `free_bytes` is what we may still use."""

    free_bytes: int
    total_bytes: int


def probe_space(path: Path) -> Space:
    """Ask the file system; touches the disk."""
    stat = os.statvfs(path)
    return Space(stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize)


def low_water_mark(total_bytes: int, setting_bytes: int = -1) -> int:
    """Free space below which publishing stops, so that acknowledging and trimming can go on."""
    return setting_bytes if setting_bytes >= 0 else max(_GIB, total_bytes // 50)


def is_space_low(space: Space, setting_bytes: int = -1) -> bool:
    return space.free_bytes < low_water_mark(space.total_bytes, setting_bytes)
