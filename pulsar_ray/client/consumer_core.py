"""The receiver queue of one consumer over all its partitions, and how messages leave it.

Grants arrive on the I/O thread and are decoded in the thread that receives; a message object is made when it
is handed out.
"""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

from pulsar_ray.client.activity import Activity
from pulsar_ray.client.consumer_options import ConsumerOptions
from pulsar_ray.client.forking import watch
from pulsar_ray.client.held_rows import Held
from pulsar_ray.client.message import Message, RowSpan
from pulsar_ray.client.partition_consumer import Granted, PartitionConsumer, count_rows
from pulsar_ray.client.received_block import ReceivedBlock
from pulsar_ray.client.receivers import Origin, Receiver
from pulsar_ray.client.segment_files import SegmentFiles
from pulsar_ray.client.taken_spans import TakenSpans
from pulsar_ray.errors import (
    AlreadyClosed,
    ForkedClient,
    PulsarException,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
)
from pulsar_ray.model import row_ranges

logger = logging.getLogger(__name__)

KEEP_GONE = 100


class Discovery(Protocol):
    """What looks for topics that come and go, while the consumer is open."""

    def stop(self) -> None: ...


class ConsumerCore:
    """State shared by a consumer's partitions.

    `lock` is held for moments; `_taking` by the one who fills the current span.
    """

    def __init__(self, options: ConsumerOptions, name: str, subscription: str, files: SegmentFiles) -> None:
        self.options = options
        self.name = name
        self.subscription = subscription
        self.files = files
        self.lock = threading.Lock()
        self.is_multi_topic = not isinstance(options.topic, str)
        self.partitions: list[PartitionConsumer] = []
        """Replaced, never changed, as topics come and go."""
        self.by_topic: dict[str, PartitionConsumer] = {}
        self.single: PartitionConsumer | None = None
        """The only partition there is, unless that may change."""
        self.gone: dict[str, PartitionConsumer] = {}
        """Partitions that were deleted lately: what is still acknowledged there is nobody's concern."""
        self.withheld: set[str] = set()
        """Topics whose subscription was deleted under this consumer."""
        self.discovery: Discovery | None = None
        self._arrived = threading.Condition(self.lock)
        self._taking = threading.Lock()
        self._queue: deque[Granted] = deque()
        self._spans: deque[tuple[RowSpan, PartitionConsumer]] = deque()
        self._block: ReceivedBlock | None = None
        self._rows = iter(range(0))
        self._partition: PartitionConsumer | None = None
        self._receivers: deque[Receiver] = deque()
        self._listeners: list[Callable[[], None]] = []
        self._waiting = 0
        self._bulk_window = 0
        self._error: PulsarException | None = None
        self.activity: SimpleQueue[Activity | None] = SimpleQueue()
        """Filled if there is a consumer event listener."""
        watch(self)

    def forked(self, error: ForkedClient) -> None:
        """In a forked child (see `forking`): what is queued is the parent's to hand out."""
        self.lock = threading.Lock()
        self._arrived = threading.Condition(self.lock)
        self._taking = threading.Lock()
        self._queue.clear()
        self._spans.clear()
        self._receivers.clear()
        self._rows = iter(range(0))
        self._error = error
        for partition in self.partitions:
            partition.forked(self.lock)

    # --- partitions -------------------------------------------------------------------------------

    def add(self, partition: PartitionConsumer) -> None:
        """One more partition, before it is opened."""
        with self.lock:
            self._set_partitions([*self.partitions, partition])
            self.gone.pop(partition.route.topic, None)

    def remove(self, partition: PartitionConsumer) -> None:
        """A partition is no more; what it had delivered is not handed out."""
        with self.lock:
            if partition not in self.partitions:
                return
            self._set_partitions([other for other in self.partitions if other is not partition])
            self.take_queued(partition)
            self.gone[partition.route.topic] = partition
            while len(self.gone) > KEEP_GONE:
                del self.gone[next(iter(self.gone))]
        partition.abandon()

    def _set_partitions(self, partitions: list[PartitionConsumer]) -> None:
        self.partitions = partitions
        self.by_topic = {partition.route.topic: partition for partition in partitions}
        self.single = partitions[0] if len(partitions) == 1 and not self.is_multi_topic else None

    def partition_failed(self, partition: PartitionConsumer, error: PulsarException) -> None:
        """A partition cannot go on: a consumer of several topics loses only this one if it was deleted."""
        if not self.is_multi_topic or not isinstance(error, (TopicNotFound, SubscriptionNotFound)):
            self.fail(error)
            return
        if isinstance(error, SubscriptionNotFound):
            self.withheld.add(partition.route.topic)
        logger.warning("the consumer goes on without %s: %s", partition.route.topic, error)
        self.remove(partition)

    def check(self) -> None:
        """Raise what ended this consumer, if anything did."""
        if self._error is not None:
            raise self._error

    # --- the queue --------------------------------------------------------------------------------

    @property
    def window(self) -> int:
        """Messages each partition may have on its way and in the queue.

        With a queue of 0, one while somebody waits.
        """
        options = self.options
        if options.receiver_queue_size == 0:
            return max(1 if self._waiting or self._receivers else 0, self._bulk_window)
        share = options.max_total_receiver_queue_size_across_partitions // max(1, len(self.partitions))
        return max(1, min(options.receiver_queue_size, share), self._bulk_window)

    def arrived(self, granted: list[Granted]) -> None:
        """Called with the lock held: deliveries join the queue."""
        self._queue.extend(granted)
        self._tell_arrival()

    def _tell_arrival(self) -> None:
        self._arrived.notify_all()
        for listener in self._listeners:
            listener()

    def take_queued(self, partition: PartitionConsumer) -> list[Held]:
        """Called with the lock held: forget what is queued of one partition; it counts as consumed."""
        taken: list[Held] = []
        kept: deque[Granted] = deque()
        for granted in self._queue:
            if granted.partition is partition:
                taken.append((granted.ledger_id, granted.first_entry_id, granted.rows))
            else:
                kept.append(granted)
        self._queue = kept
        taken += [_rows_of(span) for span, owner in self._spans if owner is partition]
        self._spans = deque(item for item in self._spans if item[1] is not partition)
        partition.consumed += sum(row_ranges.count(rows) for _, _, rows in taken)
        if self._partition is partition:
            rest, self._rows = list(self._rows), iter(range(0))
            if rest and self._block is not None:
                taken.append(_rows_of((self._block, rest[0], rest[-1] + 1)))
        return taken

    def queued_messages(self, partition: PartitionConsumer) -> int:
        """Called with the lock held: messages delivered and not yet counted as consumed."""
        queued = sum(count_rows(granted) for granted in self._queue if granted.partition is partition)
        return queued + sum(end - first for (_, first, end), owner in self._spans if owner is partition)

    def is_set(self) -> bool:
        """Whether there is something to receive (the interface of what a link can wait for)."""
        return bool(self._queue) or self._error is not None

    @property
    def has_failed(self) -> bool:
        """Whether every receive raises from now on."""
        return self._error is not None

    def has_received(self) -> bool:
        """Whether a message is here already."""
        with self.lock:
            return bool(self._queue or self._spans or operator.length_hint(self._rows))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for an arrival."""
        with self.lock:
            return self._arrived.wait_for(self.is_set, timeout)

    def fail(self, error: PulsarException) -> None:
        """Every receive from now on raises `error`."""
        with self.lock:
            self._error = self._error or error
            self._tell_arrival()
            receivers, self._receivers = self._receivers, deque()
        for receiver in receivers:
            receiver.fail(error)

    # --- one message ------------------------------------------------------------------------------

    def receive(self, deadline: float) -> Message:
        """The next message. Raises Timeout, AlreadyClosed, or what reading its block raises."""
        with self.lock:
            row = next(self._rows, None)
            if row is not None:
                return Message(self._block, row)  # type: ignore[arg-type]
        with self._taking:
            while True:
                with self.lock:
                    row = next(self._rows, None)
                    if row is not None:
                        break
                self._start_span(*self._next_span(deadline))
            message = Message(self._block, row)  # type: ignore[arg-type]
        if self._receivers:
            self.serve_waiting()
        return message

    def receive_now(self) -> Message | None:
        """The next message if one is here and nobody waits for it already.

        Raises AlreadyClosed, or what reading its block raises.
        """
        if self._receivers:
            return None
        with self.lock:
            row = next(self._rows, None)
        if row is not None:
            return Message(self._block, row)  # type: ignore[arg-type]
        if not self._taking.acquire(blocking=False):
            return None
        try:
            return self._take_one()
        finally:
            self._taking.release()

    def _take_one(self) -> Message | None:
        """Called with `_taking` held."""
        while True:
            with self.lock:
                row = next(self._rows, None)
                if row is None and not (self._queue or self._spans):
                    self.check()
                    return None
            if row is not None:
                return Message(self._block, row)  # type: ignore[arg-type]
            try:
                self._start_span(*self._next_span(0.0))
            except Timeout:  # what was here had been acknowledged, or was dropped meanwhile
                return None

    def _start_span(self, span: RowSpan, partition: PartitionConsumer) -> None:
        with self.lock:
            self._block, first, end = span
            self._rows = iter(range(first, end))
            self._partition = partition

    def _next_span(self, deadline: float) -> tuple[RowSpan, PartitionConsumer]:
        """Called with `_taking` held: the next rows to hand out, counted as consumed."""
        while True:
            with self.lock:
                if self._spans:
                    span, partition = self._spans.popleft()
                    partition.consumed += span[2] - span[1]
                    break
            self._fill_spans(deadline)
        partition.send_credit()
        return span, partition

    def give_back(self, spans: Iterable[RowSpan], origins: Iterable[Origin]) -> None:
        """What was handed out and did not get to the application is handed out next, in the same order.

        Unless a seek or rewind came between, after which it comes by itself.
        """
        with self._taking:
            self._return_current()
            for span, (partition, generation) in reversed(list(zip(spans, origins, strict=True))):
                if partition.generation == generation:
                    self._put_back(span, partition)
        self.serve_waiting()

    def _put_back(self, span: RowSpan, partition: PartitionConsumer) -> None:
        with self.lock:
            self._spans.appendleft((span, partition))
            partition.consumed -= span[2] - span[1]

    def _fill_spans(self, deadline: float) -> None:
        granted = self._take_granted(deadline)
        partition = granted.partition
        rows = granted.rows
        try:
            block = partition.decode(granted)
        except PulsarException as error:
            # What comes after it can still be received.
            if partition.leave_out(granted, error):
                return
            raise
        with self.lock:
            if granted.generation < partition.generation:
                return
            if block.is_batch:
                kept = rows
                if partition.skip is not None and partition.skip[:2] == (
                    granted.ledger_id,
                    granted.first_entry_id,
                ):
                    skipped = ((0, partition.skip[2]),)
                    partition.acks.add_rows(*partition.skip[:2], skipped, block.message_count)
                    kept = row_ranges.subtract(rows, skipped)
                outstanding = partition.acks.outstanding_rows(granted.ledger_id, granted.first_entry_id, kept)
                partition.consumed += row_ranges.count(rows) - row_ranges.count(outstanding)
                rows = outstanding
            # Credit is given back a part of the window at a time, so that the next messages are on their way.
            step = max(1, self.window // 2)
            for first, end in rows:
                for start in range(first, end, step):
                    self._spans.append(((block, start, min(start + step, end)), partition))
        if not rows:
            partition.send_credit()

    def _take_granted(self, deadline: float) -> Granted:
        while True:
            with self.lock:
                if self._error is not None:
                    raise self._error
                if self._queue:
                    return self._queue.popleft()
                self._waiting += 1
            try:
                self._wait(deadline)
            finally:
                with self.lock:
                    self._waiting -= 1

    def _wait(self, deadline: float) -> None:
        if self.options.receiver_queue_size == 0:
            for partition in self.partitions:
                partition.send_credit()
        remaining = deadline - time.monotonic()
        if remaining > 0:
            if self.single is not None and self.discovery is None:
                self.single.link.wait(self, deadline)
            else:
                self.wait(min(remaining, 3600.0))
        if not self.is_set() and time.monotonic() >= deadline:
            raise Timeout("no message arrived in time")

    # --- many messages ----------------------------------------------------------------------------

    def widen(self, messages: int) -> None:
        """Bulk receiving wants more on its way than the receiver queue holds."""
        if messages > self._bulk_window:
            self._bulk_window = messages
            for partition in self.partitions:
                partition.send_credit()

    def take_into(self, taken: TakenSpans, deadline: float) -> None:
        """Add what is here, and what comes until `deadline` or until it has enough."""
        with self._taking:
            self._return_current()
            while not taken.is_full:
                if not self._spans and not self._queue and (taken.is_enough or time.monotonic() >= deadline):
                    break
                try:
                    (block, first, end), partition = self._next_span(deadline)
                except Timeout:
                    break
                kept = taken.add((block, first, end), Origin(partition, partition.generation))
                if kept < end - first:
                    self._put_back((block, first + kept, end), partition)

    def _return_current(self) -> None:
        """What is left of the span that single receives were handing out goes back to the front."""
        with self.lock:
            rest = list(self._rows)
            self._rows = iter(range(0))
        if rest and self._block is not None and self._partition is not None:
            self._put_back((self._block, rest[0], rest[-1] + 1), self._partition)

    # --- without a thread that waits ----------------------------------------------------------------

    def add_receiver(self, receiver: Receiver) -> None:
        """It gets the next message, behind those that wait already. Raises AlreadyClosed."""
        with self.lock:
            self.check()
            self._receivers.append(receiver)
        for partition in self.partitions:
            partition.send_credit()
        self.serve_waiting()

    def remove_receiver(self, receiver: Receiver) -> None:
        """It waits no more."""
        with self.lock, suppress(ValueError):
            self._receivers.remove(receiver)

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` at each arrival, with the lock held, and at the end; it counts as waiting."""
        with self.lock:
            self._listeners.append(listener)
            self._waiting += 1
        for partition in self.partitions:
            partition.send_credit()

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Call it no more."""
        with self.lock:
            self._listeners.remove(listener)
            self._waiting -= 1

    def serve_waiting(self) -> None:
        """Give messages to receivers that wait, in order; called after arrivals, without the lock."""
        while self._receivers:
            if not self._taking.acquire(blocking=False):
                return
            try:
                if not self._serve_one():
                    return
            finally:
                self._taking.release()

    def _serve_one(self) -> bool:
        try:
            message = self._take_one()
        except PulsarException as error:
            failed = error
            return self._offer(lambda receiver: receiver.fail(failed))
        if message is None or self._partition is None:
            return False
        origin = Origin(self._partition, self._partition.generation)
        if self._offer(lambda receiver: receiver.give(message, origin)):
            return True
        self._return_current()
        self._put_back((message.block, message.row, message.row + 1), self._partition)
        return False

    def _offer(self, takes: Callable[[Receiver], bool]) -> bool:
        """Whether anybody took it."""
        while self._receivers:
            with suppress(IndexError):  # another thread took the last one away
                if takes(self._receivers.popleft()):
                    return True
        return False

    def close(self) -> None:
        """Nothing can be received any more."""
        if self.discovery is not None:
            self.discovery.stop()
        self.fail(AlreadyClosed("the consumer is closed"))


def _rows_of(span: RowSpan) -> Held:
    block, first, end = span
    return block.ledger_id, block.first_entry_id, ((first, end),)
