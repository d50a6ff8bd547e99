"""Finds how old the oldest message of each subscription's backlog is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.message_id import Position

MOST_SEARCHES = 20
"""Subscriptions that are looked up for one report.

The others keep what was found before until their turn."""


class BacklogAges:
    """Runs on the owner loop; files are read on a thread that does not commit.

    A mark-delete position that has not moved is not looked up again.
    """

    def __init__(self, ledger: ManagedLedger, loop: asyncio.AbstractEventLoop) -> None:
        self._ledger = ledger
        self._loop = loop
        self._known: dict[int, tuple[Position, int | None]] = {}

    async def learn(self, marks: Mapping[int, Position], *, most: int) -> None:
        """Look up some of those whose mark-delete positions have moved; forget all others than these."""
        last = self._ledger.readable_position
        self._known = {number: known for number, known in self._known.items() if number in marks}
        moved = [
            number
            for number, mark in marks.items()
            if mark < last and (number not in self._known or self._known[number][0] != mark)
        ]
        for number in moved[:most]:
            search = self._ledger.begin_backlog(marks[number].next())
            front = await self._loop.run_in_executor(None, search.run)
            # Looked up last, it is the last to be looked up again.
            self._known.pop(number, None)
            self._known[number] = marks[number], front.stored_ms

    def oldest_ms(self, number: int) -> int | None:
        """Return when the oldest message was published.

        None if there is none, or that is not known yet.
        """
        known = self._known.get(number)
        return None if known is None else known[1]
