"""Dispatching a non-persistent topic: messages without a consumer with permits are dropped.

The subscription types are those of stored topics, with their policies. But nothing waits:
after each dispatch everything is forgotten, granted or not, so there is nothing to acknowledge or to deliver
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pulsar_ray.dispatch.consumer import Consumer
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.grant import DropQueue, Grant
from pulsar_ray.dispatch.redelivery import EMPTY_QUEUE, ConsumerQueue, NackItem
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.managed_ledger.cursor.managed_cursor import ManagedCursor, Subscription
from pulsar_ray.model.drops import Drops
from pulsar_ray.model.entry_sets import EntryBits
from pulsar_ray.model.row_ranges import RowRanges


class NonPersistentDispatcher(Dispatcher):
    """The dispatcher core of one subscription of a non-persistent topic.

    `can_take(consumer id)` returns whether a consumer's connection takes more bytes just now: as in Pulsar, a
    slow reader loses messages and delays nobody. A batch goes whole for a single permit.
    """

    def __init__(
        self,
        name: str,
        settings: DispatchSettings,
        *,
        topic: str,
        epoch: int,
        now_ms: int,
        can_take: Callable[[int], bool],
    ) -> None:
        cursor = ManagedCursor(Subscription(name, is_durable=False))
        super().__init__(cursor, settings, epoch=epoch, now_ms=now_ms, topic=topic)
        self._can_take = can_take
        self.drops = Drops(now_ms)

    def room(self, consumer: Consumer) -> int:
        """Its permits, or 0 while its connection is full. Unacknowledged messages are not counted."""
        return consumer.room(0) if self._can_take(consumer.spec.consumer_id) else 0

    def set_credit(self, consumer_id: int, credit: int, received: int, handed_over: int) -> None:
        """Take a report; no block waits until it fits whole: the rest is lost."""
        super().set_credit(consumer_id, credit, received, handed_over)
        consumer = self.consumers.get(consumer_id)
        if consumer is not None:
            consumer.window = 0

    def hand_over(self, now_ms: int) -> list[DropQueue]:
        """Elect anew; the former active consumer keeps what it has."""
        generation = self.generation
        super().hand_over(now_ms)
        self.generation = generation
        return []

    def dispatch(self, now_ms: int) -> list[Grant]:
        """Grant what was offered as far as there is room; drop and count the rest."""
        grants = super().dispatch(now_ms)
        self.drops.record(self.blocks.waiting_messages)
        self.blocks.clear()
        return grants

    def acknowledge(
        self,
        consumer_id: int,
        ranges: Iterable[tuple[int, int, int]] = (),
        batch: Iterable[tuple[int, int, RowRanges]] = (),
        cumulative: tuple[int, int, int] | None = None,
        generation: int | None = None,
        entry_bits: Iterable[EntryBits] = (),
    ) -> int:
        """Without effect."""
        return self.cursor.version

    def negative_acknowledge(
        self, consumer_id: int, items: Iterable[NackItem], queue: ConsumerQueue = EMPTY_QUEUE
    ) -> list[DropQueue]:
        """Without effect: nothing is kept that could come again."""
        return []

    def redeliver_unacknowledged(self, consumer_id: int, through: int) -> list[DropQueue]:
        """Without effect: nothing is kept that could come again."""
        return []
