"""Buckets and disks that are treated badly: nothing confirmed is lost silently, and all goes on behind it."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.errors import JournalDamaged
from pulsar_ray.journal import objects, store_files
from pulsar_ray.journal.storage.file_store import FileStore
from tests.unit.journal.test_store_journal import (
    NUMBER,
    Partition,
    homes,
    restarted,
    runs,
    shipped_with_pieces,
    started,
    stored,
    taken_over,
    until,
    url,
)

__all__ = ["homes", "url"]
CONFIRMED = list(range(23))


@contextmanager
def full_disk(*names: str) -> Iterator[Callable[[], int]]:
    """Have functions that write into the data directory fail; gives how often they did."""
    count = [0]

    def refuse(*_: Any, **__: Any) -> Any:
        count[0] += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(store_files, name, refuse)
        yield lambda: count[0]


@runs
async def test_a_partition_that_begins_on_a_full_disk_is_shipped_once_there_is_room(
    homes: tuple[Path, Path], url: str
) -> None:
    journal = await asyncio.to_thread(started, homes[0], url)
    with full_disk("write_term") as refused:
        partition = Partition(homes[0])
        partition.publish(0)
        await until(refused)
    assert partition.confirmed == []
    await partition.until_confirmed(0)
    partition.die()
    await asyncio.to_thread(journal.stop)


@runs
async def test_a_full_disk_takes_a_partition_over_once_there_is_room(
    homes: tuple[Path, Path], url: str
) -> None:
    await shipped_with_pieces(homes, url)
    journal = await asyncio.to_thread(started, homes[1], url)
    partitions = await asyncio.to_thread(journal.seal, "store-a")
    with full_disk("write_whole"), pytest.raises(OSError, match="No space"):
        await asyncio.to_thread(journal.adopt, partitions)
    assert await asyncio.to_thread(journal.adopt, partitions) == [str(NUMBER)]
    await asyncio.to_thread(journal.stop)
    assert stored(homes[1]) == CONFIRMED


@runs
async def test_a_rule_that_removed_all_of_a_journal_costs_nothing_while_the_disk_is_there(
    homes: tuple[Path, Path], url: str
) -> None:
    bucket = await shipped_with_pieces(homes, url)
    for kind in ("journal", "index", "segments", "catalog"):
        shutil.rmtree(bucket / kind, ignore_errors=True)
    await asyncio.to_thread(restarted, homes[0], url)
    assert await asyncio.to_thread(taken_over, homes[1], url) == [str(NUMBER)]
    assert stored(homes[1]) == CONFIRMED


@runs
async def test_a_rule_that_removed_pieces_of_a_lost_store_is_named(
    homes: tuple[Path, Path], url: str
) -> None:
    bucket = await shipped_with_pieces(homes, url)
    shutil.rmtree(bucket / "segments")
    with pytest.raises(JournalDamaged, match=r"segments/.* is missing"):
        await asyncio.to_thread(taken_over, homes[1], url)
    assert not (homes[1] / "p" / str(NUMBER)).exists()


@runs
async def test_slow_writes_cost_time_and_nothing_else(
    homes: tuple[Path, Path], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, lock, under_way = FileStore.create, threading.Lock(), list[int]()

    def slow(store: FileStore, key: str, body: bytes) -> bool:
        with lock:
            under_way.append(under_way[-1] + 1 if under_way else 1)
        time.sleep(0.1)
        was_made = create(store, key, body)
        with lock:
            under_way.append(under_way[-1] - 1)
        return was_made

    journal = await asyncio.to_thread(started, homes[0], url)
    monkeypatch.setattr(FileStore, "create", slow)
    partition = Partition(homes[0])
    for seq in range(20):
        partition.publish(seq)
        await asyncio.sleep(0)
    await partition.until_confirmed(*range(20))
    partition.die()
    await asyncio.to_thread(journal.stop)
    assert await asyncio.to_thread(taken_over, homes[1], url) == [str(NUMBER)]
    assert stored(homes[1]) == list(range(20))


def test_an_object_of_a_later_version_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "VERSION", 9)
    later = objects.pack_piece(b"ab")
    monkeypatch.undo()
    with pytest.raises(JournalDamaged, match=r"segments/1/x .*later version, 9: start that version"):
        objects.unpack_piece("segments/1/x", later)
