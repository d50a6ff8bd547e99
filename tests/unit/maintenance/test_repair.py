"""What `repair` makes of each damage: whole again, with nothing lost that was not damaged."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_ray.cli.target import Target
from pulsar_ray.errors import DataDirectoryInUse, NotOurDataDirectory
from pulsar_ray.ledger.disk import SYSTEM_DISK, write_whole
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.ledger.record_log import encode_record
from pulsar_ray.maintenance.damage import Kind
from pulsar_ray.maintenance.partition_repair import SetAside
from pulsar_ray.maintenance.rebuilding import rebuild_manifest
from pulsar_ray.maintenance.repair import repair_directory
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory
from pulsar_ray.managed_ledger.cursor.cursor_store import read_cursor
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.manifest.manifest_records import TopicIdentity
from pulsar_ray.managed_ledger.store.store_directory import StoreDirectory
from pulsar_ray.managed_ledger.store.store_identity import read_identity
from pulsar_ray.model.message_id import Position
from tests.power_cut import PowerCutDisk
from tests.stored_blocks import abandon, append, change, settings
from tests.stored_directory import CLUSTER, MESSAGES, SUBSCRIPTION, StoredTopic, make_directory
from tests.unit.cli.conftest import run
from tests.unit.maintenance.test_verify import (
    cut,
    flip,
    lose_cursor,
    lose_index_run,
    lose_manifest,
    spoil_cursor,
    spoil_epoch,
    spoil_index,
    spoil_manifest,
    spoil_move_note,
    spoil_term,
)

__all__ = ["run"]

NOW_MS = 5000


def lose_epoch(topic: StoredTopic) -> None:
    (topic.directory / "epoch").unlink()


def spoil_cursor_epoch(topic: StoredTopic) -> None:
    for slot in (0, 4096):
        flip(topic.directory / "s" / "1" / "epoch", slot + 9)


def spoil_header(topic: StoredTopic) -> None:
    flip(topic.segment, 100)


def spoil_all(topic: StoredTopic) -> None:
    """One after the other shows only when what hides it is mended."""
    for spoil in (spoil_epoch, spoil_cursor, spoil_index, spoil_header, spoil_manifest):
        spoil(topic)


def entries(topic: StoredTopic) -> int:
    with SegmentReader(topic.segment) as reader:
        return sum(frame.header.entries for frame in reader.frames(4096, reader.size()))


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize(
    "spoil",
    [
        spoil_manifest,
        lose_manifest,
        spoil_cursor,
        lose_cursor,
        spoil_index,
        lose_index_run,
        spoil_epoch,
        lose_epoch,
        spoil_cursor_epoch,
        spoil_header,
        spoil_move_note,
        spoil_all,
    ],
)
def test_what_can_be_made_anew_costs_no_message(
    tmp_path: Path, spoil: Callable[[StoredTopic], None], is_closed: bool
) -> None:
    orders, bills = make_directory(tmp_path, is_closed=is_closed)
    spoil(bills)
    assert not verify_directory(tmp_path).is_clean
    report = repair_directory(tmp_path, NOW_MS, is_dry_run=False)
    assert report.left.damages == []
    assert {repair.topic for repair in report.repairs} <= {bills.name, ""}
    for topic in (orders, bills):
        log = topic.open()
        assert log.corruptions == []
        assert log.last_position == Position(topic.ledger_id, MESSAGES - 1)
        (subscription,) = log.changes.subscriptions()
        assert subscription.name == SUBSCRIPTION
        assert subscription.hold < Position(topic.ledger_id, MESSAGES // 2)
        assert log.sequences.is_on
        assert log.sequences.durable_id("till") == MESSAGES - 1
        append(log, MESSAGES, incarnation=9)
        assert log.last_position >= Position(topic.ledger_id + 1, 0)
        log.close()
    assert repair_directory(tmp_path, NOW_MS, is_dry_run=False).repairs == []


def test_acknowledgments_of_intact_records_stay(tmp_path: Path) -> None:
    orders, bills = make_directory(tmp_path)
    # The last record has the hole; damage to the snapshot alone leaves it.
    flip(orders.cursor_log(), 20)
    spoil_manifest(bills)
    repair_directory(tmp_path, NOW_MS, is_dry_run=False)
    for topic in (orders, bills):
        cursor = read_cursor(cursor_directory(topic.directory, 1))
        assert cursor is not None
        assert cursor.mark_delete == Position(topic.ledger_id, MESSAGES // 2 - 1)
        assert list(cursor.deleted) == [(topic.ledger_id, MESSAGES - 4, MESSAGES - 4)]


@pytest.mark.parametrize(("no_catalog", "no_store"), [(b"x" * 5000, b"{"), (b"", b"\xff")])
def test_the_catalog_is_made_of_the_partitions_and_the_store_of_the_catalog(
    tmp_path: Path, no_catalog: bytes, no_store: bytes
) -> None:
    orders, bills = make_directory(tmp_path)
    catalog, store = tmp_path / "meta.sqlite", tmp_path / "store.json"
    before = read_identity(tmp_path)
    store.write_bytes(no_store)
    assert repair_directory(tmp_path, NOW_MS, is_dry_run=False).left.is_clean
    assert read_identity(tmp_path) == before
    catalog.write_bytes(no_catalog)
    spoil_manifest(bills)
    report = repair_directory(tmp_path, NOW_MS + 1, is_dry_run=False)
    assert (report.left.damages, report.left.remarks) == ([], [])
    assert [repair.kind for repair in report.repairs] == [Kind.MANIFEST, Kind.CATALOG]
    catalog.unlink()
    assert repair_directory(tmp_path, NOW_MS + 2, is_dry_run=False).left.is_clean
    # Without either nobody knows which store it is.
    catalog.unlink()
    store.unlink()
    left = repair_directory(tmp_path, NOW_MS + 3, is_dry_run=False).left
    assert [damage.kind for damage in left.damages] == [Kind.STORE]
    assert orders.directory.is_dir()


def test_the_former_files_are_kept(tmp_path: Path) -> None:
    orders, _ = make_directory(tmp_path)
    spoil_all(orders)
    manifest, cursor, front = orders.manifest(), orders.cursor_log(), orders.segment.read_bytes()[:4096]
    former = {path: path.read_bytes() for path in (manifest, cursor, orders.directory / "epoch")}
    report = repair_directory(tmp_path, NOW_MS, is_dry_run=False)
    assert report.kept == tmp_path / "repaired" / str(NOW_MS)
    for path, content in former.items():
        assert (report.kept / path.relative_to(tmp_path)).read_bytes() == content
    kept = report.kept / orders.segment.relative_to(tmp_path)
    assert kept.with_name(f"{kept.name}.front").read_bytes() == front


def test_what_is_set_aside_outlasts_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, disk = tmp_path / "data", PowerCutDisk(tmp_path / "data")
    directory = data / "p" / "1"
    directory.mkdir(parents=True)
    with monkeypatch.context() as patch:
        disk.install(patch)
        for name in ("epoch", "manifest-1"):
            write_whole(SYSTEM_DISK, directory / name, name.encode())
        for folder in (directory, directory.parent, data):
            SYSTEM_DISK.fsync_dir(folder)
        aside = SetAside(data, "5")
        aside.keep(directory / "manifest-1")
        aside.take(directory / "epoch")
    kept = disk.left(tmp_path / "left") / "repaired" / "5" / "p" / "1"
    assert {path.name: path.read_text() for path in kept.iterdir()} == {
        "epoch": "epoch",
        "manifest-1": "manifest-1",
    }


def test_a_term_that_only_the_object_store_knows_stays_named(tmp_path: Path) -> None:
    orders, _ = make_directory(tmp_path)
    spoil_term(orders)
    report = repair_directory(tmp_path, NOW_MS, is_dry_run=False, cuts_damaged=True)
    assert report.repairs == []
    (damage,) = report.left.damages
    assert (damage.kind, damage.topic) == (Kind.NOTE, orders.name)


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    orders, _ = make_directory(tmp_path)
    spoil_manifest(orders)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    report = repair_directory(tmp_path, NOW_MS, is_dry_run=True)
    assert [repair.kind for repair in report.repairs] == [Kind.MANIFEST]
    assert [damage.kind for damage in report.left.damages] == [Kind.MANIFEST]
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    locks = {tmp_path / "store.lock", tmp_path / "cluster.lock"}
    assert {path: after[path] for path in after if path not in locks} == before


def test_lost_entries_stay_lost_and_named(tmp_path: Path) -> None:
    orders, bills = make_directory(tmp_path)
    cut(orders.segment, 4096 + 100)
    lose_manifest(orders)
    flip(bills.segment, 4096 + 150)
    left = repair_directory(tmp_path, NOW_MS, is_dry_run=False).left
    assert {damage.topic for damage in left.damages} == {orders.name, bills.name}
    assert {damage.kind for damage in left.damages} == {Kind.ENTRIES}
    log = orders.open()
    # The acknowledgments tell up to where there were messages.
    assert log.last_position == Position(orders.ledger_id, MESSAGES - 4)
    log.close()


def test_a_broker_that_runs_is_left_alone(tmp_path: Path) -> None:
    make_directory(tmp_path)
    held = StoreDirectory.open(tmp_path, address="here")
    with pytest.raises(DataDirectoryInUse, match="stop that broker"):
        repair_directory(tmp_path, NOW_MS, is_dry_run=False)
    held.close()
    assert repair_directory(tmp_path, NOW_MS, is_dry_run=False).repairs == []


def test_files_of_a_newer_build_are_not_touched(tmp_path: Path) -> None:
    orders, _ = make_directory(tmp_path)
    with orders.manifest().open("ab") as file:
        file.write(encode_record(99, []))
    before = orders.manifest().read_bytes()
    report = repair_directory(tmp_path, NOW_MS, is_dry_run=False)
    assert report.repairs == []
    assert [damage.kind for damage in report.left.damages] == [Kind.VERSION]
    assert orders.manifest().read_bytes() == before


def test_a_subscription_that_is_gone_does_not_come_back(tmp_path: Path) -> None:
    """Its cursor's directory stays behind until the partition starts."""
    orders, _ = make_directory(tmp_path)
    log = orders.open()
    change(log, log.changes.remove_subscription(1))
    abandon(log)
    flip(orders.manifest(), 20)
    assert repair_directory(tmp_path, NOW_MS, is_dry_run=False).left.is_clean
    log = orders.open()
    assert log.changes.subscriptions() == []
    log.close()


@pytest.mark.parametrize(
    ("name", "is_on"),
    [
        ("persistent://public/default/orders", True),
        ("persistent://public/default/__change_events-partition-0", False),
    ],
)
def test_deduplication_is_only_supposed_of_topics_that_can_have_it(
    tmp_path: Path, name: str, is_on: bool
) -> None:
    identity = TopicIdentity(7, name, -1, CLUSTER)
    log = ManagedLedger.open(tmp_path, identity, settings(), 1000)
    append(log, 0)
    abandon(log)
    for manifest in tmp_path.glob("manifest-*"):
        manifest.unlink()
    rebuilt = rebuild_manifest(tmp_path, CLUSTER, None)
    assert rebuilt is not None
    assert rebuilt.content.manifest.identity == identity
    assert (rebuilt.content.sequences.switched_on is not None) == is_on


def test_the_command_says_what_it_does(tmp_path: Path, run: Callable) -> None:  # type: ignore[type-arg]
    orders, bills = make_directory(tmp_path)
    spoil_manifest(orders)
    dry = run(Target(), "repair", str(tmp_path), "--dry-run")
    assert dry.exit_code == 4
    assert f"would: {orders.name}: manifest: rebuilt from 1 ledgers" in dry.stdout
    done = run(Target(data_dir=str(tmp_path)), "repair")
    assert done.exit_code == 0
    assert f"{orders.name}: manifest: rebuilt from 1 ledgers" in done.stdout
    assert "the former files are in" in done.stdout
    assert "all is whole" in done.stdout
    bills.segment.unlink()
    lose_cursor(bills)
    as_json = run(Target(), "repair", str(tmp_path), "--json")
    assert as_json.exit_code == 4
    told = json.loads(as_json.stdout)
    assert [repair["kind"] for repair in told["repairs"]] == ["cursor"]
    assert told["damages"][0]["topic"] == bills.name


def test_a_disk_without_room_is_named_and_nothing_called_damaged(tmp_path: Path, run: Callable) -> None:  # type: ignore[type-arg]
    orders, _ = make_directory(tmp_path / "data")
    spoil_manifest(orders)
    copy, key = tmp_path / "copy", tmp_path / "key"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (128, hard))
    try:
        repaired = run(Target("local", str(tmp_path / "data")), "repair")
        copied = run(Target("local", str(tmp_path / "data")), "backup", str(copy))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        made = run(Target("local"), "tokens", "create-secret-key", "--output", str(key))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for result, named in ((repaired, tmp_path / "data"), (copied, copy / "meta.sqlite"), (made, "")):
        assert result.exit_code == 1, result.exception
        assert result.stderr.startswith("Error: ")
        assert len(result.stderr.splitlines()) == 1
        assert str(named) in result.stderr
        assert "corrupt" not in result.stderr
    assert repair_directory(tmp_path / "data", NOW_MS, is_dry_run=False).left.is_clean


def test_bad_usage_is_told(tmp_path: Path, run: Callable) -> None:  # type: ignore[type-arg]
    with pytest.raises(NotOurDataDirectory):
        repair_directory(tmp_path, NOW_MS, is_dry_run=False)
    assert run(Target(), "repair", str(tmp_path)).exit_code == 2
