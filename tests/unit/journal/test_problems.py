"""Whatever holds a store's journal up is a problem for as long as it does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pulsar_ray.broker.serving.shipping_link import SYNC
from pulsar_ray.config import OFF
from pulsar_ray.errors import RemoteStoreRefused, RemoteStoreUnavailable
from pulsar_ray.journal import store_journal
from pulsar_ray.journal.objects import pack_piece, piece_key
from pulsar_ray.journal.remote_state import problem_of
from pulsar_ray.journal.storage.bucket import open_object_store
from pulsar_ray.journal.store_files import listed_files
from pulsar_ray.journal.store_journal import CountingStore
from pulsar_ray.lane.waiting import within
from tests.unit.journal.test_store_journal import (
    NUMBER,
    Partition,
    homes,
    runs,
    started,
    until,
    url,
)

__all__ = ["homes", "url"]
DEADLINE_S = 20.0


@runs
@pytest.mark.parametrize("is_known", [False, True], ids=["taken in", "shipped on"])
async def test_a_disk_that_is_not_read_for_a_while_is_a_problem_until_it_is(
    homes: tuple[Path, Path], url: str, *, is_known: bool
) -> None:
    first, _ = homes
    journal = await asyncio.to_thread(started, first, url)
    partition = Partition(first, SYNC if is_known else OFF)
    partition.publish(0)
    await partition.until_confirmed(0)
    (segment,) = partition.directory.glob("*.seg")
    aside = segment.rename(segment.with_name("aside"))
    segment.symlink_to(aside)  # no link is read, and that is an error as any of a disk
    partition.link.set_durability(SYNC, 30.0)
    partition.publish(1)
    await until(lambda: "symbolic links" in problem_of(journal.status()))
    for _ in range(3):
        await asyncio.to_thread(journal.run, lambda life: life.ownership.read())  # others go on
    assert "symbolic links" in problem_of(journal.status())
    aside.replace(segment)
    await partition.until_confirmed(0, 1)
    assert problem_of(journal.status()) == ""
    partition.die()
    await asyncio.to_thread(journal.stop)


@runs
async def test_a_partition_whose_begin_failed_is_begun_again(homes: tuple[Path, Path], url: str) -> None:
    first, _ = homes
    journal = await asyncio.to_thread(started, first, url)
    partition = Partition(first, OFF)
    while sum(listed_files(partition.directory).values()) < 100_000:
        partition.publish(*range(len(partition.confirmed), len(partition.confirmed) + 500))
    count = len(partition.confirmed)
    (segment,) = partition.directory.glob("*.seg")
    end = listed_files(partition.directory)[segment.name]
    bucket, key = open_object_store(url), piece_key(str(NUMBER), segment.name, 0, end)
    bucket.create(key, pack_piece(b"of nobody"))
    partition.link.set_durability(SYNC, 30.0)
    await until(lambda: f"{NUMBER} is not shipped: two contents" in problem_of(journal.status()))
    partition.publish(count)
    assert count not in partition.confirmed
    bucket.delete((key,))
    await asyncio.to_thread(journal.run, lambda life: life.look())
    await partition.until_confirmed(*range(count + 1))
    assert problem_of(journal.status()) == ""
    partition.die()
    await asyncio.to_thread(journal.stop)


@runs
async def test_a_partition_that_was_deleted_before_it_is_taken_in_is_no_problem(
    homes: tuple[Path, Path], url: str
) -> None:
    first, _ = homes
    journal = await asyncio.to_thread(started, first, url)
    await within(asyncio.to_thread(journal.run, lambda life: life.begin("4242")), DEADLINE_S)
    await asyncio.to_thread(journal.run, lambda life: life.look())
    assert problem_of(journal.status()) == ""
    await asyncio.to_thread(journal.stop)


class Unwilling:
    """An object store that does not answer, or refuses to delete."""

    is_away = True

    def create(self, key: str, body: bytes) -> bool:
        if self.is_away:
            raise RemoteStoreUnavailable(f"{key}: connection refused")
        return True

    def get(self, key: str) -> bytes | None:
        return None

    def delete(self, keys: tuple[str, ...]) -> None:
        raise RemoteStoreRefused(f"{keys[0]}: access denied")


def test_a_store_that_stands_still_says_why_until_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = Unwilling()
    store = CountingStore(inner)  # type: ignore[arg-type]
    monkeypatch.setattr(store_journal, "AWAY_S", 0.0)
    for _ in range(2):
        with pytest.raises(RemoteStoreUnavailable):
            store.create("journal/a/1/0", b"12")
    assert store.get("journal/a/1/0") is None  # as of a shared directory whose disk is full
    assert "journal/a/1/0: connection refused" in store_journal.why_away(store)
    inner.is_away = False
    store.create("journal/a/1/0", b"12")
    assert store_journal.why_away(store) == ""
    assert (store.puts, store.put_bytes, store.errors) == (3, 2, 2)


def test_a_right_to_delete_that_is_missing_is_kept_until_it_is_given() -> None:
    store = CountingStore(Unwilling())  # type: ignore[arg-type]
    store.delete(())
    with pytest.raises(RemoteStoreRefused):
        store.delete(("index/a/0",))
    assert store.delete_failure == "index/a/0: access denied"
