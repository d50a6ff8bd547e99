"""What is asked of a store's journal while it begins is done once it knows what was shipped."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.errors import RemoteStoreUnavailable
from pulsar_ray.journal.journal_door import JournalDoor
from pulsar_ray.journal.life_runner import LifeRunner
from pulsar_ray.journal.offloaded.segment_door import SegmentDoor
from pulsar_ray.journal.storage.file_store import FileStore
from pulsar_ray.journal.store_files import StoreFiles
from pulsar_ray.journal.store_journal import StoreJournal
from pulsar_ray.ledger.segment_file import segment_name
from pulsar_ray.testing.waiting import wait_until
from tests.unit.journal.test_store_journal import (
    DEADLINE_S,
    NUMBER,
    Partition,
    greeting,
    homes,
    runs,
    shipped_before,
    shipped_one,
    started,
    until,
    url,
)

__all__ = ["homes", "url"]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let a journal that begins wait for its index until this is set."""
    may_go_on, list_keys = threading.Event(), FileStore.list

    def listed(store: FileStore, prefix: str) -> list[str]:
        assert not prefix.startswith("index/") or may_go_on.wait(DEADLINE_S)
        return list_keys(store, prefix)

    monkeypatch.setattr(FileStore, "list", listed)
    may_go_on.set()
    return may_go_on


@runs
async def test_a_segment_that_goes_while_a_journal_begins_stays_until_that_is_shipped(
    homes: tuple[Path, Path], url: str, held: threading.Event
) -> None:
    journal = await asyncio.to_thread(started, homes[0], url)
    partition = Partition(homes[0], managed_ledger_max_entries_per_ledger=1)
    partition.publish(0)
    partition.publish(1)
    await until(lambda: len(partition.confirmed) == 2)
    await asyncio.to_thread(journal.stop)
    segment = min(partition.directory.glob("*.seg"))
    assert partition.link.gone(segment.name)
    held.clear()
    journal = await asyncio.to_thread(StoreJournal, homes[0], "store-a", url)
    await until(lambda: journal._door._logs)
    assert segment.exists()
    held.set()
    await asyncio.to_thread(journal.wait_ready, DEADLINE_S)
    await until(lambda: not segment.exists())
    partition.die()
    await asyncio.to_thread(journal.stop)


@runs
async def test_a_partition_that_is_removed_while_a_journal_begins_costs_no_other_one(
    homes: tuple[Path, Path], url: str, held: threading.Event
) -> None:
    partition = await shipped_before(homes[0], url)
    held.clear()
    journal = await asyncio.to_thread(StoreJournal, homes[0], "store-a", url)
    assert await asyncio.to_thread(journal.drop, NUMBER)
    held.set()
    await asyncio.to_thread(journal.wait_ready, DEADLINE_S)
    await until(lambda: not partition.directory.exists())
    journal.check()
    await asyncio.to_thread(journal.stop)


@runs
async def test_a_disk_that_is_not_read_while_a_journal_begins_is_read_again(
    homes: tuple[Path, Path], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shipped_before(homes[0], url)
    recover, failures = StoreFiles.recover, [OSError("the disk is away"), OSError("the disk is away")]

    def failing(files: StoreFiles, number: str) -> None:
        if failures:
            raise failures.pop()
        recover(files, number)

    monkeypatch.setattr(StoreFiles, "recover", failing)
    journal = await asyncio.to_thread(started, homes[0], url)
    assert not failures
    await asyncio.to_thread(journal.stop)


@runs
async def test_who_greets_while_a_copy_of_another_store_goes_brings_nothing_back(
    homes: tuple[Path, Path], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, partition = await shipped_one(homes[0], url)
    await asyncio.to_thread(journal.depart, NUMBER)
    other = await asyncio.to_thread(started, homes[1], url)
    assert await asyncio.to_thread(other.take, NUMBER) == "store-b"
    await asyncio.to_thread(other.stop)
    may_go_on, create, objects = threading.Event(), FileStore.create, list[str]()

    def created(store: FileStore, key: str, body: bytes) -> bool:
        if key.startswith("journal/store-a/"):
            assert may_go_on.wait(DEADLINE_S)
            if objects:  # it dies before it mends what came behind the drop
                raise RemoteStoreUnavailable("the bucket is away")
            objects.append(key)
        return create(store, key, body)

    greeted = greeting(monkeypatch)
    monkeypatch.setattr(FileStore, "create", created)
    await asyncio.to_thread(journal.run, lambda life: life.look())  # its copy goes once that is shipped
    assert partition.directory.exists()
    partition.link._hello()
    await until(greeted.is_set)
    may_go_on.set()
    await until(lambda: not partition.directory.exists())
    partition.die()
    await asyncio.to_thread(journal.stop)
    monkeypatch.setattr(FileStore, "create", create)
    journal = await asyncio.to_thread(started, homes[0], url)
    journal.check()
    await asyncio.to_thread(journal.stop)


@runs
async def test_a_file_that_is_not_here_keeps_no_receipt_when_a_former_owner_tells_of_it(
    homes: tuple[Path, Path], url: str
) -> None:
    journal, partition = await shipped_one(homes[0], url)
    partition.link.synced(segment_name(1 << 33, 0), 7)
    partition.publish(1)
    await partition.until_confirmed(0, 1)
    partition.die()
    await asyncio.to_thread(journal.stop)


@runs
async def test_pieces_that_a_life_did_not_come_to_delete_are_deleted_by_the_next_one(
    homes: tuple[Path, Path], url: str
) -> None:
    journal, partition = await shipped_one(homes[0], url)
    journal._life.uploads.inline_bytes = 0
    await asyncio.to_thread(journal.run, lambda life: life.checkpoint())
    (listed,) = (homes[0].parent / "bucket" / "segments").glob("*/*.seg")
    partition.die()
    await asyncio.to_thread(journal.stop)
    rest = listed.with_name(segment_name(1 << 33, 0))
    shutil.copytree(listed, rest)
    journal = await asyncio.to_thread(started, homes[0], url)
    await until(lambda: not any(rest.rglob("*-*")))
    assert any(listed.iterdir())
    await asyncio.to_thread(journal.stop)


@runs
async def test_pieces_of_a_removed_partition_are_deleted_although_the_store_dies_before_that(
    homes: tuple[Path, Path], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, partition = await shipped_one(homes[0], url)
    journal._life.uploads.inline_bytes = 0
    await asyncio.to_thread(journal.run, lambda life: life.checkpoint())
    bucket = homes[0].parent / "bucket" / "segments"
    assert any(path.is_file() for path in bucket.rglob("*"))
    partition.die()
    with monkeypatch.context() as away:

        def unavailable(store: FileStore, keys: tuple[str, ...]) -> None:
            raise RemoteStoreUnavailable("deleting is away")

        away.setattr(FileStore, "delete", unavailable)
        assert await asyncio.to_thread(journal.drop, NUMBER)
        await until(lambda: str(NUMBER) not in journal._life.mirror)
        await asyncio.to_thread(journal.stop)
    assert any(path.is_file() for path in bucket.rglob("*"))
    journal = await asyncio.to_thread(started, homes[0], url)
    await until(lambda: not any(path.is_file() for path in bucket.rglob("*")))
    await until(lambda: not partition.directory.exists())
    await asyncio.to_thread(journal.stop)


@pytest.mark.parametrize("part", [JournalDoor, SegmentDoor, LifeRunner])
def test_an_error_that_nobody_expected_ends_the_start_and_leaves_nothing_behind(
    homes: tuple[Path, Path], url: str, monkeypatch: pytest.MonkeyPatch, part: type
) -> None:
    name = "start" if part is LifeRunner else "open"
    begin, errors = getattr(part, name), list[BaseException]()
    sockets_before, threads_before = sockets(), set(threading.enumerate())

    def failing(of_part: Any) -> None:
        begin(of_part)
        raise RuntimeError("can't start new thread")

    def construct() -> None:
        try:
            StoreJournal(homes[0], "store-a", url)
        except RuntimeError as error:
            errors.append(error)

    monkeypatch.setattr(part, name, failing)
    constructing = threading.Thread(target=construct, daemon=True)
    constructing.start()
    constructing.join(DEADLINE_S)
    assert [str(error) for error in errors] == ["can't start new thread"]
    begun = set(threading.enumerate()) - threads_before
    assert not [each.name for each in begun if each.name.startswith("journal")]
    wait_until(lambda: not sockets() - sockets_before, DEADLINE_S, "its sockets are closed")
    monkeypatch.setattr(part, name, begin)
    started(homes[0], url).stop()


def sockets() -> set[str]:
    """Return the open sockets of this process, in which other tests may have left some."""
    found = set[str]()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
    return {each for each in found if each.startswith("socket:")}
