"""Cursors of subscriptions whose dispatcher does not run, for the partition's stats.

A dispatcher is a process; asking how far a subscription is must not start one. Its cursor lies beside the
partition and changes only while a dispatcher owns it, so it is read once when it is asked for and remembered
until one follows the partition again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pulsar_ray.errors import PulsarException
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory
from pulsar_ray.managed_ledger.cursor.cursor_store import read_cursor
from pulsar_ray.managed_ledger.cursor.managed_cursor import deleted_text
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Subscription
from pulsar_ray.model.message_id import Position


class SleepingCursors:
    """Runs on the owner loop; files are read on a thread that does not commit."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[int, dict[str, Any]] = {}
        self._parked: set[int] = set()
        """Those whose cursors know consumers, or cannot be read."""

    def woke(self, number: int) -> None:
        """Forget a subscription that a dispatcher serves now."""
        self._known.pop(number, None)
        self._parked.discard(number)

    def moved(self, number: int, expired: Position) -> None:
        """The broker has acknowledged up to a position.

        A cursor is read again only where that does not say all.
        """
        known = self._known.get(number)
        if known is None or known["problem"] or known["individuallyDeletedRanges"]:
            self.woke(number)
        else:
            mark = max(Position(*known["markDeletePosition"]), expired)
            self._known[number] = {**known, "markDeletePosition": list(mark)}

    async def learn(self, subscriptions: Sequence[Subscription]) -> None:
        """Read the cursors of these that are not known yet, and forget all others."""
        numbers = {s.number for s in subscriptions}
        self._known = {number: known for number, known in self._known.items() if number in numbers}
        self._parked &= numbers
        wanted = [s for s in subscriptions if s.number not in self._known]
        if wanted:
            self._take(await asyncio.get_running_loop().run_in_executor(None, self._read, wanted))

    def learn_now(self, subscriptions: Sequence[Subscription]) -> None:
        """Read the cursors of these in this very thread."""
        self._known.clear()
        self._parked.clear()
        self._take(self._read(subscriptions))

    def may_have_consumers(self, number: int) -> bool:
        """Whether consumers of a learned subscription are parked; True if nobody knows."""
        return number in self._parked

    def describe(self, subscription: Subscription) -> dict[str, Any]:
        """Describe how far it is; the hold, where its cursor was not read."""
        return self._known.get(subscription.number) or _at_hold(subscription)

    def _take(self, read: list[tuple[int, dict[str, Any], bool]]) -> None:
        self._known.update({number: described for number, described, _ in read})
        self._parked |= {number for number, _, may_have_consumers in read if may_have_consumers}

    def _read(self, subscriptions: Sequence[Subscription]) -> list[tuple[int, dict[str, Any], bool]]:
        return [(s.number, *self._read_one(s)) for s in subscriptions]

    def _read_one(self, subscription: Subscription) -> tuple[dict[str, Any], bool]:
        try:
            cursor = read_cursor(cursor_directory(self._directory, subscription.number))
        except FileNotFoundError:
            # No dispatcher has served it yet.
            return _at_hold(subscription), False
        except (PulsarException, OSError) as error:
            return {**_at_hold(subscription), "problem": str(error)}, True
        if cursor is None:
            return _at_hold(subscription), False
        if subscription.expired > cursor.mark_delete:
            cursor.restore_deleted((), subscription.expired)
        described = {
            "markDeletePosition": list(cursor.mark_delete),
            "individuallyDeletedRanges": len(cursor.deleted),
            "individuallyDeletedEntries": cursor.deleted.entries,
            "individuallyDeletedMessages": deleted_text(cursor.deleted),
            "problem": "",
        }
        return described, bool(cursor.consumers)


def _at_hold(subscription: Subscription) -> dict[str, Any]:
    return {
        "markDeletePosition": list(subscription.hold),
        "individuallyDeletedRanges": 0,
        "individuallyDeletedEntries": 0,
        "individuallyDeletedMessages": "[]",
        "problem": "",
    }
