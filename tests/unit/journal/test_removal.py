"""A partition that is removed while it comes into the journal, or leaves it, is gone there too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pulsar_ray.broker.serving.shipping_link import SYNC
from pulsar_ray.config import OFF
from pulsar_ray.errors import RemoteStoreUnavailable
from pulsar_ray.journal.life.clearing import Clearing
from pulsar_ray.journal.ownership import Ownership
from pulsar_ray.journal.partition_state import PartitionState
from pulsar_ray.journal.storage.file_store import FileStore
from pulsar_ray.journal.store_files import StoreFiles, remove_partition
from pulsar_ray.journal.store_journal import StoreJournal
from tests.unit.journal.test_leaving import is_left_out
from tests.unit.journal.test_store_journal import (
    DEADLINE_S,
    NUMBER,
    Partition,
    greeting,
    homes,
    runs,
    shipped_one,
    started,
    until,
    url,
)

__all__ = ["homes", "url"]
NAME = str(NUMBER)


class Held:
    """Requests of a kind are held from when one of them is `due`, until this is let go."""

    def __init__(self, patch: pytest.MonkeyPatch, method: str, due: Callable[[Any], bool]) -> None:
        self.is_holding, self._may_go_on = threading.Event(), threading.Event()
        ask = getattr(FileStore, method)

        def held(store: FileStore, key: Any, *body: bytes) -> Any:
            if due(key):
                self.is_holding.set()
                assert self._may_go_on.wait(DEADLINE_S)
            return ask(store, key, *body)

        patch.setattr(FileStore, method, held)

    def let_go(self) -> None:
        self._may_go_on.set()


def pieces(home: Path) -> list[str]:
    """Return the pieces that are in the object store."""
    return [path.name for path in (home.parent / "bucket" / "segments").rglob("*") if path.is_file()]


async def starts_whole(home: Path, url: str) -> None:
    """Look that the next life of the store finds here all that its journal has."""
    journal = await asyncio.to_thread(started, home, url)
    journal.check()
    assert journal.status()["partitions"] == 0
    await asyncio.to_thread(journal.stop)


@runs
async def test_a_partition_that_is_removed_while_it_is_taken_in_is_dropped_behind_that(
    homes: tuple[Path, Path], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = homes[0]
    journal = await asyncio.to_thread(started, home, url)
    journal._life.uploads.inline_bytes = 0
    partition = Partition(home, OFF)
    partition.publish(0)
    files, uploads = sum(map(bool, partition.link._ends.values())), count(1)
    last = Held(monkeypatch, "create", lambda key: key.startswith("segments/") and next(uploads) == files)
    partition.link.set_durability(SYNC, 30.0)
    await until(last.is_holding.is_set)
    partition.die()
    owners = Held(monkeypatch, "get", lambda key: key.startswith("catalog/"))
    assert await asyncio.to_thread(journal.drop, NUMBER)
    last.let_go()
    await until(lambda: NAME in journal._life.mirror)
    owners.let_go()
    await until(lambda: not partition.directory.exists())
    assert pieces(home) == []
    assert journal.status()["problem"] == ""
    await asyncio.to_thread(journal.stop)
    await starts_whole(home, url)


async def removed_and_held(
    home: Path, url: str, patch: pytest.MonkeyPatch
) -> tuple[StoreJournal, Partition, Held]:
    """Remove a partition, of which the note stays until its pieces are deleted, which is held."""
    journal, partition = await shipped_one(home, url)
    journal._life.uploads.inline_bytes = 0
    await asyncio.to_thread(journal.run, lambda life: life.checkpoint())
    deleting = Held(patch, "delete", lambda keys: any(key.startswith("segments/") for key in keys))
    assert await asyncio.to_thread(journal.drop, NUMBER)
    await until(deleting.is_holding.is_set)
    return journal, partition, deleting


@runs
async def test_who_greets_while_a_removed_partition_goes_brings_nothing_back(
    homes: tuple[Path, Path], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, partition, deleting = await removed_and_held(homes[0], url, monkeypatch)
    greeted = greeting(monkeypatch)
    partition.link._ends.clear()  # as one that has begun just now
    partition.link._hello()
    await until(greeted.is_set)
    await asyncio.to_thread(journal.run, lambda life: life.until_shipped())
    assert NAME not in journal._life.mirror
    deleting.let_go()
    await until(lambda: not partition.directory.exists())
    partition.die()
    await asyncio.to_thread(journal.stop)
    await starts_whole(homes[0], url)


@runs
async def test_a_removal_that_is_asked_for_twice_is_no_problem(
    homes: tuple[Path, Path], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, partition, deleting = await removed_and_held(homes[0], url, monkeypatch)
    partition.die()
    assert await asyncio.to_thread(journal.drop, NUMBER)
    deleting.let_go()
    await until(lambda: not partition.directory.exists())
    for _ in range(3):
        await asyncio.to_thread(journal.run, lambda life: life.ownership.read())
    assert journal.status()["problem"] == ""
    await asyncio.to_thread(journal.stop)


@runs
async def test_pieces_of_a_partition_that_is_removed_before_anybody_owns_it_are_deleted(
    homes: tuple[Path, Path], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = await asyncio.to_thread(started, homes[0], url)
    journal._life.uploads.inline_bytes = 0
    partition = Partition(homes[0], OFF)
    partition.publish(0)
    first = Held(monkeypatch, "create", lambda key: key.startswith("segments/"))
    partition.link.set_durability(SYNC, 30.0)
    await until(first.is_holding.is_set)
    partition.die()
    assert await asyncio.to_thread(journal.drop, NUMBER)
    first.let_go()
    await until(lambda: not partition.directory.exists())
    assert pieces(homes[0]) == []
    await asyncio.to_thread(journal.stop)


@runs
@pytest.mark.parametrize("is_running", [True, False], ids=["running", "no journal"])
async def test_pieces_of_a_partition_that_left_the_journal_are_deleted_when_it_is_removed(
    homes: tuple[Path, Path], url: str, monkeypatch: pytest.MonkeyPatch, *, is_running: bool
) -> None:
    home = homes[0]
    journal, partition = await shipped_one(home, url)
    journal._life.uploads.inline_bytes = 0
    await asyncio.to_thread(journal.run, lambda life: life.checkpoint())
    with monkeypatch.context() as away:

        def unavailable(store: FileStore, keys: tuple[str, ...]) -> None:
            raise RemoteStoreUnavailable("deleting is away")

        away.setattr(FileStore, "delete", unavailable)
        partition.link.set_durability(OFF, 30.0)
        await until(lambda: is_left_out(partition.directory))
        partition.die()
        await asyncio.to_thread(journal.stop)
    assert pieces(home)
    if not is_running:
        remove_partition(partition.directory)
    journal = await asyncio.to_thread(started, home, url)
    if is_running:
        assert await asyncio.to_thread(journal.drop, NUMBER)
    await until(lambda: not partition.directory.exists())
    assert pieces(home) == []
    await asyncio.to_thread(journal.stop)
    await starts_whole(home, url)


@runs
async def test_a_partition_that_is_removed_while_it_leaves_the_journal_leaves_nothing_behind(
    homes: tuple[Path, Path], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = homes[0]
    journal, partition = await shipped_one(home, url)
    journal._life.uploads.inline_bytes = 0
    await asyncio.to_thread(journal.run, lambda life: life.checkpoint())
    shipping = Held(monkeypatch, "create", lambda key: key.startswith("journal/"))
    partition.link.set_durability(OFF, 30.0)
    await until(shipping.is_holding.is_set)
    partition.die()
    assert await asyncio.to_thread(journal.drop, NUMBER)
    shipping.let_go()
    await until(lambda: not partition.directory.exists())
    assert pieces(home) == []
    await asyncio.to_thread(journal.stop)
    await starts_whole(home, url)


def test_the_note_of_what_came_into_the_journal_meanwhile_stays_until_that_is_dropped() -> None:
    mirror: dict[str, PartitionState] = {}
    directory = Mock(spec=StoreFiles)
    clearing = Clearing("a", directory, Ownership(), Mock(), mirror, Mock(), Mock())
    dropping = clearing.dropped(NAME)
    next(dropping)
    mirror[NAME] = PartitionState(1)
    assert list(dropping), "it went on"
    directory.remove.assert_not_called()
