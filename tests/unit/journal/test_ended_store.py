"""What an ended store shipped is put aside whole; what only it has stays; a copy is left alone."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from pulsar_ray.config import OFF
from pulsar_ray.errors import StoreSealed
from pulsar_ray.journal.ended_store import place_aside, put_aside
from pulsar_ray.journal.objects import CatalogEntry
from pulsar_ray.journal.store_files import LIFE_FILE, TERM_FILE, StoreFiles, Term, read_term, write_term
from pulsar_ray.journal.store_journal import StoreJournal
from pulsar_ray.managed_ledger.store.store_directory import StoreDirectory, hold_cluster_lock
from pulsar_ray.managed_ledger.store.store_identity import (
    CATALOG_FILE,
    StoreIdentity,
    read_identity,
    successor,
)
from tests.unit.journal.test_store_journal import (
    DEADLINE_S,
    NUMBER,
    Partition,
    homes,
    is_sealed,
    started,
    stored,
    taken_over,
    until,
    url,
)

__all__ = ["homes", "url"]

IDENTITY = StoreIdentity("old", cluster_id="x", generations=("g",), numbers_below=90, is_of_ray_cluster=True)


def test_what_others_can_have_goes_aside_and_what_nobody_has_stays(tmp_path: Path) -> None:
    terms = {1: Term(1), 2: None, 3: Term(1), 4: Term(2), 5: Term(1, is_dropped=True), 6: None, 7: None}
    for number, term in terms.items():
        directory = tmp_path / "p" / str(number)
        directory.mkdir(0o700, parents=True)
        (directory / "manifest-1").write_text(str(number))
        if term is not None:
            write_term(directory, term)
    (tmp_path / CATALOG_FILE).write_text("of a catalog that goes on elsewhere")
    (tmp_path / LIFE_FILE).write_text(json.dumps({"life": 3, "url": "file:///bucket"}))
    owned = {"1": "old", "4": "other", "6": "old", "7": "other"}
    owners = {number: CatalogEntry(b"", "owner", number, store, 3) for number, store in owned.items()}
    # 1 waits to be taken over, 4 and 7 were; 2, 3 and 6 were not shipped; 9 is not there.
    kept = [1, 2, 3, 4, 6, 7, 9]
    assert put_aside(tmp_path, IDENTITY, owners, kept) == [2, 3, 6]
    aside = place_aside(tmp_path, "old")
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["2", "3", "6"]
    assert sorted(path.name for path in (aside / "p").iterdir()) == ["1", "4", "5", "7"]
    assert [path for path in (tmp_path, aside) if (path / CATALOG_FILE).exists()] == [aside]
    assert read_term(tmp_path / "p" / "3") is None
    files = StoreFiles(tmp_path / "p")
    for name in ("2", "3", "6"):
        files.enter(name, [])
    assert [files.term(name) for name in ("2", "3", "6")] == [1, 1, 4], "6 was the old store's, in term 3"
    for name in ("2", "3", "6"):
        files.leave_out(name)
    assert (aside / "p" / "1" / "manifest-1").read_text() == "1"
    found = read_identity(aside)
    assert found is not None
    assert found.store_id == "old"
    assert (aside / LIFE_FILE).read_bytes() == (tmp_path / LIFE_FILE).read_bytes()
    assert put_aside(tmp_path, IDENTITY, owners, kept) == [2, 3, 6], "it may be repeated"
    assert put_aside(tmp_path, IDENTITY, owners, []) == [], "given up by an operator"
    assert sorted(path.name for path in (aside / "p").iterdir()) == ["1", "2", "3", "4", "5", "6", "7"]


@pytest.mark.parametrize(("owner", "goes_aside"), [("old", True), ("other", True), ("", False)])
def test_a_partition_whose_term_nobody_can_read_stays_if_nobody_can_have_it(
    tmp_path: Path, owner: str, *, goes_aside: bool
) -> None:
    directory = tmp_path / "p" / "1"
    directory.mkdir(0o700, parents=True)
    (directory / "manifest-1").write_text("1")
    (directory / TERM_FILE).write_bytes(b"damaged")
    owners = {"1": CatalogEntry(b"", "owner", "1", owner, 3)} if owner else {}
    assert put_aside(tmp_path, IDENTITY, owners, [1]) == ([] if goes_aside else [1])
    aside = place_aside(tmp_path, "old") / "p" / "1"
    assert ((aside if goes_aside else directory) / "manifest-1").read_text() == "1"
    if not goes_aside:
        StoreFiles(tmp_path / "p").enter("1", [])


def test_the_next_store_is_of_the_cluster_if_it_has_something_of_it() -> None:
    anew = successor(IDENTITY, has_partitions=True)
    assert (anew.cluster_id, anew.generations, anew.succeeds) == ("x", ("g",), "old")
    assert anew.store_id != "old"
    empty = successor(IDENTITY, has_partitions=False)
    assert (empty.cluster_id, empty.generations, empty.succeeds) == ("", (), "old")
    assert (empty.numbers_below, empty.is_of_ray_cluster) == (90, True)


def test_nobody_else_may_work_in_a_directory_that_is_put_aside(tmp_path: Path) -> None:
    store = StoreDirectory.open(tmp_path, address="a", session="s")
    other = hold_cluster_lock(tmp_path)
    assert not store.hold_alone()
    other.release()
    assert store.hold_alone()
    store.close()


def test_a_returning_store_begins_anew_and_takes_over_what_it_had(homes: tuple[Path, Path], url: str) -> None:
    async def run() -> None:
        first, second = homes
        journal = await asyncio.to_thread(started, first, url)
        partition = Partition(first)
        partition.publish(0, 1)
        await partition.until_confirmed(0, 1)
        partition.die()
        await asyncio.to_thread(journal.stop)
        assert await asyncio.to_thread(taken_over, second, url) == [str(NUMBER)]
        back = StoreJournal(first, "store-a", url)
        await until(lambda: back.is_ended)
        owners = await asyncio.to_thread(back.owners_if_sealed)
        assert owners is not None
        assert owners[str(NUMBER)].store == "store-b"
        with pytest.raises(StoreSealed, match="becomes a new one"):
            back.check()
        await asyncio.to_thread(back.stop)
        assert put_aside(first, StoreIdentity("store-a"), owners, [NUMBER]) == []
        anew = StoreJournal(first, "store-c", url)
        await asyncio.to_thread(anew.wait_ready, DEADLINE_S)
        assert await asyncio.to_thread(lambda: anew.adopt(anew.seal("store-b"))) == [str(NUMBER)]
        await asyncio.to_thread(anew.stop)
        assert stored(first) == [0, 1]
        assert stored(place_aside(first, "store-a")) == [0, 1]

    asyncio.run(run())


def test_what_was_shipped_once_and_then_no_more_is_shipped_again_by_the_new_store(
    homes: tuple[Path, Path], url: str
) -> None:
    async def run() -> None:
        first, second = homes
        journal = await asyncio.to_thread(started, first, url)
        partition = Partition(first)
        partition.publish(0)
        await partition.until_confirmed(0)
        partition.link.set_durability(OFF, 30.0)
        await until(lambda: (read_term(partition.directory) or Term(0)).is_left_out)
        partition.publish(1)
        await until(lambda: not journal.status()["waitingBytes"])
        partition.die()
        await asyncio.to_thread(journal.stop)
        assert await asyncio.to_thread(taken_over, second, url) == []
        back = StoreJournal(first, "store-a", url)
        await until(lambda: back.is_ended)
        owners = await asyncio.to_thread(back.owners_if_sealed)
        assert owners is not None
        await asyncio.to_thread(back.stop)
        assert put_aside(first, StoreIdentity("store-a"), owners, [NUMBER]) == [NUMBER]
        anew = await asyncio.to_thread(lambda: StoreJournal(first, "store-c", url))
        await asyncio.to_thread(anew.wait_ready, DEADLINE_S)
        again = Partition(first)
        again.publish(2)
        await again.until_confirmed(2)
        again.die()
        await asyncio.to_thread(anew.stop)
        assert stored(first) == [0, 1, 2]
        assert await asyncio.to_thread(taken_over, second, url, "store-c") == [str(NUMBER)]
        assert stored(second) == [0, 1, 2]

    asyncio.run(run())


def test_a_copy_of_a_directory_is_not_put_aside_by_itself(homes: tuple[Path, Path], url: str) -> None:
    first, second = homes
    shutil.copytree(first, second, dirs_exist_ok=True)
    for _ in range(2):
        started(first, url).stop()
    copy = StoreJournal(second, "store-a", url)
    try:
        asyncio.run(until(lambda: is_sealed(copy)))
        assert copy.owners_if_sealed() is None
    finally:
        copy.stop()
