"""Why messages of a subscription wait: which hash, which consumer, which message ids, since when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pulsar_ray.dispatch.blocks import counted_rows
from pulsar_ray.dispatch.consumer import Consumer, Delivery, DispatchBlock
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.key_shared.key_routes import NOWHERE, Parked
from pulsar_ray.dispatch.key_shared.policy import KeySharedPolicy
from pulsar_ray.model import row_sets
from pulsar_ray.numpy_on_demand import np

MAX_SHOWN = 100
"""Hashes, and message ids of each consumer, that are listed; more are only counted."""
ALL_ACKNOWLEDGED = "everything is acknowledged"
ALL_DELIVERED = "everything was delivered and waits to be acknowledged"
NOTHING_KEEPS = "nothing keeps messages from going out"
NOTHING_IN_THE_WAY = (ALL_ACKNOWLEDGED, ALL_DELIVERED, NOTHING_KEEPS)
"""How a reason begins that is none."""


@dataclass(frozen=True, slots=True)
class Delayed:
    """Counts messages that wait for their time, and says when the next is due.

    `problem` is what their tracker complains of.
    """

    messages: int = 0
    due_in_ms: int | None = None
    problem: str = ""


def why_blocked(dispatcher: Dispatcher, now_ms: int, delayed: Delayed = Delayed()) -> dict[str, Any]:
    """Describe what keeps messages from going out now.

    `reason` has the most important of it in a sentence.

    `hashes`: those of a Key_Shared subscription whose messages wait although their consumer might take them,
    with `heldBy` (consumer, unacknowledged messages, their ids as [ledger, entry, batch index]), `owner` and
    `blockedMs`. `consumers`: who can take nothing at all, and why. `delayedMessages` wait for their time; the
    next of them is due in `delayedDueInMs`. `nackedMessages` wait at their consumers for the delay of their
    negative acknowledgment; the first of them comes again in `nackedDueInMs`.
    """
    nacked, nacked_due_in_ms = _nacked(dispatcher.consumers.values(), now_ms)
    hashes, not_shown = _hashes(dispatcher, now_ms)
    consumers = [
        described
        for consumer in dispatcher.consumers.values()
        if (described := _consumer(dispatcher, consumer, now_ms))
    ]
    kind = dispatcher.type.kind
    return {
        "type": "" if kind is None else kind.name.replace("KeyShared", "Key_Shared"),
        "reason": _reason(dispatcher, hashes, consumers, now_ms, delayed),
        "msgBacklog": dispatcher.cursor.backlog(),
        "waitingMessages": dispatcher.blocks.waiting_messages,
        "unackedMessages": dispatcher.blocks.unacked_messages,
        "delayedMessages": delayed.messages,
        "delayedDueInMs": delayed.due_in_ms,
        "nackedMessages": nacked,
        "nackedDueInMs": nacked_due_in_ms,
        "hashes": hashes,
        "hashesNotShown": not_shown,
        "consumers": consumers,
    }


def _reason(
    dispatcher: Dispatcher,
    hashes: list[dict[str, Any]],
    consumers: list[dict[str, Any]],
    now_ms: int,
    delayed: Delayed,
) -> str:
    if not dispatcher.cursor.backlog():
        reason = ALL_ACKNOWLEDGED
    elif not dispatcher.consumers:
        reason = "no consumer is connected"
    elif dispatcher.awaits_consumers:
        reason = "consumers from before a restart are awaited"
    elif dispatcher.is_full_of_unacked:
        unacked = dispatcher.blocks.unacked_messages
        reason = f"max_unacked_messages_per_subscription is reached: {unacked} messages are unacknowledged"
        reason += _of_which(_nacked(dispatcher.consumers.values(), now_ms))
    elif wait_ms := dispatcher.throttled_ms(now_ms):
        reason = f"the policy subscription_dispatch_rate is reached: it lets messages go in {wait_ms} ms"
    elif hashes:
        reason = f"hash {hashes[0]['hash']}: {hashes[0]['reason']}"
    elif in_the_way := _in_the_way(dispatcher, consumers):
        reason = f"consumer {in_the_way[0]['consumerName']}: {in_the_way[0]['reason']}"
    elif dispatcher.blocks.waiting_messages or dispatcher.has_unread:
        reason = NOTHING_KEEPS
    elif delayed.problem:
        reason = delayed.problem
    elif delayed.messages:
        reason = _waits_for_its_time(delayed)
    else:
        reason = ALL_DELIVERED
        reason += _of_which(_nacked(dispatcher.consumers.values(), now_ms))
    return reason


def _nacked(consumers: Iterable[Consumer], now_ms: int) -> tuple[int, int | None]:
    """Failed messages that wait for their delay, and the ms until the first.

    A consumer that has acknowledged some after all does not tell of that before their delay is over.
    """
    told = [(min(consumer.nacked[0], consumer.unacked), consumer.nacked[1]) for consumer in consumers]
    waiting = [each for each in told if each[0]]
    if not waiting:
        return 0, None
    return sum(messages for messages, _ in waiting), max(0, min(due for _, due in waiting) - now_ms)


def _of_which(nacked: tuple[int, int | None]) -> str:
    messages, due_in_ms = nacked
    if due_in_ms is None:
        return ""
    return (
        f"; {messages} of them were acknowledged negatively and wait at their consumer for the delay, "
        f"the first comes again in {due_in_ms / 1000:,.1f} s"
    )


def _waits_for_its_time(delayed: Delayed) -> str:
    if delayed.due_in_ms is None:
        return f"{delayed.messages} delayed messages wait for their time"
    seconds = delayed.due_in_ms / 1000
    return f"{delayed.messages} delayed messages wait for their time; the next is due in {seconds:,.1f} s"


def _in_the_way(dispatcher: Dispatcher, consumers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the consumers that have messages waiting.

    If nobody takes anything, nothing is read, and all of them are.
    """
    waited_for = [one for one in consumers if one["waitingMessages"]]
    if not waited_for and dispatcher.has_unread and len(consumers) == len(dispatcher.consumers):
        return consumers
    return waited_for


def _consumer(dispatcher: Dispatcher, consumer: Consumer, now_ms: int) -> dict[str, Any] | None:
    reason = dispatcher.why_no_room(consumer)
    if reason is None:
        return None
    nacked = _nacked([consumer], now_ms)
    return {
        "consumerName": consumer.spec.name,
        "reason": reason + _of_which(nacked),
        "nackedMessages": nacked[0],
        "nackedDueInMs": nacked[1],
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked,
        "waitingMessages": _waiting_for(dispatcher, consumer),
    }


def _waiting_for(dispatcher: Dispatcher, consumer: Consumer) -> int:
    keyed = dispatcher.type.keyed
    if keyed is None:
        return dispatcher.blocks.waiting_messages
    number = keyed.routes.consumers.index(consumer)
    blocks = [*dispatcher.blocks.waiting.values(), *dispatcher.blocks.fresh]
    return sum(int(np.count_nonzero(_routes(keyed, block) == number)) for block in blocks if block.waiting)


def _routes(keyed: KeySharedPolicy, block: DispatchBlock) -> Any:
    rows = row_sets.numbers_of(counted_rows.rows_of(block.waiting))
    slots = block.slots
    return keyed.routes.table[np.full(len(rows), slots) if isinstance(slots, int) else slots[rows]]  # type: ignore[index]


def _hashes(dispatcher: Dispatcher, now_ms: int) -> tuple[list[dict[str, Any]], int]:
    keyed = dispatcher.type.keyed
    if keyed is None:
        return [], 0
    found = [
        (slot, parked) for slot, parked in keyed.index.parked.items() if keyed.routes.table[slot] == NOWHERE
    ]
    found.sort(key=lambda item: item[1].since_ms)
    described = [_hash(dispatcher, keyed, slot, parked, now_ms) for slot, parked in found[:MAX_SHOWN]]
    described = [one for one in described if one["waitingMessages"]]
    return described, max(len(found) - MAX_SHOWN, 0)


def _hash(
    dispatcher: Dispatcher, keyed: KeySharedPolicy, slot: int, parked: Parked, now_ms: int
) -> dict[str, Any]:
    owner = keyed.routes.owner(slot)
    holders = [dispatcher.consumers[incarnation] for incarnation in keyed.routes.draining.holders(slot)]
    waiting = sorted(
        _message_id(block, int(row))
        for block in parked.blocks.values()
        if block.waiting
        for row in _rows_of_slot(block, slot, row_sets.numbers_of(counted_rows.rows_of(block.waiting)))
    )
    held_by = [_holding(holder, slot) for holder in holders]
    if held_by:
        names = ", ".join(f"{one['consumerName']} ({one['unackMsgs']} unacknowledged)" for one in held_by)
        reason = f"moved to {owner.spec.name if owner else 'nobody'} and still drains at {names}"
    else:
        reason = "no sticky consumer declares it"
    return {
        "hash": slot,
        "reason": reason,
        "owner": None if owner is None else owner.spec.name,
        "heldBy": held_by,
        "waitingMessages": len(waiting),
        "firstWaiting": waiting[0] if waiting else None,
        "blockedMs": now_ms - parked.since_ms,
    }


def _holding(holder: Consumer, slot: int) -> dict[str, Any]:
    ids = [message_id for delivery in holder.deliveries for message_id in _ids_of_slot(delivery, slot)]
    ids.sort()
    return {"consumerName": holder.spec.name, "unackMsgs": len(ids), "messageIds": ids[:MAX_SHOWN]}


def _ids_of_slot(delivery: Delivery, slot: int) -> list[list[int]]:
    if not delivery.rows:
        return []
    rows = _rows_of_slot(delivery.block, slot, row_sets.numbers_of(delivery.rows))
    return [_message_id(delivery.block, int(row)) for row in rows]


def _rows_of_slot(block: DispatchBlock, slot: int, rows: Any) -> Any:
    slots = block.slots
    if isinstance(slots, int):
        return rows if slots == slot else rows[:0]
    assert slots is not None
    return rows[slots[rows] == slot]


def _message_id(block: DispatchBlock, row: int) -> list[int]:
    """[ledger, entry, batch index or -1]."""
    ref = block.ref
    if ref.is_batch:
        return [ref.ledger_id, ref.first_entry_id, row]
    return [ref.ledger_id, ref.first_entry_id + row, -1]
