"""The consumer people use: one per subscribe call, over one PartitionConsumer per partition."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pulsar_ray.client.consumer.acknowledging_consumer import AcknowledgingConsumer
from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.event_listener import EventListenerThread, ListenerRunner
from pulsar_ray.client.consumer.message_listener import MessageListenerThread
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.consumer.start_position import StartPosition
from pulsar_ray.client.consumer.waiting_receivers import FutureReceiver
from pulsar_ray.client.endpoint.close_each import close_each
from pulsar_ray.client.endpoint.ending import Ending
from pulsar_ray.client.options.checks import check_number
from pulsar_ray.client.options.policies import ConsumerEventListener
from pulsar_ray.client.received.batch_collector import (
    FOREVER_S,
    BatchCollector,
    batch_limits,
    receive_timeout_s,
)
from pulsar_ray.client.received.message import Message, MessageBatchView
from pulsar_ray.errors import (
    InvalidConfiguration,
    OperationNotSupported,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
)
from pulsar_ray.managed_ledger.log.manifest import LEDGER_COUNTER_BITS
from pulsar_ray.model.enums import SubscriptionMode
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.transport.cluster import PartitionRoute

if TYPE_CHECKING:
    from pulsar_ray.client.client import Client
    from pulsar_ray.client.options.consumer_options import ConsumerOptions


class Consumer(AcknowledgingConsumer):
    """Receives from a topic through a subscription. Thread-safe. Made by `Client.subscribe`.

    Delivery is at least once: what was not acknowledged durably when something crashed comes again.
    """

    def __init__(self, client: Client, topic: str, core: ConsumerCore, ending: Ending | None = None) -> None:
        super().__init__(topic, core, client.operation_timeout_s)
        self._client = client
        self._ending = ending or self.known_ending("consumer")
        self._listener: MessageListenerThread | None = None
        self._activity: ListenerRunner | None = None
        if (told := self._options.consumer_event_listener) is not None:
            self._tell_activity(told)
        if (listener := self._options.message_listener) is not None:
            self.hand_to(lambda message: listener(self, message))

    def _tell_activity(self, listener: ConsumerEventListener) -> None:
        self._activity = EventListenerThread(self, listener, self._core.activity)

    def hand_to(self, listen: Callable[[Message], object]) -> None:
        """Call `listen` with each message from `start_listening` on; readers call their own listener."""
        self._listener = MessageListenerThread(self._core, listen, paused=self._options.start_paused)

    def start_listening(self) -> None:
        """Start the listener, if there is one; its first call may close this consumer and its client."""
        if self._listener is not None:
            self._listener.start()

    # --- receiving --------------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> Message:
        """The next message; waits for ever, or so many ms.

        Raises Timeout, AlreadyClosed, InvalidConfiguration with a listener or with a timeout on a queue of
        size 0, CorruptData naming the position of an entry that cannot be read (it stays unacknowledged).
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
        """Messages as the batch receive policy says: when one of its limits is reached; possibly none at its
        timeout.

        A sequence filled lazily; `acknowledge` takes it whole.
        """
        if self._listener is not None:
            raise InvalidConfiguration("this consumer has a message_listener: batch_receive() cannot be used")
        taken, timeout_s = batch_limits(self._options.batch_receive_policy)
        self._core.take_into(taken, time.monotonic() + timeout_s)
        return MessageBatchView(taken.parts)

    def receive_arrow(self, max_messages: int = 100_000, timeout_millis: int | None = None) -> pa.Table:
        """What is there, at least one message, as a table with the columns key, value, ordering_key,
        properties, topic, ...

        Raises Timeout when nothing came in time, else what `receive` raises.
        """
        if self._listener is not None:
            raise InvalidConfiguration("this consumer has a message_listener: receive_arrow() cannot be used")
        check_number("max_messages", max_messages, 1)
        wait_s = FOREVER_S if timeout_millis is None else receive_timeout_s(timeout_millis)
        self._core.widen(2 * max_messages)
        taken = BatchCollector(max_messages, 2**62, fills=False)
        self._core.take_into(taken, time.monotonic() + wait_s)
        if not taken.parts:
            raise Timeout(f"no message arrived in {timeout_millis} ms")
        return self.table_of(taken.parts)

    def has_message_available(self) -> bool:
        """Whether a message that is stored by now is waiting here, or will come to this subscription.

        What other consumers of a shared subscription hold does not count, nor what lies on partitions that
        are away. Not part of the official client. Raises WrongNode if all are away, and what ended the
        consumer: TopicNotFound, SubscriptionNotFound, AlreadyClosed.
        """
        self._core.check()
        if self._core.has_received():
            return True
        for partition in self._there():
            with self._unless_deleted():
                if partition.call("has_more", self._deadline(), **partition.has_more_arguments()):
                    return True
        return self._core.has_received()

    def _there(self) -> list[PartitionConsumer]:
        """The partitions that are not known to be away. Raises WrongNode if none is left."""
        there = [partition for partition in self._core.partitions if partition.link.absence is None]
        if not there:
            self._core.check_all_there()
        return there

    def _ask(self, method: str) -> list[tuple[PartitionConsumer, Any]]:
        """The answers of the partitions that are there, without those of topics that are being deleted."""
        answers = []
        for partition in self._there():
            with self._unless_deleted():
                answers.append((partition, partition.call(method, self._deadline())))
        return answers

    @contextlib.contextmanager
    def _unless_deleted(self) -> Iterator[None]:
        """What is done with one of several topics, which may be being deleted."""
        try:
            yield
        except (TopicNotFound, SubscriptionNotFound):
            if not self._core.is_multi_topic:
                raise

    # --- control ----------------------------------------------------------------------------------

    def seek(self, messageid: MessageId | int) -> None:
        """Go on behind this message (at it with `start_message_id_inclusive`), or at the first one published
        at this time (ms).

        `MessageId.earliest` and `latest` (behind it there is nothing yet) work for all partitions, other ids
        for their own. Everything not acknowledged before the new position counts as acknowledged; what is
        behind it comes (again). Raises OperationNotSupported if it cannot tell the partition of an id, and
        WrongNode, with nothing done, if a partition that it concerns is away.
        """
        partitions = self._seek_partitions(messageid)
        if partitions is self._core.partitions:
            self._core.check_all_there()
        is_inclusive = self._options.start_message_id_inclusive and messageid != MessageId.latest
        start = StartPosition.at(messageid, is_inclusive)
        for partition in partitions:
            with self._unless_deleted():
                partition.seek(start, self._deadline())

    def seek_last(self) -> None:
        """Go on at the newest message that is stored, or at the next where none is stored yet."""
        for partition, last in self._ask("last_message"):
            newest = _last_id(partition.route, last)
            if newest.entry_id() >= 0:
                with self._unless_deleted():
                    partition.seek(StartPosition.at(newest, inclusive=True), self._deadline())

    def _seek_partitions(self, messageid: MessageId | int) -> list[PartitionConsumer]:
        if isinstance(messageid, bool) or not isinstance(messageid, (MessageId, int)):
            raise ValueError(
                f"seek takes a MessageId or a publish time in ms, not {type(messageid).__name__}"
            )
        if isinstance(messageid, int):
            if not 0 <= messageid < 2**63:
                raise ValueError(
                    f"seek({messageid}): a publish time is in ms since 1970, from 0; give that or a MessageId"
                )
            return self._core.partitions
        if messageid in (MessageId.earliest, MessageId.latest):
            return self._core.partitions
        partition = self._partition_of(messageid.topic_name, messageid.partition())
        if not messageid.topic_name and self._core.single is None:
            self._check_names(partition, messageid)
        return [partition]

    def _check_names(self, partition: PartitionConsumer, messageid: MessageId) -> None:
        """Raise OperationNotSupported unless an id without a topic is one of the partition all the same.

        Its ledger tells: a ledger's id has the number of its partition in it, which no other partition gets.
        """
        last = partition.call("last_message", self._deadline())
        if messageid.ledger_id() >> LEDGER_COUNTER_BITS != last["position"][0] >> LEDGER_COUNTER_BITS:
            raise OperationNotSupported(
                f"seek: the id {messageid} names no topic, and no ledger of {partition.route.topic}: use "
                "a received message's id, or MessageId.deserialize(..., topic=message.topic_name())"
            )

    def pause_message_listener(self) -> None:
        """The listener gets nothing more until `resume_message_listener`.

        InvalidConfiguration without a listener.
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
        self._ending.check()
        self._core.check()
        if self._core.discovery is not None:
            # Partitions that it has not found yet have the subscription as well.
            self._core.discovery.look()
        self._core.check_all_there()
        self._ask("check_unsubscribe")
        self._core.end_discovery()
        partitions = self._core.partitions
        for partition in partitions:
            # Done before, and the answer was lost; or gone with its topic.
            with contextlib.suppress(SubscriptionNotFound, TopicNotFound):
                partition.unsubscribe(self._deadline())
            partition.forget_acknowledgments()
        self._ending.leave(lambda: self._leave(quietly=True))
        if self._options.subscription_mode == SubscriptionMode.Durable:
            # The dispatcher of others serves all of their partition.
            self._client.forget_dispatchers([partition.link for partition in partitions])

    def get_last_message_id(self) -> MessageId:
        """The id of the newest message of the topic, (-1,-1,-1,-1) if it is empty. One partition only."""
        if self._core.single is None:
            raise OperationNotSupported("get_last_message_id needs one partition; use get_last_message_ids()")
        return self.get_last_message_ids()[0]

    def get_last_message_ids(self) -> list[MessageId]:
        """The id of the newest message of each partition that is not away."""
        answers = self._ask("last_message")
        return [_last_id(partition.route, last) for partition, last in answers]

    def close(self) -> None:
        """Make acknowledgments durable and leave. A second call raises AlreadyClosed, one after
        `unsubscribe` or `Client.shutdown` does not.
        """
        self._ending.close(self.leave)

    def leave(self) -> None:
        """What `close` does; not part of the official client."""
        if not self._never_opened():
            self._leave(quietly=False)

    def _leave(self, *, quietly: bool) -> None:
        self._core.stop_discovery()
        self._stop_threads()
        deadline = self._deadline()
        try:
            error = close_each(self._core.partitions, deadline)
        finally:
            self._core.close(self._ending.what)
            self._client.forget(self)
        if error is not None and not quietly:
            raise error

    def shut_down(self) -> None:
        """End at once (part of `Client.shutdown`): grouped acknowledgments may be lost, messages then come
        again.
        """
        self._ending.leave()
        self._stop_threads()
        for partition in self._core.partitions:
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
        return not self._ending.is_over and all(partition.is_connected for partition in self._core.partitions)

    def __reduce__(self) -> tuple[Any, ...]:
        return _resubscribe, (self._client, self._options)


def _last_id(route: PartitionRoute, last: dict[str, Any]) -> MessageId:
    ledger_id, entry_id = last["position"]
    if ledger_id < 0 or entry_id < 0:
        return MessageId()
    size = last["batch_size"]
    return MessageId(route.partition, ledger_id, entry_id, size - 1, batch_size=size, topic_name=route.topic)


def _resubscribe(client: Client, options: ConsumerOptions) -> Consumer:
    consumer = Consumer.__new__(Consumer)
    opening = consumer.open_later(
        lambda: client.consumer_from(options, consumer),
        _client=client,
        _options=options,
        _ending=Ending("consumer"),
    )
    if options.message_listener is not None:
        # Nobody needs to call a consumer that has a listener.
        opening.start("pulsar-ray-resubscribe")
    return consumer
