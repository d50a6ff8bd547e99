"""How the application acknowledges, one by one, cumulatively, in batches and tables, and gives back."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta

import pyarrow as pa

from pulsar_ray.client.acks.ack_tracker import WHOLE_ENTRY
from pulsar_ray.client.arrow.handed_tables import HandedTables
from pulsar_ray.client.arrow.received_table import received_table
from pulsar_ray.client.arrow.table_positions import MAX_BATCH_INDEX, table_nacks, table_positions
from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.endpoint.opened_later import OpenedLater
from pulsar_ray.client.options.not_yet import reconsume_later_not_yet
from pulsar_ray.client.received.block_rows import BlockRows
from pulsar_ray.client.received.message import Message, MessageBatchView
from pulsar_ray.errors import CumulativeAcknowledgementNotAllowedError, OperationNotSupported
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId

logger = logging.getLogger(__name__)


def _may_exist(message_id: MessageId) -> bool:
    return (
        message_id.ledger_id() >= 0
        and message_id.entry_id() >= 0
        and message_id.batch_index() <= MAX_BATCH_INDEX
    )


class AcknowledgingConsumer(OpenedLater):
    """The part of a Consumer that gathers acknowledgments at the partition each message came from."""

    def __init__(self, topic: str, core: ConsumerCore, operation_timeout_s: float) -> None:
        self._topic = topic
        self._core = core
        self._options = core.options
        self._operation_timeout_s = operation_timeout_s
        self._tables = HandedTables()

    @property
    def core(self) -> ConsumerCore:
        """Its receiver queue; not part of the official client."""
        return self._core

    def _deadline(self) -> float:
        return time.monotonic() + self._operation_timeout_s

    def acknowledge(self, message: Message | MessageId | MessageBatchView | Iterable[Message]) -> None:
        """Acknowledge a message, an id, or messages received in a batch.

        Acknowledgments are grouped and durable soon; with `ack_receipt_enabled` this returns once they are
        durable.
        """
        if type(message) is Message:
            block, core = message.block, self._core
            partition = core.single or self._partition_of(block.topic_name, block.partition)
            acks = partition.acks
            with core.lock:
                if block is acks.block:
                    acks.flags[message.row] = 1
                    acks.count += 1
                elif block.message_count > 1:
                    acks.add_message(block, message.row)
                else:
                    acks.add(block.ledger_id, block.first_entry_id)
            if acks.count >= partition.acks_gathered or core.error is not None:
                self._added(partition)
        elif isinstance(message, MessageId):
            self._acknowledge_id(message)
        elif isinstance(message, MessageBatchView):
            self._acknowledge_parts(message.parts)
        elif isinstance(message, Iterable):
            for one in message:
                if not isinstance(one, (Message, MessageId)):
                    raise ValueError(f"acknowledge takes messages, not {type(one).__name__}")
                self.acknowledge(one)
        else:
            raise ValueError(f"acknowledge takes a Message or MessageId, not {type(message).__name__}")

    def _added(self, partition: PartitionConsumer) -> None:
        self._core.check()
        if partition.is_abandoned:
            partition.forget_acknowledgments()
        elif self._options.ack_receipt_enabled:
            partition.acknowledge_durably(self._deadline())
        else:
            partition.acks_added()

    def _acknowledge_id(self, message_id: MessageId) -> None:
        message_id.check()
        partition = self._partition_of(message_id.topic_name, message_id.partition())
        ledger_id, entry_id, row = message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
        if not _may_exist(message_id):
            return
        with self._core.lock:
            size = message_id.batch_size() or partition.held.batch_size(ledger_id, entry_id)
            if row < 0:
                partition.acks.add(ledger_id, entry_id)
            elif not size:
                partition.acks.add_rows(ledger_id, entry_id, ((row, row + 1),))
            elif row < size:
                partition.acks.add_row(ledger_id, entry_id, row, size)
        self._added(partition)

    def _acknowledge_parts(self, parts: Iterable[BlockRows]) -> None:
        touched: set[PartitionConsumer] = set()
        single = self._core.single
        with self._core.lock:
            for block, rows in parts:
                partition = single or self._partition_of(block.topic_name, block.partition)
                touched.add(partition)
                partition.acks.add_part(block, rows)
        for partition in touched:
            self._added(partition)

    def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge everything up to and including this message, within its partition.

        `MessageId.earliest` and `latest` name no message and have no effect, which is logged as a warning;
        `seek(MessageId.latest)` passes everything stored by now. Raises
        CumulativeAcknowledgementNotAllowedError on Shared and KeyShared subscriptions.
        """
        if self._options.consumer_type in (ConsumerType.Shared, ConsumerType.KeyShared):
            raise CumulativeAcknowledgementNotAllowedError(
                "cumulative acknowledgment needs an Exclusive or Failover subscription: other consumers have "
                "messages before this one; acknowledge one by one"
            )
        message_id = message.message_id() if isinstance(message, Message) else message
        if not isinstance(message_id, MessageId):
            raise ValueError(
                f"acknowledge_cumulative takes a Message or MessageId, not {type(message).__name__}"
            )
        message_id.check()
        partition = self._partition_of(message_id.topic_name, message_id.partition())
        ledger_id, entry_id, row = message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
        if ledger_id < 0 or message_id == MessageId.latest:
            logger.warning(
                "acknowledge_cumulative(%s) has no effect, as in Pulsar: it names no message; to pass "
                "everything stored by now use seek(MessageId.latest)",
                message_id,
            )
            return
        with self._core.lock:
            size = message_id.batch_size() or partition.held.batch_size(ledger_id, entry_id)
            partition.acks.add_cumulative(ledger_id, entry_id, row if row >= 0 else WHOLE_ENTRY, size)
        self._added(partition)

    def table_of(self, parts: Sequence[BlockRows]) -> pa.Table:
        """Rows as a table that is known when it is acknowledged; not part of the official client."""
        return self._tables.add(received_table(parts), parts)

    def acknowledge_arrow(self, table: pa.Table) -> None:
        """Acknowledge the rows of a received table or any part of one; needs its position columns only."""
        if (parts := self._tables.rows_of(table)) is not None:
            self._acknowledge_parts(parts)
            return
        for topic, positions in table_positions(table).items():
            partition = self._partition_of(topic, -1)
            with self._core.lock:
                for entries in positions.ranges:
                    partition.acks.add_range(*entries)
                for ledger_id, entry_id, rows in positions.batch_rows:
                    size = partition.held.batch_size(ledger_id, entry_id)
                    partition.acks.add_rows(ledger_id, entry_id, rows, size)
            self._added(partition)

    def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Have a message delivered again after the redelivery delay or backoff; of a batch, its whole entry
        comes again.
        """
        if isinstance(message, Message):
            block = message.block
            partition = self._core.single or self._partition_of(block.topic_name, block.partition)
            rows = ((message.row, message.row + 1),) if block.is_batch else ()
            entry_id = block.first_entry_id + (0 if block.is_batch else message.row)
            key = (block.ledger_id, entry_id, block.redelivery_count)
        elif isinstance(message, MessageId):
            message.check()
            if not _may_exist(message):
                return
            partition = self._partition_of(message.topic_name, message.partition())
            row = message.batch_index()
            rows = ((row, row + 1),) if row >= 0 else ()
            key = (message.ledger_id(), message.entry_id(), -1)
        else:
            raise ValueError(
                f"negative_acknowledge takes a Message or MessageId, not {type(message).__name__}"
            )
        with self._core.lock:
            partition.nacks.add(*key, time.monotonic_ns() // 1_000_000, rows)
        partition.nacks_added()

    def negative_acknowledge_arrow(self, table: pa.Table) -> None:
        """Have the rows of a received table delivered again."""
        now_ms = time.monotonic_ns() // 1_000_000
        for topic, nacks in table_nacks(table).items():
            partition = self._partition_of(topic, -1)
            with self._core.lock:
                for ledger_id, entry_id, rows, count in nacks:
                    partition.nacks.add(ledger_id, entry_id, count, now_ms, rows)
            partition.nacks_added()

    def reconsume_later(
        self, message: Message | MessageId, delay: timedelta, properties: dict[str, str] | None = None
    ) -> None:
        """Not there before retry letter topics are: raises OperationNotSupported."""
        raise reconsume_later_not_yet()

    def redeliver_unacknowledged_messages(self) -> None:
        """Have everything this consumer was given and did not acknowledge delivered again."""
        for partition in self._core.partitions:
            partition.redeliver_unacknowledged()

    def _partition_of(self, topic: str, index: int) -> PartitionConsumer:
        core = self._core
        if core.single is not None:
            if topic and topic != core.single.route.topic:
                raise OperationNotSupported(
                    f"the id belongs to {topic}, this consumer to {core.single.route.topic}"
                )
            return core.single
        partition = core.by_topic.get(topic) or core.gone.get(topic)
        if partition is None and not topic and not core.is_multi_topic:
            partition = next((each for each in core.partitions if each.route.partition == index), None)
        if topic in core.absent:
            raise core.absent[topic]
        if partition is None:
            raise OperationNotSupported(
                f"an id of {topic or 'no topic'} cannot be told to a partition of {self._topic}: use the "
                "received message's id"
            )
        return partition
