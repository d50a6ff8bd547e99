"""Cursors on disk: flushes, restarts, torn and damaged logs, a full disk, a newer owner."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.errors import CorruptData, Fenced, WrongNode
from pulsar_ray.ledger.directory_owner import DirectoryOwner
from pulsar_ray.ledger.disk import SYSTEM_DISK
from pulsar_ray.ledger.record_log import RecordLog
from pulsar_ray.managed_ledger.cursor.cursor_store import (
    CHANGES,
    LOG_NAME,
    SNAPSHOT,
    CursorStore,
    read_cursor,
    snapshot_payload,
)
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription, KnownConsumer, ManagedCursor
from pulsar_ray.model.message_id import Position
from pulsar_ray.testing.faulty_disk import FaultyDisk

SUBSCRIPTION = CursorSubscription("orders", properties={"team": "a"})
START = Position(1, -1)


class NoLock:
    """A lock that anybody gets: the epoch alone must fence."""

    def release(self) -> None: ...


def created(directory: Path) -> CursorStore:
    store = CursorStore.create(directory, SUBSCRIPTION, START)
    store.cursor.set_ledgers([(1, 1000)])
    return store


def flush(store: CursorStore) -> None:
    work = store.begin_flush()
    assert work is not None
    work.run()
    store.finish_flush(work)


def reopened(directory: Path) -> CursorStore:
    store = CursorStore.open(directory)
    store.cursor.set_ledgers([(1, 1000)])
    return store


def log_file(directory: Path) -> Path:
    (path,) = directory.glob(f"{LOG_NAME}-*")
    return path


def test_what_was_flushed_is_there_after_a_restart(tmp_path: Path) -> None:
    store = created(tmp_path / "s")
    store.cursor.acknowledge(1, 0, 4)
    store.cursor.acknowledge(1, 10, 19)
    store.cursor.count_redelivery(1, 30, 31, 2)
    store.cursor.remember_consumer(KnownConsumer(7, "c", 1))
    store.cursor.acknowledge_rows(Position(1, 40), ((1, 2),), 5, is_durable=True)
    flush(store)
    store.cursor.acknowledge(1, 100, 100)
    expected = store.epoch + 1
    store.close()

    store = reopened(tmp_path / "s")
    cursor = store.cursor
    assert store.epoch == expected
    assert cursor.subscription == SUBSCRIPTION
    assert cursor.mark_delete == (1, 4)
    assert list(cursor.deleted) == [(1, 10, 19)], "what was not flushed is not promised"
    assert cursor.counts.runs(1, 29, 32) == [(29, 29, 0), (30, 31, 2), (32, 32, 0)]
    assert cursor.consumers == {7: KnownConsumer(7, "c", 1)}
    assert cursor.durable_rows(Position(1, 40)) == ((1, 2),)
    store.close()


def test_owners_of_a_new_cursor_count_on_from_where_they_are_told(tmp_path: Path) -> None:
    for epoch in (4097, 4098):
        store = CursorStore.create(tmp_path / "s", SUBSCRIPTION, Position(1, 0), least_epoch=4096)
        assert store.epoch == epoch
        store.close()


def test_creating_again_keeps_what_is_there(tmp_path: Path) -> None:
    store = created(tmp_path / "s")
    store.cursor.acknowledge(1, 0, 4)
    flush(store)
    store.close()
    store = CursorStore.create(tmp_path / "s", SUBSCRIPTION, Position(1, 500))
    assert store.cursor.mark_delete == (1, 4)
    store.close()


def test_changes_during_a_flush_belong_to_the_next(tmp_path: Path) -> None:
    store = created(tmp_path / "s")
    assert store.begin_flush() is None
    store.cursor.acknowledge(1, 0, 4)
    first = store.begin_flush()
    assert first is not None
    version = store.cursor.version
    store.cursor.acknowledge(1, 5, 6)
    with pytest.raises(RuntimeError, match="already"):
        store.begin_flush()
    first.run()
    store.finish_flush(first)
    assert (store.durable_version, store.durable_mark_delete) == (version, (1, 4))
    flush(store)
    assert store.durable_mark_delete == (1, 6)
    store.close()


def test_a_log_cut_anywhere_gives_the_state_of_some_flush(tmp_path: Path) -> None:
    store = created(tmp_path / "s")
    sizes = [log_file(tmp_path / "s").stat().st_size]
    used = [store._log.size]
    for entry in range(5):
        store.cursor.acknowledge(1, entry, entry)
        flush(store)
        used.append(store._log.size)
    store.close()
    content = log_file(tmp_path / "s").read_bytes()
    assert len(content) >= sizes[0]
    for cut in range(used[0], used[-1] + 1):
        directory = tmp_path / f"cut{cut}"
        directory.mkdir()
        (directory / log_file(tmp_path / "s").name).write_bytes(content[:cut])
        cursor = read_cursor(directory)
        assert cursor is not None
        flushes = sum(1 for end in used[1:] if end <= cut)
        assert cursor.mark_delete == (1, flushes - 1)


def test_a_damaged_log_is_reported_with_its_path(tmp_path: Path) -> None:
    store = created(tmp_path / "s")
    snapshot_size = store._log.size
    for entry in range(3):
        store.cursor.acknowledge(1, entry, entry)
        flush(store)
    store.close()
    path = log_file(tmp_path / "s")
    for offset in (20, snapshot_size + 15):
        content = bytearray(path.read_bytes())
        content[offset] ^= 1
        path.write_bytes(content)
        with pytest.raises(CorruptData) as error:
            CursorStore.open(tmp_path / "s")
        assert error.value.path == str(path)
        content[offset] ^= 1
        path.write_bytes(content)


def test_a_missing_log_or_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WrongNode):
        CursorStore.open(tmp_path / "nowhere")
    created(tmp_path / "s").close()
    log_file(tmp_path / "s").unlink()
    with pytest.raises(CorruptData):
        CursorStore.open(tmp_path / "s")


@pytest.mark.parametrize("place", ["open", "pwrite", "writev", "fdatasync", "rename", "fsync_dir"])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_cursor_that_could_not_be_made_can_be_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, times: int
) -> None:
    work, left = getattr(SYSTEM_DISK, place), times
    open_files = len(os.listdir("/proc/self/fd"))

    def fail(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        return work(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(SYSTEM_DISK, place, fail, raising=True)
        try:
            created(tmp_path / "s").close()
        except OSError:
            assert left == 0
    assert len(os.listdir("/proc/self/fd")) == open_files
    store = created(tmp_path / "s")
    store.cursor.acknowledge(1, 0, 6)
    flush(store)
    store.close()
    assert reopened(tmp_path / "s").cursor.mark_delete == (1, 6)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("records", [[(SNAPSHOT, {"m": [1, 2]})], [(CHANGES, {})], [(SNAPSHOT, [1, 2])], []])
def test_records_that_are_no_cursor_are_corrupt(tmp_path: Path, records: list[tuple[int, object]]) -> None:
    owner = DirectoryOwner.open(tmp_path / "s", create=True)
    log = RecordLog(owner, LOG_NAME)
    log.rewrite(records)
    log.close()
    owner.close()
    with pytest.raises(CorruptData):
        CursorStore.open(tmp_path / "s")


def test_a_long_log_is_replaced_by_a_snapshot(tmp_path: Path) -> None:
    store = created(tmp_path / "s")
    largest = 0
    for step in range(3000):
        for entry in range(step % 2, 1000, 20):
            store.cursor.count_redelivery(1, entry, entry, step + 1)
        flush(store)
        largest = max(largest, store._log.size)
        if store._log.size < largest:
            break
    else:
        pytest.fail("the log grew for ever")
    assert largest < 300_000
    store.close()
    assert reopened(tmp_path / "s").cursor.counts.of(1, 0) > 0


def test_after_a_failed_write_everything_is_written_anew(tmp_path: Path) -> None:
    disk = FaultyDisk()
    owner = DirectoryOwner.open(tmp_path / "s", create=True)
    cursor = ManagedCursor(SUBSCRIPTION, START)
    cursor.set_ledgers([(1, 1000)])
    log = RecordLog(owner, LOG_NAME, disk)
    log.rewrite([(SNAPSHOT, snapshot_payload(cursor))])
    store = CursorStore(owner, cursor, log)
    cursor.acknowledge(1, 0, 0)
    disk.fail("fdatasync")
    work = store.begin_flush()
    assert work is not None
    with pytest.raises(OSError, match="Input/output"):
        work.run()
    store.fail_flush(work)
    assert store.durable_mark_delete == START
    cursor.acknowledge(1, 1, 1)
    flush(store)
    store.close()
    assert reopened(tmp_path / "s").cursor.mark_delete == (1, 1)


def test_a_former_owner_can_promise_nothing(tmp_path: Path) -> None:
    def no_lock(path: Path) -> NoLock:
        return NoLock()

    owner = DirectoryOwner.open(tmp_path / "s", create=True, acquire_lock=no_lock)
    cursor = ManagedCursor(SUBSCRIPTION, START)
    cursor.set_ledgers([(1, 1000)])
    log = RecordLog(owner, LOG_NAME)
    log.rewrite([(SNAPSHOT, snapshot_payload(cursor))])
    store = CursorStore(owner, cursor, log)
    cursor.acknowledge(1, 0, 4)
    work = store.begin_flush()
    assert work is not None
    successor = DirectoryOwner.open(tmp_path / "s", create=False, acquire_lock=no_lock)
    with pytest.raises(Fenced):
        work.run()
    successor.close()
