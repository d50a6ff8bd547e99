"""Groups of suspect rows, of which each is tried by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from sortedcontainers import SortedDict

from pulsar_ray.dispatch.blocks import counted_rows
from pulsar_ray.dispatch.blocks.counted_rows import CountedRows
from pulsar_ray.dispatch.consumer import Delivery, DispatchBlock, Key, Members, SuspectGroup
from pulsar_ray.managed_ledger.cursor.managed_cursor import SuspectRows
from pulsar_ray.model import row_sets
from pulsar_ray.model.row_sets import RowSet


class SuspectGroups:
    """The groups of a subscription, in the order in which they were made.

    `remember` is called with all groups whenever one comes or goes.
    """

    def __init__(self, remember: Callable[[dict[int, SuspectRows]], None]) -> None:
        self._remember = remember
        self.groups: dict[int, SuspectGroup] = {}
        """By number, those that wait or are being tried: none before a consumer crashes."""
        self.waiting: SortedDict = SortedDict()
        """The blocks by key that have suspects that wait; others are being tried."""
        self._read_to: Key = (1 << 62, 0)
        """Where reading has come to after a restart: members behind it may still come."""
        self.version = 0
        """Rises with every change of what waits or is tried."""

    def __iter__(self) -> Iterator[SuspectGroup]:
        return iter(list(self.groups.values()))

    def __contains__(self, key: Key) -> bool:
        """Whether suspects of this block wait."""
        return key in self.waiting

    def lowest(self) -> DispatchBlock | None:
        """The lowest block with suspects that wait."""
        return self.waiting.peekitem(0)[1] if self.waiting else None

    def block(self, key: Key) -> DispatchBlock:
        """The block of suspects that wait."""
        found: DispatchBlock = self.waiting[key]
        return found

    def group_of(self, block: DispatchBlock) -> SuspectGroup:
        """The group of the first row of a block that waits as a suspect."""
        first = 1 << row_sets.first(counted_rows.rows_of(block.suspects))
        return next(g for g in self.groups.values() if g.waiting.get(block.key, 0) & first)

    # ---- coming

    def begin(self, members: Members, origin: int | None = None) -> SuspectGroup:
        """Make a group of rows, which are added as they come back.

        Without `origin` it has one of its own.
        """
        number = max(self.groups, default=0) + 1
        if origin is not None:
            number = max(number, origin + 1)
        group = SuspectGroup(number, number if origin is None else origin, dict(members))
        self.groups[number] = group
        self._changed()
        return group

    def restore(self, known: Mapping[int, SuspectRows], read_to: Key) -> None:
        """Take groups that were made before.

        Their rows come as blocks are read from `read_to` on.
        """
        self._read_to = read_to
        for number, (origin, rows) in known.items():
            members = {(ledger, first): row_sets.of_ranges(ranges) for ledger, first, ranges in rows}
            self.groups[number] = SuspectGroup(number, origin, members)
        self._changed()

    def members_of(self, key: Key) -> list[tuple[SuspectGroup, RowSet]]:
        """The groups that a block has rows of."""
        return [(group, rows) for group in self if (rows := group.members.get(key, 0))]

    def add(self, block: DispatchBlock, rows: RowSet, count: int, group: SuspectGroup) -> None:
        """Let rows that are nowhere wait as suspects of a group, with this redelivery count."""
        if block.is_batch and block.suspects:
            # One entry has one count: rows that wait already get the new one.
            known = counted_rows.rows_of(block.suspects)
            block.suspects.clear()
            counted_rows.insert(block.suspects, known | rows, count)
        else:
            counted_rows.insert(block.suspects, rows, count)
        group.waiting[block.key] = group.waiting.get(block.key, 0) | rows
        self.waiting[block.key] = block
        self.version += 1

    # ---- going

    def take(self, group: SuspectGroup, block: DispatchBlock, rows: RowSet) -> list[CountedRows]:
        """Take waiting rows of a group off a block, in order, with their redelivery counts."""
        taken = [(part, count) for known, count in block.suspects if (part := known & rows)]
        counted_rows.remove(block.suspects, rows)
        self._leave(group, block.key, rows)
        self._forget_if_empty(block)
        return list(counted_rows.in_order(taken))

    def remove(self, block: DispatchBlock, rows: RowSet) -> None:
        """Rows of a block are suspect no more, as far as they were and wait."""
        counted_rows.remove(block.suspects, rows)
        for group in self:
            if group.waiting.get(block.key, 0) & rows:
                self._leave(group, block.key, rows)
        self._forget_if_empty(block)

    def settled(self, delivery: Delivery) -> None:
        """Some of a delivery's suspects were settled."""
        self.version += 1
        if delivery.group is not None and not delivery.rows:
            delivery.group.deliveries.pop(delivery, None)
            delivery.consumer.trial.remove(delivery)

    def sweep(self) -> None:
        """Forget groups of which nothing is left."""
        for group in self:
            if not (group.waiting or group.deliveries or group.last >= self._read_to):
                self.forget(group)

    def has_read(self, position: Key) -> None:
        """Reading has come to a position: members behind it may still come."""
        self._read_to = position

    def forget(self, group: SuspectGroup) -> None:
        """Forget a group; none of its rows may wait."""
        if self.groups.pop(group.number, None) is not None:
            self._changed()

    def clear(self) -> None:
        """Forget every group."""
        had_any = bool(self.groups)
        self.groups.clear()
        self.waiting.clear()
        if had_any:
            self._changed()

    def _leave(self, group: SuspectGroup, key: Key, rows: RowSet) -> None:
        left = group.waiting.get(key, 0) & ~rows
        if left:
            group.waiting[key] = left
        else:
            group.waiting.pop(key, None)
        self.version += 1

    def _forget_if_empty(self, block: DispatchBlock) -> None:
        if not block.suspects:
            self.waiting.pop(block.key, None)

    def _changed(self) -> None:
        self.version += 1
        self._remember(
            {
                group.number: SuspectRows(group.origin, tuple(_described(group.members)))
                for group in self.groups.values()
            }
        )


def _described(members: Members) -> Iterable[tuple[int, int, tuple[tuple[int, int], ...]]]:
    for (ledger_id, first), rows in sorted(members.items()):
        yield ledger_id, first, row_sets.ranges_of(rows)
