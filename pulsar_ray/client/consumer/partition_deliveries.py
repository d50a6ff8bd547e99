"""Deliveries of one partition to one consumer: numbers, credit, and what voids them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pulsar_ray.client.acks.ack_sender import AckSender
from pulsar_ray.client.acks.ack_timer import AckTimer
from pulsar_ray.client.acks.ack_tracker import AckBatch
from pulsar_ray.client.acks.partition_acks import LateAcks, PartitionAcks
from pulsar_ray.client.acks.unreadable_blocks import UnreadableBlocks
from pulsar_ray.client.consumer.consumer_credit import ConsumerCredit
from pulsar_ray.client.consumer.start_position import SkippedRows, StartPosition
from pulsar_ray.client.metrics.client_figures import ReceivedCounts
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.received.block_decoder import PartitionFiles, SegmentFiles
from pulsar_ray.client.received.message import BlockRows, rows_in, set_of
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.client.received.receiver_queue import (
    ConsumedCount,
    DeliverySource,
    QueuedChunk,
    QueuedDelivery,
    ReceiverQueue,
)
from pulsar_ray.client.received.waiting_receivers import WaitingReceivers
from pulsar_ray.errors import CryptoError, PulsarException, error_from
from pulsar_ray.lane.progress_page import new_counter
from pulsar_ray.ledger.reader import SegmentGone
from pulsar_ray.model import row_sets
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId, has_rewound, seeks_of
from pulsar_ray.model.row_ranges import RowFailures
from pulsar_ray.model.row_sets import RowSet
from pulsar_ray.session.packet import Buffer
from pulsar_ray.session.requests import (
    ConsumerOpened,
    Deliver,
    DeliverChunks,
    NotRead,
    Reset,
    encode_request,
)
from pulsar_ray.transport.cluster import AttachReply, PartitionRoute

ORDERED_TYPES = (ConsumerType.Exclusive, ConsumerType.Failover)


class DeliveryTarget(Protocol):
    """The consumer above its partitions, as their deliveries know it."""

    queue: ReceiverQueue
    files: SegmentFiles
    receivers: WaitingReceivers
    """Those that wait without a thread: `serve_waiting` gives them messages."""

    @property
    def window(self) -> int:
        """Messages that each partition may have on its way and in the queue."""

    def arrived(self, deliveries: list[QueuedDelivery]) -> None:
        """Queue deliveries. Called with the lock held."""

    def serve_waiting(self) -> None:
        """Give messages to receivers that wait. Called without the lock."""

    def stands(self, source: DeliverySource, error: PulsarException | None) -> None:
        """Note why nothing comes of a source, or that it does again.

        Called with the lock held.
        """

    def activity_changed(self, is_active: bool, partition: int) -> None:
        """Note that the consumer became the active one of a partition, or another consumer did."""


class DroppedQueue(NamedTuple):
    """A queue that was dropped, and how far the application had got in it."""

    numbering: int
    received: int
    """The number of the last delivery that had arrived."""
    generation: int
    handed_over: int
    redeliveries: int


class PartitionDeliveries:
    """The receiving side of one partition: a DeliverySource for the queue of the `target`.

    The dispatcher numbers its deliveries, and `numbering` is the id of this numbering. `lock` is the
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
        self.received_counts = ReceivedCounts()
        self.count = ConsumedCount(new_counter() if is_stored and options.first_start is None else None)
        self.generation = 0
        self.has_rewound = False
        self.credit = ConsumerCredit(consumer_id)
        self.skipped = SkippedRows()
        self.numbering = -1
        self.last_number = 0
        """The number of the last delivery that arrived."""
        self.start: dict[str, Any] | None = options.first_start
        """Where a non-durable cursor is to begin; behind what has arrived, should its dispatcher die."""
        self.files = PartitionFiles(target.files)
        self.is_stored = is_stored
        self._target = target
        self._route = route
        self._options = options
        self._acks = acks
        self._unacked = acks.unacked
        self._requests = acks.requests
        self._late = LateAcks(acks.acks, acks.unacked, acks.requests)
        self._lock = lock
        self._is_seen = False
        self.ack_timer: AckTimer | None = None
        """Where there is an ack timeout; set before anything is delivered."""
        self.ack_sender: AckSender
        """Set before anything is delivered."""
        self.unreadable: UnreadableBlocks | None = None
        """Where messages are stored; set before anything is delivered."""
        self._awaits_reset = False
        self.redeliveries = 0
        """How often all that is held was dropped, to come again."""
        self._is_active: bool | None = None
        # Chunks that came, by the number of the delivery that they belong to.
        self._chunks: dict[int, list[QueuedChunk]] = {}
        # Errors in place of bytes, likewise.
        self._unread: dict[int, PulsarException] = {}

    def forked(self, lock: threading.Lock) -> None:
        """Take the new lock, in a forked child."""
        self._lock = lock

    # --- beginning --------------------------------------------------------------------------------

    def start_at(self, start: StartPosition) -> None:
        """Begin there, with a non-durable cursor; before the consumer is opened."""
        self.start = start.target
        self.skipped.begin(start.skip, self.generation)

    def look_at_files(self, attached: AttachReply) -> None:
        """Find out whether the segments of this attachment's partition can be read here.

        If it has moved to another node since, the queue is read while the former one has its files yet.
        """
        if self.files.attached(attached):
            self._load_queue()

    def _load_queue(self) -> None:
        """Read what waits in files into memory.

        It is no more than a consumer of another node is sent. Files that are gone are made up for: a durable
        subscription gets all again that waits, a non-durable one from the first that it lacks on.
        """
        with self._lock:
            waiting = self._target.queue.unread_of(self)
        try:
            loaded = {id(delivery): self.files.loaded(delivery) for delivery in waiting}
        except PulsarException:
            with self._lock:
                self._give_up_from(waiting[0])
            return
        with self._lock:
            self._target.queue.replace(loaded)

    def _give_up_from(self, delivery: QueuedDelivery) -> None:
        """Drop a delivery and all behind it, which are sent again.

        Called with the lock held.
        """
        if self.start is None:
            self.give_up_queue()
            return
        for ledger_id, first_entry_id, rows in self._target.queue.take_from(delivery):
            self._unacked.remove_rows(ledger_id, first_entry_id, rows)
        first = (chunk[:2] for chunk in delivery.chunks[:1])  # of ledger and entry
        self.start = {"target": list(next(first, delivery.key)), "inclusive": True}

    def number_anew(self) -> None:
        """Forget the numbers of all dispatchers so far. Called with the lock held."""
        self.numbering, self.last_number = -1, 0

    def opened(self, opened: ConsumerOpened) -> None:
        """Go on with the numbers of the dispatcher that opened the consumer.

        Called with the lock held; call `end_forgotten` of the requests afterwards.
        """
        self._chunks.clear()
        self._unread.clear()
        self._target.stands(self, None)
        is_sought = seeks_of(opened.generation) > seeks_of(self.generation)
        if is_sought or (self.last_number == 0 and self.numbering < 0):
            # "latest" is this from now on, whatever is published while the dispatcher is away.
            self._start_behind(opened.start)
        # Of two requests that were under way at once the first answer has begun this numbering already: what
        # the dispatcher sends again for the second has arrived, or comes.
        if not opened.resumed and opened.numbering != self.numbering:
            self.numbering = opened.numbering
            self.last_number = 0
            self._awaits_reset = False
            # Only dispatchers that were given them know the acknowledged rows of batches that are shared.
            self._acks.acks.repeat_shared()
            if not is_sought:
                # Redeliveries by an earlier dispatcher do not count here.
                self._begin_generation(opened.generation)
                self.skipped.numbered_anew(opened.generation)
        self._drop_older(opened.generation)
        self._is_seen = opened.sees_handed_over
        self.credit.forget_reports()

    # --- credit -----------------------------------------------------------------------------------

    def send_credit(self, *, always: bool = False) -> None:
        """Report the queue's room and progress to the dispatcher, if they changed enough to matter."""
        with self._lock:
            if not self._requests.is_open:
                return
            report = self.credit.due_report(
                self._target.window, self.count.consumed, self.last_number, always=always
            )
        if report is not None:
            self._requests.link.send(encode_request(report))

    def report_consumed(self, may_wait: int = 0) -> None:
        """Show the dispatcher how many messages left the queue, handed over or left out.

        Suspects are reported one by one where it cannot see the count. Credit is reported when it is due, or
        `may_wait` messages later.
        """
        count = self.count
        count.show()
        if count.consumed <= count.reports_until:
            self.send_credit(always=True)
        elif count.consumed >= self.credit.due + may_wait:
            self.send_credit()

    def credit_beside(self) -> Sequence[Buffer]:
        """The packet that `send_credit` would soon send. Called with the lock held."""
        report = self.credit.early_report(self._target.window, self.count.consumed, self.last_number)
        return () if report is None else encode_request(report)

    # --- deliveries -------------------------------------------------------------------------------

    def on_request(self, request: Any, body: memoryview) -> None:
        """Take a delivery, or the order to drop queued ones."""
        if type(request) is Deliver:
            with self._lock:
                if not self._is_void(request):
                    self._delivered(request, body)
        elif isinstance(request, DeliverChunks):
            self._chunks_delivered(request, body)
        elif isinstance(request, Reset):
            self._reset(request)
        elif isinstance(request, NotRead):
            self._not_read(request)
        if self._requests.forgotten:
            self._requests.end_forgotten()
        if self._target.receivers:
            self._target.serve_waiting()
        if self._acks.acks.count > self.ack_sender.gathered:
            # It turned out that the dispatcher does not know of some.
            self.ack_sender.added()

    def _delivered(self, request: Deliver, body: memoryview) -> None:
        """Queue what is granted. Called with the lock held."""
        deliveries: list[QueuedDelivery] = []
        generation = request.generation
        if generation > self.generation:
            self._drop_older(generation)
        offset = 0
        failures = _failures_by_number(request) if request.row_failures else {}
        received = self.received_counts
        for number, grant in request.grants:
            ledger_id, segment, at, length, first, entries, rows, count, messages = grant
            row_set = row_sets.from_wire(rows)
            data = None
            if body:
                data = body[offset : offset + length]
                offset += length
            chunks = self._chunks.pop(number, ()) if self._chunks else ()
            if number <= self.last_number:
                continue
            self.last_number = number
            received.messages += row_set.bit_count()
            received.redelivered += row_set.bit_count() * (count > 0)
            if self._awaits_reset:
                self.count.consumed += row_set.bit_count()
                continue
            if self.is_stored:
                if self._late.confirmed:
                    self._late.delivered(ledger_id, first, row_set)
                self._unacked.add(ledger_id, first, entries, row_set, messages)
                if count or entries < messages:
                    is_part = entries < messages != row_set.bit_count()
                    self._note(ledger_id, first, row_set, count, failures.get(number, ()), is_part)
            if self.start is not None:
                # A non-durable cursor dies with its dispatcher: the next one goes on behind what arrived.
                last = first + row_set.bit_length() - 1 if entries > 1 else first
                self._start_behind([ledger_id, last])
            deliveries.append(
                QueuedDelivery(
                    self,
                    generation,
                    ledger_id,
                    self.files.path(ledger_id, segment) if self.is_stored else "",
                    at,
                    length,
                    first,
                    row_set,
                    count,
                    data,
                    failures.get(number, ()),
                    chunks=chunks,
                    unread=self._unread.pop(number, None) if self._unread else None,
                )
            )
        if deliveries:
            self._target.arrived(deliveries)
            if request.suspects and not self._is_seen:
                # The dispatcher cannot see which of them is handed over: each is reported before.
                self.count.reports_until = self.count.consumed + self._target.queue.messages_of(self)

    def _is_void(self, request: Deliver | DeliverChunks | NotRead) -> bool:
        """Whether a packet is void, as those of a former numbering or generation are.

        So is every one until the consumer is open again: numbers may have holes till then, and what a carrier
        lost comes after that.
        """
        is_former = request.numbering < self.numbering or request.generation < self.generation
        return is_former or not self._requests.is_open

    def _chunks_delivered(self, request: DeliverChunks, body: memoryview) -> None:
        """Keep chunks for the delivery that follows them."""
        with self._lock:
            if self._is_void(request) or request.number <= self.last_number:
                return
            if request.generation > self.generation:
                self._drop_older(request.generation)
            if request.first_chunk_id == 0:
                self._chunks[request.number] = []
            chunks = self._chunks.get(request.number)
            if chunks is None or len(chunks) != request.first_chunk_id:
                return  # the beginning was lost with its carrier, and comes again
            offset = 0
            for ledger_id, segment, at, length, entry_id in request.places:
                data = None
                if body:
                    data = body[offset : offset + length]
                    offset += length
                path = self.files.path(ledger_id, segment) if self.is_stored else ""
                chunks.append(QueuedChunk(ledger_id, entry_id, path, at, length, data))

    def _not_read(self, request: NotRead) -> None:
        """Keep why nothing comes, or why a delivery that follows has no bytes."""
        error = None
        if request.error:
            error = error_from(request.error, request.text, request.details)
        with self._lock:
            if self._is_void(request):
                return
            if request.number:
                if error is not None and request.number > self.last_number:
                    self._unread[request.number] = error
                return
            self._target.stands(self, error)

    def _note(
        self,
        ledger_id: int,
        first_entry_id: int,
        rows: RowSet,
        count: int,
        failures: RowFailures,
        is_part: bool,
    ) -> None:
        """Note how often delivered rows failed, and whether they are part of a batch."""
        if is_part:
            self._acks.acks.share(ledger_id, first_entry_id)
            self._unacked.note_part(ledger_id, first_entry_id)
        if count:
            self._unacked.note_count(ledger_id, first_entry_id, rows, count)
        if failures:
            self._unacked.note_failures(ledger_id, first_entry_id, failures)

    def _start_behind(self, position: list[int] | None) -> None:
        if position is not None:
            self.start = {"target": position, "inclusive": False}

    # --- voiding ----------------------------------------------------------------------------------

    def _begin_generation(self, generation: int) -> None:
        self.generation, self.has_rewound = generation, has_rewound(generation)

    def _drop_older(self, generation: int) -> None:
        """Drop messages queued before a seek or rewind, which come again by themselves.

        Acknowledgments from before a seek are void as well, later ones are not: only here they can be told
        apart. Called with the lock held; call `end_forgotten` of the requests afterwards.
        """
        if generation > self.generation:
            if seeks_of(generation) > seeks_of(self.generation):
                self._acks.forget()
                self.skipped.end()
            self._begin_generation(generation)
            self._awaits_reset = False
            self._chunks.clear()
            self._unread.clear()
            self._target.stands(self, None)
            self._drop_queue()
            self.count.end_moves()

    def _reset(self, request: Reset) -> None:
        with self._lock:
            is_late = request.generation < self.generation
            self._drop_older(request.generation)
            if not is_late and request.granted >= 0:
                self.last_number = max(self.last_number, request.last_number)
                self.count.consumed = max(self.count.consumed, request.granted)
            if not is_late and request.is_active is False:
                self._drop_queue()
            if not is_late and request.is_seek:
                self._start_behind(request.start)
        if not is_late and request.is_active is not None:
            self.became(request.is_active)
        self.send_credit()

    @property
    def is_active(self) -> bool:
        """Whether the consumer is the active one of the partition, as it was last notified."""
        return self._is_active is True

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

    def drop_for_redelivery(self) -> DroppedQueue:
        """Drop queued deliveries, for all unacknowledged messages are to come again."""
        with self._lock:
            handed_over = self.count.consumed - self._target.queue.left_of(self)
            self.redeliveries += 1
            self._drop_queue()
            self._acks.nacks.clear()
            # In order means that what is on its way comes again as well, behind the oldest.
            self._awaits_reset = self._options.consumer_type in ORDERED_TYPES
            return DroppedQueue(
                self.numbering, self.last_number, self.generation, handed_over, self.redeliveries
            )

    def _drop_queue(self) -> None:
        if self.is_stored:
            self._target.queue.take_all(self)
            self._late.clear()
            self._unacked.clear()
            if self._acks.timeouts is not None:
                self._acks.timeouts.clear()

    def give_up_queue(self) -> None:
        """Drop queued deliveries that other consumers have got by now. Called with the lock held."""
        if self.is_stored:
            for ledger_id, first_entry_id, rows in self._target.queue.take_all(self):
                if self._unacked.batch_size(ledger_id, first_entry_id):
                    # Nothing of a batch is declared unless all that is not acknowledged is: it comes whole.
                    rows = self._unacked.rows_of(ledger_id, first_entry_id)
                self._unacked.remove_rows(ledger_id, first_entry_id, rows)

    # --- for the receiver queue ---------------------------------------------------------------------

    def outstanding_rows(self, delivery: QueuedDelivery, block: ReceivedBlock) -> RowSet:
        """The rows of a decoded delivery that are to be handed out.

        Rows that were acknowledged are not, nor those that a seek into a batch leaves out. Called with the
        lock held.
        """
        rows = delivery.rows
        if block.decoded.is_many_as_one:
            return self._unacknowledged(block, 1)  # all are one message, in the place of the first
        if block.is_batch or block.message_count == 1:
            rows = self._leave_out_rows(delivery, block.message_count)
        return self._unacknowledged(block, rows)

    def _unacknowledged(self, block: ReceivedBlock, rows: RowSet) -> RowSet:
        ledger_id, entry_id = block.ledger_id, block.first_entry_id
        if block.is_batch:
            rows = self._acks.acks.outstanding_rows(ledger_id, entry_id, rows, block.message_count)
        if rows and self.may_repeat(block.redelivery_count):
            rows &= ~self._late.rows(ledger_id, entry_id, rows, is_batch=block.is_batch)
        return rows

    def may_repeat(self, redelivery_count: int) -> bool:
        """Whether messages that are delivered with this count may have been handed out before."""
        return redelivery_count > 0 or self.has_rewound

    def left_of(self, part: BlockRows) -> BlockRows:
        """A part of a decoded block without what was acknowledged while it waited.

        Called with the lock held.
        """
        block, rows = part
        if not self.may_repeat(block.redelivery_count):
            return part
        waiting = set_of(rows)
        left = self._unacknowledged(block, waiting)
        return part if left == waiting else BlockRows(block, rows_in(left))

    def acknowledged(self, batch: AckBatch) -> None:
        """Note that acknowledgments are confirmed, some perhaps of messages that wait in the queue again.

        Called with the lock held.
        """
        if self._unacked.has_redelivered or self.has_rewound:
            self._late.confirm(batch, self._target.queue.repeats_of(self))

    def is_acknowledged(self, delivery: QueuedDelivery) -> bool:
        """Whether a delivery that was not decoded yet has nothing to hand out.

        Called with the lock held.
        """
        batch_size = self._unacked.batch_size(*delivery.key)
        if batch_size and self._leave_out_rows(delivery, batch_size) == 0:
            return True
        if not self.may_repeat(delivery.redelivery_count):
            return False
        return self._late.rows(*delivery.key, delivery.rows, is_batch=batch_size > 0) == delivery.rows

    def _leave_out_rows(self, delivery: QueuedDelivery, batch_size: int) -> RowSet:
        """Return the rows of a batch that a seek into it does not leave out.

        Those that it leaves out count as acknowledged.
        """
        skipped = self.skipped.of(delivery.key, batch_size, delivery.generation)
        if not skipped:
            return delivery.rows
        self._acks.acks.add_rows(*delivery.key, skipped, batch_size)
        return delivery.rows & ~row_sets.of_ranges(skipped)

    def comes_again(self, delivery: QueuedDelivery, error: PulsarException) -> bool:
        """Drop an unreadable delivery and all behind it, if its partition has moved away.

        This process does not know that yet, as one that was stopped for long: where it attaches next they are
        sent again. False if the partition's directory is there, or was left already.
        """
        if not isinstance(error, SegmentGone) or not self.is_stored or not delivery.length:
            return False
        if Path(delivery.path).parent.exists():
            return False
        with self._lock:
            if self._target.queue.is_next(delivery):  # not dropped meanwhile
                if self.files.was_left(delivery.path):
                    return False
                self._give_up_from(delivery)
        return True

    def leave_out(self, delivery: QueuedDelivery, error: PulsarException) -> bool:
        """Count a block that cannot be read as consumed; it stays unacknowledged.

        The error gets the id of the block. True if nobody need learn of it: it was deleted meanwhile, as by
        an expiry (see `pass_deleted`), it was reported already and this is the rest of it, or it cannot be
        decrypted.
        """
        is_known = self.pass_deleted(delivery, error)
        if not is_known and self.unreadable is not None:
            # Before the credit: for that, the dispatcher would send more of the block.
            is_known = not self.unreadable.met(delivery, error)
        with self._lock:
            if self._target.queue.take(delivery):
                self.count.consumed += delivery.rows.bit_count()
        self.report_consumed()
        place = delivery.key if self.is_stored else (-1, -1)
        error.of_message(MessageId(self._route.partition, *place, topic_name=self._route.topic))
        return is_known or isinstance(error, CryptoError)

    def pass_deleted(self, delivery: QueuedDelivery, error: PulsarException) -> bool:
        """Hold a delivery no more whose ledger was deleted while it waited (ADR 0073).

        False if it cannot be read for another reason.
        """
        if not isinstance(error, SegmentGone) or not self.files.was_deleted(delivery):
            return False
        ledger_id, entry_id, rows = delivery.ledger_id, delivery.first_entry_id, delivery.rows
        with self._lock:
            if delivery.generation == self.generation:
                if delivery.chunks:
                    # Only its beginning may be gone: nobody can ever put it together.
                    self._acks.acks.add(ledger_id, entry_id)
                else:
                    self._unacked.remove_rows(ledger_id, entry_id, rows)
        return True

    def is_deleted(self, delivery: QueuedDelivery) -> bool:
        """See `PartitionFiles.is_deleted`."""
        return self.files.is_deleted(delivery)

    def begin_move(self, delivery: QueuedDelivery) -> None:
        """Begin to move a delivery to another topic. Called with the lock held."""
        self.count.moving += delivery.rows.bit_count()

    def end_move(self, delivery: QueuedDelivery) -> None:
        """Count a delivery as consumed: it was moved, or is to come again."""
        with self._lock:
            if delivery.generation == self.generation:
                messages = delivery.rows.bit_count()
                self.count.moving -= messages
                self.count.consumed += messages
        self.send_credit()

    # --- for requests ------------------------------------------------------------------------------

    def received(self) -> tuple[int, int]:
        """The numbering of deliveries, and the number of the last one."""
        with self._lock:
            return self.numbering, self.last_number

    def leaves_out(self, last: dict[str, Any]) -> bool:
        """Whether a start in a batch left out the topic's last message."""
        ledger_id, entry_id = last["position"]
        row = last.get("batch_index", max(last["batch_size"], 1) - 1)
        with self._lock:
            return self.skipped.have((ledger_id, entry_id), row, self.generation)

    def arrived(self) -> tuple[int, tuple[int, int, int] | None]:
        """The number of the last delivery, and the first message that waits in the queue."""
        with self._lock:
            return self.last_number, self._target.queue.oldest_of(self)


def _failures_by_number(request: Deliver) -> dict[int, RowFailures]:
    """The failures of single messages of batches, by the number of the delivery."""
    return {
        number: tuple((first, end, count) for first, end, count in failures)
        for number, failures in request.row_failures
    }
