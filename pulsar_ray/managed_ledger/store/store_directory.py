"""The data directory of a node: its identity, its users, and its free space."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from pulsar_ray import closed_places
from pulsar_ray.errors import (
    BrokerPersistenceError,
    CorruptData,
    DataDirectoryInUse,
    NotOurDataDirectory,
    UnsupportedFormatVersion,
    UntrustedPath,
    WrongNode,
)
from pulsar_ray.ledger.disk import make_closed, require_local_file_system
from pulsar_ray.ledger.owner_lock import FileLock, try_lock
from pulsar_ray.managed_ledger.store.store_identity import (
    STORE_FILE,
    StoreIdentity,
    new_identity,
    read_identity,
    write_identity,
)

_RETRY_SECONDS = 0.05
_MADE_SECONDS = 5.0
# Files that a file system or a desktop leaves in a directory, which is empty for us all the same.
_IGNORED = {"lost+found", ".DS_Store", "store.json.new", "store.lock", "cluster.lock", "run"}


class StoreDirectory:
    """A data directory this process holds.

    Exactly one broker of one cluster uses a directory at a time.
    """

    def __init__(self, path: Path, identity: StoreIdentity, lock: FileLock, cluster_lock: FileLock) -> None:
        self.path = path
        self.identity = identity
        self._locks = (lock, cluster_lock)
        self._cluster_lock = cluster_lock

    @property
    def store_id(self) -> str:
        """Goes with the data, wherever that is mounted."""
        return self.identity.store_id

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        address: str,
        wait_s: float = 5.0,
        session: str = "",
        create: bool = True,
        expected_store_id: str | None = None,
    ) -> StoreDirectory:
        """Hold a directory, and make one that is missing or empty, if allowed.

        It waits up to `wait_s` while another process ends.

        `address` names us to other processes. `session` (default: the address) tells a restart within our
        Ray, whose other processes are still there, from a second one. Raises DataDirectoryInUse with pid and
        address of the holder, NotOurDataDirectory, WrongNode if it is not the expected store or not there,
        NetworkFileSystem, UnsupportedFormatVersion, CorruptData, UntrustedPath if other users own it or part
        of it, BrokerPersistenceError if it cannot be written.
        """
        deadline = time.monotonic() + wait_s
        try:
            if create and expected_store_id is None:
                make_closed(path)
            elif not (path / STORE_FILE).is_file():
                what = f"store {expected_store_id}" if expected_store_id else "a store"
                raise WrongNode(f"{path} should be {what} but is not there: mount its disk")
            require_local_file_system(path)
            check_foreign(path)
            close_to_others(path)
            lock = _lock(path / "store.lock", address, deadline)
            try:
                identity = read_identity(path) or write_identity(path, new_identity())
                if expected_store_id is not None and identity.store_id != expected_store_id:
                    raise WrongNode(
                        f"{path} is store {identity.store_id}, not {expected_store_id}: wrong node or disk"
                    )
                cluster_lock = _lock_cluster(path, session or address, address, deadline)
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            raise _unusable(path, error) from error
        return cls(path, identity, lock, cluster_lock)

    def change(self, identity: StoreIdentity) -> None:
        """Write what the store knows of its cluster, durably. Raises BrokerPersistenceError."""
        if identity == self.identity:
            return
        try:
            self.identity = write_identity(self.path, identity)
        except OSError as error:
            raise _unusable(self.path, error) from error

    def hold_alone(self) -> bool:
        """Keep all other processes out from now on; False if one works here yet."""
        return self._cluster_lock.hold_alone()

    def check_present(self) -> None:
        """Raise WrongNode if the path leads to this store no longer.

        Its disk may have been unmounted.
        """
        check_is_store(self.path, self.store_id)

    def close(self) -> None:
        """Give the directory up."""
        for lock in self._locks:
            lock.release()


def check_is_store(path: Path, store_id: str) -> None:
    """Raise WrongNode unless the directory is this store; BrokerPersistenceError if it cannot be read."""
    try:
        identity = read_identity(path)
    except OSError as error:
        raise _unusable(path, error) from error
    if identity is None or identity.store_id != store_id:
        found = f"is store {identity.store_id}" if identity else "holds no store"
        raise WrongNode(f"{path} should be store {store_id} but {found}: mount its disk")


def create_store(path: Path) -> tuple[StoreIdentity, bool]:
    """Make a directory a store for a Ray cluster's broker, closed to others.

    The store is of no cluster yet. Returns the identity, and whether it is new.

    Raises NotOurDataDirectory, NetworkFileSystem, UnsupportedFormatVersion, CorruptData, UntrustedPath,
    BrokerPersistenceError if it cannot be made, DataDirectoryInUse if somebody works there and no store is.
    """
    check_store_directory(path)
    try:
        if (identity := read_identity(path)) is not None:
            return identity, False
        # Of two that make a store at once, or a broker that does, one alone may say which it is.
        deadline = time.monotonic() + _MADE_SECONDS
        lock = _lock(path / "store.lock", f"pulsar-ray init-store, process {os.getpid()}", deadline)
        try:
            if (identity := read_identity(path)) is not None:
                return identity, False
            return write_identity(path, new_identity(is_of_ray_cluster=True)), True
        finally:
            lock.release()
    except OSError as error:
        raise _unusable(path, error) from error


def close_to_others(path: Path) -> None:
    """Take away the rights of group and others to a data directory of ours.

    Right below it, too.

    Files in partitions are made closed, and cannot be reached through a closed directory. One of root's, such
    as the top of a volume, stays as root has made it. Raises UntrustedPath if it or something right below is
    another user's, or everybody may write there; OSError.
    """
    # Links on the way to it are the user's own affair: where they end is looked at.
    descriptor = closed_places.open_trusted_directory(path.resolve())
    try:
        found = os.fstat(descriptor)
        if found.st_uid == os.geteuid():
            closed_places.close_to_others(descriptor, path)
        elif found.st_mode & stat.S_IWOTH:
            raise UntrustedPath(
                f"everybody may write in {path}, which is root's (mode {stat.S_IMODE(found.st_mode):04o}): "
                "give data_dir one of this user's own"
            )
    finally:
        os.close(descriptor)
    for place in (*path.iterdir(), *path.glob("run/*")):
        _close_entry(place)


def _close_entry(place: Path) -> None:
    found = place.lstat()
    if not closed_places.is_trusted_user(found.st_uid):
        raise UntrustedPath(
            f"{place} belongs to user {found.st_uid}, not to user {os.geteuid()}, as whom the broker runs: "
            "look at what it is, and `chown` it if it is the broker's"
        )
    if found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o077:
        place.chmod(stat.S_IMODE(found.st_mode) & 0o700)


def is_mount(path: Path) -> bool:
    """Whether a directory lies on another file system than `/`.

    Of a missing one the nearest directory above counts.
    """
    existing = next(parent for parent in (path, *path.parents) if parent.is_dir())
    return existing.stat().st_dev != Path("/").stat().st_dev


def _unusable(path: Path, error: OSError) -> BrokerPersistenceError:
    return BrokerPersistenceError(f"{path} cannot be used as data directory: {error}")


def check_store_directory(path: Path) -> None:
    """Check a directory before anything is put into it, and close it to others.

    A missing or empty one is fine.

    Raises NotOurDataDirectory, NetworkFileSystem, UntrustedPath, BrokerPersistenceError if it cannot be made
    or read.
    """
    try:
        make_closed(path)
        require_local_file_system(path)
        check_foreign(path)
        close_to_others(path)
    except OSError as error:
        raise _unusable(path, error) from error


def hold_cluster_lock(path: Path) -> FileLock:
    """Keep other clusters out of a data directory while this process lives.

    Every process that works there calls it.

    Raises DataDirectoryInUse if another cluster has taken it, WrongNode if it is not there.
    """
    try:
        fd = os.open(path / "cluster.lock", os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise WrongNode(f"{path} should be a store's directory but is not there: mount its disk") from None
    except OSError as error:
        raise _unusable(path, error) from error
    if try_lock(fd, is_shared=True):
        return FileLock(fd)
    holder = _holder(fd)
    os.close(fd)
    raise DataDirectoryInUse(f"{path} is being taken over by {holder}")


@contextlib.contextmanager
def holding_alone(path: Path, address: str) -> Iterator[None]:
    """Keep everybody out of a data directory, whatever its state; for repairing it.

    Raises DataDirectoryInUse if a broker or one of its processes uses it.
    """
    lock = _lock(path / "store.lock", address, deadline=0.0)
    try:
        fd = os.open(path / "cluster.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            if not try_lock(fd):
                raise DataDirectoryInUse(
                    f"{path} is used by processes of the cluster of {_holder(fd)}: stop that broker"
                )
            yield
        finally:
            os.close(fd)
    finally:
        lock.release()


def check_foreign(path: Path) -> None:
    """Raise NotOurDataDirectory if something else lies in a directory, or a backup."""
    if (path / STORE_FILE).exists():
        _check_no_copy(path)
        return
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in _IGNORED)
    if others:
        raise NotOurDataDirectory(
            f"{path} has no store.json but holds {', '.join(others[:3])}: give data_dir its own"
        )


def _check_no_copy(path: Path) -> None:
    try:
        identity = read_identity(path)
    except (CorruptData, UnsupportedFormatVersion):
        # Reading it to open it raises the same.
        return
    if identity is not None and identity.copied_ms:
        made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(identity.copied_ms / 1000))
        raise NotOurDataDirectory(
            f"{path} is a backup of store {identity.store_id}, made {made}: if it is to take the place of "
            f"that one, run `pulsar-ray adopt {shlex.quote(str(path))}`, and never serve both"
        )


def _lock(path: Path, address: str, deadline: float) -> FileLock:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
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


def _lock_cluster(path: Path, session: str, address: str, deadline: float) -> FileLock:
    """Hold the cluster's lock shared; another cluster's processes must all be gone before."""
    fd = os.open(path / "cluster.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        while not try_lock(fd):
            if _read_holder(fd).get("session") == session:
                break
            if time.monotonic() >= deadline:
                raise DataDirectoryInUse(f"{path} is used by processes of the cluster of {_holder(fd)}")
            time.sleep(_RETRY_SECONDS)
        _name_holder(fd, {"pid": os.getpid(), "address": address, "session": session})
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
