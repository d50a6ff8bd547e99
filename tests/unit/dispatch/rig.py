"""A dispatcher over a log of blocks, and short ways to say what it should have granted."""

from __future__ import annotations

from pulsar_ray.dispatch.blocks.block_intake import ReadBlocks
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.consumer import ConsumerSpec
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.grant import DropQueue, Grant
from pulsar_ray.dispatch.key_shared.hash_regions import DEFAULT_KEY_SHARED, KeySharedSpec
from pulsar_ray.dispatch.key_shared.sticky_key import Slots
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription, ManagedCursor
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import Position
from tests.unit.dispatch.validation import validate

Told = tuple[int, int, tuple[tuple[int, int], ...]]
"""(consumer id, first entry id, rows) of a grant."""


def dropped(actions: list[DropQueue]) -> list[tuple[int, int]]:
    """Whose queues are dropped, and up to which generation."""
    return [(action.incarnation, action.generation) for action in actions]


class Rig:
    """Ledger 1 with `blocks` of so many rows each, positive for blocks of entries, negative for batches."""

    def __init__(
        self,
        blocks: list[int],
        settings: DispatchSettings | None = None,
        cursor: ManagedCursor | None = None,
        slots: list[Slots] | None = None,
    ) -> None:
        self.refs: list[BlockRef] = []
        self.slots = slots
        entry = 0
        for rows in blocks:
            entries = rows if rows > 0 else 1
            self.refs.append(BlockRef(1, 0, 0, 100, entry, entries, abs(rows), rows > 1))
            entry += entries
        self.cursor = cursor or ManagedCursor(CursorSubscription("s"), Position(1, -1))
        self.cursor.set_ledgers([(1, entry - 1)])
        self.dispatcher = Dispatcher(self.cursor, settings or DispatchSettings(), epoch=7, now_ms=0)
        self.now_ms = 0

    def add(
        self,
        incarnation: int,
        credit: int = 0,
        consumer_type: ConsumerType = ConsumerType.Shared,
        priority_level: int = 0,
        batch_index_ack: bool = False,
        key_shared: KeySharedSpec = DEFAULT_KEY_SHARED,
    ) -> ConsumerSpec:
        name = f"c{incarnation}"
        spec = ConsumerSpec(
            incarnation, name, consumer_type, priority_level, batch_index_ack, key_shared=key_shared
        )
        self.dispatcher.attach_consumer(spec, self.now_ms)
        self.report(incarnation, credit)
        return spec

    def report(self, incarnation: int, credit: int, received: int = 0, handed_over: int = 0) -> None:
        self.dispatcher.set_credit(incarnation, credit, received, handed_over)

    def offer(self) -> None:
        position = self.dispatcher.intake.read_position
        known = sum((1, ref.last_entry_id) < position for ref in self.refs)
        slots = None if self.slots is None else self.slots[known:]
        self.dispatcher.offer(ReadBlocks(self.refs[known:], slots), self.dispatcher.reading_number)

    def grants(self) -> list[Grant]:
        self.offer()
        grants = self.dispatcher.dispatch(self.now_ms)
        validate(self.dispatcher)
        return grants

    def told(self) -> list[Told]:
        return [(g.incarnation, g.block.first_entry_id, g.rows) for g in self.grants()]

    def shares(self) -> dict[int, int]:
        """How many messages each consumer is granted."""
        shares: dict[int, int] = {}
        for incarnation, _, rows in self.told():
            shares[incarnation] = shares.get(incarnation, 0) + sum(b - a for a, b in rows)
        return shares
