"""Where each slot's messages go now: to its owner, or nowhere while it drains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pulsar_ray.dispatch.consumer import Consumer, ConsumerSpec, Delivery, DispatchBlock, Shares
from pulsar_ray.dispatch.key_shared.draining import DrainingHashes, Held
from pulsar_ray.dispatch.key_shared.hash_regions import HashRegions
from pulsar_ray.dispatch.key_shared.sticky_key import SLOTS
from pulsar_ray.model import row_sets
from pulsar_ray.model.row_sets import RowSet
from pulsar_ray.numpy_on_demand import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
        self.regions.add(spec.consumer_id, spec.name, spec.key_shared)

    def join(self, consumer: Consumer) -> None:
        """The consumer is there: slots have moved to it."""
        self.consumers.append(consumer)
        self._refresh()

    def leave(self, consumer: Consumer) -> None:
        """The consumer is gone, and what it holds will come back."""
        self.consumers.remove(consumer)
        self.regions.remove(consumer.spec.consumer_id)
        self.draining.forget(consumer.spec.consumer_id)
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
                self.draining.add(Held(delivery.consumer.spec.consumer_id, slot, messages))
                self._send(slot, NOWHERE)

    def settled(self, delivery: Delivery, before: RowSet) -> list[int]:
        """Note settled rows of a delivery; returns the slots that have become free."""
        consumer_id = delivery.consumer.spec.consumer_id
        if not self.draining.is_drained_by(consumer_id):
            return []
        gone = before & ~delivery.rows
        return [
            slot
            for slot, messages in slot_counts(delivery, gone)
            if self.draining.settle(consumer_id, slot, messages) and self._set_route(slot)
        ]

    def cleared(self) -> None:
        """Nothing is pending any more."""
        self.draining.clear()
        self._held = set()
        self.table[:] = self._owners
        self._version = object()

    def _refresh(self) -> None:
        numbers = {consumer.spec.consumer_id: number for number, consumer in enumerate(self.consumers)}
        self._numbers = np.arange(NOWHERE, len(numbers), dtype=np.int32)
        self._owners.fill(NOWHERE)
        for first, last, consumer_id in self.regions.regions():
            self._owners[first : last + 1] = numbers[consumer_id]
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
                    yield Held(consumer.spec.consumer_id, slot, int(held[slot]))

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
