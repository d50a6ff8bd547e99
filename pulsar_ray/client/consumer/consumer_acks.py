"""Acknowledgments of a consumer, gathered at the partition each message came from."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

import pyarrow as pa

from pulsar_ray.client.acks.ack_tracker import WHOLE_ENTRY
from pulsar_ray.client.acks.nack_tracker import Nack
from pulsar_ray.client.arrow.table_positions import MAX_BATCH_INDEX, table_nacks, table_positions
from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.received.message import BlockRows, Message
from pulsar_ray.errors import CumulativeAcknowledgementNotAllowedError
from pulsar_ray.lane.waiting import ensure_may_wait
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId

logger = logging.getLogger(__name__)


class ConsumerAcks:
    """Acknowledges by id, in parts of blocks, in tables, cumulatively, and negatively.

    With `waits` receipts are waited for, for `timeout_s` at most; else who calls `take_unconfirmed` does so.
    """

    def __init__(self, core: ConsumerCore, timeout_s: float, *, waits: bool) -> None:
        self._core = core
        self._partitions = core.partitions
        self._timeout_s = timeout_s
        self._waits = waits
        self._unconfirmed: list[PartitionConsumer] = []

    def added(self, partition: PartitionConsumer) -> None:
        """Have a partition's acknowledgments sent, of which there are more now. Call without the lock."""
        self._core.check()
        if partition.session.is_abandoned:
            partition.ack_sender.forget()
        elif not self._core.options.ack_receipt_enabled:
            partition.ack_sender.added()
        elif self._waits:
            ensure_may_wait("acknowledging with receipts")
            partition.ack_sender.acknowledge_durably(time.monotonic() + self._timeout_s)
        else:
            self._unconfirmed.append(partition)

    def take_unconfirmed(self) -> list[PartitionConsumer]:
        """Take the partitions with acknowledgments that have to be confirmed and were not sent yet."""
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        return unconfirmed

    def add_id(self, message_id: MessageId) -> None:
        """Acknowledge an id. Raises OperationNotSupported for an id of no partition of the consumer."""
        message_id.check()
        partition = self._partitions.of(message_id.topic_name, message_id.partition())
        ledger_id, entry_id, row = message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
        if not _may_exist(message_id):
            return
        if row < 0 and (held := partition.unreadable.at(ledger_id, entry_id)) is not None:
            partition.unreadable.acknowledge(held)
            self.added(partition)
            return
        with self._core.lock:
            size = message_id.batch_size() or partition.ack_sender.unacked.batch_size(ledger_id, entry_id)
            if row < 0:
                partition.ack_sender.acks.add(ledger_id, entry_id)
            elif not size:
                partition.ack_sender.acks.add_rows(ledger_id, entry_id, ((row, row + 1),))
            elif row < size:
                partition.ack_sender.acks.add_row(ledger_id, entry_id, row, size)
        self.added(partition)

    def add_parts(self, parts: Iterable[BlockRows], *, are_moved: bool = False) -> None:
        """Acknowledge rows of received blocks.

        `are_moved` if copies of them are elsewhere: they never come again, though others of their batch may.
        """
        touched: set[PartitionConsumer] = set()
        single = self._partitions.single
        with self._core.lock:
            for block, rows in parts:
                partition = single or self._partitions.of(block.topic_name, block.partition)
                touched.add(partition)
                acks = partition.ack_sender.acks
                if are_moved:
                    acks.add_moved(block, rows)
                else:
                    acks.add_part(block, rows)
        for partition in touched:
            self.added(partition)

    def add_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge everything up to and including a message, as `Consumer.acknowledge_cumulative`."""
        if self._core.options.consumer_type in (ConsumerType.Shared, ConsumerType.KeyShared):
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
        partition = self._partitions.of(message_id.topic_name, message_id.partition())
        ledger_id, entry_id, row = message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
        if ledger_id < 0 or message_id == MessageId.latest:
            logger.warning(
                "acknowledge_cumulative(%s) has no effect, as in Pulsar: it names no message; to pass "
                "everything stored by now use seek(MessageId.latest)",
                message_id,
            )
            return
        if row < 0 and (held := partition.unreadable.at(ledger_id, entry_id)) is not None:
            entry_id = held.last_entry_id
        with self._core.lock:
            size = message_id.batch_size() or partition.ack_sender.unacked.batch_size(ledger_id, entry_id)
            partition.ack_sender.acks.add_cumulative(
                ledger_id, entry_id, row if row >= 0 else WHOLE_ENTRY, size
            )
        self.added(partition)

    def add_table(self, table: pa.Table) -> None:
        """Acknowledge the rows of a table by its position columns."""
        for topic, positions in table_positions(table).items():
            partition = self._partitions.of(topic, -1)
            with self._core.lock:
                for entries in positions.ranges:
                    partition.ack_sender.acks.add_range(*entries)
                for ledger_id, entry_id, rows in positions.batch_rows:
                    size = partition.ack_sender.unacked.batch_size(ledger_id, entry_id)
                    partition.ack_sender.acks.add_rows(ledger_id, entry_id, rows, size)
            self.added(partition)

    def add_negative(self, message: Message | MessageId) -> None:
        """Have a message delivered again, as `Consumer.negative_acknowledge`."""
        if isinstance(message, Message):
            block = message.block
            partition = self._partitions.single or self._partitions.of(block.topic_name, block.partition)
            rows = ((message.row, message.row + 1),) if block.is_batch else ()
            entry_id = block.first_entry_id + (0 if block.is_batch else message.row)
            key = (block.ledger_id, entry_id, block.redelivery_count)
        elif isinstance(message, MessageId):
            message.check()
            if not _may_exist(message):
                return
            partition = self._partitions.of(message.topic_name, message.partition())
            row = message.batch_index()
            held = partition.unreadable.at(message.ledger_id(), message.entry_id())
            if row < 0 and held is not None:
                partition.unreadable.fail(held)
                return
            rows = ((row, row + 1),) if row >= 0 else ()
            with self._core.lock:
                unacked = partition.ack_sender.unacked
                count = unacked.count_of(message.ledger_id(), message.entry_id(), row)
            key = (message.ledger_id(), message.entry_id(), count)
        else:
            raise ValueError(
                f"negative_acknowledge takes a Message or MessageId, not {type(message).__name__}"
            )
        self._fail(partition, [(*key[:2], rows, key[2])])

    def add_negative_table(self, table: pa.Table) -> None:
        """Have the rows of a received table delivered again."""
        for topic, nacks in table_nacks(table).items():
            self._fail(self._partitions.of(topic, -1), nacks)

    def _fail(self, partition: PartitionConsumer, failed: Sequence[Nack]) -> None:
        """Have messages delivered again after their delays."""
        sender, lock = partition.ack_sender, self._core.lock
        delays: list[int] | None = None
        if sender.nacks.has_backoff:
            with lock:
                failures = [
                    sender.unacked.failures_of(ledger_id, entry_id, rows) if rows else count
                    for ledger_id, entry_id, rows, count in failed
                ]
            delays = [sender.nacks.delay_ms(number) for number in failures]
        now_ms = time.monotonic_ns() // 1_000_000
        with lock:
            if self._core.error is not None:
                return  # closed meanwhile, by the backoff perhaps: what it held comes again anyway
            for index, (ledger_id, entry_id, rows, count) in enumerate(failed):
                delay_ms = None if delays is None else delays[index]
                sender.nacks.add(ledger_id, entry_id, count, now_ms, rows, delay_ms)
        sender.nacks_added()


def _may_exist(message_id: MessageId) -> bool:
    return (
        message_id.ledger_id() >= 0
        and message_id.entry_id() >= 0
        and message_id.batch_index() <= MAX_BATCH_INDEX
    )
