"""Knows when the sleeping partitions of a store are to be woken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from pulsar_ray.broker.partition.sleeping_partition import describe_sleeping
from pulsar_ray.errors import PulsarException
from pulsar_ray.managed_ledger.store.wake_times import WakeTimes, read_wake_time, read_wake_times

logger = logging.getLogger(__name__)


class FiguresOfSleepers(Protocol):
    """Exports the metrics of a node, sleeping partitions included."""

    async def slept(self, numbers: Iterable[int]) -> None: ...

    def removed(self, number: int) -> None: ...


class SleepTimes:
    """Keeps the times of sleeping partitions, and describes these from their files.

    `metrics` returns those that know these partitions as sleeping ones; None while there are none.
    """

    def __init__(self, ledgers: Path, metrics: Callable[[], FiguresOfSleepers | None]) -> None:
        self._ledgers = ledgers
        self._metrics = metrics
        self._wake_times = WakeTimes()
        self._knows_notes = False

    async def slept(self, times: dict[int, int | None]) -> None:
        """Keep the times in ms at which sleeping partitions are to be woken.

        They come by the partitions' numbers; None takes a time back. They are gone with this process, the
        notes in the partitions' directories are not.
        """
        self._wake_times.slept(times)
        if (metrics := self._metrics()) is not None:
            await metrics.slept(times)

    async def due(self, now_ms: int, most: int, again: bool) -> dict[int, int]:
        """Take up to `most` partitions that are to be woken by now, each once.

        They come with their times. With `again` the notes are read anew, as they are the first time.
        """
        if again or not self._knows_notes:
            self._wake_times.learn(await asyncio.to_thread(read_wake_times, self._ledgers))
            self._knows_notes = True
        return self._wake_times.take_due(now_ms, most)

    async def moved_in(self, number: int) -> None:
        """Keep watch for a sleeping partition that is here from now on."""
        await self.slept({number: await asyncio.to_thread(read_wake_time, self._ledgers / str(number))})

    async def forget(self, number: int) -> None:
        """Forget a partition that is not here any more."""
        await self.slept({number: None})
        if (metrics := self._metrics()) is not None:
            metrics.removed(number)

    def describe(self, number: int) -> dict[str, Any] | None:
        """Describe a partition by its files; None if it has to run for that."""
        try:
            return describe_sleeping(self._ledgers / str(number))
        except (OSError, PulsarException) as error:
            logger.debug("partition %d is not described from its files: %s", number, error)
            return None
