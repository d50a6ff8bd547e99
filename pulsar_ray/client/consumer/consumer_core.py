"""The core of a consumer: one receiver queue over all its partitions.

Deliveries arrive on the I/O thread and are decoded in the thread that receives; a message object is made when
it is handed out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

from pulsar_ray.client.consumer.consumer_partitions import ConsumerPartitions
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.dead_letters.letters import split_over_limit
from pulsar_ray.client.endpoint.ending import notify_of_forks
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.received.arrival_signal import ArrivalSignal
from pulsar_ray.client.received.batch_collector import BatchCollector
from pulsar_ray.client.received.block_decoder import SegmentFiles
from pulsar_ray.client.received.message import BlockRows, Message
from pulsar_ray.client.received.receiver_queue import DeliverySource, Origin, QueuedDelivery, ReceiverQueue
from pulsar_ray.client.received.waiting_receivers import Receiver, WaitingReceivers
from pulsar_ray.client.schemas.readings import SchemaReadings
from pulsar_ray.errors import (
    AlreadyClosed,
    ForkedClient,
    PulsarException,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
)
from pulsar_ray.lane.waiting import HERE, ensure_may_wait
from pulsar_ray.ledger.offloaded import AWAY, UNREAD
from pulsar_ray.ledger.reader import SegmentGone
from pulsar_ray.transport.cluster import PartitionRoute

logger = logging.getLogger(__name__)
_ONLY_ROW = range(1)

BECAME_ACTIVE = "became_active"
BECAME_INACTIVE = "became_inactive"
PARTITION_REPLACED = "partition_replaced"
ConsumerEvent = tuple[str, int]
"""(the listener's method for it, partition).

The partition is -1 on a topic without partitions.
"""


class Mover(Protocol):
    """Moves messages that failed too often; its methods are called with the consumer's lock held."""

    def take(self, delivery: QueuedDelivery) -> None:
        """Begin to move a delivery."""

    def look(self) -> None:
        """Take by `leave_to_mover`, soon and repeatedly, what waits in the queue."""


class ConsumerCore:
    """Owns a consumer's partitions, and the lock and queue that they share.

    `lock` is held for moments; `_taking` by the thread that fills the rows that are being handed out.
    """

    def __init__(self, options: ConsumerOptions, name: str, subscription: str, files: SegmentFiles) -> None:
        self.options = options
        self.name = name
        self.subscription = subscription
        self.files = files
        self.lock = threading.Lock()
        self.queue = ReceiverQueue()
        self.is_multi_topic = not isinstance(options.topic, str) or options.enable_retry
        self.partitions = ConsumerPartitions(
            self.queue, self.lock, self.fail, is_multi_topic=self.is_multi_topic
        )
        self._arrivals = ArrivalSignal(self.lock)
        self._taking = threading.Lock()
        self.receivers = WaitingReceivers()
        self._serving = 0
        self._waiting = 0
        self._bulk_window = 0
        self._read_errors: deque[PulsarException] = deque()
        """Of blocks behind messages that were collected: each is raised next, in its order."""
        self._returned: list[tuple[BlockRows, Origin]] = []
        """Rows that did not get to the application, until a thread puts them back."""
        self._standing: dict[DeliverySource, PulsarException] = {}
        """Why nothing comes of a partition: raised once where a receive would wait."""
        self.readings: SchemaReadings | None = None
        """How values are read by their writers' versions; None for bytes."""
        self.error: PulsarException | None = None
        """The error that every receive raises, once there is one.

        Unless it is that of a close, messages that wait come first.
        """
        self._is_closed = False
        """Whether nothing is handed out any more."""
        self.activity: SimpleQueue[ConsumerEvent | None] = SimpleQueue()
        """Changes for the consumer event listener, if there is one."""
        self.on_activity: Callable[[], None] | None = None
        """Called on any thread when `activity` was filled."""
        self.is_paused = options.start_paused and options.message_listener is None
        """Whether no more messages are asked for; those on their way still arrive."""
        self._max_failures = options.max_failures
        self._mover: Mover | None = None
        notify_of_forks(self)

    def forked(self, error: ForkedClient) -> None:
        """Empty the queue in a forked child: only the parent hands it out."""
        self.lock = threading.Lock()
        self._arrivals.forked(self.lock)
        self._taking = threading.Lock()
        self.queue.clear()
        self._read_errors.clear()
        self._returned.clear()
        self._standing.clear()
        self.receivers.clear()
        self.error = error
        self.partitions.forked(self.lock)

    def check(self) -> None:
        """Raise what ended this consumer, if anything did."""
        if self.error is not None:
            raise self.error.again()

    # --- the queue --------------------------------------------------------------------------------

    @property
    def window(self) -> int:
        """Messages each partition may have on its way and in the queue.

        With a queue of 0 it is one while a thread or receiver waits, else none.
        """
        if self.is_paused:
            return 0
        options = self.options
        if options.receiver_queue_size == 0:
            # The one that is being served wants no more than what it gets now.
            is_awaited = self._waiting or len(self.receivers) > self._serving
            return max(1 if is_awaited else 0, self._bulk_window)
        share = options.max_total_receiver_queue_size_across_partitions // max(1, len(self.partitions.all))
        return max(1, min(options.receiver_queue_size, share), self._bulk_window)

    def partition_failed(self, partition: PartitionConsumer, error: PulsarException) -> None:
        """Go on without a deleted topic if there are several; else every receive raises `error`."""
        self.partitions.failed(partition, error)

    def activity_changed(self, is_active: bool, partition: int) -> None:
        """Keep a change for the consumer event listener, if there is one."""
        self._tell(BECAME_ACTIVE if is_active else BECAME_INACTIVE, partition)

    def partition_replaced(self, route: PartitionRoute) -> None:
        """Say that another partition has taken the place of one, with none of its messages."""
        logger.warning(
            "%s is another partition than before, as after a lost disk: what that one held and the "
            "subscription %r had not received is gone",
            route.topic,
            self.subscription,
        )
        self._tell(PARTITION_REPLACED, route.partition)

    def _tell(self, event: str, partition: int) -> None:
        if self.options.consumer_event_listener is not None:
            self.activity.put((event, partition))
            if self.on_activity is not None:
                self.on_activity()

    def resume(self) -> None:
        """Ask for messages again."""
        self.is_paused = False
        self.partitions.send_credit()

    def arrived(self, deliveries: list[QueuedDelivery]) -> None:
        """Queue deliveries. Called with the lock held."""
        if self._standing:
            self._standing.pop(deliveries[0].source, None)
        if self._max_failures is not None:
            deliveries = split_over_limit(deliveries, self._max_failures)
        self.queue.deliveries.extend(deliveries)
        if self._mover is not None and any(delivery.is_over_limit for delivery in deliveries):
            self._mover.look()
        self._arrivals.notify()

    def stands(self, source: DeliverySource, error: PulsarException | None) -> None:
        """Note why nothing comes of a source, or that it does again.

        Called with the lock held.
        """
        if error is None:
            self._standing.pop(source, None)
        else:
            self._standing[source] = error
            self._arrivals.notify()

    def move_by(self, mover: Mover) -> None:
        """Have messages that failed too often moved, instead of handed out."""
        with self.lock:
            self._mover = mover
            mover_has_work = any(delivery.is_over_limit for delivery in self.queue.deliveries)
            if mover_has_work:
                mover.look()

    def leave_to_mover(self) -> bool:
        """Have messages moved that are next in the queue and failed too often.

        True if more of them wait behind messages that the application was not given yet.
        """
        with self.lock:
            self._leave_to_mover()
            return any(delivery.is_over_limit for delivery in self.queue.deliveries)

    def _leave_to_mover(self) -> None:
        while self._mover is not None and (head := self.queue.head) is not None and head.is_over_limit:
            self._mover.take(self.queue.deliveries.popleft())

    def is_set(self) -> bool:
        """Whether there is something to receive; a link that waits for it calls this."""
        has_some = self.queue.deliveries or self._returned or self._read_errors or self._standing
        return bool(has_some) or self.error is not None

    @property
    def _has_some(self) -> bool:
        """Whether something can be handed out, or raised, without a wait."""
        return bool(self.queue or self._returned or self._read_errors)

    @property
    def has_failed(self) -> bool:
        """Whether every receive raises from now on."""
        return self.error is not None

    def has_received(self) -> bool:
        """Whether a message is here already."""
        while True:
            with self.lock:
                self._leave_to_mover()
                head = self.queue.head
                is_acknowledged = head is not None and head.source.is_acknowledged(head)
                if head is None or not (is_acknowledged or head.source.is_deleted(head)):
                    return bool(self._read_errors or self._returned) or not self.queue.is_empty
                if is_acknowledged:
                    self.queue.deliveries.popleft()
                    head.source.count.consumed += head.rows.bit_count()
            if is_acknowledged:
                head.source.report_consumed()
            else:
                head.source.leave_out(head, SegmentGone(head.path))

    def wait(self, timeout: float | None = None, unless: Callable[[], bool] | None = None) -> bool:
        """Wait for an arrival, or until `unless` is true when `wake` is called."""
        if unless is None:
            return self._arrivals.wait_for(self.is_set, timeout)
        self._arrivals.wait_for(lambda: self.is_set() or unless(), timeout)
        return self.is_set()

    def wake(self) -> None:
        """Let waiting threads look whether they need wait any longer."""
        self._arrivals.wake()

    def fail(self, error: PulsarException) -> None:
        """End the consumer: every receive from now on raises `error`."""
        with self.lock:
            self.error = self.error or error.again()
            self._arrivals.notify()
            receivers, self.receivers = self.receivers, WaitingReceivers()
        receivers.fail(error)

    # --- one message ------------------------------------------------------------------------------

    def receive(self, deadline: float) -> Message:
        """The next message. Raises Timeout, AlreadyClosed, or what reading its block raises.

        In a callback that must not wait it is a message that is here, else NotAllowedError.
        """
        if HERE.runs_callbacks:
            if (here := self.receive_now()) is None:
                ensure_may_wait("waiting for a message")
            assert here is not None
            return here
        with self._taking:
            message = self._take(deadline)
        if self.receivers:
            self.serve_waiting()
        return message

    def receive_with_origin(self, deadline: float) -> tuple[Message, Origin]:
        """The next message, and its origin for giving it back; as `receive`."""
        with self._taking:
            message = self._take(deadline)
            source = self.queue.source
            assert source is not None
            origin = Origin(source, source.generation)
        if self.receivers:
            self.serve_waiting()
        return message, origin

    def receive_now(self) -> Message | None:
        """The next message if one is here and no receiver waits for it already.

        Raises AlreadyClosed, or what reading its block raises.
        """
        if self.receivers:
            return None
        message = next(self.queue.messages, None)
        if message is not None or not self._taking.acquire(blocking=False):
            return message
        try:
            return self._take_one()
        finally:
            self._taking.release()

    def _take(self, deadline: float) -> Message:
        """The next message. Called with `_taking` held."""
        queue = self.queue
        while (message := next(queue.messages, None)) is None:
            part, source = self._next_part(deadline, one_by_one=True)
            block, rows = part
            if len(rows) == 1:
                queue.source = source
                if source.ack_timer is not None:
                    source.ack_timer.handed_over(block, rows)
                return Message(block, rows[0])
            with self.lock:
                if not self._is_closed:
                    queue.hand_out(part, source)
        return message

    def _take_one(self) -> Message | None:
        """A message if one is here. Called with `_taking` held."""
        message = next(self.queue.messages, None)
        if message is not None:
            return message
        if not (self._has_some or self._standing):
            self.check()
            return None
        try:
            return self._take(0.0)
        except Timeout:  # the queued rows had been acknowledged, or were dropped meanwhile
            return None

    def _next_part(
        self, deadline: float, may_wait: int = 0, *, one_by_one: bool = False
    ) -> tuple[BlockRows, DeliverySource]:
        """The next rows to hand out, counted as consumed. Called with `_taking` held.

        Credit is given back when it is due, or `may_wait` messages later.
        """
        queue = self.queue
        if self._read_errors and not self._is_closed:
            raise self._read_errors.popleft()
        while True:
            delivery = None
            with self.lock:
                has_part = (self._returned or queue.parts) and not self._is_closed
                taken = self._waiting_part() if has_part else None
                if taken is None:
                    if self.error is not None:
                        raise self.error.again()
                    if self._mover is not None:
                        self._leave_to_mover()
                    # It waits there until it is decoded, where a rewind or an attachment finds it.
                    delivery = queue.deliveries[0] if queue.deliveries else None
                    if delivery is None and self._standing:
                        raise self._standing.pop(next(iter(self._standing)))
            if delivery is not None:
                taken = self._decode(delivery, one_by_one=one_by_one)
            elif taken is None and self.options.receiver_queue_size:
                self._wait(deadline)
            elif taken is None:
                self._wait_for_one(deadline)
            if taken is not None:
                taken[1].report_consumed(may_wait)
                if taken[0].rows:
                    return taken

    def _waiting_part(self) -> tuple[BlockRows, DeliverySource] | None:
        """Take the next part of a decoded block, or of what was given back.

        Called with both locks held.
        """
        self._put_back_returned()
        return self.queue.next_part()

    def _send_held_back(self, single: PartitionConsumer) -> None:
        """Send credit that became due while there was something to take."""
        if single.deliveries.count.consumed >= single.deliveries.credit.due:
            single.deliveries.send_credit()

    def give_back(self, parts: Iterable[BlockRows], origins: Iterable[Origin]) -> None:
        """Hand out next, in their order, rows that did not get to the application.

        After a seek or rewind in between they come by themselves, and are dropped here.
        """
        with self.lock:
            self._returned += zip(parts, origins, strict=True)
            # Else the thread that takes, which may wait for a message, puts them back.
            if self._taking.acquire(blocking=False):
                try:
                    self._put_back_returned()
                finally:
                    self._taking.release()
            else:
                self._arrivals.notify()
        self.serve_waiting()

    def _put_back_returned(self) -> None:
        """Put returned rows back in front; called with both locks held."""
        if self._returned:
            returned, self._returned = self._returned, []
            self.queue.return_rest()
            for part, (source, generation) in reversed(returned):
                if source.generation == generation:
                    self.queue.put_back(part, source)

    def _decode(
        self, delivery: QueuedDelivery, *, one_by_one: bool
    ) -> tuple[BlockRows, DeliverySource] | None:
        """Decode a delivery and take its first part.

        None if none of its rows is to be handed out. Called with `_taking` held and no part left in the
        queue.
        """
        source = delivery.source
        rows = delivery.rows
        try:
            block = source.decode(delivery)
        except AWAY:
            raise  # It is asked for again with the next receive.
        except PulsarException as error:
            # Deliveries behind it can still be received.
            if source.comes_again(delivery, error) or source.leave_out(delivery, error):
                return None
            raise
        with self.lock:
            if not self.queue.take(delivery):
                return None
            may_repeat = source.may_repeat(delivery.redelivery_count)
            is_whole = not (may_repeat or block.is_batch or source.skipped)
            if block.message_count == 1 and is_whole and rows == 1:
                source.count.consumed += 1
                return BlockRows(block, _ONLY_ROW), source
            if not is_whole or block.decoded.is_many_as_one:
                rows = source.outstanding_rows(delivery, block)
                if rows is not delivery.rows:
                    source.count.consumed += delivery.rows.bit_count() - rows.bit_count()
            # Credit is given back a part of the window at a time, so that the next messages are on their way.
            # The window is no smaller than what bulk receiving asked for.
            is_little = 2 * block.message_count <= self._bulk_window
            at_once = block.message_count if is_little else max(1, self.window // 2)
            # The application may acknowledge late what comes again: each row is looked at when it goes.
            is_repeated_late = one_by_one and delivery.redelivery_count > 0 and source.ack_timer is not None
            if is_repeated_late or source.count.consumed < source.count.reports_until:
                at_once = 1
            taken = self.queue.add(block, rows, source, at_once)
        if taken is None:
            # Acknowledged rows were left out: unseen, they would count as not handed over for ever.
            source.report_consumed()
        return taken

    def _wait_for_one(self, deadline: float) -> None:
        """Ask for one message and wait for it: with a queue of 0."""
        with self.lock:
            self._waiting += 1
        try:
            self.partitions.send_credit()
            self._wait(deadline)
        finally:
            with self.lock:
                self._waiting -= 1

    def _wait(self, deadline: float) -> None:
        """Wait for an arrival or the end, at most for a while. Raises Timeout."""
        single = self.partitions.single
        if single is not None:
            self._send_held_back(single)
        if single is not None and self.partitions.discovery is None:
            link = single.link
            has_come = link.wait(self, deadline)
            if not has_come and link.is_over:
                self.check()
                raise AlreadyClosed("this process has told the broker that it ends")
        else:
            has_come = self.wait(min(deadline - time.monotonic(), 3600.0))
        if not has_come and time.monotonic() >= deadline:
            raise Timeout("no message arrived in time")

    # --- many messages ----------------------------------------------------------------------------

    def widen(self, messages: int) -> None:
        """Let at least so many messages be on their way, for bulk receiving."""
        if messages > self._bulk_window:
            self._bulk_window = messages
            self.partitions.send_credit()

    def take_into(self, taken: BatchCollector, deadline: float) -> None:
        """Collect messages that are here, or come until `deadline` or until there are enough.

        Raises NotAllowedError in a callback that must not wait.
        """
        ensure_may_wait("waiting for messages")
        may_wait, single = 0, self.partitions.single
        if single is not None:
            self._send_held_back(single)
            # Credit that a table makes due goes with its acknowledgment, else with the next call. That of a
            # batch goes once, when the batch is whole.
            may_wait = self._bulk_window // 8 or self.window // 2
        with self._taking:
            with self.lock:
                self.queue.return_rest()
            while not taken.is_full:
                has_more = self._has_some or (self._standing and not taken.parts)
                if not has_more and (taken.is_enough or time.monotonic() >= deadline):
                    if not taken.parts:
                        self.check()
                    break
                try:
                    part, source = self._next_part(deadline, may_wait)
                except Timeout:
                    break
                except PulsarException as error:
                    if not taken.parts or (error.message_id is None and not isinstance(error, UNREAD)):
                        raise
                    # The messages before it are not lost for it: it comes with the next call.
                    self._read_errors.append(error)
                    break
                kept = taken.add(part, Origin(source, source.generation))
                if kept < len(part.rows):
                    with self.lock:
                        self.queue.put_back(BlockRows(part.block, part.rows[kept:]), source)
        if single is not None and not self._bulk_window:
            self._send_held_back(single)

    def handed_over(self, taken: BatchCollector) -> None:
        """Time what was collected: the application has it from now on."""
        if not self.options.unacked_messages_timeout_ms:
            return
        for (block, rows), (source, _) in zip(taken.parts, taken.origins, strict=True):
            if source.ack_timer is not None:
                source.ack_timer.handed_over(block, rows)

    # --- without a thread that waits ----------------------------------------------------------------

    def add_receiver(self, receiver: Receiver) -> None:
        """Give the next message to a receiver, behind those that wait. Raises AlreadyClosed."""
        with self.lock:
            self.check()
            self.receivers.append(receiver)
        self.partitions.send_credit()
        self.serve_waiting()

    def remove_receiver(self, receiver: Receiver) -> None:
        """Give nothing more to a receiver."""
        with self.lock, suppress(ValueError):
            self.receivers.remove(receiver)

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` at each arrival and at the end, with the lock held.

        It counts as a receiver that waits.
        """
        with self.lock:
            self._arrivals.add_listener(listener)
            self._waiting += 1
        self.partitions.send_credit()

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` no more."""
        with self.lock:
            self._arrivals.remove_listener(listener)
            self._waiting -= 1

    def serve_waiting(self) -> None:
        """Give messages to receivers that wait, in order; called after arrivals, without the lock."""
        while self.receivers:
            if not self._taking.acquire(blocking=False):
                return
            self._serving = 1
            try:
                complete = self._serve_one()
            finally:
                self._serving = 0
                self._taking.release()
            if complete is None:
                return
            complete()

    def _serve_one(self) -> Callable[[], None] | None:
        """Take a message for a receiver.

        Returns what gives it that one, or the error; None if nothing is there, or none waits. Called with
        `_taking` held, without which the receiver is given what it gets: that may run the application's code.
        """
        try:
            message = self._take_one()
        except PulsarException as error:
            failed, receiver = error, self.receivers.claim()
            return None if receiver is None else lambda: receiver.fail(failed)
        source = self.queue.source
        if message is None or source is None:
            return None
        origin = Origin(source, source.generation)
        if (taker := self.receivers.claim()) is not None:
            return lambda: taker.give(message, origin)
        with self.lock:
            self.queue.return_rest()
            self.queue.put_back(BlockRows(message.block, [message.row]), source)
        return None

    def close(self, what: str) -> None:
        """End the consumer, for it, or `what` it serves, is closed.

        Messages that wait here go to nobody.
        """
        self.partitions.stop_discovery()
        closed = AlreadyClosed(f"the {what} is closed")
        with self.lock:
            if self.error is None or isinstance(self.error, (SubscriptionNotFound, TopicNotFound)):
                # Deleted, by this consumer perhaps, and the word of it was quicker than its own end.
                self.error = closed
            self._is_closed = True
            self.queue.clear()
            self._returned.clear()
        self.fail(closed)
