"""A partition that is no more shipped leaves the journal, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pulsar_ray.broker.serving.shipping_link import SYNC
from pulsar_ray.config import OFF
from pulsar_ray.journal.store_files import read_term
from tests.unit.journal.test_store_journal import (
    NUMBER,
    Partition,
    hold_back,
    homes,
    runs,
    shipped_one,
    started,
    stored,
    taken_over,
    until,
    url,
)

__all__ = ["homes", "url"]


@runs
@pytest.mark.parametrize("is_restarted", [False, True], ids=["same process", "restarted"])
async def test_a_partition_that_is_off_while_its_store_is_away_leaves_the_journal(
    homes: tuple[Path, Path], url: str, *, is_restarted: bool
) -> None:
    first, second = homes
    journal, partition = await shipped_one(first, url)
    await asyncio.to_thread(journal.stop)
    if is_restarted:
        partition.die()
        partition = Partition(first, OFF)
    else:
        partition.link.set_durability(OFF, 30.0)
    partition.publish(1)
    again = await asyncio.to_thread(started, first, url)
    await until(lambda: is_left_out(partition.directory))
    assert str(NUMBER) not in again._life.mirror
    await asyncio.to_thread(again.stop)
    partition.die()
    assert await asyncio.to_thread(taken_over, second, url) == []
    assert stored(first) == [0, 1]


def is_left_out(directory: Path) -> bool:
    term = read_term(directory)
    return term is not None and term.is_left_out


@runs
async def test_a_store_that_dies_before_a_partition_has_left_the_journal_serves_its_directory(
    homes: tuple[Path, Path], url: str
) -> None:
    first, _ = homes
    journal, partition = await shipped_one(first, url)
    hold_back(journal)
    partition.link.set_durability(OFF, 30.0)
    await until(lambda: journal._life.files_of(str(NUMBER)) == {})
    assert not is_left_out(partition.directory)
    await asyncio.to_thread(journal.stop, 0.0)
    again = await asyncio.to_thread(started, first, url)
    assert not again.is_ended
    await until(lambda: is_left_out(partition.directory))
    partition.link.set_durability(SYNC, 30.0)
    partition.publish(1)
    await until(lambda: 1 in partition.confirmed)
    assert again.is_serving
    partition.die()
    await asyncio.to_thread(again.stop)
