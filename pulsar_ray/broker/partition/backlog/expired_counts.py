"""Counts what expires for subscriptions whose dispatchers do not run (ADR 0106).

A dispatcher counts what expires while it runs. Without one nobody would: a topic whose messages go unread for
their age would show none.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, NamedTuple

from pulsar_ray.broker.partition.sleeping_cursors import SleepingCursors
from pulsar_ray.clock import Clock
from pulsar_ray.managed_ledger.log.log_sizes import LogSizes, ledger_sizes
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.message_id import Position

EXPIRED_NOTE = "expired"


class Backlogs(NamedTuple):
    """Entries that wait for subscriptions, by number, of the log as it was."""

    log: LogSizes
    entries: dict[int, int]


class ExpiredCounts:
    """Counts by subscription number; belongs to the owner loop.

    `followed` gives the numbers of subscriptions whose dispatchers run. The counts outlast a sleep, in a note
    beside the data, and are lost with a partition that is killed, as all counters are.
    """

    def __init__(
        self, ledger: ManagedLedger, cursors: SleepingCursors, followed: Callable[[], Set[int]], clock: Clock
    ) -> None:
        self._ledger = ledger
        self._cursors = cursors
        self._followed = followed
        self._clock = clock
        self._counts = read_expired_note(Path(ledger.directory))

    async def backlogs(self, log: LogSizes | None = None) -> Backlogs:
        """Count what waits where no dispatcher runs, in the log as it is or was."""
        followed = self._followed()
        subscriptions = [s for s in self._ledger.changes.durable_subscriptions() if s.number not in followed]
        await self._cursors.learn(subscriptions)
        log = LogSizes(ledger_sizes(self._ledger.segments())) if log is None else log
        entries = {}
        for subscription in subscriptions:
            known = self._cursors.describe(subscription)
            mark = Position(*known["markDeletePosition"])
            entries[subscription.number] = log.above(mark, known["individuallyDeletedEntries"])[0]
        return Backlogs(log, entries)

    async def count_since(self, before: Backlogs) -> None:
        """Count what has expired since `before`."""
        _, left = await self.backlogs(before.log)
        for number in left.keys() & before.entries.keys():
            if (expired := before.entries[number] - left[number]) > 0:
                self._counts[number] = (self._counts.get(number, (0, 0))[0] + expired, self._clock.now_ms())

    def describe(self, number: int) -> dict[str, int]:
        """Describe a subscription's count in Pulsar's names."""
        return describe_expired(self._counts, number)

    def write(self) -> None:
        """Leave the counts of subscriptions that are there, for a partition that falls asleep.

        Raises OSError.
        """
        there = {s.number for s in self._ledger.changes.durable_subscriptions()}
        self._counts = {number: count for number, count in self._counts.items() if number in there}
        note = Path(self._ledger.directory) / EXPIRED_NOTE
        if self._counts or note.exists():
            staged = note.with_name(f"{EXPIRED_NOTE}.new")
            staged.write_text(json.dumps(list(self._counts.items())))
            os.replace(staged, note)


def describe_expired(counts: dict[int, tuple[int, int]], number: int) -> dict[str, int]:
    """The fields of `counts` for a subscription."""
    entries, last_ms = counts.get(number, (0, 0))
    return {"totalMsgExpired": entries, "lastExpireTimestamp": last_ms}


def read_expired_note(directory: Path) -> dict[int, tuple[int, int]]:
    """The counts that were left by number; none without a note that can be read."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        found: list[Any] = json.loads((directory / EXPIRED_NOTE).read_bytes())
        return {int(number): (int(entries), int(last_ms)) for number, (entries, last_ms) in found}
    return {}
