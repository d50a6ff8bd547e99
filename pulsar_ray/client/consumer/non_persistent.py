"""Consuming from a non-persistent topic: what was received is nowhere else, so there is nothing to say of it.

Acknowledgments, negative ones and requests for redelivery are taken and have no effect, as in Pulsar; credit
alone goes to the dispatcher.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pulsar_ray.client.acks.ack_tracker import WHOLE_ENTRY, AckTracker
from pulsar_ray.client.acks.nack_tracker import NackTracker
from pulsar_ray.client.acks.unacked_rows import UnackedRows
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.received.queued_delivery import BlockDecoder, QueuedDelivery
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.errors import NotAllowedError
from pulsar_ray.model.row_ranges import RowRanges
from pulsar_ray.model.row_sets import RowSet
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.session.requests import OpenConsumer
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.cluster import PartitionRoute

if TYPE_CHECKING:
    from pulsar_ray.client.consumer.consumer_core import ConsumerCore

UNSTORED = -1
"""Ledger and entry id of every message of a non-persistent topic."""


class _NoAcks(AckTracker):
    __slots__ = ()

    def add(self, ledger_id: int, entry_id: int) -> None:
        """Without effect."""

    def add_range(self, ledger_id: int, first_entry_id: int, last_entry_id: int) -> None:
        """Without effect."""

    def add_message(self, block: ReceivedBlock, row: int) -> None:
        """Without effect."""

    def add_rows(
        self, ledger_id: int, entry_id: int, rows: Iterable[tuple[int, int]], batch_size: int = 0
    ) -> None:
        """Without effect."""

    def add_cumulative(
        self, ledger_id: int, entry_id: int, row: int = WHOLE_ENTRY, batch_size: int = 0
    ) -> None:
        """Without effect."""


class _NoNacks(NackTracker):
    __slots__ = ()

    def add(
        self, ledger_id: int, entry_id: int, redelivery_count: int, now_ms: int, rows: RowRanges = ()
    ) -> None:
        """Without effect."""


class _NothingHeld(UnackedRows):
    def add(self, ledger_id: int, first_entry_id: int, entries: int, rows: RowSet, messages: int) -> None:
        """Without effect."""


class _UnplacedBlocks(BlockDecoder):
    def decode(self, granted: QueuedDelivery) -> ReceivedBlock:
        """Verify and decode a delivered block, whose place nobody is told."""
        block = super().decode(granted)
        block.ledger_id = block.first_entry_id = UNSTORED
        return block


class NonPersistentPartitionConsumer(PartitionConsumer):
    """One consumer's side of one partition that stores nothing."""

    def __init__(self, core: ConsumerCore, link: ActorLink, consumer_id: int, route: PartitionRoute) -> None:
        super().__init__(core, link, consumer_id, route)
        self.acks = _NoAcks()
        self.nacks = _NoNacks(0)
        self.held = _NothingHeld()
        self.decode = _UnplacedBlocks(core.files, route, core.options.schema).decode

    def _open_request(self, request_id: int) -> OpenConsumer:
        request = super()._open_request(request_id)
        with self._core.lock:
            # What is published as soon as it is open has to find credit.
            return request._replace(credit=self.consumed + self._core.window)

    def _segment_path(self, ledger_id: int, segment_index: int) -> str:
        return ""

    def _give_up_queue(self) -> None:
        """Nobody else has got what is queued here, whatever became of the session."""

    def _drop_queue(self) -> None:
        """What is queued here would not come again, neither to this consumer nor to another one."""

    def redeliver_unacknowledged(self) -> None:
        """Without effect: nothing could come again."""


def refuse_view_of_unstored(topic: str) -> None:
    """Raise NotAllowedError for a table view of a topic that stores nothing."""
    if not TopicName.parse(topic).is_persistent:
        raise NotAllowedError(
            f"a table view of {topic}: it is non-persistent and keeps no values; use a persistent:// topic"
        )


def partition_consumer(
    core: ConsumerCore, link: ActorLink, consumer_id: int, route: PartitionRoute
) -> PartitionConsumer:
    """The consumer's side of a partition, stored or not."""
    if TopicName.parse(route.topic).is_persistent:
        return PartitionConsumer(core, link, consumer_id, route)
    return NonPersistentPartitionConsumer(core, link, consumer_id, route)
