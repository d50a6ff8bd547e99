"""Backups: whole and consistent, of directories that are written meanwhile and of those that are not."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.cli.target import Target
from pulsar_ray.errors import CorruptData, DataDirectoryInUse, InvalidConfiguration, NotOurDataDirectory
from pulsar_ray.ledger.record_log import read_records
from pulsar_ray.maintenance.backup import adopt_copy, back_up
from pulsar_ray.maintenance.repair import repair_directory
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorStore, read_cursor
from pulsar_ray.managed_ledger.log.move_note import MoveNote, read_move_note, write_move_note
from pulsar_ray.managed_ledger.store.store_directory import StoreDirectory
from pulsar_ray.managed_ledger.store.store_identity import read_identity
from pulsar_ray.model.message_id import Position
from tests.stored_blocks import append, change
from tests.stored_directory import MESSAGES, SUBSCRIPTION, StoredTopic, make_directory
from tests.unit.cli.conftest import run
from tests.unit.maintenance.test_verify import (
    FIRST_FRAME,
    flip,
    frame_length,
    lose_cursor,
    lose_manifest,
    spoil_cursor,
    spoil_epoch,
    spoil_index,
    spoil_manifest,
)

__all__ = ["run"]

NOW_MS = 5000


@contextlib.contextmanager
def careless_umask() -> Iterator[None]:
    """As of a shell that says `umask 0`: what is made is open to everybody, if it is not made closed."""
    former = os.umask(0)
    try:
        yield
    finally:
        os.umask(former)


def open_to_others(directory: Path) -> list[str]:
    places = (directory, *directory.rglob("*"))
    return [f"{path} {path.lstat().st_mode:o}" for path in places if path.lstat().st_mode & 0o077]


@pytest.mark.parametrize("is_there", [False, True])
def test_nothing_of_a_copy_is_open_to_others(tmp_path: Path, is_there: bool) -> None:
    target = tmp_path / "backups" / "monday"
    make_directory(tmp_path / "data", is_closed=True)
    with careless_umask():
        if is_there:
            target.mkdir(parents=True)
        back_up(tmp_path / "data", target, NOW_MS)
        adopt_copy(target)
    assert open_to_others(target) == []


def spoil_entry(topic: StoredTopic) -> None:
    flip(topic.segment, FIRST_FRAME + 2 * frame_length(topic) + 70)


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize(
    "spoil", [spoil_manifest, lose_manifest, spoil_cursor, lose_cursor, spoil_index, spoil_epoch, spoil_entry]
)
def test_nor_is_anything_that_a_repair_makes(
    tmp_path: Path, spoil: Callable[[StoredTopic], None], is_closed: bool
) -> None:
    data = tmp_path / "data"
    topic, _ = make_directory(data, is_closed=is_closed)
    spoil(topic)
    for path in (data, *data.rglob("*")):
        path.chmod(path.stat().st_mode & 0o700)
    with careless_umask():
        assert repair_directory(data, NOW_MS, is_dry_run=False, cuts_damaged=True).repairs
    assert open_to_others(data) == []


def copied(topic: StoredTopic, target: Path) -> StoredTopic:
    return topic._replace(directory=target / "p" / str(topic.number))


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_copy_is_whole_and_has_everything(tmp_path: Path, is_closed: bool) -> None:
    source, target = tmp_path / "data", tmp_path / "backups" / "monday"
    topics = make_directory(source, is_closed=is_closed)
    report = back_up(source, target, NOW_MS)
    assert report.partitions == 2
    findings = verify_directory(target)
    assert (findings.damages, findings.remarks) == ([], [])
    assert findings.totals == verify_directory(source).totals
    for topic in topics:
        assert read_cursor(cursor_directory(copied(topic, target).directory, 1)) is not None
        log = copied(topic, target).open()
        assert log.last_position == Position(topic.ledger_id, MESSAGES - 1)
        assert log.sequences.durable_id("till") == MESSAGES - 1
        log.close()
    assert not any(path.name in ("owner.lock", "store.lock") for path in tmp_path.glob("backups/monday/*"))


def test_a_copy_of_what_is_written_meanwhile_has_all_that_was_confirmed(tmp_path: Path) -> None:
    """Ledgers begin, are rolled and trimmed, and the cursor moves, under one backup after the other."""
    source = tmp_path / "data"
    orders, _ = make_directory(source)
    log = orders.open()
    cursor = CursorStore.open(cursor_directory(orders.directory, 1))
    done = threading.Event()
    problems: list[Exception] = []
    confirmed = [log.last_position]

    def write() -> None:
        try:
            for seq in range(MESSAGES, 10_000_000):
                if done.is_set():
                    return
                append(log, seq, incarnation=9, size=3000, now_ms=seq)
                confirmed[0] = log.last_position
                if seq % 20 == 0:
                    cursor.cursor.set_ledgers([(e.ledger_id, e.last_entry_id) for e in log.segments()])
                    cursor.cursor.acknowledge_up_to(log.last_position)
                    if (flush := cursor.begin_flush()) is not None:
                        flush.run()
                        cursor.finish_flush(flush)
                    change(log, log.changes.move_hold(1, log.last_position))
                if seq % 50 == 0:
                    log.changes.end_log()
                    change(log, log.changes.trim(seq))
        except Exception as error:  # noqa: BLE001
            problems.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        number, deadline = 0, time.monotonic() + 100
        while number < 6 or log.trimmed_position < (orders.ledger_id + 3, 0):
            target = tmp_path / f"copy-{number}"
            before = confirmed[0]
            back_up(source, target, NOW_MS)
            assert verify_directory(target).damages == []
            here = copied(orders, target)
            copy = read_cursor(cursor_directory(here.directory, 1))
            assert copy is not None
            opened = here.open()
            assert opened.last_position >= max(before, copy.mark_delete)
            assert opened.corruptions == []
            opened.close()
            assert time.monotonic() < deadline
            assert problems == []
            number += 1
    finally:
        done.set()
        writer.join()
        cursor.close()
        log.close()


def test_topics_that_come_or_go_meanwhile_leave_a_copy_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "data", tmp_path / "copy"
    orders, bills = make_directory(source)
    catalog = Catalog(source / "meta.sqlite")
    # The catalog names a partition before its process has made the directory.
    orders.directory.rename(tmp_path / "not-there-yet")
    back_up(source, target, NOW_MS)
    catalog.close()
    assert verify_directory(target).damages == []
    with sqlite3.connect(target / "meta.sqlite") as copy:
        rows = dict(copy.execute("SELECT name, has_ledger FROM partition").fetchall())
    copy.close()
    assert rows == {orders.name: 0, bills.name: 1}


def test_a_running_broker_is_copied_and_its_copy_not_served_unasked(tmp_path: Path) -> None:
    source, target = tmp_path / "data", tmp_path / "copy"
    make_directory(source)
    held = StoreDirectory.open(source, address="here")
    back_up(source, target, NOW_MS)
    with pytest.raises(NotOurDataDirectory, match=f"run `pulsar-ray adopt {target}`"):
        StoreDirectory.open(target, address="there")
    identity, was_copy = adopt_copy(target)
    assert was_copy
    assert identity == held.identity == read_identity(target)
    ours = StoreDirectory.open(target, address="there")
    with pytest.raises(DataDirectoryInUse):
        adopt_copy(target)
    ours.close()
    assert adopt_copy(target) == (identity, False)
    held.close()


def test_a_backup_is_refused_where_it_would_do_harm(tmp_path: Path) -> None:
    source = tmp_path / "data"
    make_directory(source)
    (tmp_path / "link").symlink_to(source)
    for target in (source, tmp_path / "link", source / "copy", tmp_path):
        with pytest.raises(InvalidConfiguration):
            back_up(source, target, NOW_MS)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InvalidConfiguration, match="not empty"):
        back_up(source, tmp_path / "full", NOW_MS)
    with pytest.raises(NotOurDataDirectory):
        back_up(tmp_path / "full", tmp_path / "copy", NOW_MS)
    assert verify_directory(source).is_clean


def test_damage_is_copied_and_told(tmp_path: Path) -> None:
    source = tmp_path / "data"
    orders, bills = make_directory(source)
    flip(bills.segment, 4096 + 150)
    back_up(source, tmp_path / "first", NOW_MS)
    assert verify_directory(tmp_path / "first").lost_entries == verify_directory(source).lost_entries == 3
    spoil_manifest(orders)
    with pytest.raises(CorruptData):
        back_up(source, tmp_path / "second", NOW_MS)
    # It was broken off, so nobody takes it for a backup.
    with pytest.raises(NotOurDataDirectory):
        adopt_copy(tmp_path / "second")


def test_entries_that_only_recovery_finds_are_copied(tmp_path: Path) -> None:
    """The segment itself shows whose it is (ADR 0051)."""
    source = tmp_path / "data"
    orders, _ = make_directory(source)
    manifest = orders.manifest()
    whole = manifest.read_bytes()
    ends = [end for _, _, end in read_records(whole)][1:-1]
    found = 0
    for end in (*ends, len(whole) - 1):
        manifest.write_bytes(whole[:end])
        before = verify_directory(source)
        if before.is_clean and before.totals.entries == 2 * MESSAGES:
            found += 1
            back_up(source, tmp_path / str(end), NOW_MS)
            assert verify_directory(tmp_path / str(end)).totals == before.totals
            log = copied(orders, tmp_path / str(end)).open()
            assert log.last_position == Position(orders.ledger_id, MESSAGES - 1)
            log.close()
    assert found > 1


def test_a_copy_knows_how_often_its_partitions_have_moved(tmp_path: Path) -> None:
    orders, _ = make_directory(tmp_path / "data")
    write_move_note(orders.directory, MoveNote(3))
    back_up(tmp_path / "data", tmp_path / "copy", NOW_MS)
    assert read_move_note(copied(orders, tmp_path / "copy").directory) == MoveNote(3)


def test_the_commands(tmp_path: Path, run: Callable) -> None:  # type: ignore[type-arg]
    source, target = tmp_path / "data", tmp_path / "copy"
    make_directory(source)
    done = run(Target(data_dir=str(source)), "backup", str(target))
    assert done.exit_code == 0
    assert "copied 2 partitions" in done.stdout
    assert "all is whole" in done.stdout
    again = run(Target(data_dir=str(source)), "backup", str(target))
    assert again.exit_code == 2
    assert "not empty" in again.stderr
    assert "from now on" in run(Target(), "adopt", str(target)).stdout
    assert "nothing to do" in run(Target(), "adopt", str(target)).stdout
    assert run(Target(), "adopt", str(tmp_path)).exit_code == 2
    assert SUBSCRIPTION not in done.stdout
