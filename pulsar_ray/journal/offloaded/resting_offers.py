"""Sleeping partitions leave segments as well where a disk is too full (ADR 0142).

A partition that goes to sleep notes in its directory which of its segments may leave the disk, and how full
that may be. Its node's store offers them for it, and leaves them to the object store: nobody is woken.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.errors import PulsarException
from pulsar_ray.journal.life_runner import LifeRunner
from pulsar_ray.journal.offloaded.room_plan import Offer, RoomPlan
from pulsar_ray.ledger.segment_file import parse_segment_name

logger = logging.getLogger(__name__)

NOTE = "may-leave"
MOST_NOTE_BYTES = 64 * 1024
LOOK_S = 10.0
READ_ANYWAY_S = 300.0
"""Notes may have come that allow less than those that were read before."""
MOST_PARTITIONS = 16
"""So many partitions are offered for at a time, those with the oldest segments."""
AT_ONCE = 8


class Resting(NamedTuple):
    """A sleeping partition's offers, and the percentage that is too full for it."""

    partition: str
    percent: int
    offers: Sequence[Offer]


def write_resting_note(directory: Path, percent: int, names: Sequence[str]) -> None:
    """Note which segments may leave the disk, in their order. Raises OSError.

    Without any the note is removed. A lost note costs no more than that these stay.
    """
    path = directory / NOTE
    if percent <= 0 or not names:
        path.unlink(missing_ok=True)
        return
    staged = path.with_name(f"{NOTE}.new")
    staged.write_text(json.dumps([percent, list(names)]))
    os.replace(staged, path)


def _read_note(path: str) -> tuple[int, list[str]] | None:
    """Return what a note says, None for one that nobody could have written."""
    try:
        with open(path, "rb") as note:
            percent, names = json.loads(note.read(MOST_NOTE_BYTES))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    if type(percent) is not int or not 0 < percent <= 100 or type(names) is not list:
        return None
    return percent, [name for name in names if type(name) is str and parse_segment_name(name)]


def _offers(directory: str, names: Sequence[str]) -> list[Offer]:
    found = []
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(f"{directory}/{name}")
            found.append(Offer(status.st_mtime, name, status.st_size))
    return found


def read_resting(ledgers: Path, awake: Collection[str]) -> tuple[int, list[Resting]]:
    """Return the least percentage of all notes, and offers of those that sleep.

    Without a note that is 0; those are the partitions with the oldest segments that are here.
    """
    least, oldest = 0, list[tuple[float, str, Resting]]()
    with contextlib.suppress(FileNotFoundError), os.scandir(ledgers) as partitions:
        for partition in partitions:
            name = partition.name
            note = _read_note(f"{partition.path}/{NOTE}") if name.isascii() and name.isdigit() else None
            if note is None:
                continue
            percent, names = note
            least = min(least or percent, percent)
            if name not in awake and (offers := _offers(partition.path, names)):
                found = (-offers[0].written_s, name, Resting(name, percent, offers))
                (heapq.heappush if len(oldest) < MOST_PARTITIONS else heapq.heappushpop)(oldest, found)
    return least, [resting for _, _, resting in sorted(oldest, reverse=True)]


class RestingOffers:
    """Offers what sleeping partitions noted, on the loop of a store's journal.

    `awake` are the partitions that offer by themselves.
    """

    def __init__(
        self,
        data_dir: Path,
        runner: LifeRunner,
        plan: RoomPlan,
        awake: Callable[[], Collection[str]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._data_dir = data_dir
        self._runner = runner
        self._plan = plan
        self._awake = awake
        self._loop = loop
        self._least = 0
        self._read_at_s = self._loop.time()
        self._problem = ""

    async def keep_room(self) -> None:
        """Leave what has to go, for as long as the store ships."""
        while not self._runner.life.shipping.is_deposed:
            await asyncio.sleep(LOOK_S)
            try:
                await self._look()
                self._problem = ""
            except (OSError, PulsarException) as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    logger.warning("sleeping partitions leave nothing of a full disk: %s", error)

    async def _look(self) -> None:
        usage = await asyncio.to_thread(shutil.disk_usage, self._data_dir)
        used, total, now_s = usage.total - usage.free, usage.total, self._loop.time()
        is_full = 0 < self._least * total <= used * 100
        if not self._runner.life.is_ready or not (is_full or now_s >= self._read_at_s):
            return
        self._read_at_s = now_s + READ_ANYWAY_S
        self._least, resting = await asyncio.to_thread(read_resting, self._data_dir / "p", set(self._awake()))
        for partition, percent, offers in resting:
            if used * 100 >= total * percent:
                going = self._plan.asked(partition, (used, total), percent, offers, self._loop.time())
                for start in range(0, len(going), AT_ONCE):
                    names = going[start : start + AT_ONCE]
                    await self._runner.run(self._runner.life.offloading.offload(partition, names))
