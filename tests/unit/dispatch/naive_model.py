"""A dispatcher as simple as can be: a dictionary of messages, and clients that lose packets and crash.

Every grant of the real dispatcher is checked against it, and so are counts, pending acks and mark-delete.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.blocks.counted_rows import rows_of
from pulsar_ray.dispatch.consumer import ConsumerExit, ConsumerSpec
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.grant import DropQueue, Grant
from pulsar_ray.dispatch.key_shared.hash_regions import KeySharedSpec
from pulsar_ray.dispatch.key_shared.sticky_key import Slots
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription, ManagedCursor
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.row_sets import ranges_of
from tests.unit.dispatch.validation import validate

Message = tuple[int, int, int]
"""(ledger, entry, batch index or 0)."""
GRACE_MS = 5_000


@dataclass
class Client:
    """A consumer's client: what is on the way to it, in its queue, and in its application's hands."""

    spec: ConsumerSpec
    queue_size: int
    lane: deque[Grant | DropQueue] = field(default_factory=deque)
    queue: deque[tuple[Message, Grant, int]] = field(default_factory=deque)
    handed: dict[Message, tuple[Grant, int]] = field(default_factory=dict)
    received: int = 0
    received_messages: int = 0
    left_queue: int = 0
    reported_left: int = 0
    is_attached: bool = True
    epoch: int = 0

    @property
    def incarnation(self) -> int:
        return self.spec.incarnation


def messages_of(ref: BlockRef, rows: tuple[tuple[int, int], ...]) -> list[Message]:
    return [
        (ref.ledger_id, ref.first_entry_id + row, 0)
        if ref.row_is_entry
        else (ref.ledger_id, ref.first_entry_id, row)
        for start, end in rows
        for row in range(start, end)
    ]


@dataclass
class Facts:
    """What the model knows; a restart falls back to the facts of the last flush."""

    acked: set[Message] = field(default_factory=set)
    durable: set[Message] = field(default_factory=set)
    done: set[tuple[int, int]] = field(default_factory=set)
    counts: dict[tuple[int, int], int] = field(default_factory=dict)
    failures: dict[Message, int] = field(default_factory=dict)

    def copy(self) -> Facts:
        return Facts(
            set(self.acked), set(self.durable), set(self.done), dict(self.counts), dict(self.failures)
        )


class NaiveModel:
    """Who has which message, as far as the dispatcher's answers say: a dictionary entry for each."""

    def __init__(self, seed: int, consumer_type: ConsumerType, index_acks: bool) -> None:
        self.random = random.Random(seed)
        self.type = consumer_type
        self.index_acks = index_acks
        self.is_ordered = consumer_type not in (ConsumerType.Shared, ConsumerType.KeyShared)
        self.max_unacked = self.random.choice([0, 0, 12])
        self.refs: list[BlockRef] = []
        self.slots: dict[BlockRef, Slots] = {}
        self.keys = self.random.sample(range(1, 65_536), self.random.choice([1, 4, 12]))
        self.is_out_of_order = self.random.random() < 0.2
        self.entries: dict[tuple[int, int], list[Message]] = {}
        self.ref_of: dict[tuple[int, int], BlockRef] = {}
        self.facts = Facts()
        self.holder: dict[Message, tuple[int, bool]] = {}  # consumer id, granted as a suspect
        self.suspects: set[Message] = set()
        self.patience = False  # consumers may have had their suspects for long
        self.from_before: set[Message] = set()  # held since before a restart
        self.last_granted: tuple[int, Message] | None = None
        cursor = ManagedCursor(CursorSubscription("s"), Position(0, -1))
        points = self.random.choice([0, 0, 3])
        settings = DispatchSettings(
            self.max_unacked,
            0,
            self.index_acks,
            GRACE_MS,
            key_shared_replica_points=points,
        )
        self.dispatcher = Dispatcher(cursor, settings, epoch=1, now_ms=0)

    def is_complete(self, entry: tuple[int, int]) -> bool:
        return all(message in self.facts.acked for message in self.entries[entry])

    def new_slots(self, ref: BlockRef) -> Slots:
        """Keys of a block: one, or one for each row that is an entry."""
        if not ref.row_is_entry or self.random.random() < 0.2:
            return self.random.choice(self.keys)
        return np.array(self.random.choices(self.keys, k=ref.messages), np.uint16)

    def slot_of(self, message: Message) -> int:
        ref = self.ref_of[message[:2]]
        slots = self.slots[ref]
        return slots if isinstance(slots, int) else int(slots[message[1] - ref.first_entry_id])

    def key_shared_spec(self) -> KeySharedSpec:
        return KeySharedSpec(allow_out_of_order_delivery=self.is_out_of_order and self.random.random() < 0.5)

    def owner_of(self, message: Message) -> ConsumerSpec:
        """Who owns the message's key, looked up in the regions one by one."""
        assert self.dispatcher.type.keyed is not None
        slot = self.slot_of(message)
        for first, last, owner in self.dispatcher.type.keyed.routes.regions.regions():
            if first <= slot <= last:
                return self.dispatcher.consumers[owner].spec
        raise AssertionError(f"nobody owns {slot}")

    def check_key(self, incarnation: int, message: Message) -> None:
        """It goes to the key's owner, the key is nowhere else, and nothing of the key is left before it."""
        owner = self.owner_of(message)
        assert owner.incarnation == incarnation, f"{message} is of a key of {owner.name}"
        if self.is_out_of_order:
            return
        slot = self.slot_of(message)
        for other, (holder, _) in self.holder.items():
            assert holder == incarnation or self.slot_of(other) != slot, f"{other} of the key is at {holder}"
        for entry, messages in self.entries.items():
            if entry < message[:2]:
                for other in messages:
                    is_left = other not in self.holder and other not in self.facts.acked
                    is_left = is_left and entry not in self.facts.counts
                    assert not (is_left and self.slot_of(other) == slot), f"{other} comes before {message}"

    def check_nothing_is_stuck(self) -> None:
        """After dispatching: what was read and waits has an owner without room, or its key is elsewhere."""
        dispatcher = self.dispatcher
        if (
            dispatcher.type.keyed is None
            or not dispatcher.consumers
            or self.suspects
            or dispatcher.returning.claims
        ):
            return
        for entry, messages in self.entries.items():
            for message in messages:
                if (
                    entry >= dispatcher.intake.read_position
                    or message in self.holder
                    or message in self.facts.acked
                ):
                    continue
                owner = self.owner_of(message)
                if dispatcher.room(dispatcher.consumers[owner.incarnation]) > 0:
                    slot = self.slot_of(message)
                    elsewhere = {
                        holder
                        for other, (holder, _) in self.holder.items()
                        if self.slot_of(other) == slot and holder != owner.incarnation
                    }
                    assert elsewhere, f"{message} waits although {owner.name} has room"

    def check_grant(self, grant: Grant, rows: list[Message]) -> None:
        facts = self.facts
        assert rows
        mine = {s for c, s in self.holder.values() if c == grant.incarnation}
        if grant.is_suspect:
            assert set(rows) <= self.suspects, "not suspects"
            assert mine <= {True} or self.patience, "suspects not alone"
        else:
            assert True not in mine or self.patience, "beside suspects"
        for message in rows:
            assert message not in self.holder, f"{message} is at {self.holder[message]} already"
            assert not self.is_complete(message[:2]), f"{message} is acknowledged"
            assert message not in facts.durable, f"{message} was acknowledged durably by index"
            assert grant.is_suspect or message not in self.suspects, f"{message} is suspect"
            assert grant.redelivery_count == facts.counts.get(message[:2], 0), f"count of {message}"
            if self.is_ordered:
                at = (self.dispatcher.generation, message)
                assert self.last_granted is None or at > self.last_granted, f"{message} out of order"
                self.last_granted = at
        if grant.block.is_batch:
            known = {m: f for m in self.entries[rows[0][:2]] if (f := facts.failures.get(m))}
            told = {(*rows[0][:2], r): f for a, b, f in grant.row_failures for r in range(a, b)}
            assert told == known, "failures by row"
            if not grant.is_suspect:
                absent = (
                    set(self.entries[rows[0][:2]])
                    - set(rows)
                    - self.suspects
                    - facts.acked
                    - set(self.holder)
                )
                assert not absent, f"batch came without {absent}"
        for message in rows:
            if self.type is ConsumerType.KeyShared:
                self.check_key(grant.incarnation, message)
            self.holder[message] = (grant.incarnation, grant.is_suspect)
            self.suspects.discard(message)
            self.from_before.discard(message)
        if self.max_unacked and not self.is_ordered:
            held = sum(1 for c, _ in self.holder.values() if c == grant.incarnation)
            assert held < self.max_unacked + 9

    def acked(self, message: Message, by_index: bool = True) -> None:
        if self.is_complete(message[:2]):
            return
        self.facts.acked.add(message)
        if (self.index_acks and by_index) or (
            self.ref_of[message[:2]].is_batch and message[:2] >= self.dispatcher.intake.read_position
        ):
            self.facts.durable.add(message)
        if self.holder.get(message) is not None:
            del self.holder[message]
        self.suspects.discard(message)
        if self.is_complete(message[:2]):
            for row in self.entries[message[:2]]:
                self.holder.pop(row, None)
                self.suspects.discard(row)
                self.facts.failures.pop(row, None)
            self.facts.counts.pop(message[:2], None)

    def fail(self, incarnation: int, failed: list[Message]) -> None:
        """Count failures per entry and per message, and let go of what comes again with them."""
        for entry in {message[:2] for message in failed}:
            self.facts.counts[entry] = self.facts.counts.get(entry, 0) + 1
            if self.ref_of[entry].is_batch:
                for row in self.entries[entry]:
                    if self.holder.get(row, (0,))[0] == incarnation:
                        del self.holder[row]
        for message in failed:
            if self.ref_of[message[:2]].is_batch:
                self.facts.failures[message] = self.facts.failures.get(message, 0) + 1
            self.holder.pop(message, None)

    def take_back(self, incarnation: int, messages: list[Message]) -> None:
        """Let messages come again, and the rest of their batches with them, without counting a failure."""
        for message in messages:
            whole = self.entries[message[:2]] if self.ref_of[message[:2]].is_batch else [message]
            for row in whole:
                if self.holder.get(row, (0,))[0] == incarnation:
                    del self.holder[row]

    def claim(self, client: Client, held: dict[tuple[int, int], list[tuple[int, int]]]) -> None:
        for key, rows in held.items():
            ref = self.ref_of[key]
            free = [
                message
                for message in messages_of(ref, tuple(sorted(rows)))
                if message not in self.holder
                and message not in self.facts.durable
                and not self.is_complete(message[:2])
            ]
            for message in free:
                self.holder[message] = (client.incarnation, False)
                self.suspects.discard(message)
                self.from_before.add(message)
            if ref.is_batch and free:
                self.facts.acked.update(
                    m for m in self.entries[key] if m not in self.holder and m not in self.facts.acked
                )

    def let_go(self, client: Client, how: ConsumerExit) -> None:
        """Count a failure if it was given one message alone, or one suspect, when it crashed."""
        held = [m for m, (c, _) in self.holder.items() if c == client.incarnation]
        consumer = self.dispatcher.consumers.get(client.incarnation)
        if how is ConsumerExit.CRASHED and consumer is not None:
            consumer.handed_over = client.left_queue
            handed = []
            for delivery in sorted(consumer.deliveries, key=lambda each: (each.block.key, each.number)):
                rows = messages_of(delivery.block.ref, ranges_of(delivery.handed_over_rows()))
                handed += [(message, delivery.group) for message in rows]
            tried = [message for message, group in handed if group is not None]
            to_blame = tried or [message for message, _ in handed]
            if len(to_blame) == 1:
                self.fail(client.incarnation, to_blame)
        for message in held:
            self.holder.pop(message, None)

    def look_at_suspects(self) -> None:
        """Take over which messages are suspect: no more than crashed consumers had."""
        self.suspects = {
            message
            for block in self.dispatcher.blocks.index.values()
            for message in messages_of(block.ref, ranges_of(rows_of(block.suspects)))
        }
        for block in self.dispatcher.blocks.index.values():
            for delivery in block.deliveries:
                for message in messages_of(block.ref, ranges_of(delivery.rows)):
                    if message in self.holder:
                        self.holder[message] = (self.holder[message][0], delivery.group is not None)
        if not self.dispatcher.blocks.suspects.groups:
            self.patience = False

    def validate(self) -> None:
        validate(self.dispatcher)
        self.look_at_suspects()
        cursor = self.dispatcher.cursor
        read = self.dispatcher.intake.read_position
        below = [entry for entry in self.entries if entry < read]
        left = [entry for entry in below if not self.is_complete(entry)]
        known = [entry for entry in below if not cursor.is_acknowledged(Position(*entry))]
        assert left == known, f"unacknowledged entries {known}, expected {left}"
        first_left = min(left, default=None)
        if first_left is not None:
            assert cursor.mark_delete < first_left
        pending = {
            message: delivery.consumer.spec.incarnation
            for block in self.dispatcher.blocks.index.values()
            for delivery in block.deliveries
            for message in messages_of(block.ref, ranges_of(delivery.rows))
        }
        expected = {m: c for m, (c, _) in self.holder.items() if m[:2] < read}
        assert pending == expected, "pending at other consumers than expected"
