"""One damaged file of a store costs what it stands for, and nothing else of the store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pulsar_ray.broker.serving.shipping_link import SYNC
from pulsar_ray.config import OFF
from pulsar_ray.errors import CorruptData, JournalDamaged
from pulsar_ray.journal.store_files import TERM_FILE, StoreFiles, Term, listed_files, read_term, write_term
from pulsar_ray.journal.store_journal import StoreJournal
from pulsar_ray.ledger.offloaded import note_of
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity, write_identity
from tests.unit.journal.test_offload import SETTINGS, filled, home, journal_of, old, small_pieces, url
from tests.unit.journal.test_store_journal import (
    NUMBER,
    Partition,
    runs,
    shipped_before,
    shipped_one,
    started,
    stored,
    taken_over,
    until,
)

__all__ = ["home", "small_pieces", "url"]


@runs
async def test_a_damaged_note_of_an_offloaded_segment_costs_its_ledger_alone(
    home: Path, url: str, small_pieces: None
) -> None:
    with journal_of(home, url):
        partition = await filled(home)
        name = old(partition.log)[0]
        assert await partition.link.move("offload", [name]) == [name]
        partition.die()
    write_identity(home, StoreIdentity("store-a"))
    note = note_of(partition.directory / name)
    note.write_bytes(b"damaged")
    with journal_of(home, url) as journal:
        again = Partition(home, SYNC, **SETTINGS)
        again.publish(30)
        await again.until_confirmed(30)
        assert journal.run(lambda life: life.checkpoint())
        with pytest.raises(JournalDamaged, match=f"{name}.*damaged"):
            journal.run(lambda life: life.offloading.fetch_back(str(NUMBER), [name]))
        again.die()
    assert any(name in damage.path for damage in verify_directory(home).damages)
    assert note.read_bytes() == b"damaged"


@runs
async def test_a_damaged_term_is_written_anew_as_the_journal_has_it(home: Path, url: str) -> None:
    partition = await shipped_before(home, url)
    before = read_term(partition.directory)
    assert before is not None
    (partition.directory / TERM_FILE).write_bytes(b"damaged")
    with pytest.raises(CorruptData, match="term"):
        read_term(partition.directory)
    journal = await asyncio.to_thread(started, home, url)
    after = read_term(partition.directory)
    assert after is not None
    assert (after.term, after.is_left, after.is_dropped) == (before.term, False, False)
    again = Partition(home)
    again.publish(1)
    await again.until_confirmed(1)
    again.die()
    await asyncio.to_thread(journal.stop)
    await asyncio.to_thread(taken_over, home.with_name("b"), url)
    assert stored(home.with_name("b")) == [0, 1]


@runs
async def test_a_partition_that_left_is_left_although_its_term_was_damaged(home: Path, url: str) -> None:
    journal, partition = await shipped_one(home, url)
    partition.die()
    await asyncio.to_thread(journal.depart, NUMBER)
    await asyncio.to_thread(journal.stop)
    (partition.directory / TERM_FILE).write_bytes(b"damaged")
    journal = await asyncio.to_thread(started, home, url)
    after = read_term(partition.directory)
    assert after is not None
    assert after.is_left
    assert await asyncio.to_thread(journal.take_back, NUMBER) == "store-a"
    await asyncio.to_thread(journal.stop)


@runs
async def test_a_damaged_term_that_no_journal_knows_costs_its_partition_alone(home: Path, url: str) -> None:
    await shipped_before(home, url)
    other = home / "p" / "8"
    other.mkdir()
    write_term(other, Term(3, is_left_out=True))
    (other / TERM_FILE).write_bytes(b"damaged")
    journal = await asyncio.to_thread(StoreJournal, home, "store-a", url)
    await until(lambda: journal.status()["partitions"] == 1)
    with pytest.raises(CorruptData, match=r"8/term.*remove the file"):
        StoreFiles(home / "p").enter("8", [])
    (other / TERM_FILE).unlink()
    StoreFiles(home / "p").enter("8", [])
    await asyncio.to_thread(journal.stop)


@runs
async def test_a_partition_whose_start_failed_half_way_is_not_served_before_all_of_it_is_shipped(
    home: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = listed_files((await shipped_before(home, url)).directory)
    again = Partition(home, OFF)
    again.publish(1)
    again.die()
    with monkeypatch.context() as damaged:

        def readable_if_shipped(files: StoreFiles, number: str, file: str) -> None:
            if file not in shipped:
                raise CorruptData(str(files.path(number) / file), 0, "damaged")

        damaged.setattr(StoreFiles, "offloaded", readable_if_shipped)
        journal = await asyncio.to_thread(started, home, url)
        await asyncio.to_thread(journal.run, lambda life: life.look())
        status = journal.status()
        assert (status["partitions"], list(status["untaken"])) == (0, [str(NUMBER)])
    await asyncio.to_thread(journal.run, lambda life: life.look())
    await until(lambda: journal.status()["partitions"] == 1)
    await asyncio.to_thread(journal.stop)
    assert await asyncio.to_thread(taken_over, home.with_name("b"), url) == [str(NUMBER)]
    assert stored(home.with_name("b")) == [0, 1]
