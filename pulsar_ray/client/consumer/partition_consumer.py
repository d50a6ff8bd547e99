"""One consumer on one partition, made of a session, deliveries and acknowledgments."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any, Protocol

from pulsar_ray.client.acks.ack_sender import AckSender
from pulsar_ray.client.acks.ack_timer import AckTimer
from pulsar_ray.client.acks.partition_acks import PartitionAcks, UnansweredRequests
from pulsar_ray.client.acks.unreadable_blocks import UnreadableBlocks
from pulsar_ray.client.consumer.dispatcher_session import DispatcherSession
from pulsar_ray.client.consumer.partition_deliveries import DeliveryTarget, PartitionDeliveries
from pulsar_ray.client.consumer.start_position import StartPosition
from pulsar_ray.client.encryption.payload_decrypter import PayloadDecrypter
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.received.block_decoder import BlockDecoder
from pulsar_ray.client.schemas.readings import SchemaReadings
from pulsar_ray.errors import PulsarException
from pulsar_ray.model.enums import ConsumerCryptoFailureAction, ConsumerType, SubscriptionMode
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.session.requests import ConsumerOpened, OpenConsumer, RedeliverUnacknowledged
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.cluster import PartitionRoute


class PartitionOwner(DeliveryTarget, Protocol):
    """The consumer above its partitions, as each of them knows it."""

    options: ConsumerOptions
    name: str
    subscription: str
    is_multi_topic: bool
    lock: threading.Lock
    error: PulsarException | None
    readings: SchemaReadings | None

    def check(self) -> None:
        """Raise what ended the consumer."""

    def partition_replaced(self, route: PartitionRoute) -> None:
        """Note that another partition, without the former one's messages, has its name now."""

    def partition_failed(self, partition: PartitionConsumer, error: PulsarException) -> None:
        """Go on without a partition, or end."""


class PartitionConsumer:
    """The parts that serve one partition, and the steps that take several of them.

    The owner's lock guards all of them: what arrives on the I/O thread and what the application does meet
    under it, for moments. Of a non-persistent topic, whose messages are stored nowhere, credit alone goes to
    the dispatcher: acknowledgments and requests for redelivery have no effect, as in Pulsar.
    """

    def __init__(
        self, owner: PartitionOwner, link: ActorLink, consumer_id: int, route: PartitionRoute
    ) -> None:
        options = owner.options
        is_stored = TopicName.parse(route.topic).is_persistent
        self._readings = None if owner.readings is None else owner.readings.of_topic(route.topic)
        decrypt = PayloadDecrypter(options.crypto_key_reader)
        decoder = BlockDecoder(owner.files, route, options.schema, self._readings, decrypt)
        self.link = link
        self.route = route
        self.consumer_id = consumer_id
        self.requests = UnansweredRequests(link)
        state = (
            PartitionAcks.stored(options, self.requests)
            if is_stored
            else PartitionAcks.unstored(self.requests)
        )
        self.deliveries = PartitionDeliveries(
            owner,
            consumer_id,
            route,
            options,
            state,
            decoder.decode if is_stored else decoder.decode_unstored,
            owner.lock,
            is_stored=is_stored,
        )
        self.ack_sender = AckSender(consumer_id, state, self.deliveries, options, owner.lock)
        self.deliveries.ack_sender = self.ack_sender
        self.unreadable = UnreadableBlocks(consumer_id, decoder, state, self.ack_sender, options, route)
        if is_stored:
            self.deliveries.unreadable = self.unreadable
        if options.crypto_failure_action == ConsumerCryptoFailureAction.CONSUME:
            decoder.take_undecrypted = self.unreadable.hold if is_stored else lambda _: True
        if state.timeouts is not None:
            self.deliveries.ack_timer = self.unreadable.ack_timer = AckTimer(
                state.timeouts,
                options.ack_timeout_tick_time_ms,
                state,
                self.ack_sender,
                lambda: owner.queue.look(self.deliveries),
                owner.lock,
            )
        self._state = state
        self.session = DispatcherSession(
            consumer_id, self, self.requests, self.ack_sender, self.deliveries.on_request, owner.lock
        )
        self._owner = owner
        self._incarnation = secrets.randbits(63) | 1
        self._joined = 0
        self._moves: dict[str, Any] | None = None

    def forked(self, lock: threading.Lock) -> None:
        """Send nothing more, in a forked child."""
        self.requests.forked()
        self.deliveries.forked(lock)
        self.ack_sender.forked(lock)
        if self.deliveries.ack_timer is not None:
            self.deliveries.ack_timer.forked(lock)
        self.session.forked(lock)

    @property
    def is_connected(self) -> bool:
        """True while open at the dispatcher, and while that sleeps once it was."""
        was_open = self._joined > 0 and not self.session.is_gone()
        return self.requests.is_open or (was_open and self.link.is_asleep)

    @property
    def awaited_consumer(self) -> tuple[int, bool] | None:
        """See Endpoint.awaited_consumer: those whose cursor is stored are awaited."""
        options = self._owner.options
        if options.subscription_mode != SubscriptionMode.Durable or not self.deliveries.is_stored:
            return None
        # Partitions are divided among all consumers.
        divides = self.deliveries.is_active or self.route.partition >= 0
        return self._incarnation, options.consumer_type == ConsumerType.Failover and divides

    # --- the session ------------------------------------------------------------------------------

    def attach_through(self, link: ActorLink) -> None:
        """Use this link from now on; nothing may have been sent yet."""
        self.link = link
        self.session.attach_through(link)

    def open(self, deadline: float) -> float:
        """See DispatcherSession.open."""
        return self.session.open(deadline)

    def open_request(self, request_id: int) -> OpenConsumer:
        """The request to open, which declares to any dispatcher what the consumer holds."""
        owner, options, deliveries = self._owner, self._owner.options, self.deliveries
        attached = self.link.attached
        assert attached is not None
        deliveries.look_at_files(attached)
        with owner.lock:
            held, parts = self.ack_sender.unacked.declared()
            return OpenConsumer(
                request_id,
                self.consumer_id,
                owner.name,
                self._incarnation,
                int(options.consumer_type),
                int(options.priority_level),  # it may be a bool
                options.batch_index_ack_enabled,
                deliveries.files.are_readable,
                deliveries.numbering,
                deliveries.last_number,
                held,
                deliveries.start,
                owner.subscription,
                deliveries.count.consumed + deliveries.count.moving + owner.queue.messages_of(deliveries),
                self._joined,
                owner.is_multi_topic,
                options.key_shared,
                # Messages of a non-persistent topic that are published at once have to find credit.
                credit=0 if deliveries.is_stored else deliveries.count.consumed + owner.window,
                generation=deliveries.generation,
                properties=options.properties,
                handed_over=deliveries.count.counter_name,
                chunk_limits=options.chunk_limits,
                redeliveries=deliveries.redeliveries,
                parts=parts,
                count_crashes=options.count_crashes,
                is_read_compacted=bool(options.is_read_compacted),
            )

    def opened(self, opened: ConsumerOpened) -> None:
        """Go on with a dispatcher that has opened the consumer."""
        with self._owner.lock:
            self._joined = self._joined or opened.numbering
            self.deliveries.opened(opened)
            self.requests.is_open = True
        self.requests.end_forgotten()
        if self._owner.options.consumer_type == ConsumerType.Exclusive:
            self.deliveries.became(True)
        # Before any credit: a dispatcher that does not know them must not deliver these messages again.
        self.requests.send_all()
        self.unreadable.report_again(opened.generation)
        self._report_moves_again()
        self.ack_sender.flush()
        self.ack_sender.nacks_added()
        self.deliveries.send_credit()

    def session_expired(self) -> None:
        """Drop queued deliveries, which other consumers of the subscription have got by now."""
        if self.deliveries.start is None:
            with self._owner.lock:
                self.deliveries.give_up_queue()

    def partition_replaced(self, *, is_known: bool) -> None:
        """Expect the deliveries of another partition of this name.

        They are numbered from the first on. The epochs of its dispatchers begin anew as well, so that one may
        be that of the former partition.
        """
        if self._readings is not None:
            self._readings.forget()
        with self._owner.lock:
            self.deliveries.number_anew()
        if not is_known:
            self._owner.partition_replaced(self.route)

    def abandon(self) -> None:
        """Have nothing to do any more with a partition whose topic is no more."""
        self.session.abandon()
        if self._readings is not None and self._owner.readings is not None:
            # The topic that gets its name has versions of its own, which begin with the same number.
            self._readings.forget()
            self._owner.readings.drop(self.route.topic)

    def ended(self, error: PulsarException) -> None:
        """Tell the owner that the session will not be open again."""
        self._owner.partition_failed(self, error)

    def close(self, deadline: float) -> None:
        """Make acknowledgments durable, send failures, and leave; what is held goes to others.

        Raises Timeout, or WrongNode if the partition is away: what was acknowledged last may come again, and
        what failed last may come uncounted.
        """
        try:
            self.session.close(deadline, self._owner.error)
        finally:
            with self._owner.lock:
                self._state.forget_failures()
            self.deliveries.count.release()

    # --- control ----------------------------------------------------------------------------------

    def call(
        self, method: str, deadline: float, then: Callable[[Any], None] | None = None, **arguments: Any
    ) -> Any:
        """A control request to the dispatcher, behind earlier acknowledgments. Raises AlreadyClosed.

        `then` gets the answer before any packet behind it is handed on.
        """
        self._owner.check()
        self.ack_sender.flush()
        return self.link.request(lambda rid: self.session.control(rid, method, arguments), deadline, then)

    def report_moves(self, moved: int, error: str) -> None:
        """Tell the dispatcher how many messages were moved, for its stats.

        `error` is why more were not, or empty.
        """
        self._moves = {"moved": moved, "error": error}
        self._report_moves_again()

    def _report_moves_again(self) -> None:
        """Send the last report, which may have been lost with its connection.

        The numbers are absolute.
        """
        arguments = self._moves
        if arguments is not None:
            self.link.request_async(
                lambda rid: self.session.control(rid, "report_moves", arguments), lambda _value, _error: None
            )

    def has_more_arguments(self) -> dict[str, Any]:
        """Arguments of `has_more`: the deliveries that have arrived."""
        numbering, received = self.deliveries.received()
        return {"numbering": numbering, "received": received}

    def seek(self, start: StartPosition, deadline: float) -> None:
        """Go on at a position; queued messages are dropped first.

        A seek whose answer is lost is asked for again: by its number the dispatcher knows that it was done.
        """

        def sought(generation: int) -> None:
            self.deliveries.sought(start, generation)

        self.call("seek", deadline, then=sought, seek_id=secrets.randbits(62), **start.target)

    def redeliver_unacknowledged(self) -> None:
        """Have everything unacknowledged delivered again; queued messages are dropped."""
        if not self.deliveries.is_stored:
            return
        self.ack_sender.send(at_once=False)
        dropped = self.deliveries.drop_for_redelivery()
        self.requests.submit(
            lambda rid: RedeliverUnacknowledged(
                self.consumer_id,
                dropped.numbering,
                dropped.received,
                rid,
                dropped.generation,
                dropped.handed_over,
                dropped.redeliveries,
            )
        )
        self.deliveries.send_credit()
