"""The consumer people use: one per subscribe call, over one PartitionConsumer per partition."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from pulsar_ray.client.arrow.received_table import ReceivedTables, received_table
from pulsar_ray.client.arrow.typed_table import UnreadableRows, typed_table
from pulsar_ray.client.consumer.consumer_acks import ConsumerAcks
from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.listeners import EventListenerThread, ListenerRunner, MessageListenerThread
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.consumer.subscription_control import SubscriptionControl
from pulsar_ray.client.dead_letters.consumer_letters import ConsumerLetters, retry_not_enabled
from pulsar_ray.client.endpoint.ending import Ending, close_each
from pulsar_ray.client.endpoint.lazy_handle import LazyHandle
from pulsar_ray.client.options.checks import check_number
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.options.policies import ConsumerEventListener
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.received.batch_collector import (
    ANY_BYTES,
    FOREVER_S,
    BatchCollector,
    batch_limits,
)
from pulsar_ray.client.received.message import BlockRows, Message
from pulsar_ray.client.received.message_batch import MessageBatchView
from pulsar_ray.client.received.waiting_receivers import FutureReceiver
from pulsar_ray.errors import (
    InvalidConfiguration,
    OperationNotSupported,
    SchemaSerializationException,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
)
from pulsar_ray.format.typed_rows import TypedRows
from pulsar_ray.lane.waiting import ensure_may_wait
from pulsar_ray.model.enums import SubscriptionMode
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.transport.actor_link import ActorLink


class ConsumerClient(Protocol):
    """Opens consumers and readers, and forgets them when they have closed."""

    operation_timeout_s: float

    def consumer_from(self, options: ConsumerOptions, consumer: Any = None) -> Any:
        """Open a consumer, which may be one that was unpickled. Raises what `Client.subscribe` raises."""

    def producer_from(self, options: ProducerOptions) -> Any:
        """Open a producer. Raises what `Client.create_producer` raises."""

    def keeps_nothing(self, topic: str) -> bool:
        """Whether a topic has neither a durable subscription nor retention."""

    def reader_from(self, arguments: dict[str, Any], reader: Any) -> Any:
        """Open an unpickled reader. Raises what `Client.create_reader` raises."""

    def forget(self, closed: Any) -> None:
        """Drop a consumer or reader that has closed itself."""

    def forget_dispatchers(self, links: list[ActorLink]) -> None:
        """Have the dispatchers of a deleted subscription leave; their names are free when this returns."""


class Consumer(LazyHandle):
    """Receives from a topic through a subscription. Thread-safe. Made by `Client.subscribe`.

    Delivery is at least once: what was not acknowledged durably when something crashed comes again.
    """

    _waits_for_receipts: ClassVar[bool] = True

    def __init__(
        self, client: ConsumerClient, topic: str, core: ConsumerCore, ending: Ending | None = None
    ) -> None:
        self._topic = topic
        self._core = core
        self._partitions = core.partitions
        self._options = core.options
        self._operation_timeout_s = client.operation_timeout_s
        self._tables = ReceivedTables()
        self._acks = ConsumerAcks(core, self._operation_timeout_s, waits=self._waits_for_receipts)
        self._control = SubscriptionControl(core, self._operation_timeout_s)
        self._letters = ConsumerLetters(client, core) if core.options.max_failures is not None else None
        self._client = client
        self._ending = ending or self.known_ending("consumer")
        self._listener: MessageListenerThread | None = None
        self._activity: ListenerRunner | None = None
        if (event_listener := self._options.consumer_event_listener) is not None:
            self._listen_to_activity(event_listener)
        if (listener := self._options.message_listener) is not None:
            self.hand_to(lambda message: listener(self, message))

    @property
    def core(self) -> ConsumerCore:
        """The core of this consumer; not part of the official client."""
        return self._core

    def _deadline(self) -> float:
        return time.monotonic() + self._operation_timeout_s

    def _listen_to_activity(self, listener: ConsumerEventListener) -> None:
        self._activity = EventListenerThread(self, listener, self._core.activity)

    def hand_to(self, listen: Callable[[Message], object]) -> None:
        """Call `listen` with each message from `start_listening` on; readers call their own listener."""
        self._listener = MessageListenerThread(self._core, listen, paused=self._options.start_paused)

    def start_listening(self) -> None:
        """Start the listeners, if there are any.

        Their first call may close this consumer and its client, which have to know it and them by then.
        """
        for listener in (self._activity, self._listener):
            if listener is not None:
                listener.start()

    # --- receiving --------------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> Message:
        """The next message; waits for ever, or so many ms.

        Raises Timeout, AlreadyClosed, InvalidConfiguration with a listener or with a timeout on a queue of
        size 0, CorruptData naming the position of an entry that cannot be read (it stays unacknowledged), and
        once in a while RemoteStoreUnavailable or JournalDamaged for what is only in the object store.
        """
        timeout_s = FOREVER_S
        if timeout_millis is not None:
            timeout_s = receive_timeout_s(timeout_millis)
            if self._options.receiver_queue_size == 0:
                raise InvalidConfiguration("receive(timeout_millis) needs a receiver_queue_size above 0")
        if self._listener is not None:
            raise InvalidConfiguration("this consumer has a message_listener: receive() cannot be used")
        message = next(self._core.queue.messages, None)
        return message or self._core.receive(time.monotonic() + timeout_s)

    def receive_async(self) -> Future[Message]:
        """A future of the next message; cancelling it gives the message to the next one."""
        if self._listener is not None:
            raise InvalidConfiguration("this consumer has a message_listener: receive_async() cannot be used")
        receiver = FutureReceiver()
        self._core.add_receiver(receiver)
        return receiver.future

    def batch_receive(self) -> MessageBatchView:
        """Messages up to a limit of the batch receive policy, possibly none at its timeout.

        A sequence filled lazily; `acknowledge` takes it whole.
        """
        if self._listener is not None:
            raise InvalidConfiguration("this consumer has a message_listener: batch_receive() cannot be used")
        taken, timeout_s = batch_limits(self._options.batch_receive_policy)
        self._core.take_into(taken, time.monotonic() + timeout_s)
        self._core.handed_over(taken)
        return MessageBatchView(taken.parts)

    def receive_arrow(self, max_messages: int = 100_000, timeout_millis: int | None = None) -> pa.Table:
        """All messages that are here, at least one, as a table.

        Its columns are key, value, ordering_key, properties, topic, ... (`TABLE_SCHEMA`). With an ArrowSchema
        those of the rows come first, in place of value, and `tombstone`; a message's column of the same name
        as one of theirs begins with two underscores.

        Raises Timeout when nothing came in time, else what `receive` raises; SchemaSerializationException for
        an entry that does not fit the schema, which can be acknowledged by the error's `message_id`, while
        the next call goes on behind it.
        """
        if self._listener is not None:
            raise InvalidConfiguration("this consumer has a message_listener: receive_arrow() cannot be used")
        check_number("max_messages", max_messages, 1)
        wait_s = FOREVER_S if timeout_millis is None else receive_timeout_s(timeout_millis)
        self._core.widen(2 * max_messages)
        taken = BatchCollector(max_messages, ANY_BYTES, fills=False)
        self._core.take_into(taken, time.monotonic() + wait_s)
        if not taken.parts:
            raise Timeout(f"no message arrived in {timeout_millis} ms")
        self._core.handed_over(taken)
        return self.table_of(taken)

    def has_message_available(self) -> bool:
        """Whether a stored message waits here, or will come to this subscription.

        Messages that other consumers of a shared subscription hold do not count, nor those on partitions that
        are away. Not part of the official client. Raises WrongNode if all are away, and what ended the
        consumer: TopicNotFound, SubscriptionNotFound, AlreadyClosed.
        """
        return self._control.has_message_available()

    # --- acknowledging ----------------------------------------------------------------------------

    def acknowledge(self, message: Message | MessageId | MessageBatchView | Iterable[Message]) -> None:
        """Acknowledge a message, an id, or messages received in a batch.

        Acknowledgments are grouped and durable soon; with `ack_receipt_enabled` this returns once they are
        durable.
        """
        if type(message) is not Message:
            self._acknowledge_others(message)
            return
        block, core = message.block, self._core
        partition = self._partitions.single or self._partitions.of(block.topic_name, block.partition)
        sender = partition.ack_sender
        acks = sender.acks
        current = acks.current
        if block is current.block:
            # In this order, without the lock: see AckTracker.
            current.flags[message.row] = 1
            acks.count += 1
            if acks.current is not current:
                with core.lock:
                    acks.add_late(current, message.row)
        else:
            with core.lock:
                if block.message_count > 1:
                    acks.add_message(block, message.row)
                else:
                    acks.add(block.ledger_id, block.first_entry_id)
        if acks.count >= sender.gathered or core.error is not None:
            self._acks.added(partition)

    def _acknowledge_others(self, given: Any) -> None:
        if isinstance(given, MessageId):
            self._acks.add_id(given)
        elif isinstance(given, MessageBatchView):
            self._acks.add_parts(given.parts)
        elif isinstance(given, Iterable):
            for one in given:
                if not isinstance(one, (Message, MessageId)):
                    raise ValueError(f"acknowledge takes messages, not {type(one).__name__}")
                self.acknowledge(one)
        else:
            raise ValueError(f"acknowledge takes a Message or MessageId, not {type(given).__name__}")

    def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge everything up to and including this message, within its partition.

        `MessageId.earliest` and `latest` name no message and have no effect, which is logged as a warning;
        `seek(MessageId.latest)` passes everything stored by now. Raises
        CumulativeAcknowledgementNotAllowedError on Shared and KeyShared subscriptions.
        """
        self._acks.add_cumulative(message)

    def table_of(self, taken: BatchCollector) -> pa.Table:
        """Collected rows as a table that is known when it is acknowledged.

        Not part of the official client.
        """
        typed = self._options.schema.typed
        if typed is None:
            return self._tables.add(received_table(taken.parts), taken.parts)
        try:
            return self._tables.add(typed_table(taken.parts, typed), taken.parts)
        except UnreadableRows as found:
            return self._table_before(found, taken, typed)

    def _table_before(self, found: UnreadableRows, taken: BatchCollector, typed: TypedRows) -> pa.Table:
        """Return what comes before rows that cannot be read; the others are handed out next.

        Raises their error if they are the first.
        """
        error = found.error.again()
        # Rows that do not fit the schema never will: the next call goes on behind them.
        has_failed = not found.place and isinstance(error, SchemaSerializationException)
        rest = slice(1 if has_failed else found.place, None)
        self._core.give_back(taken.parts[rest], taken.origins[rest])
        if found.place:
            parts = taken.parts[: found.place]
            return self._tables.add(typed_table(parts, typed), parts)
        if not has_failed:
            raise error
        block, rows = taken.parts[0]
        entry = MessageId(block.partition, block.ledger_id, block.first_entry_id, topic_name=block.topic_name)
        raise error.of_message(entry if block.is_batch else Message(block, rows[0]).message_id())

    def acknowledge_arrow(self, table: pa.Table) -> None:
        """Acknowledge the rows of a received table or any part of one.

        Needs its position columns only.
        """
        if (parts := self._tables.rows_of(table)) is not None:
            self._acks.add_parts(parts)
        else:
            self._acks.add_table(table)

    def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Have a message delivered again after the redelivery delay or backoff.

        Of a batch, its whole entry comes again.
        """
        self._acks.add_negative(message)

    def negative_acknowledge_arrow(self, table: pa.Table) -> None:
        """Have the rows of a received table delivered again."""
        self._acks.add_negative_table(table)

    def reconsume_later(
        self, message: Message, delay: timedelta, properties: dict[str, str] | None = None
    ) -> None:
        """Send a message to the retry letter topic, to come again after a delay.

        It is copied. Blocks until the copy is durable and the message acknowledged, durably; after a crash in
        between it may come twice. A message that came from there `max_redeliver_count` times goes to the dead
        letter topic. The copy carries `properties` too. Raises OperationNotSupported without `enable_retry`,
        ValueError for anything but a received message, and what sending raises: the message then stays.
        """
        ensure_may_wait("reconsume_later()")
        letter = self.letters.retried_later(message, delay, properties)
        with self.letters.lent(letter) as producer:
            producer.send(**letter.arguments)
        self.acknowledge_moved([BlockRows(message.block, [message.row])])
        self.partition_of(message).ack_sender.acknowledge_durably(self._deadline())

    def acknowledge_moved(self, parts: Sequence[BlockRows]) -> None:
        """Acknowledge rows whose copies are durable elsewhere; not part of the official client.

        They never come again, even where acknowledgments of single messages of a batch are not kept.
        """
        self._acks.add_parts(parts, are_moved=True)

    def partition_of(self, message: Message) -> PartitionConsumer:
        """The partition that a message came from; not part of the official client."""
        return self._partitions.of(message.block.topic_name, message.block.partition)

    @property
    def letters(self) -> ConsumerLetters:
        """Its copies to retry letter topics; not part of the official client.

        Raises OperationNotSupported if it has none.
        """
        if self._letters is None:
            raise retry_not_enabled()
        return self._letters

    def redeliver_unacknowledged_messages(self) -> None:
        """Have everything this consumer was given and did not acknowledge delivered again."""
        for partition in self._partitions.all:
            partition.redeliver_unacknowledged()

    # --- control ----------------------------------------------------------------------------------

    def seek(self, messageid: MessageId | int) -> None:
        """Go on behind this message, or at the first one published at this time (ms).

        With `start_message_id_inclusive` it goes on at the message.

        `MessageId.earliest` and `latest` (behind it there is nothing yet) work for all partitions, other ids
        for their own. Everything not acknowledged before the new position counts as acknowledged; messages
        behind it come (again). Raises OperationNotSupported if it cannot know the partition of an id, and
        WrongNode, with nothing done, if a partition that it concerns is away.
        """
        self._control.seek(messageid)

    def seek_last(self) -> None:
        """Go on at the newest stored message, or where none is stored at the next."""
        self._control.seek_last()

    def pause_message_listener(self) -> None:
        """Give the listener nothing more until `resume_message_listener`.

        Raises InvalidConfiguration without a listener.
        """
        self._the_listener().pause()

    def resume_message_listener(self) -> None:
        """Go on after `pause_message_listener`."""
        self._the_listener().resume()

    def _the_listener(self) -> MessageListenerThread:
        if self._listener is None:
            raise InvalidConfiguration("this consumer has no message_listener to pause or resume")
        return self._listener

    def unsubscribe(self) -> None:
        """Delete the subscription and leave; `close` is not needed behind it, and does no harm.

        Raises while other consumers are connected to it, and WrongNode while a partition of it is away.
        """
        ensure_may_wait("unsubscribe()")
        self._ending.check()
        self._core.check()
        if self._partitions.discovery is not None:
            # Partitions that it has not found yet have the subscription as well.
            self._partitions.discovery.look()
        self._partitions.check_all_there()
        self._control.check_unsubscribe()
        self._partitions.end_discovery()
        partitions = self._partitions.all
        try:
            for partition in partitions:
                # Done before, and the answer was lost; or gone with its topic.
                with contextlib.suppress(SubscriptionNotFound, TopicNotFound):
                    partition.session.unsubscribe(self._deadline())
                partition.ack_sender.forget()
        except BaseException:
            self._partitions.go_on_discovering()
            if self._ending.is_over:  # another thread closed it meanwhile
                self._partitions.stop_discovery()
            raise
        self._ending.leave(lambda: self._leave(quietly=True))
        if self._options.subscription_mode == SubscriptionMode.Durable:
            # The dispatcher of others serves all of their partition.
            self._client.forget_dispatchers([partition.link for partition in partitions])

    def get_last_message_id(self) -> MessageId:
        """The id of the newest message of a topic with one partition.

        (-1,-1,-1,-1) if the topic is empty.
        """
        if self._partitions.single is None:
            raise OperationNotSupported("get_last_message_id needs one partition; use get_last_message_ids()")
        return self.get_last_message_ids()[0]

    def get_last_message_ids(self) -> list[MessageId]:
        """The id of the newest message of each partition that is not away."""
        return self._control.last_message_ids()

    def close(self) -> None:
        """Make acknowledgments durable and leave.

        Messages that were acknowledged negatively come again now, before their delay is over, and count as
        failed. A second call raises AlreadyClosed, one after `unsubscribe` or `Client.shutdown` does not.
        """
        self._ending.close(self.leave)

    def leave(self) -> None:
        """Do as `close`, without its check; not part of the official client."""
        if not self._never_opened():
            self._leave(quietly=False)

    def _leave(self, *, quietly: bool) -> None:
        self._partitions.stop_discovery()
        self._stop_threads()
        deadline = self._deadline()
        if self._letters is not None:
            self._letters.close(deadline)
        try:
            error = close_each(self._partitions.all, deadline)
        finally:
            self._core.close(self._ending.what)
            self._client.forget(self)
        if error is not None and not quietly:
            raise error

    def shut_down(self) -> None:
        """End at once, as part of `Client.shutdown`.

        Grouped acknowledgments may be lost; their messages then come again.
        """
        self._ending.leave()
        self._stop_threads()
        if self._letters is not None:
            self._letters.end()
        for partition in self._partitions.all:
            partition.link.remove_endpoint(partition.consumer_id)
        self._core.close(self._ending.what)

    def _stop_threads(self) -> None:
        for thread in (self._listener, self._activity):
            if thread is not None:
                thread.stop()

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
        return not self._ending.is_over and all(partition.is_connected for partition in self._partitions.all)

    def __reduce__(self) -> tuple[Any, ...]:
        return _resubscribe, (self._client, self._options)


def receive_timeout_s(timeout_millis: int) -> float:
    """The timeout in seconds. Raises ValueError for anything but an int."""
    if not isinstance(timeout_millis, int):
        raise ValueError(f"timeout_millis={timeout_millis!r}: give an int (ms) or None")
    return timeout_millis / 1000


def _resubscribe(client: ConsumerClient, options: ConsumerOptions) -> Consumer:
    consumer = Consumer.__new__(Consumer)
    opening = consumer.open_lazily(
        lambda: client.consumer_from(options, consumer),
        _client=client,
        _options=options,
        _ending=Ending("consumer", warns=False),
    )
    if options.message_listener is not None:
        # Nobody needs to call a consumer that has a listener.
        opening.start("pulsar-ray-resubscribe")
    return consumer
