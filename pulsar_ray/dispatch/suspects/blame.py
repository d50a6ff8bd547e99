"""The messages that a crash is laid to: fewer with each further crash.

One crash makes two groups of suspects of all messages that were handed over, which are tried by consumers
that have nothing else in hand. The crash of such a consumer is explained by the part of its group that it
had in hand: that is halved again, and all others of the same origin are suspect no more. A message that was
tried alone has failed.

A report tells the least that was handed over: the last ones may have ended with the process that sent them.
"""

from __future__ import annotations

from typing import NamedTuple

from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import Consumer, Delivery, Key, SuspectGroup
from pulsar_ray.dispatch.redelivery import Redelivery
from pulsar_ray.model import row_sets
from pulsar_ray.model.row_sets import RowSet

UNEXPLAINED_CRASHES = 2
"""After so many crashes without a report all that was granted counts as handed over."""

Handed = dict[Delivery, RowSet]
"""Rows by delivery, in the order of the log."""


class Crash(NamedTuple):
    """A consumer's crash: messages held, and those that its application had."""

    held: int
    handed_over: int
    failed: str
    """The one message that the crash is laid to, or "".

    It is written as ledger:entry, or ledger:entry:index of a batch.
    """


class Blame:
    """Takes back what a crashed consumer held."""

    def __init__(self, blocks: DispatchBlocks, redelivery: Redelivery) -> None:
        self._blocks = blocks
        self._redelivery = redelivery

    def crashed(self, consumer: Consumer, handed_over: int | None) -> Crash:
        """Take everything back from a consumer that ended without a word.

        `handed_over` is as for `Dispatcher.remove_consumer`.
        """
        if handed_over is not None:
            consumer.handed_over = handed_over
        handed = self._handed(consumer, is_known=handed_over is not None)
        untold: Handed = {}
        if origins := {delivery.group.origin for delivery in handed if delivery.group is not None}:
            handed = {delivery: rows for delivery, rows in handed.items() if delivery.group is not None}
            if handed_over is None:
                untold = _not_among(handed, consumer, origins)
            for group in self._blocks.suspects:
                if group.origin in origins:
                    self._blocks.release(group)
        count = sum(rows.bit_count() for rows in handed.values())
        is_found = count == 1 and not untold
        failed = handed if is_found else {}
        groups = self._groups(handed, count, untold)
        crash = Crash(consumer.unacked, count, _message(*next(iter(handed.items()))) if is_found else "")
        for delivery in tuple(consumer.deliveries):
            suspects = groups.get(delivery, [])
            if delivery.group is not None:
                suspects = [(delivery.rows, delivery.group)]
            self._redelivery.give_back_suspects(delivery, failed.get(delivery, 0), suspects)
        return crash

    def _handed(self, consumer: Consumer, *, is_known: bool) -> Handed:
        """The rows that were handed over."""
        handed: Handed = {}
        unreported: dict[SuspectGroup, None] = {}
        for delivery in sorted(consumer.deliveries, key=lambda each: (each.block.key, each.number)):
            group = delivery.group
            if not is_known and group is None:
                # Only suspects are reported one by one.
                rows = delivery.rows
            else:
                rows = delivery.handed_over_rows()
                if not rows and not is_known and group is not None:
                    unreported[group] = None
                    if group.unexplained + 1 >= UNEXPLAINED_CRASHES:
                        rows = delivery.rows
            if rows:
                handed[delivery] = rows
        for group in unreported:
            group.unexplained += 1
        return handed

    def _groups(
        self, handed: Handed, count: int, untold: Handed
    ) -> dict[Delivery, list[tuple[RowSet, SuspectGroup]]]:
        """Make groups of halves, or of a message alone, and one of the untold.

        Returns each delivery's rows in them.
        """
        if not count:
            return {}
        first, second = {}, {}
        left = max(count // 2, 1)
        for delivery, rows in handed.items():
            first[delivery] = part = row_sets.lowest(rows, left)
            second[delivery] = rows & ~part
            left -= part.bit_count()
        groups: dict[Delivery, list[tuple[RowSet, SuspectGroup]]] = {}
        origin = None
        for part_of in (first, second, untold):
            if any(part_of.values()):
                group = self._blocks.suspects.begin(_members(part_of), origin)
                origin = group.origin
                for delivery, rows in part_of.items():
                    groups.setdefault(delivery, []).append((rows, group))
        return groups


def _not_among(told: Handed, consumer: Consumer, origins: set[int]) -> Handed:
    """Return the rows of these origins that a consumer has and did not tell of."""
    return {
        delivery: left
        for delivery in consumer.deliveries
        if delivery.group is not None and delivery.group.origin in origins
        if (left := delivery.rows & ~told.get(delivery, 0))
    }


def _message(delivery: Delivery, rows: RowSet) -> str:
    """The name of the only one of these rows."""
    (ledger_id, entry_id), row = delivery.block.key, row_sets.first(rows)
    return f"{ledger_id}:{entry_id}:{row}" if delivery.block.is_batch else f"{ledger_id}:{entry_id + row}"


def _members(rows_of: Handed) -> dict[Key, RowSet]:
    members: dict[Key, RowSet] = {}
    for delivery, rows in rows_of.items():
        if rows:
            members[delivery.block.key] = members.get(delivery.block.key, 0) | rows
    return members
