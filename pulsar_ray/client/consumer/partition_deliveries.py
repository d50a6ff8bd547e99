"""Deliveries of one partition to one consumer: numbers, credit, and what voids them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pulsar_ray.client.acks.partition_acks import PartitionAcks
from pulsar_ray.client.consumer.consumer_credit import ConsumerCredit
from pulsar_ray.client.consumer.start_position import SkippedRows, StartPosition
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.received import segment_files
from pulsar_ray.client.received.queued_delivery import QueuedDelivery
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.client.received.receiver_queue import ReceiverQueue
from pulsar_ray.client.received.segment_files import SegmentFiles
from pulsar_ray.errors import PulsarException
from pulsar_ray.ledger.reader import SegmentGone
from pulsar_ray.ledger.segment_file import segment_name
from pulsar_ray.model import row_sets
from pulsar_ray.model.enums import ConsumerType, SubscriptionMode
from pulsar_ray.model.generation import seeks_of
from pulsar_ray.model.row_sets import RowSet
from pulsar_ray.session.packet import Buffer
from pulsar_ray.session.requests import ConsumerOpened, Deliver, Reset, encode_request
from pulsar_ray.transport.cluster import AttachReply, PartitionRoute

ORDERED_TYPES = (ConsumerType.Exclusive, ConsumerType.Failover)


class DeliveryTarget(Protocol):
    """The consumer above its partitions, as their deliveries know it."""

    queue: ReceiverQueue
    files: SegmentFiles

    @property
    def window(self) -> int:
        """Messages that each partition may have on its way and in the queue."""

    def arrived(self, deliveries: list[QueuedDelivery]) -> None:
        """Queue deliveries. Called with the lock held."""

    def serve_waiting(self) -> None:
        """Give messages to receivers that wait. Called without the lock."""

    def activity_changed(self, is_active: bool, partition: int) -> None:
        """Note that the consumer became the active one of a partition, or another consumer did."""


class PartitionDeliveries:
    """The receiving side of one partition: a DeliverySource for the queue of the `target`.

    The dispatcher numbers its deliveries; `numbering` is the epoch of the dispatcher that did. `lock` is the
    consumer's. Unless messages are stored (`is_stored`), dropped ones do not come again, so none is dropped.
    """

    def __init__(
        self,
        target: DeliveryTarget,
        consumer_id: int,
        route: PartitionRoute,
        options: ConsumerOptions,
        acks: PartitionAcks,
        decode: Callable[[QueuedDelivery], ReceivedBlock],
        lock: threading.Lock,
        *,
        is_stored: bool,
    ) -> None:
        self.decode = decode
        self.consumed = 0
        self.generation = 0
        self.credit = ConsumerCredit(consumer_id)
        self.skipped = SkippedRows()
        self.numbering = -1
        self.last_number = 0
        """The number of the last delivery that arrived."""
        self.start: dict[str, Any] | None = options.first_start
        """Where a non-durable cursor is to begin; behind what has arrived, should its dispatcher die."""
        self.reads_files = False
        """Whether this process can read the partition's segments."""
        self.is_stored = is_stored
        self._target = target
        self._route = route
        self._options = options
        self._acks = acks
        self._unacked = acks.unacked
        self._requests = acks.requests
        self._lock = lock
        self._awaits_reset = False
        self._is_active: bool | None = None
        # The segment that was delivered from last, and its path.
        self._segment = (-1, -1)
        self._path = ""

    def forked(self, lock: threading.Lock) -> None:
        """Take the new lock, in a forked child."""
        self._lock = lock

    # --- beginning --------------------------------------------------------------------------------

    def start_at(self, start: StartPosition) -> None:
        """Begin there, with a non-durable cursor; before the consumer is opened."""
        self.start = start.target
        self.skipped.begin(start.skip, self.generation)

    def look_at_files(self, attached: AttachReply) -> None:
        """Find out whether the segments of this attachment's partition can be read here."""
        self.reads_files = segment_files.can_read(attached.reach)

    def opened(self, opened: ConsumerOpened) -> None:
        """Go on with the numbers of the dispatcher that opened the consumer.

        Called with the lock held; call `end_forgotten` of the requests afterwards.
        """
        self._segment = (-1, -1)
        is_sought = seeks_of(opened.generation) > seeks_of(self.generation)
        if is_sought or (self.last_number == 0 and self.numbering < 0):
            # "latest" is this from now on, whatever is published while the dispatcher is away.
            self._start_behind(opened.start)
        if not opened.resumed:
            self.numbering = opened.epoch
            self.last_number = 0
            self._awaits_reset = False
            if not is_sought:
                # Redeliveries by an earlier dispatcher do not count here.
                self.generation = opened.generation
                self.skipped.numbered_anew(opened.generation)
        self._drop_older(opened.generation)
        self.credit.forget_reports()

    # --- credit -----------------------------------------------------------------------------------

    def send_credit(self, *, always: bool = False) -> None:
        """Report the queue's room and progress to the dispatcher, if they changed enough to matter."""
        with self._lock:
            if not self._requests.is_open:
                return
            report = self.credit.due_report(
                self._target.window, self.consumed, self.last_number, always=always
            )
        if report is not None:
            self._requests.link.send(encode_request(report))

    def credit_beside(self) -> Sequence[Buffer]:
        """The packet that `send_credit` would soon send. Called with the lock held."""
        report = self.credit.early_report(self._target.window, self.consumed, self.last_number)
        return () if report is None else encode_request(report)

    # --- deliveries -------------------------------------------------------------------------------

    def on_request(self, request: Any, body: memoryview) -> None:
        """Take a delivery, or the order to drop queued ones."""
        if type(request) is Deliver:
            self._delivered(request, body)
        elif isinstance(request, Reset):
            self._reset(request)

    def _delivered(self, request: Deliver, body: memoryview) -> None:
        deliveries: list[QueuedDelivery] = []
        generation = request.generation
        with self._lock:
            if request.epoch < self.numbering or generation < self.generation or not self._requests.is_open:
                # Until it is open again numbers may have holes; deliveries that a carrier lost come after
                # that.
                return
            if generation > self.generation:
                self._drop_older(generation)
            offset = 0
            for number, grant in request.grants:
                ledger_id, segment, at, length, first, entries, rows, count, messages = grant
                row_set = row_sets.from_wire(rows)
                data = None
                if body:
                    data = body[offset : offset + length]
                    offset += length
                if number <= self.last_number:
                    continue
                self.last_number = number
                if self._awaits_reset:
                    self.consumed += row_set.bit_count()
                    continue
                if self.is_stored:
                    self._unacked.add(ledger_id, first, entries, row_set, messages)
                if self.start is not None:
                    # A non-durable cursor dies with its dispatcher: the next one goes on behind what arrived.
                    last = first + row_set.bit_length() - 1 if entries > 1 else first
                    self._start_behind([ledger_id, last])
                if (ledger_id, segment) != self._segment:
                    self._path = self._segment_path(ledger_id, segment)
                    self._segment = (ledger_id, segment)
                deliveries.append(
                    QueuedDelivery(
                        self, generation, ledger_id, self._path, at, length, first, row_set, count, data
                    )
                )
            if deliveries:
                self._target.arrived(deliveries)
        self._requests.end_forgotten()
        self._target.serve_waiting()

    def _segment_path(self, ledger_id: int, segment_index: int) -> str:
        if not self.is_stored:
            return ""
        attached = self._requests.link.attached
        assert attached is not None
        return f"{attached.directory}/{segment_name(ledger_id, segment_index)}"

    def _start_behind(self, position: list[int] | None) -> None:
        if position is not None:
            self.start = {"target": position, "inclusive": False}

    # --- voiding ----------------------------------------------------------------------------------

    def _drop_older(self, generation: int) -> None:
        """Drop messages queued before a seek or rewind, which come again by themselves.

        Acknowledgments from before a seek are void as well, later ones are not: only here they can be told
        apart. Called with the lock held; call `end_forgotten` of the requests afterwards.
        """
        if generation > self.generation:
            if seeks_of(generation) > seeks_of(self.generation):
                self._acks.forget()
                self.skipped.end()
            self.generation = generation
            self._awaits_reset = False
            self._drop_queue()

    def _reset(self, request: Reset) -> None:
        with self._lock:
            is_late = request.generation < self.generation
            self._drop_older(request.generation)
            if not is_late and request.granted >= 0:
                self.last_number = max(self.last_number, request.last_number)
                self.consumed = max(self.consumed, request.granted)
            if not is_late and request.is_active is False:
                self._drop_queue()
            if not is_late and request.is_seek:
                self._start_behind(request.start)
        self._requests.end_forgotten()
        if not is_late and request.is_active is not None:
            self.became(request.is_active)
        self.send_credit()

    def became(self, is_active: bool) -> None:
        """Notify the target if another consumer of the partition is the active one now."""
        if is_active is not self._is_active:
            self._is_active = is_active
            self._target.activity_changed(is_active, self._route.partition)

    def sought(self, start: StartPosition, generation: int) -> None:
        """Drop queued deliveries behind a seek, and leave out rows that `start` skips."""
        with self._lock:
            self._drop_older(generation)
            if seeks_of(generation) == seeks_of(self.generation):
                self.skipped.begin(start.skip, generation)
        self._requests.end_forgotten()
        self.send_credit()

    def drop_for_redelivery(self) -> tuple[int, int]:
        """Drop queued deliveries, for all unacknowledged messages are to come again.

        Returns the numbering, and the number of the last delivery this concerns.
        """
        with self._lock:
            self._drop_queue()
            self._acks.nacks.clear()
            # In order means that what is on its way comes again as well, behind the oldest.
            self._awaits_reset = self._options.consumer_type in ORDERED_TYPES
            return self.numbering, self.last_number

    def _drop_queue(self) -> None:
        if self.is_stored:
            self._target.queue.take_all(self)
            self._unacked.clear()

    def give_up_queue(self) -> None:
        """Drop queued deliveries that other consumers have got by now. Called with the lock held."""
        if self.is_stored:
            for ledger_id, first_entry_id, rows in self._target.queue.take_all(self):
                self._unacked.remove_rows(ledger_id, first_entry_id, rows)

    # --- for the receiver queue ---------------------------------------------------------------------

    def outstanding_rows(self, delivery: QueuedDelivery, batch_size: int) -> RowSet:
        """The rows of a delivered batch that are to be handed out.

        Rows that were acknowledged are not, nor those that a seek into the batch leaves out. Called with the
        lock held.
        """
        rows, ledger_id, entry_id = delivery.rows, delivery.ledger_id, delivery.first_entry_id
        if skipped := self.skipped.of((ledger_id, entry_id), batch_size, delivery.generation):
            self._acks.acks.add_rows(ledger_id, entry_id, skipped, batch_size)
            rows &= ~row_sets.of_ranges(skipped)
        return self._acks.acks.outstanding_rows(ledger_id, entry_id, rows, batch_size)

    def leave_out(self, delivery: QueuedDelivery, error: PulsarException) -> bool:
        """Count a block that cannot be read as consumed; it stays unacknowledged.

        True if it was trimmed before a cursor that holds nothing back came to it: that is no error.
        """
        is_trimmed = (
            isinstance(error, SegmentGone)
            and self._options.subscription_mode == SubscriptionMode.NonDurable
            and (self.reads_files or not delivery.length)
        )
        with self._lock:
            if delivery.generation == self.generation:
                self.consumed += delivery.rows.bit_count()
            if is_trimmed:
                self._unacked.remove_rows(delivery.ledger_id, delivery.first_entry_id, delivery.rows)
        self.send_credit()
        return is_trimmed

    def is_trimmed(self, delivery: QueuedDelivery) -> bool:
        """Whether a block was trimmed before a cursor that holds nothing back came to it."""
        if self._options.subscription_mode == SubscriptionMode.Durable:
            return False
        return not delivery.length or (delivery.data is None and not self._target.files.has(delivery.path))

    # --- for requests ------------------------------------------------------------------------------

    def received(self) -> tuple[int, int]:
        """The numbering of deliveries, and the number of the last one."""
        with self._lock:
            return self.numbering, self.last_number

    def arrived(self) -> tuple[int, tuple[int, int, int] | None]:
        """The number of the last delivery, and the first message that waits in the queue."""
        with self._lock:
            return self.last_number, self._target.queue.oldest_of(self)
