"""How a policy hands out suspects: a group at a time, to a free consumer.

Between two groups, and before its first, a consumer gets other messages if any wait: these go on even if
every consumer there ever is ends with its suspects. While suspects wait one consumer gets nothing else, so
that it becomes free. A program may want more messages before it acknowledges those that it has: so nobody
waits for longer than `PATIENCE_MS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from operator import itemgetter
from typing import NamedTuple

from pulsar_ray.dispatch.blocks import counted_rows
from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import Consumer, DispatchBlock, Key, SuspectGroup
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.key_shared.key_routes import KeyRoutes, WaitingIndex
from pulsar_ray.dispatch.subscription_types.policy import GrantSource
from pulsar_ray.dispatch.suspects.groups import SuspectGroups
from pulsar_ray.model import row_sets
from pulsar_ray.model.row_sets import RowSet


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


def end_patience(consumers: Iterable[Consumer], source: GrantSource) -> None:
    """Let consumers go on that have had their suspects for long."""
    for consumer in consumers:
        trial = consumer.trial
        if trial.deliveries and not trial.is_over and trial.has_waited(source.now_ms):
            trial.is_over = True
            source.blocks.suspects.version += 1


# ---- one active consumer: in the order of the log


class Run(NamedTuple):
    """Rows that wait next in the log: suspects of one group, or none."""

    block: DispatchBlock
    rows: RowSet
    group: SuspectGroup | None


def next_run(blocks: DispatchBlocks) -> Run | None:
    """Find the run at the lowest place that waits."""
    block, suspect = blocks.head(), blocks.suspects.lowest()
    if suspect is not None and (block is None or suspect.key < block.key):
        block = suspect
    if block is None:
        return None
    waiting = counted_rows.rows_of(block.waiting)
    both = waiting | counted_rows.rows_of(block.suspects)
    group = None if waiting & both & -both else blocks.suspects.group_of(block)
    rows = waiting if group is None else group.waiting[block.key]
    others = both & ~rows
    return Run(block, rows & ((others & -others) - 1), group)


def clear_outlived(consumer: Consumer, source: GrantSource) -> None:
    """Clear suspects that were handed over long ago: only behind them there is more."""
    trial = consumer.trial
    if (group := trial.group) is None:
        return
    run = next_run(source.blocks)
    if (run is not None and run.group is group) or consumer.handed_over < consumer.granted:
        trial.since_ms = source.now_ms
    elif trial.has_waited(source.now_ms):
        source.blocks.release(group)


def may_try_in_order(consumer: Consumer, group: SuspectGroup, now_ms: int) -> bool:
    """Whether a consumer tries this group already, or may begin to."""
    trial = consumer.trial
    if trial.deliveries:
        return trial.group is group
    return not consumer.unacked or trial.has_waited(now_ms)


# ---- Shared: to anybody who is free


def dispatch_to_free(
    consumers: Collection[Consumer], source: GrantSource, grants: list[Grant]
) -> Consumer | None:
    """Give suspects to consumers that hold nothing; returns one kept free for the rest."""
    end_patience(consumers, source)
    for consumer in consumers:
        if (group := consumer.trial.group) is not None:
            grant_waiting(consumer, group, group.waiting.items(), source, grants)
    for consumer in consumers:
        if _is_ready(consumer, source) and (group := _first_free(source, consumer)) is not None:
            grant_waiting(consumer, group, group.waiting.items(), source, grants)
    untried = [consumer for consumer in consumers if not consumer.trial.deliveries]
    if len(untried) < len(consumers) or not any(_first_free(source, consumer) for consumer in untried):
        for consumer in untried:
            consumer.trial.since_ms = None
        return None
    kept = min(
        (consumer for consumer in untried if _may_try(consumer, source) and source.room(consumer) > 0),
        key=lambda consumer: (consumer.trial.since_ms is None, consumer.unacked),
        default=None,
    )
    if kept is not None:
        kept.trial.has_waited(source.now_ms)
    return kept


def _is_ready(consumer: Consumer, source: GrantSource) -> bool:
    """Whether a consumer may try the next group."""
    trial = consumer.trial
    if trial.deliveries:
        # A program that wants all there is before it acknowledges anything gets all there is.
        return trial.is_over and not source.blocks.waiting_messages
    is_kept = trial.since_ms is not None and trial.has_waited(source.now_ms)
    return _may_try(consumer, source) and (consumer.unacked == 0 or is_kept)


def _may_try(consumer: Consumer, source: GrantSource) -> bool:
    """Whether suspects may come next: messages that wait as usual had their turn."""
    return consumer.trial.has_flowed or not source.blocks.waiting_messages


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

RowPlace = tuple[Key, int]
"""(key of a block, row in it), in the order of the log."""


def held_slots(suspects: SuspectGroups) -> set[int]:
    """The slots of all suspects, except of those that a consumer has had for long.

    Nothing else of them may go out.
    """
    slots: set[int] = set()
    for group in suspects:
        for key, rows in group.waiting.items():
            slots |= _slots(suspects.block(key), rows)
        for delivery in group.deliveries:
            if not delivery.consumer.trial.is_over:
                slots |= _slots(delivery.block, delivery.rows)
    return slots


def _slots(block: DispatchBlock, rows: RowSet) -> set[int]:
    if isinstance(block.slots, int):
        return {block.slots}
    assert block.slots is not None
    return set(block.slots[row_sets.numbers_of(rows)].tolist())


class _SlotRun:
    """Holds the suspects of a slot that come next, all of one group."""

    __slots__ = ("end", "group", "last", "number", "places")

    def __init__(self, group: SuspectGroup, number: int) -> None:
        self.group = group
        self.number = number
        """The number of the consumer that may try them."""
        self.places: list[RowPlace] = []
        """All of the group in this slot."""
        self.end: RowPlace = ((1 << 62, 0), 0)
        """Where the first thing of the slot waits that is not of the group."""
        self.last: Key = (-1, -1)
        """The last block with suspects of this slot, whatever their group."""


def _slot_runs(suspects: SuspectGroups, routes: KeyRoutes) -> list[tuple[int, _SlotRun]]:
    """Find the next suspects of each slot, without slots that another consumer drains."""
    waiting = [
        ((key, row), group)
        for group in suspects
        for key, rows in group.waiting.items()
        for row in row_sets.numbers_of(rows).tolist()
    ]
    runs: dict[int, _SlotRun] = {}
    for place, group in sorted(waiting, key=itemgetter(0)):
        (key, row), slots = place, suspects.block(place[0]).slots
        slot = slots if isinstance(slots, int) else int(slots[row])  # type: ignore[index]
        if (run := runs.get(slot)) is None:
            run = runs[slot] = _SlotRun(group, routes.number_on_trial(slot))
        if run.group is group:
            run.places.append(place)
        else:
            run.end = min(run.end, place)
        run.last = key
    return [(slot, run) for slot, run in runs.items() if run.number >= 0]


def _grant_before(
    runs: list[tuple[int, _SlotRun]],
    routes: KeyRoutes,
    index: WaitingIndex,
    source: GrantSource,
    grants: list[Grant],
) -> None:
    """Grant what waits before the first suspect of its slot.

    The owners get as much as they have room for. Messages that are left, or lie behind, end the run of their
    slot: its suspects wait for them.
    """
    parked: list[tuple[_SlotRun, DispatchBlock, RowSet]] = []
    of_numbers: dict[int, dict[Key, tuple[DispatchBlock, RowSet]]] = {}
    for slot, run in runs:
        key, row = run.places[0]
        for block, rows in index.parked_through(slot, run.last):
            parked.append((run, block, rows))
            if block.key == key:
                rows &= (1 << row) - 1
            if rows and block.key <= key:
                of_blocks = of_numbers.setdefault(run.number, {})
                of_blocks[block.key] = block, rows | of_blocks.get(block.key, (block, 0))[1]
    for number, of_blocks in of_numbers.items():
        for _, (block, rows) in sorted(of_blocks.items()):
            _grant_rows(routes.consumers[number], block, rows, source, grants)
    for run, block, rows in parked:
        if rows := rows & counted_rows.rows_of(block.waiting):
            run.end = min(run.end, (block.key, row_sets.first(rows)))


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


def dispatch_to_owners(
    routes: KeyRoutes,
    index: WaitingIndex,
    has_others: Callable[[int], bool],
    source: GrantSource,
    grants: list[Grant],
) -> set[int]:
    """Give suspects to owners that hold nothing, once nobody else has messages of their slots.

    Before that, they get what waits before those in their slots. `has_others` tells of a consumer, by its
    number, whether messages that are not suspect wait for it. Returns the numbers of those kept free.
    """
    runs = _slot_runs(source.blocks.suspects, routes)
    _grant_before(runs, routes, index, source, grants)
    owned: dict[int, dict[SuspectGroup, dict[Key, RowSet]]] = {}
    for _, run in runs:
        for key, row in run.places:
            if (key, row) < run.end:
                rows_of = owned.setdefault(run.number, {}).setdefault(run.group, {})
                rows_of[key] = rows_of.get(key, 0) | 1 << row
    kept: set[int] = set()
    for number, consumer in enumerate(routes.consumers):
        groups, trial = owned.get(number, {}), consumer.trial
        group = min(groups, key=lambda group: group.number, default=None)
        if trial.deliveries:
            if trial.group in groups:
                group = trial.group
            elif not trial.is_over or has_others(number):
                continue
        elif group is None:
            trial.since_ms = None
        elif not trial.has_flowed and has_others(number):
            continue
        elif not trial.has_waited(source.now_ms) and consumer.unacked:
            kept.add(number)
            continue
        if group is not None:
            grant_waiting(consumer, group, sorted(groups[group].items()), source, grants)
    return kept
