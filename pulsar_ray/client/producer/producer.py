"""The producer people use: one per topic, over one PartitionProducer per partition."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Protocol

import pyarrow as pa

from pulsar_ray.client.endpoint.ending import Ending, close_each
from pulsar_ray.client.endpoint.lazy_handle import LazyHandle
from pulsar_ray.client.options.checks import check_callable, refuse
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.options.schema import BytesSchema
from pulsar_ray.client.producer.bulk_send import BulkCallback, BulkSend, limits_of
from pulsar_ray.client.producer.message_fields import MessageFields, message_fields
from pulsar_ray.client.producer.partition_limits import BulkLimits
from pulsar_ray.client.producer.partition_producer import PartitionProducer
from pulsar_ray.client.producer.routing import BatchTurnsRouter, Router, find_available, new_router
from pulsar_ray.client.producer.send_callbacks import SendCallback, SyncSend
from pulsar_ray.client.producer.send_state import SendState
from pulsar_ray.client.received.message import Message
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.errors import AlreadyClosed, MessageTooBig, NotAllowedError, PulsarException
from pulsar_ray.lane.waiting import HERE, ensure_may_wait
from pulsar_ray.model.message_id import MessageId

FOREVER_S = 1e9
_ONE_RECEIPT = "a function (Result, MessageId) or None"


class ProducerClient(Protocol):
    """The part of a client that its producers use.

    It can be pickled, as they can.
    """

    operation_timeout_s: float

    def producer_from(self, options: ProducerOptions, producer: Producer | None = None) -> Producer:
        """Open a producer with these options.

        `producer` is one that was unpickled and is opened now.
        """

    def forget(self, closed: Producer) -> None:
        """Take note that a producer has closed itself."""


class Growth(Protocol):
    """Looks for more partitions of a producer's topic."""

    def stop(self) -> None: ...


class Producer(LazyHandle):
    """Publishes to a topic. Thread-safe.

    `Client.create_producer` makes it; pickled, it reconnects as a new one.

    A receipt (the return of `send`, a callback with Result.Ok) means: stored durably, and there after any
    crash. Without one the outcome is unknown. Messages of one partition are stored in the order of the calls.
    """

    def __init__(
        self,
        client: ProducerClient,
        topic: str,
        options: ProducerOptions,
        partitions: list[PartitionProducer],
    ) -> None:
        self._client = client
        self._topic = topic
        self._options = options
        self._partitions = partitions
        self._schema = options.schema
        self._fields_of = options.schema.fields_of
        self._sent_as_given = bytes if type(options.schema) is BytesSchema else None
        self._router: Router = new_router(options, len(partitions))
        self._turns = self._router if isinstance(self._router, BatchTurnsRouter) else None
        self._route_lock = threading.Lock()
        self._single = partitions[0] if len(partitions) == 1 and options.message_router is None else None
        self._ending = self.known_ending("producer")
        self.growth: Growth | None = None
        """Looks for more partitions while the producer is open."""
        if self._turns is not None:
            self._turns.serve(self._partitions)
            for partition in partitions:
                partition.queue.take_turns(self._turns)

    @property
    def partition_count(self) -> int:
        """How many partitions it uses."""
        return len(self._partitions)

    @property
    def is_partitioned(self) -> bool:
        """Whether its topic has partitions, be it one."""
        return self._partitions[0].route.partition >= 0

    @property
    def bulk_limits(self) -> BulkLimits:
        """The most rows and bytes that `send_arrow` and `send_many` put into one block."""
        return limits_of(self._partitions)

    def is_chunked(self, value: bytes | None) -> bool:
        """Whether a message is too large for one block, and sent in chunks."""
        return self._partitions[0].queue.state.limits.is_chunked(value)

    @property
    def max_message_size(self) -> int:
        """The size in bytes that each of its partitions takes in one block."""
        return min(partition.queue.state.limits.max_message_size for partition in self._partitions)

    @property
    def is_routed_by_hand(self) -> bool:
        """Whether a `message_router` chooses each message's partition."""
        return self._options.message_router is not None

    @property
    def has_ended(self) -> bool:
        """Whether it was closed, or its topic was deleted."""
        return self._ending.is_over or any(partition.queue.state.error for partition in self._partitions)

    def add_partition(self, partition: PartitionProducer) -> None:
        """Use one more partition: the topic has grown by the next index."""
        if self._turns is not None:
            partition.queue.take_turns(self._turns)
        with self._route_lock:
            is_closed = self._ending.is_over
            if not is_closed:
                # A thread that chooses by the new count finds the partition there.
                self._partitions.append(partition)
                self._router.set_partition_count(len(self._partitions))
                self._single = None
        if is_closed:
            partition.close(time.monotonic() + self._client.operation_timeout_s)

    # --- sending ----------------------------------------------------------------------------------

    def send(
        self,
        content: Any,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> MessageId:
        """Publish one message and wait until it is stored durably.

        It flushes an open batch. `content=None` is a tombstone.

        Raises Timeout after `send_timeout_millis` without a receipt (the outcome is then unknown),
        MessageTooBig, ProducerQueueIsFull, DiskSpaceLow, AlreadyClosed, WrongNode at once if the partition is
        known to be on a node that is away (keyless messages go to other partitions then); ValueError for
        wrong arguments, TypeError for content of a type the schema does not take; NotAllowedError in a send
        callback, which it would wait for.
        """
        value = content
        if content is not None and type(content) is not self._sent_as_given:
            value, partition_key, event_timestamp = self._written(content, partition_key, event_timestamp)
        fields = None
        # Most messages are nothing but a value: nine looks cost a third of a comparison of tuples.
        if (
            partition_key is not None
            or properties is not None
            or ordering_key is not None
            or sequence_id is not None
            or replication_clusters is not None
            or disable_replication is not False
            or event_timestamp is not None
            or deliver_at is not None
            or deliver_after is not None
        ):
            fields = message_fields(
                properties,
                partition_key,
                ordering_key,
                sequence_id,
                replication_clusters,
                disable_replication,
                event_timestamp,
                deliver_at,
                deliver_after,
            )
        if HERE.runs_callbacks:
            ensure_may_wait("send()")
        partition = self._single or self._choose(
            value, partition_key, ordering_key, properties, event_timestamp
        )
        sent = SyncSend()
        if partition is None:
            partition = self._enqueue_in_turn(value, sent, fields, is_awaited=True)
        else:
            partition.queue.enqueue(value, sent, fields, is_awaited=True)
        timeout_s = self._options.send_timeout_millis / 1000 or FOREVER_S
        return partition.await_receipt(sent, value, timeout_s)

    def send_async(
        self,
        content: Any,
        callback: Callable[[Any, MessageId], None] | None,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> None:
        """Publish one message without waiting for its receipt.

        `callback(Result, MessageId)` follows where receipts are read, or here if the message is not added. It
        must not block: calls of this client that would wait raise NotAllowedError there.

        A full queue (`max_pending_messages`) waits with `block_if_queue_full`, otherwise the callback gets
        ProducerQueueIsFull; so it does with whatever has ended the producer. Raises what `send` raises for
        wrong arguments.
        """
        value = content
        if content is not None and type(content) is not self._sent_as_given:
            value, partition_key, event_timestamp = self._written(content, partition_key, event_timestamp)
        fields = None
        # Most messages are nothing but a value: nine looks cost a third of a comparison of tuples.
        if (
            partition_key is not None
            or properties is not None
            or ordering_key is not None
            or sequence_id is not None
            or replication_clusters is not None
            or disable_replication is not False
            or event_timestamp is not None
            or deliver_at is not None
            or deliver_after is not None
        ):
            fields = message_fields(
                properties,
                partition_key,
                ordering_key,
                sequence_id,
                replication_clusters,
                disable_replication,
                event_timestamp,
                deliver_at,
                deliver_after,
            )
        if callback is not None and not callable(callback):
            raise refuse("callback", callback, _ONE_RECEIPT)
        try:
            partition = self._single or self._choose(
                value, partition_key, ordering_key, properties, event_timestamp
            )
            if partition is None:
                self._enqueue_in_turn(value, callback, fields)
            else:
                partition.queue.enqueue(value, callback, fields)
        except (MessageTooBig, NotAllowedError):
            raise  # what is wrong with the arguments
        except PulsarException as error:
            (self._single or self._partitions[0]).queue.fail(callback, error)

    def _written(
        self, content: Any, key: str | None, event_timestamp: int | None
    ) -> tuple[bytes, str | None, int | None]:
        """Encode a value; key and event time may come from it."""
        if self._fields_of is not None:
            key, event_timestamp = self._fields_of(content, key, event_timestamp)
        return self._schema.encode(content), key, event_timestamp

    def _choose(
        self,
        value: bytes | None,
        key: str | None,
        ordering_key: str | None,
        properties: dict[str, str] | None,
        event_timestamp: int | None,
    ) -> PartitionProducer | None:
        """Choose the partition; None for a message that goes with its turn."""
        if self._turns is not None and not key:
            return None
        message = None
        if self._router.needs_message:
            outgoing = ReceivedBlock.outgoing(
                self._topic,
                value,
                key=key,
                ordering_key=ordering_key,
                properties=properties,
                event_time=event_timestamp,
            )
            message = Message(outgoing, 0)
        if message is not None:
            # The program's own code, which may close what it likes: no lock of ours is held.
            return self._partitions[self._router.choose(key, message)]
        with self._route_lock:
            index = self._router.choose(key)
            if key or self._partitions[index].takes_keyless:
                return self._partitions[index]
            return self._partitions[find_available(index, self._router, self._partitions)]

    def _enqueue_in_turn(
        self,
        value: bytes | None,
        callback: SendCallback | None,
        fields: MessageFields | None,
        *,
        is_awaited: bool = False,
    ) -> PartitionProducer:
        """Add a keyless message to the batch whose turn it is.

        Returns the partition that took it. Whatever ends that batch meanwhile, this message or another
        thread, moves the turn on.
        """
        assert self._turns is not None
        while True:
            partition = self._partitions[self._turns.current]
            if partition.queue.enqueue(value, callback, fields, is_awaited=is_awaited, in_turn=True):
                return partition

    # --- many at once -----------------------------------------------------------------------------

    def send_many(
        self,
        values: Iterable[bytes | None],
        *,
        partition_keys: Iterable[str | None] | None = None,
        ordering_keys: Iterable[str | None] | None = None,
        properties: Iterable[dict[str, str] | None] | None = None,
        event_timestamps: Iterable[int | None] | None = None,
        deliver_at: int | Iterable[int | None] | None = None,
    ) -> list[MessageId]:
        """Publish a list and wait until all of it is durable.

        Returns the last message's id per partition that got any.

        The list is encoded at once, no object is made per message; of another iterable a list is made first.
        The others are as long as `values`, though one `deliver_at` may stand for all. Raises what `send`
        raises; after an error a part may be stored.
        """
        ensure_may_wait("send_many()")
        return (
            self._bulk()
            .send_many(values, partition_keys, ordering_keys, properties, event_timestamps, deliver_at)
            .wait()
        )

    def send_many_async(
        self,
        values: Iterable[bytes | None],
        callback: Callable[[Any, list[MessageId]], None] | None,
        *,
        partition_keys: Iterable[str | None] | None = None,
        ordering_keys: Iterable[str | None] | None = None,
        properties: Iterable[dict[str, str] | None] | None = None,
        event_timestamps: Iterable[int | None] | None = None,
        deliver_at: int | Iterable[int | None] | None = None,
    ) -> None:
        """Publish a list as `send_many`, without waiting.

        `callback(Result, [MessageId])` follows once all is durable. Waits for room by bytes.
        """
        check_callable("callback", callback, "a function (Result, list of MessageId)")
        self._bulk(callback).send_many(
            values, partition_keys, ordering_keys, properties, event_timestamps, deliver_at
        )

    def send_arrow(
        self, data: pa.Table | pa.RecordBatch, *, deliver_at: int | None = None
    ) -> list[MessageId]:
        """Publish a table, each row a message, and wait until all is durable.

        Returns the last id per partition.

        Columns: value (binary) and, if wanted, key or partition_key, ordering_key, properties (map),
        event_time or event_timestamp, deliver_at (for each row, null for at once); those that received tables
        have besides are ignored. Rows are cut into entries of at most 8,192 rows and 1 MiB, a larger row into
        chunks with `chunking_enabled`; order within a partition is row order. Raises ValueError for columns
        of wrong types, MessageTooBig.
        """
        ensure_may_wait("send_arrow()")
        return self._bulk().send_table(data, deliver_at).wait()

    def send_arrow_async(
        self,
        data: pa.Table | pa.RecordBatch,
        callback: Callable[[Any, list[MessageId]], None] | None,
        *,
        deliver_at: int | None = None,
    ) -> None:
        """Publish a table as `send_arrow`, without waiting for receipts.

        `callback(Result, [MessageId])` follows once all is durable. Blocks while 64 MiB are pending.
        """
        check_callable("callback", callback, "a function (Result, list of MessageId)")
        self._bulk(callback).send_table(data, deliver_at)

    def _bulk(self, callback: BulkCallback | None = None) -> BulkSend:
        self._ending.check()
        return BulkSend(self._options, self._partitions, self._router, self._route_lock, callback)

    # --- the rest ---------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait until everything sent before is stored or has failed.

        Raises Timeout, AlreadyClosed, NotAllowedError in a send callback.
        """
        self._ending.check()
        ensure_may_wait("flush()")
        timeout_s = self._options.send_timeout_millis / 1000 or FOREVER_S
        deadline = time.monotonic() + timeout_s
        for partition in self._partitions:
            partition.queue.seal()
        for partition in self._partitions:
            partition.flush(deadline)

    def close(self) -> None:
        """Store what is pending, then disconnect.

        A second call raises AlreadyClosed, one after `Client.shutdown` does not; NotAllowedError in a send
        callback.
        """
        self._ending.close(self._close)

    def _close(self) -> None:
        if self._never_opened():
            return
        partitions = self._end()
        deadline = time.monotonic() + self._client.operation_timeout_s
        try:
            for partition in partitions:
                partition.queue.seal()
            error = close_each(partitions, deadline)
        finally:
            self._client.forget(self)
        if error is not None:
            raise error

    def shut_down(self) -> None:
        """End at once: pending messages fail with AlreadyClosed (part of `Client.shutdown`)."""
        self._ending.leave()
        for partition in self._end():
            partition.fail(AlreadyClosed("the client was shut down"))

    def _end(self) -> list[PartitionProducer]:
        """Stop growing, and list all partitions.

        A partition that is added behind this is closed by the thread that adds it.
        """
        if self.growth is not None:
            self.growth.stop()
        with self._route_lock:
            return list(self._partitions)

    def _states(self) -> list[SendState]:
        return [partition.queue.state for partition in self._partitions]

    def topic(self) -> str:
        """The full name of the topic."""
        return self._topic

    def producer_name(self) -> str:
        """The given name, or the one made up by the broker."""
        return next((state.producer_name for state in self._states() if state.producer_name), "")

    def last_sequence_id(self) -> int:
        """The highest sequence id stored so far, -1 before any."""
        return max(state.last_sequence_id for state in self._states())

    def pending_bytes(self) -> int:
        """The bytes, as stored, of what is sealed and not confirmed yet."""
        return sum(state.unconfirmed.size for state in self._states())

    def is_connected(self) -> bool:
        """True while every partition's connection stands."""
        return not self._ending.is_over and all(partition.is_connected for partition in self._partitions)

    def __reduce__(self) -> tuple[Any, ...]:
        return _recreate, (self._client, self._options)


def _recreate(client: ProducerClient, options: ProducerOptions) -> Producer:
    producer = Producer.__new__(Producer)
    producer.open_lazily(
        lambda: client.producer_from(options, producer),
        _client=client,
        _options=options,
        _ending=Ending("producer", warns=False),
    )
    return producer
