"""The consumer people use: one per subscribe call, over one PartitionConsumer per partition."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pulsar_ray.client.arrow_positions import table_nacks, table_positions
from pulsar_ray.client.arrow_table import received_table
from pulsar_ray.client.consumer_core import FOREVER_S, ConsumerCore
from pulsar_ray.client.listener import ListenerThread
from pulsar_ray.client.message import Message, MessageBatchView
from pulsar_ray.client.opened_later import OpenedLater
from pulsar_ray.client.partition_consumer import PartitionConsumer
from pulsar_ray.errors import (
    AlreadyClosed,
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    OperationNotSupported,
    SubscriptionNotFound,
    Timeout,
)
from pulsar_ray.model.enums import ConsumerType, SubscriptionMode
from pulsar_ray.model.message_id import MessageId

if TYPE_CHECKING:
    from pulsar_ray.client.client import Client
    from pulsar_ray.client.consumer_options import ConsumerOptions

DEFAULT_BATCH_BYTES = 10 * 1024 * 1024
DEFAULT_BATCH_TIMEOUT_MS = 100


class Consumer(OpenedLater):
    """Receives from a topic through a subscription. Thread-safe. Made by `Client.subscribe`.

    Delivery is at least once: what was not acknowledged durably when something crashed comes again.
    """

    def __init__(self, client: Client, topic: str, core: ConsumerCore) -> None:
        self._client = client
        self._topic = topic
        self._core = core
        self._options = core.options
        self._by_topic: dict[str, PartitionConsumer] = {p.route.topic: p for p in core.partitions}
        self._single = core.partitions[0] if len(core.partitions) == 1 else None
        self._closed = False
        self._listener: ListenerThread | None = None
        if self._options.message_listener is not None:
            self._listener = ListenerThread(
                self, core, self._options.message_listener, paused=self._options.start_paused
            )

    # --- receiving --------------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> Message:
        """The next message; waits for ever, or so many ms.

        Raises Timeout, AlreadyClosed, InvalidConfiguration with a listener or with a timeout on a queue of
        size 0, CorruptData naming the position of an entry that cannot be read (it stays unacknowledged).
        """
        if timeout_millis is None:
            deadline = time.monotonic() + FOREVER_S
        else:
            deadline = time.monotonic() + self._checked_timeout(timeout_millis) / 1000
            if self._options.receiver_queue_size == 0:
                raise InvalidConfiguration("receive(timeout_millis) needs a receiver_queue_size above 0")
        if self._listener is not None:
            raise InvalidConfiguration("this consumer has a message_listener: receive() cannot be used")
        return self._core.receive(deadline)

    def _checked_timeout(self, timeout_millis: int) -> int:
        if not isinstance(timeout_millis, int):
            raise ValueError(f"timeout_millis={timeout_millis!r}: give an int (ms) or None")
        return timeout_millis

    def receive_async(self) -> Future[Message]:
        """A future of the next message; cancelling it gives the message to the next one."""
        if self._listener is not None:
            raise InvalidConfiguration("this consumer has a message_listener: receive_async() cannot be used")
        return self._core.receive_async()

    def batch_receive(self) -> MessageBatchView:
        """Messages as the batch receive policy says: when one of its limits is reached; possibly none at its
        timeout.

        A sequence filled lazily; `acknowledge` takes it whole.
        """
        if self._listener is not None:
            raise InvalidConfiguration("this consumer has a message_listener: batch_receive() cannot be used")
        policy = self._options.batch_receive_policy
        most, size, timeout_ms = -1, DEFAULT_BATCH_BYTES, DEFAULT_BATCH_TIMEOUT_MS
        if policy is not None:
            most, size, timeout_ms = policy.max_num_message, policy.max_num_bytes, policy.timeout_ms
        deadline = time.monotonic() + (timeout_ms / 1000 if timeout_ms > 0 else FOREVER_S)
        most = most if most > 0 else 2**31
        size = size if size > 0 else 2**62
        return MessageBatchView(self._core.take_spans(most, size, deadline, fills=policy is not None))

    def receive_arrow(self, max_messages: int = 100_000, timeout_millis: int | None = None) -> pa.Table:
        """What is there, at least one message, as a table with the columns key, value, ordering_key,
        properties, topic, ...

        Raises Timeout when nothing came in time, else what `receive` raises.
        """
        if self._listener is not None:
            raise InvalidConfiguration("this consumer has a message_listener: receive_arrow() cannot be used")
        if max_messages < 1:
            raise ValueError(f"max_messages={max_messages!r}: give an int of at least 1")
        wait_s = FOREVER_S if timeout_millis is None else self._checked_timeout(timeout_millis) / 1000
        self._core.widen(2 * max_messages)
        spans = self._core.take_spans(max_messages, 2**62, time.monotonic() + wait_s)
        if not spans:
            raise Timeout(f"no message arrived in {timeout_millis} ms")
        return received_table(spans)

    def has_message_available(self) -> bool:
        """Whether a message that is stored by now is waiting here, or will come to this subscription.

        What other consumers of a shared subscription hold does not count. Not part of the official client.
        """
        if self._core.has_received():
            return True
        # Deliveries under way arrive before these answers do, on the same carrier.
        available = [partition.call("has_more", self._deadline()) for partition in self._core.partitions]
        return any(available) or self._core.has_received()

    # --- acknowledging ----------------------------------------------------------------------------

    def acknowledge(self, message: Message | MessageId | MessageBatchView | Iterable[Message]) -> None:
        """Acknowledge a message, an id, or messages received in a batch.

        Acknowledgments are grouped and durable soon; with `ack_receipt_enabled` this returns once they are
        durable.
        """
        partition = self._single
        if type(message) is Message:
            block = message.block
            partition = partition or self._partition_of(block.topic_name, block.partition)
            with self._core.lock:
                if block.is_batch:
                    partition.acks.add_row(
                        block.ledger_id, block.first_entry_id, message.row, block.message_count
                    )
                else:
                    partition.acks.add(block.ledger_id, block.first_entry_id + message.row)
            self._added(partition)
        elif isinstance(message, MessageId):
            self._acknowledge_id(message)
        elif isinstance(message, MessageBatchView):
            self._acknowledge_spans(message)
        elif isinstance(message, Iterable):
            for one in message:
                if not isinstance(one, (Message, MessageId)):
                    raise ValueError(f"acknowledge takes messages, not {type(one).__name__}")
                self.acknowledge(one)
        else:
            raise ValueError(f"acknowledge takes a Message or MessageId, not {type(message).__name__}")

    def _added(self, partition: PartitionConsumer) -> None:
        self._core.check()
        if self._options.ack_receipt_enabled:
            partition.acknowledge_durably(self._deadline())
        elif not partition.ack_pending:
            partition.acks_added()

    def _acknowledge_id(self, message_id: MessageId) -> None:
        partition = self._partition_of(message_id.topic_name, message_id.partition())
        ledger_id, entry_id, row = message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
        with self._core.lock:
            size = message_id.batch_size() or partition.held.batch_size(ledger_id, entry_id)
            if row >= 0 and size > row:
                partition.acks.add_row(ledger_id, entry_id, row, size)
            elif ledger_id >= 0 and entry_id >= 0:
                partition.acks.add(ledger_id, entry_id)
        self._added(partition)

    def _acknowledge_spans(self, view: MessageBatchView) -> None:
        touched: set[PartitionConsumer] = set()
        with self._core.lock:
            for block, first, end in view.spans:
                partition = self._single or self._partition_of(block.topic_name, block.partition)
                touched.add(partition)
                if block.is_batch:
                    rows = ((first, end),)
                    partition.acks.add_rows(block.ledger_id, block.first_entry_id, rows, block.message_count)
                else:
                    start = block.first_entry_id
                    partition.acks.add_range(block.ledger_id, start + first, start + end - 1)
        for partition in touched:
            self._added(partition)

    def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge everything up to and including this message, within its partition.

        Raises CumulativeAcknowledgementNotAllowedError on Shared and KeyShared subscriptions.
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
        partition = self._partition_of(message_id.topic_name, message_id.partition())
        ledger_id, entry_id, row = message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
        with self._core.lock:
            size = message_id.batch_size() or partition.held.batch_size(ledger_id, entry_id)
            if row >= 0 and size > row:
                partition.acks.add_cumulative(ledger_id, entry_id, row, size)
            elif ledger_id >= 0:
                partition.acks.add_cumulative(ledger_id, entry_id)
        self._added(partition)

    def acknowledge_arrow(self, table: pa.Table) -> None:
        """Acknowledge the rows of a received table or any part of one; needs its position columns only."""
        for topic, positions in table_positions(table).items():
            partition = self._partition_of(topic, -1)
            with self._core.lock:
                for entries in positions.ranges:
                    partition.acks.add_range(*entries)
                for ledger_id, entry_id, rows in positions.batch_rows:
                    size = partition.held.batch_size(ledger_id, entry_id) or rows[-1][1]
                    partition.acks.add_rows(ledger_id, entry_id, rows, size)
            self._added(partition)

    def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Have a message delivered again after the redelivery delay or backoff; of a batch, its whole entry
        comes again.
        """
        if isinstance(message, Message):
            block = message.block
            partition = self._single or self._partition_of(block.topic_name, block.partition)
            rows = ((message.row, message.row + 1),) if block.is_batch else ()
            entry_id = block.first_entry_id + (0 if block.is_batch else message.row)
            key = (block.ledger_id, entry_id, block.redelivery_count)
        elif isinstance(message, MessageId):
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

    def redeliver_unacknowledged_messages(self) -> None:
        """Have everything this consumer was given and did not acknowledge delivered again."""
        for partition in self._core.partitions:
            partition.redeliver_unacknowledged()

    def _partition_of(self, topic: str, index: int) -> PartitionConsumer:
        if self._single is not None:
            if topic and topic != self._single.route.topic:
                raise OperationNotSupported(
                    f"the id belongs to {topic}, this consumer to {self._single.route.topic}"
                )
            return self._single
        partition = self._by_topic.get(topic)
        if partition is None and not topic and 0 <= index < len(self._core.partitions):
            partition = self._core.partitions[index]
        if partition is None:
            raise OperationNotSupported(
                f"an id of {topic or 'no topic'} cannot be told to a partition of {self._topic}: use the "
                "received message's id"
            )
        return partition

    # --- control ----------------------------------------------------------------------------------

    def seek(self, messageid: MessageId | int) -> None:
        """Go on behind this message (at it with `start_message_id_inclusive`), or at the first one published
        at this time (ms).

        `MessageId.earliest` and `latest` work for all partitions, other ids for their own. Everything not
        acknowledged before the new position counts as acknowledged; what is behind it comes (again).
        """
        for partition in self._seek_partitions(messageid):
            generation = partition.call("seek", self._deadline(), **seek_target(messageid, self._inclusive()))
            partition.sought(generation, skipped_rows(messageid, self._inclusive()))

    def _inclusive(self) -> bool:
        return self._options.start_message_id_inclusive

    def _seek_partitions(self, messageid: MessageId | int) -> list[PartitionConsumer]:
        if isinstance(messageid, bool) or not isinstance(messageid, (MessageId, int)):
            raise ValueError(
                f"seek takes a MessageId or a publish time in ms, not {type(messageid).__name__}"
            )
        if isinstance(messageid, int) or messageid in (MessageId.earliest, MessageId.latest):
            return self._core.partitions
        return [self._partition_of(messageid.topic_name, messageid.partition())]

    def pause_message_listener(self) -> None:
        """The listener gets nothing more until `resume_message_listener`.

        InvalidConfiguration without a listener.
        """
        self._the_listener().pause()

    def resume_message_listener(self) -> None:
        """Go on after `pause_message_listener`."""
        self._the_listener().resume()

    def _the_listener(self) -> ListenerThread:
        if self._listener is None:
            raise InvalidConfiguration("this consumer has no message_listener to pause or resume")
        return self._listener

    def unsubscribe(self) -> None:
        """Delete the subscription and close. Raises while other consumers are connected to it."""
        self._check_open()
        for partition in self._core.partitions:
            partition.call("check_unsubscribe", self._deadline())
        for partition in self._core.partitions:
            with contextlib.suppress(SubscriptionNotFound):  # done before, and the answer was lost
                partition.call("unsubscribe", self._deadline())
            partition.forget_acknowledgments()
        self._leave(quietly=True)
        if self._options.subscription_mode == SubscriptionMode.Durable:
            # The dispatcher of others serves all of their partition.
            self._client.forget_dispatchers([partition.link for partition in self._core.partitions])

    def get_last_message_id(self) -> MessageId:
        """The id of the newest message of the topic, (-1,-1,-1,-1) if it is empty. One partition only."""
        if self._single is None:
            raise OperationNotSupported("get_last_message_id needs one partition; use get_last_message_ids()")
        return self._last_id(self._single)

    def get_last_message_ids(self) -> list[MessageId]:
        """The id of the newest message of each partition."""
        return [self._last_id(partition) for partition in self._core.partitions]

    def _last_id(self, partition: PartitionConsumer) -> MessageId:
        last = partition.call("last_message", self._deadline())
        ledger_id, entry_id = last["position"]
        if ledger_id < 0 or entry_id < 0:
            return MessageId()
        size = last["batch_size"]
        route = partition.route
        return MessageId(
            route.partition, ledger_id, entry_id, size - 1, batch_size=size, topic_name=route.topic
        )

    def close(self) -> None:
        """Make acknowledgments durable and leave. A second call raises AlreadyClosed."""
        self._check_open()
        self._leave(quietly=False)

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed("the consumer is closed already")

    def _leave(self, *, quietly: bool) -> None:
        self._closed = True
        self._client.forget(self)
        if self._listener is not None:
            self._listener.stop()
        deadline = self._deadline()
        try:
            for partition in self._core.partitions:
                with contextlib.suppress(*((Exception,) if quietly else ())):
                    partition.close(deadline)
        finally:
            self._core.close()

    def shut_down(self) -> None:
        """End at once (part of `Client.shutdown`): grouped acknowledgments may be lost, messages then come
        again.
        """
        self._closed = True
        if self._listener is not None:
            self._listener.stop()
        for partition in self._core.partitions:
            partition.link.remove_endpoint(partition.consumer_id)
        self._core.close()

    def _deadline(self) -> float:
        return time.monotonic() + self._client.operation_timeout_s

    def topic(self) -> str:
        """The full name of the topic."""
        return self._topic

    def subscription_name(self) -> str:
        return self._core.subscription

    def consumer_name(self) -> str:
        """The given name, or ten random hex digits."""
        return self._core.name

    def is_connected(self) -> bool:
        """True while every partition's connection stands."""
        return not self._closed and all(partition.is_connected for partition in self._core.partitions)

    def __reduce__(self) -> tuple[Any, ...]:
        return _resubscribe, (self._client, self._options)


def seek_target(messageid: MessageId | int, inclusive: bool) -> dict[str, Any]:
    """The arguments of a dispatcher's seek."""
    if isinstance(messageid, int):
        return {"target": messageid, "inclusive": True}
    if messageid == MessageId.earliest:
        return {"target": "earliest", "inclusive": True}
    if messageid == MessageId.latest:
        return {"target": "latest", "inclusive": inclusive}
    target = [messageid.ledger_id(), messageid.entry_id()]
    # Inside a batch the entry is delivered, and the client skips rows of it.
    return {"target": target, "inclusive": inclusive or _has_more_in_batch(messageid)}


def _has_more_in_batch(messageid: MessageId) -> bool:
    return messageid.batch_index() >= 0 and messageid.batch_index() + 1 != messageid.batch_size()


def skipped_rows(messageid: MessageId | int, inclusive: bool) -> tuple[int, int, int] | None:
    """(ledger id, entry id, rows) at the start of a batch that lie before a position inside it."""
    if isinstance(messageid, int) or not (inclusive or _has_more_in_batch(messageid)):
        return None
    if messageid.batch_index() < 0:
        return None
    rows = messageid.batch_index() + (0 if inclusive else 1)
    return messageid.ledger_id(), messageid.entry_id(), rows


def _resubscribe(client: Client, options: ConsumerOptions) -> Consumer:
    consumer = Consumer.__new__(Consumer)
    opening = consumer.open_later(
        lambda: client.consumer_from(options, consumer), _client=client, _options=options
    )
    if options.message_listener is not None:
        # Nobody needs to call a consumer that has a listener.
        threading.Thread(target=opening.run, name="pulsar-ray-resubscribe", daemon=True).start()
    return consumer
