"""Where each slot's messages go now: to its owner, or nowhere while it drains.

A hash drains while its former consumer has unacknowledged messages of it. They wait, and only they, so that
the messages of a key are with one consumer at a time (PIP-379).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from sortedcontainers import SortedDict

from pulsar_ray.dispatch.blocks import counted_rows
from pulsar_ray.dispatch.consumer import Consumer, ConsumerSpec, Delivery, DispatchBlock, Shares
from pulsar_ray.dispatch.key_shared.hash_regions import HashRegions
from pulsar_ray.dispatch.key_shared.sticky_key import SLOTS
from pulsar_ray.model import row_sets
from pulsar_ray.model.row_sets import RowSet, numbers_of
from pulsar_ray.numpy_on_demand import np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Drain:
    """One hash at one consumer: its unacknowledged messages, and how often it kept messages waiting."""

    __slots__ = ("blocked_attempts", "unacked")

    def __init__(self, unacked: int) -> None:
        self.unacked = unacked
        self.blocked_attempts = 0


class Held(NamedTuple):
    """A consumer has this many unacknowledged messages of a slot that belongs to another one."""

    incarnation: int
    slot: int
    messages: int


class DrainingHashes:
    """By consumer that drains, and by slot. Bounded by what consumers may have unacknowledged."""

    def __init__(self) -> None:
        self._of: dict[int, dict[int, Drain]] = {}
        self._cleared: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(len(drains) for drains in self._of.values())

    def is_drained_by(self, incarnation: int) -> bool:
        """Whether this consumer drains any slot."""
        return incarnation in self._of

    def holders(self, slot: int) -> list[int]:
        """The consumers that drain a slot."""
        return [incarnation for incarnation, drains in self._of.items() if slot in drains]

    def slots(self) -> set[int]:
        """All slots that drain."""
        return {slot for drains in self._of.values() for slot in drains}

    def replace(self, held: Iterable[Held]) -> None:
        """Take the slots that drain now; those that drained before keep their counters."""
        before, self._of = self._of, {}
        for incarnation, slot, messages in held:
            drain = before.get(incarnation, {}).get(slot) or Drain(0)
            drain.unacked = messages
            self._of.setdefault(incarnation, {})[slot] = drain
        for incarnation, drains in before.items():
            ended = sum(1 for slot in drains if slot not in self._of.get(incarnation, {}))
            self._cleared[incarnation] = self._cleared.get(incarnation, 0) + ended

    def add(self, held: Held) -> None:
        """A consumer turns out to hold more messages of a slot that is another's."""
        drains = self._of.setdefault(held.incarnation, {})
        drains.setdefault(held.slot, Drain(0)).unacked += held.messages

    def settle(self, incarnation: int, slot: int, messages: int) -> bool:
        """So many messages are not pending any more; returns whether that ended the consumer's drain."""
        drains = self._of.get(incarnation, {})
        drain = drains.get(slot)
        if drain is None:
            return False
        drain.unacked -= messages
        if drain.unacked > 0:
            return False
        del drains[slot]
        if not drains:
            del self._of[incarnation]
        self._cleared[incarnation] = self._cleared.get(incarnation, 0) + 1
        return True

    def block(self, slot: int) -> None:
        """Messages of a slot were looked at and not dispatched, because it drains."""
        for drains in self._of.values():
            if (drain := drains.get(slot)) is not None:
                drain.blocked_attempts += 1

    def forget(self, incarnation: int) -> None:
        """The consumer is gone."""
        self._of.pop(incarnation, None)
        self._cleared.pop(incarnation, None)

    def clear(self) -> None:
        """Nothing is pending anywhere."""
        self.replace(())

    def stats(self, incarnation: int) -> dict[str, Any]:
        """Describe a consumer's draining hashes with Pulsar's names.

        Messages are counted, not entries.
        """
        drains = self._of.get(incarnation, {})
        return {
            "drainingHashesCount": len(drains),
            "drainingHashesClearedTotal": self._cleared.get(incarnation, 0),
            "drainingHashesUnackedMessages": sum(drain.unacked for drain in drains.values()),
            "drainingHashes": [
                {"hash": slot, "unackMsgs": drain.unacked, "blockedAttempts": drain.blocked_attempts}
                for slot, drain in sorted(drains.items())
            ],
        }


NOWHERE = -1
_FEW = 16
"""With so few consumers comparing is cheaper than finding out whose rows a block has."""


class KeyRoutes:
    """Consumers by number, and the number of each slot.

    Messages that a consumer still holds of slots it has lost are counted when they move, so that nothing is
    counted per message while nobody comes or goes. Slots whose new owner allows out of order delivery do not
    wait.
    """

    def __init__(self, regions: HashRegions) -> None:
        self.regions = regions
        self.consumers: list[Consumer] = []
        self.draining = DrainingHashes()
        self.table: NDArray[np.int32] = np.full(SLOTS, NOWHERE, np.int32)
        """The number of the consumer that gets messages of a slot, NOWHERE if they wait."""
        self._owners: NDArray[np.int32] = self.table.copy()
        self._numbers: NDArray[np.int32] = np.array([NOWHERE], np.int32)
        """All that the table may have."""
        self._held: set[int] = set()
        """Slots of suspects, of which nothing else goes out."""
        self._version = object()
        """Another object whenever a slot moves.

        It is no number: blocks outlive these routes and keep their shares.
        """

    def admit(self, spec: ConsumerSpec) -> None:
        """Give a consumer slots; `join` follows. Raises ConsumerAssignError, and then nothing has changed."""
        self.regions.add(spec.incarnation, spec.name, spec.key_shared)

    def join(self, consumer: Consumer) -> None:
        """The consumer is there: slots have moved to it."""
        self.consumers.append(consumer)
        self._refresh()

    def leave(self, consumer: Consumer) -> None:
        """The consumer is gone, and what it holds will come back."""
        self.consumers.remove(consumer)
        self.regions.remove(consumer.spec.incarnation)
        self.draining.forget(consumer.spec.incarnation)
        self._refresh()

    def owner(self, slot: int) -> Consumer | None:
        """Whose slot it is, drained or not."""
        number = int(self._owners[slot])
        return None if number < 0 else self.consumers[number]

    def number_on_trial(self, slot: int) -> int:
        """The number of the consumer that may try suspects of a slot.

        NOWHERE while another one drains it.
        """
        return NOWHERE if self.draining.holders(slot) else int(self._owners[slot])

    def hold(self, slots: set[int]) -> tuple[set[int], list[int]]:
        """Hold these slots back and no others.

        Returns those that were not held, and those that are free again.
        """
        before, self._held = self._held, slots
        added = slots - before
        for slot in added:
            self._send(slot, NOWHERE)
        return added, [slot for slot in before - slots if self._set_route(slot)]

    def shares(self, block: DispatchBlock) -> dict[int, RowSet]:
        """Split the rows of a block by their consumers' numbers, NOWHERE among them.

        Found anew only after a slot has moved.
        """
        if block.shares is None or block.shares.version is not self._version:
            block.shares = Shares(self._version, self._shares(block))
        return block.shares.rows

    def _shares(self, block: DispatchBlock) -> dict[int, RowSet]:
        slots = block.slots
        assert slots is not None
        if isinstance(slots, int):
            return {int(self.table[slots]): block.ref.all_rows}
        numbers = self.table.take(slots)
        among = self._numbers
        if len(among) > _FEW:
            among = np.bincount(numbers - NOWHERE).nonzero()[0] + NOWHERE
        found = row_sets.of_flag_rows(numbers == among[:, None])
        return {number: rows for number, rows in zip(among.tolist(), found, strict=True) if rows}

    def restored(self, delivery: Delivery) -> None:
        """Note rows that a consumer holds which attached again.

        Some may be of slots that are another's now.
        """
        for slot, messages in slot_counts(delivery, delivery.rows):
            if self._must_drain(delivery.consumer, slot):
                self.draining.add(Held(delivery.consumer.spec.incarnation, slot, messages))
                self._send(slot, NOWHERE)

    def settled(self, delivery: Delivery, before: RowSet) -> list[int]:
        """Note settled rows of a delivery; returns the slots that have become free."""
        incarnation = delivery.consumer.spec.incarnation
        if not self.draining.is_drained_by(incarnation):
            return []
        gone = before & ~delivery.rows
        return [
            slot
            for slot, messages in slot_counts(delivery, gone)
            if self.draining.settle(incarnation, slot, messages) and self._set_route(slot)
        ]

    def cleared(self) -> None:
        """Nothing is pending any more."""
        self.draining.clear()
        self._held = set()
        self.table[:] = self._owners
        self._version = object()

    def _refresh(self) -> None:
        numbers = {consumer.spec.incarnation: number for number, consumer in enumerate(self.consumers)}
        self._numbers = np.arange(NOWHERE, len(numbers), dtype=np.int32)
        self._owners.fill(NOWHERE)
        for first, last, incarnation in self.regions.regions():
            self._owners[first : last + 1] = numbers[incarnation]
        self.draining.replace(self._held_elsewhere())
        self.table[:] = self._owners
        for slot in self.draining.slots() | self._held:
            self.table[slot] = NOWHERE
        self._version = object()

    def _send(self, slot: int, number: int) -> None:
        self.table[slot] = number
        self._version = object()

    def _held_elsewhere(self) -> Iterator[Held]:
        for consumer in self.consumers:
            held = np.zeros(SLOTS, np.int64)
            for delivery in consumer.deliveries:
                slots = delivery.block.slots
                if isinstance(slots, int):
                    held[slots] += delivery.messages
                elif slots is not None:
                    np.add.at(held, slots[row_sets.numbers_of(delivery.rows)], 1)
            for slot in np.flatnonzero(held).tolist():
                if self._must_drain(consumer, slot):
                    yield Held(consumer.spec.incarnation, slot, int(held[slot]))

    def _must_drain(self, holder: Consumer, slot: int) -> bool:
        owner = self.owner(slot)
        return (
            owner is not None
            and owner is not holder
            and not owner.spec.key_shared.allow_out_of_order_delivery
        )

    def _set_route(self, slot: int) -> bool:
        """Send a slot to its owner unless it is drained or held; returns whether."""
        if slot in self._held or self.draining.holders(slot):
            return False
        self._send(slot, int(self._owners[slot]))
        return bool(self._owners[slot] >= 0)


def slot_counts(delivery: Delivery, rows: RowSet) -> list[tuple[int, int]]:
    """(slot, messages) of rows of a delivery."""
    slots = delivery.block.slots
    if slots is None or not rows:
        return []
    if isinstance(slots, int):
        return [(slots, rows.bit_count())]
    if rows.bit_count() == 1:
        return [(int(slots[row_sets.first(rows)]), 1)]
    found, counts = np.unique(slots[row_sets.numbers_of(rows)], return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))


def rows_of_slot(block: DispatchBlock, slot: int) -> RowSet:
    """All rows of a block that have this slot, wherever they are."""
    slots = block.slots
    if slots is None or isinstance(slots, int):
        return block.ref.all_rows if slots == slot else 0
    return row_sets.of_flags(slots == slot)


Key = tuple[int, int]


class Parked:
    """Blocks with rows of one slot that waits, and the time of the first."""

    __slots__ = ("blocks", "since_ms")

    def __init__(self, since_ms: int) -> None:
        self.blocks: SortedDict = SortedDict()
        self.since_ms = since_ms


class WaitingIndex:
    """Saves looking at every waiting block each time: a dispatch costs what it gives out.

    Entries may be stale: whoever takes from a block looks at its rows. Every waiting row of a block that was
    put in is found through `ready` or `parked`.
    """

    def __init__(self, routes: KeyRoutes) -> None:
        self._routes = routes
        self.ready: list[SortedDict] = []
        """By number of the consumer: blocks in the order of the log."""
        self.parked: dict[int, Parked] = {}

    def put(self, block: DispatchBlock, now_ms: int) -> None:
        """Find out where the waiting rows of a block may go."""
        if not block.waiting:
            return
        slots = block.slots
        if isinstance(slots, int):
            number = int(self._routes.table[slots])
            if number >= 0:
                self.ready[number][block.key] = block
            else:
                self._park(slots, block, now_ms)
            return
        assert slots is not None
        waiting = counted_rows.rows_of(block.waiting)
        for number, rows in self._routes.shares(block).items():
            if not rows & waiting:
                continue
            if number >= 0:
                self.ready[number][block.key] = block
            else:
                for slot in np.unique(slots[numbers_of(rows & waiting)]).tolist():
                    self._park(slot, block, now_ms)

    def free(self, slot: int, now_ms: int) -> None:
        """A slot does not wait any more: what waits of it goes to its owner."""
        parked = self.parked.pop(slot, None)
        number = int(self._routes.table[slot])
        if parked is not None:
            if number >= 0:
                self.ready[number].update(parked.blocks)
            else:
                for block in parked.blocks.values():
                    self._park(slot, block, now_ms)

    def parked_through(self, slot: int, key: Key) -> list[tuple[DispatchBlock, RowSet]]:
        """Return the parked rows of a slot, by block, up to this key in order."""
        parked = self.parked.get(slot)
        if parked is None:
            return []
        found = []
        for block in [parked.blocks[at] for at in parked.blocks.irange(None, key)]:
            if rows := counted_rows.rows_of(block.waiting) & rows_of_slot(block, slot):
                found.append((block, rows))
            else:
                del parked.blocks[block.key]
        return found

    def rebuild(self, waiting: SortedDict, now_ms: int) -> None:
        """Owners have changed: look at all waiting blocks again."""
        before = self.parked
        self.clear()
        for block in waiting.values():
            self.put(block, now_ms)
        for slot, parked in self.parked.items():
            if slot in before:
                parked.since_ms = before[slot].since_ms

    def clear(self) -> None:
        """Nothing waits."""
        self.ready = [SortedDict() for _ in self._routes.consumers]
        self.parked = {}

    def _park(self, slot: int, block: DispatchBlock, now_ms: int) -> None:
        if (parked := self.parked.get(slot)) is None:
            parked = self.parked[slot] = Parked(now_ms)
        parked.blocks[block.key] = block
        self._routes.draining.block(slot)
