"""Copies a node's data directory while its broker runs, or while nobody uses it.

The order makes the copy consistent. The catalog comes first: it may be older than the logs, never newer. Of a
partition its cursors come first, then its manifest, then the ledgers that the manifest lists: so no cursor is
ahead of its log, and everything confirmed before the backup began is there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.broker.partition.topic_compaction import compacted_segments
from pulsar_ray.broker.subscription.delayed.delayed_tracker import index_directory
from pulsar_ray.errors import BrokerPersistenceError, CorruptData, InvalidConfiguration, NotOurDataDirectory
from pulsar_ray.journal.offloaded.direct_reading import reading_directly
from pulsar_ray.ledger.directory_owner import read_epoch_slots
from pulsar_ray.ledger.disk import SYSTEM_DISK, create_closed, make_closed
from pulsar_ray.ledger.offloaded import is_offloaded
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.ledger.record_log import read_log_bytes
from pulsar_ray.ledger.recovery import sound_end
from pulsar_ray.maintenance.catalog_check import reading_catalog
from pulsar_ray.maintenance.segment_check import Progress
from pulsar_ray.maintenance.verify import LEDGERS, require_data_directory
from pulsar_ray.managed_ledger.compaction.compacted_form import describe_form
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory, subscription_numbers
from pulsar_ray.managed_ledger.cursor.cursor_store import LOG_NAME as CURSOR
from pulsar_ray.managed_ledger.delayed.delayed_index import LOG_NAME as DELAYED_INDEX
from pulsar_ray.managed_ledger.log.manifest.manifest_log import MANIFEST, ManifestContent, read_manifest
from pulsar_ray.managed_ledger.log.move_note import MOVE_NOTE
from pulsar_ray.managed_ledger.log.partition_directories import partition_numbers
from pulsar_ray.managed_ledger.log.unlisted_segments import take_unlisted
from pulsar_ray.managed_ledger.store.store_directory import close_to_others, holding_alone
from pulsar_ray.managed_ledger.store.store_identity import (
    CATALOG_FILE,
    StoreIdentity,
    read_identity,
    write_identity,
)
from pulsar_ray.managed_ledger.store.wake_times import NOTE


def adopt_copy(path: Path) -> tuple[StoreIdentity, bool]:
    """Take the mark of a copy away, durably.

    Returns the identity, and whether it was a copy. It goes on as the store and the cluster that it is a copy
    of. Raises NotOurDataDirectory, DataDirectoryInUse, CorruptData, UnsupportedFormatVersion, OSError.
    """
    if read_identity(path) is None:
        raise NotOurDataDirectory(f"{path} has no store.json: a backup that was broken off, or none")
    with holding_alone(path, f"pulsar-ray adopt, process {os.getpid()}"):
        identity = read_identity(path)
        assert identity is not None
        if not identity.copied_ms:
            return identity, False
        return write_identity(path, dataclasses.replace(identity, copied_ms=0, is_of_ray_cluster=False)), True


_TRIES = 20
"""A partition is copied again if ledgers are trimmed, or files replaced, under the copy."""
_CHUNK_BYTES = 8 * 1024 * 1024


class BackupReport(NamedTuple):
    """How much was copied."""

    partitions: int
    bytes: int


def back_up(source: Path, target: Path, now_ms: int, progress: Progress = lambda _: None) -> BackupReport:
    """Copy a data directory into a new or empty one; durable when this returns.

    Every message that was confirmed before the call is there, and only the owner of the copy can read it.
    Nothing serves the copy until somebody adopts it. One that was broken off has no `store.json`, and is no
    data directory.

    Raises InvalidConfiguration for such a target, NotOurDataDirectory, CorruptData if `store.json`, the
    catalog, a manifest or a cursor is damaged, BrokerPersistenceError, OSError.
    """
    require_data_directory(source)
    _check_target(source, target)
    identity = read_identity(source)
    if identity is None:
        raise CorruptData(str(source / "store.json"), 0, "it is missing beside topics: put it back")
    make_closed(target)
    close_to_others(target)
    make_closed(target / LEDGERS)
    has_catalog = (source / CATALOG_FILE).exists()
    wanted = partition_numbers(source / LEDGERS)
    if has_catalog:
        known = _copy_catalog(source / CATALOG_FILE, target / CATALOG_FILE, identity.store_id)
        wanted = [number for number in partition_numbers(source / LEDGERS) if number in known]
    copied: set[int] = set()
    size = 0
    with reading_directly(source):
        for number in wanted:
            found = _copy_partition(source / LEDGERS / str(number), target / LEDGERS / str(number), progress)
            if found is not None:
                copied.add(number)
                size += found
    for mark in (source / LEDGERS).glob("*.prepared"):
        (target / LEDGERS / mark.name).touch(0o600)
    if has_catalog:
        _forget_directories(target / CATALOG_FILE, identity.store_id, copied)
    SYSTEM_DISK.fsync_dir(target / LEDGERS)
    # Last: it has the highest number that was granted, and makes a data directory of the copy.
    latest = read_identity(source) or identity
    write_identity(target, dataclasses.replace(latest, copied_ms=now_ms))
    return BackupReport(len(copied), size)


def _check_target(source: Path, target: Path) -> None:
    ours, theirs = source.resolve(), target.resolve()
    if ours == theirs:
        raise InvalidConfiguration(f"{target} is the data directory itself: give another place")
    if ours in theirs.parents or theirs in ours.parents:
        raise InvalidConfiguration(f"{target} and {source} lie in each other: give a place beside it")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidConfiguration(f"{target} is not empty: give a new directory for each backup")


# --- the catalog


def _copy_catalog(source: Path, target: Path, store_id: str) -> set[int]:
    """Copy the catalog of one moment; returns the numbers of the store's partitions."""
    os.close(SYSTEM_DISK.open(target, os.O_WRONLY | os.O_CREAT))
    with reading_catalog(source) as catalog, _writing(target) as copy:
        catalog.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")
        rows = copy.execute("SELECT number FROM partition WHERE store_id = ?", (store_id,)).fetchall()
    return {row[0] for row in rows}


@contextlib.contextmanager
def _writing(copy: Path) -> Iterator[sqlite3.Connection]:
    """Connect to the copy of a catalog, whose disk may be full."""
    try:
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            yield connection
    except sqlite3.OperationalError as error:
        raise BrokerPersistenceError(f"{copy} cannot be written ({error}): see to its disk") from None


def _forget_directories(catalog: Path, store_id: str, copied: set[int]) -> None:
    """Note in the copy which partitions have no directory there.

    Theirs was not made yet when the backup came by, or was deleted meanwhile.
    """
    with _writing(catalog) as copy:
        listed = copy.execute(
            "SELECT number FROM partition WHERE store_id = ? AND has_ledger", (store_id,)
        ).fetchall()
        missing = [row for row in listed if row[0] not in copied]
        copy.executemany("UPDATE partition SET has_ledger = 0 WHERE number = ?", missing)
        copy.commit()
    _sync(catalog)


# --- partitions


def _copy_partition(source: Path, target: Path, progress: Progress) -> int | None:
    """Copy one partition; returns its bytes, None if it is gone or holds nothing yet."""
    problem: Exception | None = None
    for _ in range(_TRIES):
        if not source.is_dir():
            _remove(target)
            return None
        try:
            return _copy_files(source, target, progress)
        except (SegmentGone, FileNotFoundError) as error:
            # Trimmed or replaced since it was listed.
            problem = error
            _remove(target)
    raise BrokerPersistenceError(f"{source} changes too quickly to be copied: {problem}")


def _copy_files(source: Path, target: Path, progress: Progress) -> int | None:
    make_closed(target)
    for number in subscription_numbers(source):
        _copy_cursor(source, target, number)
    if not _copy_log(source, target, MANIFEST):
        _remove(target)
        return None
    content = _copied_manifest(source, target)
    size = 0
    for ledger in content.manifest.ledgers.values():
        for segment in ledger.segments:
            is_open = ledger.is_open and segment is ledger.segments[-1]
            end = sound_end(segment) if is_open else segment.end_offset
            copy = _fetch_bytes if is_offloaded(segment.path) else _copy_bytes
            copy(segment.path, target / segment.name, end, progress)
            size += end
    for kept in compacted_segments(source, content.manifest.compacted):
        path = Path(kept.path)
        _copy_bytes(path, target / path.name, kept.end_offset, progress)
        size += kept.end_offset
    if content.manifest.compacted is not None:
        describe_form(target, content.manifest.compacted)
    for note in (NOTE, MOVE_NOTE):
        with contextlib.suppress(FileNotFoundError):
            _copy_bytes(source / note, target / note, (source / note).stat().st_size, lambda _: None)
    _copy_epoch(source, target)
    SYSTEM_DISK.fsync_dir(target)
    return size


def _copied_manifest(source: Path, target: Path) -> ManifestContent:
    """Read the manifest that was copied; the segments are those of the source.

    Among them are those that only recovery takes in, since the manifest has lost their records.
    """
    content = read_manifest(target)
    assert content is not None
    content.manifest.directory = source
    for ledger in content.manifest.ledgers.values():
        ledger.segments = [segment._replace(directory=source) for segment in ledger.segments]
    take_unlisted(content)
    return content


def _copy_cursor(source: Path, target: Path, number: int) -> None:
    """Copy a cursor with its index of delayed messages, unless the subscription goes just now."""
    of_source, of_target = cursor_directory(source, number), cursor_directory(target, number)
    make_closed(of_target.parent)
    make_closed(of_target)
    try:
        has_log = _copy_log(of_source, of_target, CURSOR)
        _copy_epoch(of_source, of_target)
    except FileNotFoundError:
        if of_source.is_dir():
            raise
        has_log = False
    if not has_log:
        _remove(of_target)
        return
    _copy_index(index_directory(source, number), index_directory(target, number))
    SYSTEM_DISK.fsync_dir(of_target)


def _copy_index(source: Path, target: Path) -> None:
    """Copy an index of delayed messages, or leave out one that changes.

    The broker makes it anew from the ledgers.
    """
    if not source.is_dir():
        return
    make_closed(target)
    try:
        if not _copy_log(source, target, DELAYED_INDEX):
            raise FileNotFoundError(source)
        for run in source.glob("run-*"):
            _copy_bytes(run, target / run.name, run.stat().st_size, lambda _: None)
        _copy_epoch(source, target)
        SYSTEM_DISK.fsync_dir(target)
    except (FileNotFoundError, CorruptData):
        _remove(target)


def _copy_log(source: Path, target: Path, name: str) -> bool:
    """Copy a log; False if there is none.

    A torn end belongs to it: recovery learns by that that a record may be lost.
    """
    found = read_log_bytes(source, name)
    if found is None:
        return False
    log, content = found
    path = target / log.path.name
    with create_closed(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return True


def _copy_epoch(source: Path, target: Path) -> None:
    for _ in range(_TRIES):
        _copy_bytes(source / "epoch", target / "epoch", (source / "epoch").stat().st_size, lambda _: None)
        if any(slot is not None for slot in read_epoch_slots(target / "epoch")):
            return
    raise CorruptData(str(source / "epoch"), 0, "neither slot of the epoch file is intact")


def _copy_bytes(source: Path, target: Path, length: int, progress: Callable[[int], None]) -> None:
    """Copy the front of a file, durably; the file system may share the blocks."""
    with source.open("rb") as of_source, create_closed(target) as of_target:
        done = 0
        while done < length:
            count = _copy_some(of_source.fileno(), of_target.fileno(), min(_CHUNK_BYTES, length - done), done)
            if not count:
                break  # It is shorter than it should be: `verify` says so of the copy as of this.
            done += count
            progress(count)
        of_target.flush()
        os.fsync(of_target.fileno())


def _fetch_bytes(source: Path, target: Path, length: int, progress: Callable[[int], None]) -> None:
    """Copy an offloaded segment, durably: the copy has all of it."""
    with SegmentReader(source) as reader, create_closed(target) as of_target:
        for start in range(0, length, _CHUNK_BYTES):
            data = reader.read(start, min(_CHUNK_BYTES, length - start))
            of_target.write(data)
            progress(len(data))
        of_target.flush()
        os.fsync(of_target.fileno())


def _copy_some(source: int, target: int, length: int, offset: int) -> int:
    try:
        return os.copy_file_range(source, target, length, offset, offset)
    except OSError:
        # Other file systems, or a kernel that cannot.
        return os.pwrite(target, os.pread(source, length, offset), offset)


def _sync(path: Path) -> None:
    fd = SYSTEM_DISK.open(path, os.O_RDWR)
    try:
        SYSTEM_DISK.fdatasync(fd)
    finally:
        SYSTEM_DISK.close(fd)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
