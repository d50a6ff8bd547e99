"""A store's journal with real files: told by real logs and cursors, and taken over by another store."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.serving.shipping_link import ASYNC, SYNC, ShippingLink
from pulsar_ray.config import OFF
from pulsar_ray.errors import (
    JournalDamaged,
    RemoteStoreRefused,
    RemoteStoreUnavailable,
    ServiceUnitNotReady,
    StoreSealed,
)
from pulsar_ray.journal.journal_door import JournalDoor
from pulsar_ray.journal.requests import Task, Wait
from pulsar_ray.journal.shipped_disk import ShippedDisk
from pulsar_ray.journal.shipping import Cut
from pulsar_ray.journal.storage.file_store import FileStore
from pulsar_ray.journal.store_files import (
    StoreFiles,
    Term,
    listed_files,
    read_term,
    remove_partition,
    write_term,
)
from pulsar_ray.journal.store_journal import StoreJournal
from pulsar_ray.journal.store_life import StoreLife
from pulsar_ray.ledger.disk import SYSTEM_DISK, Disk
from pulsar_ray.ledger.segment_file import segment_name
from pulsar_ray.maintenance.backup import adopt_copy, back_up
from pulsar_ray.maintenance.repair import repair_directory
from pulsar_ray.managed_ledger.cursor.cursor_directories import (
    cursor_directory,
    remove_cursor,
    subscription_numbers,
)
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorStore
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.manifest.manifest_records import to_log
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity, write_identity
from pulsar_ray.model.message_id import EARLIEST, Position
from tests.stored_blocks import IDENTITY, abandon, append, change, settings
from tests.unit.managed_ledger.log.test_log_recovery import entries

DEADLINE_S = 60
NUMBER = IDENTITY.number


def runs(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on an event loop of its own, as the process of a partition has one."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


class Partition:
    """What the process of a partition does, without one: a log, a cursor, and their receipts."""

    def __init__(self, data_dir: Path, durability: str = SYNC, lag_s: float = 30.0, **changes: Any) -> None:
        self.directory = data_dir / "p" / str(NUMBER)
        self.loop = asyncio.get_running_loop()
        self.link = ShippingLink(data_dir, NUMBER, "", self.loop, lag_s)
        disk = ShippedDisk(self.directory, self.link)
        term = read_term(self.directory)
        self.log = ManagedLedger.open(
            self.directory,
            IDENTITY,
            settings(**changes),
            1000,
            disk=disk,
            first_ledger=term.first_ledger if term else 0,
        )
        self.link.list_files(listed_files(self.directory))
        self.link.set_durability(durability, lag_s)
        self.confirmed: list[int] = []

    def publish(self, *seqs: int) -> None:
        append(self.log, *seqs)
        self.link.when_durable(lambda: self.confirmed.extend(seqs))

    def subscribe(self, data_dir: Path, durability: str = SYNC) -> CursorStore:
        number = change(self.log, self.log.changes.register("s", True, "earliest")).number
        self.cursor_link = ShippingLink(data_dir, NUMBER, f"s/{number}/", self.loop, 30.0)
        disk = ShippedDisk(self.directory, self.cursor_link)
        path = cursor_directory(self.directory, number)
        cursor = CursorStore.create(path, CursorSubscription("s", True, {}), EARLIEST, disk)
        self.cursor_link.set_durability(durability, 30.0)
        return cursor

    async def until_confirmed(self, *seqs: int) -> None:
        await until(lambda: self.confirmed == list(seqs))

    def die(self) -> None:
        abandon(self.log)
        self.link.close()


async def until(condition: Callable[[], object]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), DEADLINE_S)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "bucket").as_uri()


@pytest.fixture
def homes(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("a", "b"):
        (tmp_path / name / "p").mkdir(parents=True)
    return tmp_path / "a", tmp_path / "b"


def greeting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set once a partition's greeting was taken in from now on."""
    greeted, take = threading.Event(), JournalDoor._take

    def taken(door: JournalDoor, teller: Any, packet: list[Any]) -> None:
        take(door, teller, packet)
        if packet[0] == "hello":
            greeted.set()

    monkeypatch.setattr(JournalDoor, "_take", taken)
    return greeted


def started(home: Path, url: str) -> StoreJournal:
    journal = StoreJournal(home, f"store-{home.name}", url)
    journal.wait_ready(DEADLINE_S)
    return journal


async def shipped_one(home: Path, url: str) -> tuple[StoreJournal, Partition]:
    """Start a journal, and a partition with one message that is confirmed."""
    journal = await asyncio.to_thread(started, home, url)
    partition = Partition(home)
    partition.publish(0)
    await partition.until_confirmed(0)
    return journal, partition


async def shipped_before(home: Path, url: str) -> Partition:
    """Ship one message, and end the partition and its journal; only the partition's directory is of use."""
    journal, partition = await shipped_one(home, url)
    partition.die()
    await asyncio.to_thread(journal.stop)
    return partition


def taken_over(home: Path, url: str, store: str = "store-a") -> list[str]:
    journal = started(home, url)
    try:
        return journal.adopt(journal.seal(store))
    finally:
        journal.stop()


def restarted(home: Path, url: str) -> None:
    """Start a store's process anew, and end it once what it has is in the journal."""
    journal = started(home, url)
    deadline = time.monotonic() + DEADLINE_S
    while journal.status()["partitions"] < 1:
        assert time.monotonic() < deadline, journal.status()
        time.sleep(0.005)
    journal.stop()


def opened(directory: Path, disk: Disk = SYSTEM_DISK) -> ManagedLedger:
    term = read_term(directory)
    first = 0 if term is None else term.first_ledger
    return ManagedLedger.open(directory, IDENTITY, settings(), 1000, disk=disk, first_ledger=first)


def stored(home: Path) -> list[int]:
    with closing(opened(home / "p" / str(NUMBER))) as log:
        assert not log.corruptions
        return [seq for _, seq in entries(log)]


@runs
async def test_what_was_confirmed_is_in_another_store_when_the_node_is_gone(
    homes: tuple[Path, Path], url: str
) -> None:
    first, second = homes
    journal = await asyncio.to_thread(started, first, url)
    partition = Partition(first)
    for seq in range(5):
        partition.publish(seq)
    await partition.until_confirmed(*range(5))
    cursor = partition.subscribe(first)
    cursor.cursor.reset(partition.log.first_position)
    flush = cursor.begin_flush()
    assert flush is not None
    flush.run()
    cursor.finish_flush(flush)
    acknowledged: list[bool] = []
    partition.cursor_link.when_durable(lambda: acknowledged.append(True))
    await until(lambda: acknowledged)
    partition.die()
    cursor.close()
    partition.cursor_link.close()
    assert await asyncio.to_thread(taken_over, second, url) == [str(NUMBER)]
    await until(lambda: journal.status()["problem"])
    with pytest.raises(StoreSealed, match="taken over"):
        journal.check()
    await asyncio.to_thread(journal.stop)
    assert stored(second) == list(range(5))
    (path,) = (second / "p" / str(NUMBER) / "s").iterdir()
    restored = CursorStore.open(path)
    assert restored.cursor.mark_delete == Position(NUMBER << 31, 0)
    restored.close()


@runs
async def test_an_owner_in_a_new_term_is_none_that_clients_know(homes: tuple[Path, Path], url: str) -> None:
    first, second = homes
    journal = await asyncio.to_thread(started, first, url)
    partition = Partition(first)
    cursor = partition.subscribe(first)
    partition.publish(0)
    await partition.until_confirmed(0)
    settled: list[bool] = []
    partition.cursor_link.when_durable(lambda: settled.append(True))
    await until(lambda: settled)
    partition.die()
    cursor.close()
    await asyncio.to_thread(journal.stop)
    owners = 5
    (former,) = (first / "p" / str(NUMBER) / "s").iterdir()
    for _ in range(owners):  # the object store is not told of these
        opened(first / "p" / str(NUMBER)).close()
        later = CursorStore.open(former)
        later.close()
    await asyncio.to_thread(taken_over, second, url)
    (path,) = (second / "p" / str(NUMBER) / "s").iterdir()
    with closing(CursorStore.open(path)) as restored, closing(opened(second / "p" / str(NUMBER))) as log:
        assert restored.epoch > later.epoch > owners
        assert log.epoch > owners + 1


@runs
async def test_a_store_that_was_taken_over_serves_nothing_when_it_comes_back(
    homes: tuple[Path, Path], url: str
) -> None:
    first, second = homes
    await shipped_before(first, url)
    await asyncio.to_thread(taken_over, second, url)
    with pytest.raises(StoreSealed):
        await asyncio.to_thread(started, first, url)


@runs
async def test_a_store_that_lives_and_was_taken_over_gives_no_receipt(
    homes: tuple[Path, Path], url: str
) -> None:
    first, second = homes
    journal, partition = await shipped_one(first, url)
    await asyncio.to_thread(taken_over, second, url)
    partition.publish(1)
    await until(lambda: is_sealed(journal))
    partition.publish(2)
    partition.link.tick()
    assert partition.confirmed == [0]
    assert partition.link.waiting
    partition.die()
    await asyncio.to_thread(journal.stop)
    assert stored(second) == [0]


def is_sealed(journal: StoreJournal) -> bool:
    try:
        journal.check()
    except StoreSealed:
        return True
    return False


@runs
async def test_a_restart_ships_what_was_synced_and_not_told(homes: tuple[Path, Path], url: str) -> None:
    first, second = homes
    journal = await asyncio.to_thread(started, first, url)
    partition = Partition(first, ASYNC)
    partition.publish(0)
    await until(lambda: journal.status()["partitions"] == 1)
    await asyncio.to_thread(journal.stop)
    for seq in range(1, 4):
        partition.publish(seq)  # the store is away: receipts go on until the lag bound
    assert partition.confirmed == [0, 1, 2, 3]
    partition.die()
    await asyncio.to_thread(restarted, first, url)
    assert await asyncio.to_thread(taken_over, second, url) == [str(NUMBER)]
    assert stored(second) == [0, 1, 2, 3]


@runs
async def test_asynchronous_receipts_wait_behind_the_lag_bound_and_go_on(
    homes: tuple[Path, Path], url: str
) -> None:
    first, _ = homes
    journal = await asyncio.to_thread(started, first, url)
    partition = Partition(first, ASYNC, lag_s=0.05)
    partition.publish(0)
    await until(lambda: journal.status()["partitions"] == 1)
    await asyncio.to_thread(journal.stop)
    partition.publish(1)
    await asyncio.sleep(0.06)
    partition.publish(2)
    assert 2 not in partition.confirmed
    assert "does not take" in partition.link.waiting
    again = await asyncio.to_thread(started, first, url)
    await partition.until_confirmed(0, 1, 2)
    partition.die()
    await asyncio.to_thread(again.stop)


@runs
async def test_synchronous_receipts_wait_while_the_store_is_away(homes: tuple[Path, Path], url: str) -> None:
    first, second = homes
    partition = Partition(first)
    partition.publish(0)
    assert not partition.confirmed
    journal = await asyncio.to_thread(started, first, url)
    await partition.until_confirmed(0)
    partition.die()
    await asyncio.to_thread(journal.stop)
    await asyncio.to_thread(taken_over, second, url)
    assert stored(second) == [0]


@runs
async def test_a_log_that_was_there_before_is_shipped_whole_when_that_begins(
    homes: tuple[Path, Path], url: str
) -> None:
    first, second = homes
    journal = await asyncio.to_thread(started, first, url)
    partition = Partition(first, OFF)
    for seq in range(50):
        partition.publish(seq)
    assert partition.confirmed == list(range(50)), "nobody waits for a journal that is off"
    assert journal.status()["objects"] == 0
    partition.link.set_durability(SYNC, 30.0)
    partition.publish(50)
    await partition.until_confirmed(*range(51))
    partition.link.set_durability(OFF, 30.0)
    partition.publish(51)
    assert partition.confirmed[-1] == 51
    await until(lambda: journal.status()["partitions"] == 0)
    partition.link.set_durability(SYNC, 30.0)
    partition.publish(52)
    await partition.until_confirmed(*range(53))
    partition.die()
    await asyncio.to_thread(journal.stop)
    await asyncio.to_thread(taken_over, second, url)
    assert stored(second) == list(range(53))


@runs
async def test_the_ledgers_of_a_successor_are_others(homes: tuple[Path, Path], url: str) -> None:
    first, second = homes
    journal, partition = await shipped_one(first, url)
    used = partition.log.last_position.ledger_id
    partition.die()
    await asyncio.to_thread(journal.stop)
    await asyncio.to_thread(taken_over, second, url)
    journal = await asyncio.to_thread(started, second, url)
    successor = Partition(second)
    successor.publish(1)
    await successor.until_confirmed(1)
    assert successor.log.last_position.ledger_id >= used + 65_536
    successor.die()
    await asyncio.to_thread(journal.stop)


@runs
async def test_what_was_taken_over_may_be_shipped_no_more_and_again_before_anything_is_published(
    homes: tuple[Path, Path], url: str
) -> None:
    first, second = homes
    journal = await asyncio.to_thread(started, first, url)
    partition = Partition(first)
    partition.publish(0, 1, 2)
    await partition.until_confirmed(0, 1, 2)
    used = partition.log.last_position.ledger_id
    partition.die()
    await asyncio.to_thread(journal.stop)
    await asyncio.to_thread(taken_over, second, url)
    journal = await asyncio.to_thread(started, second, url)
    successor = Partition(second)
    successor.link.set_durability(OFF, 30.0)
    await until(lambda: journal.status()["partitions"] == 0)
    successor.die()
    await asyncio.to_thread(journal.stop)
    # Another process, which ships again.
    journal = await asyncio.to_thread(started, second, url)
    successor = Partition(second)
    successor.publish(3)
    await successor.until_confirmed(3)
    assert successor.log.last_position.ledger_id >= used + 65_536
    successor.die()
    await asyncio.to_thread(journal.stop)
    journal = await asyncio.to_thread(started, second, url)
    assert journal.status()["partitions"] == 1
    await asyncio.to_thread(journal.stop)
    assert stored(second) == [0, 1, 2, 3]


@runs
async def test_a_dropped_partition_is_dropped_also_behind_a_restart(
    homes: tuple[Path, Path], url: str
) -> None:
    first, second = homes
    journal, partition = await shipped_one(first, url)
    partition.die()
    assert await asyncio.to_thread(journal.drop, NUMBER)
    await until(lambda: not (first / "p" / str(NUMBER)).exists())
    await asyncio.to_thread(journal.stop)
    assert await asyncio.to_thread(taken_over, second, url) == []


@runs
async def test_a_partition_that_goes_while_no_journal_runs_is_dropped_by_the_next_one(
    homes: tuple[Path, Path], url: str
) -> None:
    first, second = homes
    await shipped_before(first, url)
    directory = first / "p" / str(NUMBER)
    remove_partition(directory)
    assert [path.name for path in directory.iterdir()] == ["term"]
    journal = await asyncio.to_thread(started, first, url)
    await until(lambda: not directory.exists())
    await asyncio.to_thread(journal.stop)
    assert await asyncio.to_thread(taken_over, second, url) == []


@runs
async def test_a_log_that_is_written_while_it_is_taken_in_is_whole(
    homes: tuple[Path, Path], url: str
) -> None:
    first, second = homes
    journal = await asyncio.to_thread(started, first, url)
    partition = Partition(first, OFF)
    for seq in range(40):
        append(partition.log, seq, size=20_000)  # more than an index holds: pieces are uploaded meanwhile
    partition.link.set_durability(SYNC, 30.0)
    for _ in range(5):
        partition.log._files.log.rewrite([to_log(each) for each in partition.log.state.snapshot()])
    partition.publish(40)
    await partition.until_confirmed(40)
    partition.die()
    await asyncio.to_thread(journal.stop)
    await asyncio.to_thread(taken_over, second, url)
    assert stored(second) == list(range(41))


@runs
async def test_a_directory_that_lacks_what_was_shipped_is_not_served(
    homes: tuple[Path, Path], url: str
) -> None:
    first, second = homes
    await shipped_before(first, url)
    (segment,) = (first / "p" / str(NUMBER)).glob("*.seg")
    segment.unlink()
    with pytest.raises(StoreSealed, match=f"missing here.*--from {url}"):
        await asyncio.to_thread(started, first, url)
    await asyncio.to_thread(taken_over, second, url)
    assert stored(second) == [0]


@runs
async def test_a_partition_that_nobody_can_read_keeps_no_other_one_from_being_shipped(
    homes: tuple[Path, Path], url: str
) -> None:
    first, second = homes
    partition = await shipped_before(first, url)
    damaged = first / "p" / "8"
    damaged.mkdir()
    write_term(damaged, Term(1))
    (damaged / "manifest-1").write_bytes(b"neither a record nor a part of one")
    journal = await asyncio.to_thread(started, first, url)
    partition = Partition(first)
    partition.publish(1)
    await partition.until_confirmed(1)
    status = journal.status()
    assert (status["problem"], list(status["untaken"])) == ("", ["8"])
    assert "manifest-1" in status["untaken"]["8"]
    partition.die()
    await asyncio.to_thread(journal.stop)
    assert await asyncio.to_thread(taken_over, second, url) == [str(NUMBER)]
    assert stored(second) == [0, 1]


@runs
async def test_another_cluster_on_the_prefix_is_refused_and_keeps_what_it_has(
    homes: tuple[Path, Path], url: str
) -> None:
    first, second = homes
    journal = await asyncio.to_thread(StoreJournal, first, "store-a", url, "one")
    await asyncio.to_thread(journal.stop)
    partition = Partition(second)
    append(partition.log, 0)
    partition.die()
    with pytest.raises(RemoteStoreRefused, match=f"{url} is that of cluster one"):
        await asyncio.to_thread(StoreJournal, second, "store-b", url, "other")
    assert stored(second) == [0]
    again = await asyncio.to_thread(StoreJournal, first, "store-a", url, "one")
    await asyncio.to_thread(again.stop)


async def shipped_with_pieces(homes: tuple[Path, Path], url: str, objects: int = 12) -> Path:
    """Ship a log with pieces and some objects behind its index, and return the bucket's folder."""
    journal = await asyncio.to_thread(started, homes[0], url)
    partition = Partition(homes[0])
    for seq in range(10):
        append(partition.log, seq, size=20_000)
    partition.publish(10)
    await partition.until_confirmed(10)
    await until(lambda: journal.status()["partitions"] == 1)
    await asyncio.to_thread(journal.run, lambda life: life.checkpoint())
    for seq in range(11, 11 + objects):
        partition.publish(seq)
        await until(lambda seq=seq: seq in partition.confirmed)  # type: ignore[misc]
    partition.die()
    await asyncio.to_thread(journal.stop)
    return homes[0].parent / "bucket"


@runs
async def test_a_journal_with_a_hole_is_not_ended_there(homes: tuple[Path, Path], url: str) -> None:
    bucket = await shipped_with_pieces(homes, url)
    deleted = sorted((bucket / "journal").rglob("0*/0*"))[2]
    whole = deleted.read_bytes()
    deleted.unlink()
    with pytest.raises(JournalDamaged, match=f"{deleted.name} is not there, though later"):
        await asyncio.to_thread(taken_over, homes[1], url)
    deleted.write_bytes(whole)
    assert await asyncio.to_thread(taken_over, homes[1], url) == [str(NUMBER)]
    assert stored(homes[1]) == list(range(23))


@runs
async def test_a_partition_whose_piece_is_missing_is_not_begun_without_it(
    homes: tuple[Path, Path], url: str
) -> None:
    bucket = await shipped_with_pieces(homes, url)
    (piece,) = (path for path in (bucket / "segments").rglob("*") if path.is_file())
    whole = piece.read_bytes()
    piece.unlink()
    for _ in range(2):
        with pytest.raises(JournalDamaged, match=f"{piece.name} is not there: bring it back"):
            await asyncio.to_thread(taken_over, homes[1], url)
    piece.write_bytes(whole)
    assert await asyncio.to_thread(taken_over, homes[1], url) == [str(NUMBER)]
    assert stored(homes[1]) == list(range(23))


@runs
async def test_a_disk_makes_good_what_somebody_deleted_from_its_journal(
    homes: tuple[Path, Path], url: str
) -> None:
    bucket = await shipped_with_pieces(homes, url)
    sorted((bucket / "journal").rglob("0*/0*"))[2].unlink()
    await asyncio.to_thread(restarted, homes[0], url)
    assert await asyncio.to_thread(taken_over, homes[1], url) == [str(NUMBER)]
    assert stored(homes[1]) == list(range(23))


@runs
async def test_a_topic_that_is_shipped_again_at_once_keeps_its_pieces(
    homes: tuple[Path, Path], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = homes
    journal = await asyncio.to_thread(started, first, url)
    partition = Partition(first)
    for seq in range(10):
        append(partition.log, seq, size=20_000)
    partition.publish(10)
    await partition.until_confirmed(10)
    await asyncio.to_thread(journal.run, lambda life: life.checkpoint())
    create, delete, is_uploaded = FileStore.create, FileStore.delete, threading.Event()

    def tell(store: FileStore, key: str, body: bytes) -> bool:
        was_created = create(store, key, body)
        if key.startswith("segments/"):
            is_uploaded.set()
        return was_created

    def delete_late(store: FileStore, keys: tuple[str, ...]) -> None:
        if any(key.startswith("segments/") for key in keys):
            is_uploaded.wait(0.5)
        delete(store, keys)

    monkeypatch.setattr(FileStore, "create", tell)
    monkeypatch.setattr(FileStore, "delete", delete_late)
    partition.link.set_durability(OFF, 30.0)
    await until(lambda: journal.status()["partitions"] == 0)
    partition.link.set_durability(SYNC, 30.0)
    partition.publish(11)
    await partition.until_confirmed(10, 11)
    partition.die()
    await asyncio.to_thread(journal.stop)
    assert await asyncio.to_thread(taken_over, second, url) == [str(NUMBER)]
    assert stored(second) == list(range(12))


@runs
async def test_a_directory_that_was_put_back_from_a_backup_is_not_served(
    homes: tuple[Path, Path], url: str, tmp_path: Path
) -> None:
    first, second = homes
    write_identity(first, StoreIdentity("store-a"))
    journal, partition = await shipped_one(first, url)
    back_up(first, tmp_path / "copy", 1)
    partition.publish(1)
    await partition.until_confirmed(0, 1)
    partition.die()
    await asyncio.to_thread(journal.stop)
    adopt_copy(tmp_path / "copy")
    shutil.rmtree(first)
    (tmp_path / "copy").rename(first)
    with pytest.raises(StoreSealed, match=f"gone on without this directory.*--from {url}"):
        await asyncio.to_thread(started, first, url)
    await asyncio.to_thread(taken_over, second, url)
    assert stored(second) == [0, 1]


@runs
@pytest.mark.parametrize("cuts_damaged", [False, True])
async def test_a_repaired_directory_serves_nothing_less_than_what_was_shipped(
    homes: tuple[Path, Path], url: str, cuts_damaged: bool
) -> None:
    first, second = homes
    write_identity(first, StoreIdentity("store-a"))
    journal = await asyncio.to_thread(started, first, url)
    partition = Partition(first)
    for seq in range(10):
        append(partition.log, seq, size=20_000)
    partition.publish(10)
    await partition.until_confirmed(10)
    partition.die()
    await asyncio.to_thread(journal.stop)
    (segment,) = (first / "p" / str(NUMBER)).glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    repair_directory(first, 1, is_dry_run=False, cuts_damaged=cuts_damaged)
    with pytest.raises(StoreSealed, match=f"missing here.*--from {url}"):
        await asyncio.to_thread(started, first, url)
    await asyncio.to_thread(taken_over, second, url)
    assert stored(second) == list(range(11))


def hold_back(journal: StoreJournal, *, is_held: bool = True) -> None:
    """Let objects begin, or none, however much is told."""
    journal._life.shipping.cut = Cut(under_way=0) if is_held else Cut()
    journal._loop.call_soon_threadsafe(journal._runner.nudge)


@runs
async def test_a_partition_that_restarts_before_its_manifest_was_shipped_is_shipped_on(
    homes: tuple[Path, Path], url: str
) -> None:
    first, second = homes
    journal, partition = await shipped_one(first, url)
    hold_back(journal)
    for _ in range(2):
        partition.log._files.log.rewrite([to_log(each) for each in partition.log.state.snapshot()])
    partition.publish(1)
    await until(lambda: journal.status()["waitingBytes"] > 0)
    partition.die()
    again = Partition(first)
    again.publish(2)
    hold_back(journal, is_held=False)
    await again.until_confirmed(2)
    assert journal.status()["unreadable"] == {}
    await until(lambda: len(list(again.directory.glob("manifest-*"))) == 1)
    again.die()
    await asyncio.to_thread(journal.stop)
    assert await asyncio.to_thread(taken_over, second, url) == [str(NUMBER)]
    assert stored(second) == [0, 1, 2]


@runs
async def test_an_index_is_written_although_a_subscription_was_removed(
    homes: tuple[Path, Path], url: str
) -> None:
    journal = await asyncio.to_thread(started, homes[0], url)
    partition = Partition(homes[0])
    cursor = partition.subscribe(homes[0])
    partition.publish(0)
    await partition.until_confirmed(0)
    settled: list[bool] = []
    partition.cursor_link.when_durable(lambda: settled.append(True))
    await until(lambda: settled)
    cursor.close()
    partition.cursor_link.close()
    (number,) = subscription_numbers(partition.directory)
    change(partition.log, partition.log.changes.remove_subscription(number))
    remove_cursor(partition.directory, number)
    partition.publish(1)
    await partition.until_confirmed(0, 1)
    await until(lambda: journal.status()["partitions"] == 1)
    assert await asyncio.to_thread(journal.run, lambda life: life.checkpoint())
    partition.die()
    await asyncio.to_thread(journal.stop)
    await asyncio.to_thread(taken_over, homes[1], url)
    assert stored(homes[1]) == [0, 1]
    assert not subscription_numbers(homes[1] / "p" / str(NUMBER))


@runs
async def test_what_a_former_owner_told_is_taken_before_what_its_successor_tells(
    homes: tuple[Path, Path], url: str
) -> None:
    journal, partition = await shipped_one(homes[0], url)
    door, shipping = journal._door, journal._life.shipping
    shipping.cut = Cut(queued_appends=0)  # nothing is read for now
    (former,) = door._tellers.values()
    partition.publish(1)
    partition.log._files.log.rewrite([to_log(each) for each in partition.log.state.snapshot()])
    partition.link.flush()
    partition.die()
    again = Partition(homes[0])
    await until(lambda: len(door._tellers) == 2)
    (teller,) = (each for each in door._tellers.values() if each is not former)

    async def drain() -> str:
        door._drain(teller)
        return teller.partition

    await until(lambda: asyncio.run_coroutine_threadsafe(drain(), journal._loop).result())
    assert sorted(journal._life.files_of(str(NUMBER))) == sorted(listed_files(again.directory))
    shipping.cut = Cut()
    again.publish(2)
    await again.until_confirmed(2)
    assert sorted(journal._life.files_of(str(NUMBER))) == sorted(listed_files(again.directory))
    again.die()
    await asyncio.to_thread(journal.stop)


@runs
async def test_a_segment_that_began_while_a_journal_started_is_not_taken_for_a_removed_one(
    homes: tuple[Path, Path], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = homes
    journal = await asyncio.to_thread(started, first, url)
    partition = Partition(first, managed_ledger_max_entries_per_ledger=1)
    partition.publish(0)
    await partition.until_confirmed(0)
    await asyncio.to_thread(journal.stop)
    is_starting, may_go_on, recover = threading.Event(), threading.Event(), StoreFiles.recover

    def recovered(files: StoreFiles, number: str) -> None:
        is_starting.set()
        assert may_go_on.wait(DEADLINE_S)
        recover(files, number)

    monkeypatch.setattr(StoreFiles, "recover", recovered)
    starting = asyncio.ensure_future(asyncio.to_thread(started, first, url))
    await until(is_starting.is_set)
    await until(lambda: partition.link._socket)  # its greeting waits to be read
    partition.publish(1)
    may_go_on.set()
    journal = await starting
    await partition.until_confirmed(0, 1)
    await until(lambda: journal._life.shipping.is_idle and not journal._life.clearing.going)
    assert all((partition.directory / name).exists() for name in listed_files(partition.directory))
    partition.die()
    await asyncio.to_thread(journal.stop)
    await asyncio.to_thread(taken_over, second, url)
    assert stored(second) == [0, 1]


@runs
async def test_a_partition_is_served_when_all_is_shipped_that_it_told_while_its_journal_started(
    homes: tuple[Path, Path], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, partition = await shipped_one(homes[0], url)
    await asyncio.to_thread(journal.stop)
    begun = partition.directory / segment_name(1 << 33, 0)  # no manifest names it yet
    begun.write_bytes(b"a frame")
    partition.link.synced(begun.name, 7)
    may_go_on, list_keys, act = threading.Event(), FileStore.list, StoreJournal._act
    shipped_when_served: list[bool] = []

    def listed(store: FileStore, prefix: str) -> list[str]:
        assert not prefix.startswith("index/") or may_go_on.wait(DEADLINE_S)
        return list_keys(store, prefix)

    def acted(journal: StoreJournal, action: Any) -> None:
        shipped_when_served.append(begun.name in journal._life.mirror[str(NUMBER)].files)
        act(journal, action)

    monkeypatch.setattr(FileStore, "list", listed)
    monkeypatch.setattr(StoreJournal, "_act", acted)
    journal = await asyncio.to_thread(StoreJournal, homes[0], "store-a", url)
    await until(lambda: journal._life._synced_ends)
    may_go_on.set()
    await asyncio.to_thread(journal.wait_ready, DEADLINE_S)
    await until(lambda: shipped_when_served)
    assert shipped_when_served == [True]
    partition.die()
    await asyncio.to_thread(journal.stop)


@runs
async def test_a_journal_that_starts_keeps_a_segment_that_the_manifest_is_about_to_name(
    homes: tuple[Path, Path], url: str
) -> None:
    journal = await asyncio.to_thread(started, homes[0], url)
    partition = Partition(homes[0])
    partition.publish(0)
    begun = partition.directory / segment_name(1 << 33, 0)
    begun.write_bytes(b"a frame")
    partition.link.synced(begun.name, 7)
    partition.link.when_durable(lambda: partition.confirmed.append(1))
    await partition.until_confirmed(0, 1)
    await asyncio.to_thread(journal.stop)
    journal = await asyncio.to_thread(started, homes[0], url)
    partition.publish(2)
    await partition.until_confirmed(0, 1, 2)
    await until(lambda: journal._life.shipping.is_idle and not journal._life.clearing.going)
    assert begun.exists()
    partition.die()
    await asyncio.to_thread(journal.stop)


@runs
async def test_a_partition_that_was_shipped_and_is_no_more_removes_its_old_files(
    homes: tuple[Path, Path], url: str
) -> None:
    journal, partition = await shipped_one(homes[0], url)
    partition.die()
    again = Partition(homes[0], OFF)
    assert len(list(again.directory.glob("manifest-*"))) == 1
    again.die()
    await asyncio.to_thread(journal.stop)


@runs
async def test_a_partition_that_left_is_taken_back_by_a_life_that_is_ready_alone(
    homes: tuple[Path, Path], url: str
) -> None:
    journal, partition = await shipped_one(homes[0], url)
    partition.die()
    await asyncio.to_thread(journal.depart, NUMBER)
    await asyncio.to_thread(journal.stop)
    create = FileStore.create

    def without_journals(store: FileStore, key: str, body: bytes) -> bool:
        if key.startswith("journal/"):
            raise RemoteStoreUnavailable(f"{key}: the bucket is away")
        return create(store, key, body)

    with pytest.MonkeyPatch.context() as away:
        away.setattr(FileStore, "create", without_journals)
        journal = StoreJournal(homes[0], "store-a", url)
        with pytest.raises(ServiceUnitNotReady, match="not taken back yet"):
            await asyncio.to_thread(journal.take_back, NUMBER)
    await asyncio.to_thread(journal.wait_ready, DEADLINE_S)
    assert await asyncio.to_thread(journal.take_back, NUMBER) == "store-a"
    again = Partition(homes[0])
    again.publish(1)
    await again.until_confirmed(1)
    again.die()
    await asyncio.to_thread(journal.stop)


@runs
async def test_a_partition_whose_file_was_cut_gets_no_receipt_by_what_others_ship(
    homes: tuple[Path, Path], url: str
) -> None:
    first, second = homes
    journal, partition = await shipped_one(first, url)
    hold_back(journal)
    partition.publish(1)
    await until(lambda: journal.status()["waitingBytes"] > 0)
    (segment,) = partition.directory.glob("*.seg")
    whole = segment.read_bytes()
    os.truncate(segment, len(whole) // 2)
    hold_back(journal, is_held=False)
    await until(lambda: journal.status()["unreadable"])
    segment.write_bytes(whole)
    partition.publish(2)
    before = journal.status()["objects"]
    await until(lambda: journal.status()["objects"] > before)
    await until(lambda: journal._life.shipping.is_idle)
    partition.link.tick()
    assert partition.confirmed == [0]
    with pytest.raises(ServiceUnitNotReady, match="shipped no further"):
        await asyncio.to_thread(journal.depart, NUMBER)
    partition.die()
    await asyncio.to_thread(journal.stop)
    # Its next life finds all of it.
    await asyncio.to_thread(restarted, first, url)
    await asyncio.to_thread(taken_over, second, url)
    assert stored(second) == [0, 1, 2]


@runs
async def test_whoever_asks_a_journal_that_ends_is_told_to_ask_again(
    homes: tuple[Path, Path], url: str
) -> None:
    journal = await asyncio.to_thread(started, homes[0], url)
    begun = threading.Event()

    def waits(_: StoreLife) -> Task[None]:
        begun.set()
        yield Wait(3600.0)

    waiting = asyncio.ensure_future(asyncio.to_thread(journal.run, waits))
    await until(begun.is_set)
    await asyncio.to_thread(journal.stop)
    for asked in (waiting, asyncio.to_thread(journal.stores)):
        with pytest.raises(ServiceUnitNotReady, match="store-a has ended: ask again"):
            await asked
