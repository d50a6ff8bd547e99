"""How a policy hands out suspects: a group at a time, to a free consumer.

Between two groups, and before its first, a consumer gets other messages if any wait: these go on even if
every consumer there ever is ends with its suspects. While suspects wait one consumer gets nothing else, so
that it becomes free. A program may want more messages before it acknowledges those that it has: so nobody
waits for longer than `PATIENCE_MS`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from pulsar_ray.dispatch.blocks import counted_rows
from pulsar_ray.dispatch.consumer import Consumer, DispatchBlock, Key, SuspectGroup
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.key_shared.key_routes import KeyRoutes, WaitingIndex
from pulsar_ray.dispatch.policies.policy import GrantSource
from pulsar_ray.dispatch.suspects.groups import SuspectGroups
from pulsar_ray.model import row_sets
from pulsar_ray.model.row_sets import RowSet

PATIENCE_MS = 1_000


def grant_waiting(
    consumer: Consumer,
    group: SuspectGroup,
    rows_of: Iterable[tuple[Key, RowSet]],
    source: GrantSource,
    grants: list[Grant],
) -> None:
    """Grant rows of a group that wait, as far as a consumer has room."""
    for key, rows in list(rows_of):
        block = source.blocks.suspects.block(key)
        if not _is_free_for(consumer, group, block):
            return
        if (room := source.room_on_trial(consumer)) <= 0:
            return
        grants += source.grant_suspects(consumer, group, block, row_sets.lowest(rows, room))


def _is_free_for(consumer: Consumer, group: SuspectGroup, block: DispatchBlock) -> bool:
    """Whether no other consumer has other parts of a batch: an entry has one count.

    A program that acknowledges nothing until it has the whole batch gets the parts one after the other.
    """
    return not block.is_batch or all(
        delivery.consumer is consumer or delivery.group is group for delivery in block.deliveries
    )


def look_at_time(consumers: Iterable[Consumer], source: GrantSource) -> None:
    """Let consumers go on that have had their suspects for long."""
    for consumer in consumers:
        if consumer.trial is None or consumer.is_trial_over:
            continue
        if has_waited(consumer, source.now_ms):
            consumer.is_trial_over = True
            source.blocks.suspects.version += 1


def has_waited(consumer: Consumer, now_ms: int) -> bool:
    """Whether a consumer has suspects for long, or was kept from everything else for long."""
    if consumer.trial_since_ms is None:
        consumer.trial_since_ms = now_ms
    return now_ms - consumer.trial_since_ms >= PATIENCE_MS


def may_try(consumer: Consumer, source: GrantSource) -> bool:
    """Whether suspects may come next: messages that wait as usual had their turn."""
    return consumer.has_flowed or not source.blocks.waiting_messages


# ---- one active consumer: in the order of the log


def comes_first(suspect: DispatchBlock, block: DispatchBlock | None) -> bool:
    """Return whether a block's first suspect lies before all rows that wait as usual.

    `block` is at the head of these.
    """
    if block is None or suspect.key < block.key:
        return True
    return suspect is block and _first(suspect.suspects) < _first(block.waiting)


def rows_before_suspects(block: DispatchBlock) -> int:
    """How many waiting rows of a block lie before its first suspect."""
    if not block.suspects:
        return counted_rows.size(block.waiting)
    before = (1 << _first(block.suspects)) - 1
    return (counted_rows.rows_of(block.waiting) & before).bit_count()


def outlive(consumer: Consumer, source: GrantSource) -> None:
    """Clear suspects that were handed over long ago: only behind them there is more."""
    trial = consumer.trial
    if trial is None:
        return
    if _goes_on(trial, source) or consumer.handed_over < consumer.granted:
        consumer.trial_since_ms = source.now_ms
    elif has_waited(consumer, source.now_ms):
        source.blocks.release(trial)


def _goes_on(trial: SuspectGroup, source: GrantSource) -> bool:
    """Whether the rest of a tried group comes next.

    Nothing that waits lies before it then.
    """
    lowest = source.blocks.suspects.lowest()
    if lowest is None or not trial.waiting:
        return False
    return comes_first(lowest, source.blocks.head()) and source.blocks.suspects.group_of(lowest) is trial


def grant_in_order(consumer: Consumer, head: DispatchBlock | None, source: GrantSource) -> list[Grant]:
    """Grant the lowest suspects of one group, if nothing else waits before them."""
    suspects = source.blocks.suspects
    lowest = suspects.lowest()
    if lowest is None:
        return []
    group = suspects.group_of(lowest)
    is_busy = consumer.unacked > 0 and consumer.trial is not group
    if is_busy and (consumer.trial is not None or not has_waited(consumer, source.now_ms)):
        return []
    rows_of = []
    for key, rows in group.waiting.items():
        block = suspects.block(key)
        others = counted_rows.rows_of(block.suspects) & ~rows
        if head is not None and key >= head.key:
            others |= counted_rows.rows_of(head.waiting) if key == head.key else 1
        if others:
            rows &= (others & -others) - 1
        if rows:
            rows_of.append((key, rows))
        if others:
            break
    grants: list[Grant] = []
    grant_waiting(consumer, group, rows_of, source, grants)
    return grants


def _first(parts: list[counted_rows.CountedRows]) -> int:
    return row_sets.first(counted_rows.rows_of(parts))


# ---- Shared: to anybody who is free


def dispatch_to_free(
    consumers: Collection[Consumer], source: GrantSource, grants: list[Grant]
) -> Consumer | None:
    """Give suspects to consumers that hold nothing; returns one kept free for the rest."""
    look_at_time(consumers, source)
    for consumer in consumers:
        if consumer.trial is not None and consumer.trial.waiting:
            grant_waiting(consumer, consumer.trial, consumer.trial.waiting.items(), source, grants)
    is_tried = any(consumer.trial is not None for consumer in consumers)
    for consumer in consumers:
        group = _first_free(source, consumer)
        if group is None:
            continue
        if consumer.trial is not None:
            # A program that wants all there is before it acknowledges anything gets all there is.
            is_ready = consumer.is_trial_over and not source.blocks.waiting_messages
        elif not may_try(consumer, source):
            continue
        else:
            is_kept = consumer.trial_since_ms is not None and has_waited(consumer, source.now_ms)
            is_ready = consumer.unacked == 0 or is_kept
        if is_ready and source.room_on_trial(consumer) > 0:
            grant_waiting(consumer, group, group.waiting.items(), source, grants)
            is_tried = True
    if is_tried or not any(_first_free(source, consumer) for consumer in consumers):
        for consumer in consumers:
            if consumer.trial is None:
                consumer.trial_since_ms = None
        return None
    kept = min(
        (c for c in consumers if c.trial is None and may_try(c, source) and source.room(c) > 0),
        key=lambda consumer: (consumer.trial_since_ms is None, consumer.unacked),
        default=None,
    )
    if kept is not None:
        has_waited(kept, source.now_ms)
    return kept


def _first_free(source: GrantSource, consumer: Consumer) -> SuspectGroup | None:
    """The first group that nobody has any part of.

    Of its first batch nobody else has a part either.
    """
    suspects = source.blocks.suspects
    for group in suspects:
        if group.deliveries or not group.waiting:
            continue
        if _is_free_for(consumer, group, suspects.block(group.waiting.peekitem(0)[0])):
            return group
    return None


# ---- Key_Shared: to the owner of the key

Owned = dict[int, list[tuple[SuspectGroup, list[tuple[Key, RowSet]]]]]
"""By number of the consumer: the groups that it owns rows of, and these."""


class MayTry(Protocol):
    """Whether suspects may come next to a consumer.

    Others may have been given to it since it had any.
    """

    def __call__(self, number: int, *, has_flowed: bool) -> bool: ...


def slots_of(suspects: SuspectGroups) -> set[int]:
    """The slots of all suspects, except of those that a consumer has had for long.

    Nothing else of them may go out.
    """
    slots: set[int] = set()
    for group in suspects:
        for key, rows in group.waiting.items():
            slots |= _slots(suspects.block(key), rows)
        for delivery in group.deliveries:
            if not delivery.consumer.is_trial_over:
                slots |= _slots(delivery.block, delivery.rows)
    return slots


def _slots(block: DispatchBlock, rows: RowSet) -> set[int]:
    if isinstance(block.slots, int):
        return {block.slots}
    assert block.slots is not None
    return set(block.slots[row_sets.numbers_of(rows)].tolist())


RowPlace = tuple[Key, int]
"""(key of a block, row in it), in the order of the log."""


def _slot(block: DispatchBlock, row: int) -> int:
    return block.slots if isinstance(block.slots, int) else int(block.slots[row])  # type: ignore[index]


class _Span:
    """The waiting suspects of a slot: each group's first place, and the last key."""

    __slots__ = ("firsts", "last")

    def __init__(self) -> None:
        self.firsts: dict[SuspectGroup, RowPlace] = {}
        self.last: Key = (-1, -1)


def _spans(suspects: SuspectGroups) -> dict[int, _Span]:
    """Where suspects wait, by slot."""
    spans: dict[int, _Span] = {}
    for group in suspects:
        for key, rows in group.waiting.items():
            block = suspects.block(key)
            for row in row_sets.numbers_of(rows).tolist():
                slot = _slot(block, row)
                if (span := spans.get(slot)) is None:
                    span = spans[slot] = _Span()
                span.firsts.setdefault(group, (key, row))
                span.last = max(span.last, key)
    return spans


def _grant_before(
    routes: KeyRoutes,
    index: WaitingIndex,
    spans: dict[int, _Span],
    source: GrantSource,
    grants: list[Grant],
) -> dict[int, RowPlace]:
    """Grant what waits before the first suspect of its slot.

    As far as the owners have room. Returns where the rest of each slot begins, for which suspects wait.
    """
    parked: list[tuple[int, DispatchBlock, RowSet]] = []
    of_numbers: dict[int, dict[Key, tuple[DispatchBlock, RowSet]]] = {}
    for slot, span in spans.items():
        number = routes.number_on_trial(slot)
        if number < 0:
            continue
        key, row = min(span.firsts.values())
        for block, rows in index.parked_through(slot, span.last):
            parked.append((slot, block, rows))
            if block.key == key:
                rows &= (1 << row) - 1
            if rows and block.key <= key:
                of_blocks = of_numbers.setdefault(number, {})
                of_blocks[block.key] = block, rows | of_blocks.get(block.key, (block, 0))[1]
    for number, of_blocks in of_numbers.items():
        for _, (block, rows) in sorted(of_blocks.items()):
            _grant_rows(routes.consumers[number], block, rows, source, grants)
    left: dict[int, RowPlace] = {}
    for slot, block, rows in parked:
        if rows := rows & counted_rows.rows_of(block.waiting):
            left.setdefault(slot, (block.key, row_sets.first(rows)))
    return left


def _grant_rows(
    consumer: Consumer, block: DispatchBlock, rows: RowSet, source: GrantSource, grants: list[Grant]
) -> None:
    """Grant waiting rows that are not suspect, as far as the consumer has room."""
    if (room := source.room(consumer)) <= 0:
        return
    chosen = rows if block.is_batch else row_sets.lowest(rows, room)
    for part, count in source.blocks.take_rows(block, chosen):
        grants.append(source.grant_taken(consumer, block, part, count))
    source.blocks.queue_rest(block)


def _owned(
    routes: KeyRoutes,
    suspects: SuspectGroups,
    spans: dict[int, _Span],
    left: dict[int, RowPlace],
) -> Owned:
    """Find which consumers may try which suspects.

    The owner of a slot may, once nobody else has messages of it. Suspects behind something of their slot that
    waits outside of their group have to wait for that.
    """
    found: Owned = {}
    for group in suspects:
        of_group: dict[int, dict[Key, RowSet]] = {}
        for key, rows in group.waiting.items():
            block = suspects.block(key)
            for row in row_sets.numbers_of(rows).tolist():
                slot = _slot(block, row)
                if slot in left and left[slot] < (key, row):
                    continue
                firsts = spans[slot].firsts
                if any(first < (key, row) for other, first in firsts.items() if other is not group):
                    continue
                number = routes.number_on_trial(slot)
                if number >= 0:
                    mine = of_group.setdefault(number, {})
                    mine[key] = mine.get(key, 0) | 1 << row
        for number, of_blocks in of_group.items():
            found.setdefault(number, []).append((group, list(of_blocks.items())))
    return found


def dispatch_to_owners(
    routes: KeyRoutes,
    index: WaitingIndex,
    may_try_next: MayTry,
    source: GrantSource,
    grants: list[Grant],
) -> set[int]:
    """Give suspects to owners that hold nothing.

    Before that, they get what waits before those in their slots. Returns the numbers of those kept free.
    """
    kept: set[int] = set()
    spans = _spans(source.blocks.suspects)
    left = _grant_before(routes, index, spans, source, grants)
    of_numbers = _owned(routes, source.blocks.suspects, spans, left)
    for number, consumer in enumerate(routes.consumers):
        groups = of_numbers.get(number, [])
        if consumer.trial is not None:
            mine = [(group, rows_of) for group, rows_of in groups if group is consumer.trial]
            wants_all = consumer.is_trial_over and may_try_next(number, has_flowed=False)
            groups = mine or (groups if wants_all else [])
        elif not groups:
            consumer.trial_since_ms = None
        elif not may_try_next(number, has_flowed=consumer.has_flowed):
            continue
        elif not has_waited(consumer, source.now_ms) and consumer.unacked:
            kept.add(number)
            continue
        if groups:
            group, rows_of = groups[0]
            grant_waiting(consumer, group, rows_of, source, grants)
    return kept
