"""One consumer's side of one partition: credit, deliveries in, acknowledgments out, re-attach.

The consumer above shares its lock with all its partitions: what arrives here on the I/O thread and what the application does
meet under it, for moments.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from pulsar_ray.client.ack_tracker import AckTracker, PendingAcks
from pulsar_ray.client.held_rows import HeldRows
from pulsar_ray.client.nack_tracker import NackTracker
from pulsar_ray.client.received_block import ReceivedBlock
from pulsar_ray.errors import PulsarException
from pulsar_ray.format.payload import decode_block
from pulsar_ray.lane.io_thread import IoThread
from pulsar_ray.ledger.segment_file import segment_name
from pulsar_ray.model import row_ranges
from pulsar_ray.model.row_ranges import RowRanges
from pulsar_ray.session.requests import (
    Acknowledge,
    Call,
    CloseEndpoint,
    ConsumerOpened,
    Credit,
    Deliver,
    NegativeAcknowledge,
    OpenConsumer,
    RedeliverUnacknowledged,
    Reset,
    encode_request,
)
from pulsar_ray.transport.carriers import Connection
from pulsar_ray.transport.cluster import AttachReply, PartitionRoute
from pulsar_ray.transport.link import ActorLink

if TYPE_CHECKING:
    from pulsar_ray.client.consumer_core import ConsumerCore

KEEP_DECODED = 2
DETACHED_RETRY_S = 0.1


class Granted(NamedTuple):
    """Rows of a block that were delivered and wait in the receiver queue."""

    partition: PartitionConsumer
    generation: int
    ledger_id: int
    path: str
    offset: int
    length: int
    first_entry_id: int
    rows: RowRanges
    redelivery_count: int
    data: memoryview | None


class PartitionConsumer:
    """An endpoint on the link to one partition's dispatcher."""

    def __init__(self, core: ConsumerCore, link: ActorLink, consumer_id: int, route: PartitionRoute) -> None:
        self._core = core
        self._io = IoThread.get()
        self.link = link
        self.route = route
        self.consumer_id = consumer_id
        options = core.options
        self.acks = AckTracker(batch_index_ack=options.batch_index_ack_enabled)
        self.nacks = NackTracker(
            options.negative_ack_redelivery_delay_ms, options.negative_ack_redelivery_backoff
        )
        self.held = HeldRows()
        self._incarnation = secrets.randbits(63) | 1
        self._epoch = -1
        self._received = 0
        self.generation = 0
        self.consumed = 0
        self._credit_sent = -1
        self._is_open = False
        self._ack_timer_armed = False
        self._nack_timer_armed = False
        self._unproven: deque[tuple[int, list[Any], PendingAcks | None]] = deque()
        self._decoded: list[tuple[tuple[int, int], ReceivedBlock]] = []
        self.start: dict[str, Any] | None = None
        self.skip: tuple[int, int, int] | None = None

    # --- opening ---------------------------------------------------------------------------------------------------

    def open(self, deadline: float) -> ConsumerOpened:
        """Open at the dispatcher. Raises ConsumerBusy, SubscriptionNotFound, or what attaching raises."""
        attached = self.link.ensure_attached(deadline)
        self.link.add_endpoint(self.consumer_id, self)
        try:
            opened: ConsumerOpened = self.link.request(lambda rid: self._open_request(rid, attached), deadline)
        except BaseException:
            self.link.remove_endpoint(self.consumer_id)
            raise
        self._opened(opened)
        return opened

    def _open_request(self, request_id: int, attached: AttachReply) -> OpenConsumer:
        options = self._core.options
        with self._core.lock:
            return OpenConsumer(
                request_id,
                self.consumer_id,
                self._core.name,
                self._incarnation,
                int(options.consumer_type),
                options.priority_level,
                options.batch_index_ack_enabled,
                _can_read(attached.reach),
                self._epoch,
                self._received,
                self.held.all(),
                self.start,
                self._core.subscription,
                self.consumed + self._core.queued_messages(self),
            )

    def reopen(self, attached: AttachReply) -> None:
        """A new attachment: open again, declaring what is held; then credit and pending acknowledgments go out."""
        carrier = self.link.carrier
        self.link.request_async(
            lambda rid: self._open_request(rid, attached),
            lambda opened, error: self._reopened(carrier, opened, error),
        )

    def _reopened(
        self, carrier: Connection | None, opened: ConsumerOpened | None, error: PulsarException | None
    ) -> None:
        if opened is not None:
            if self.link.carrier is not carrier:
                return
            self._opened(opened)
            self.flush_acks()
        elif error is not None and not error.retriable:
            self._core.fail(error)

    def _opened(self, opened: ConsumerOpened) -> None:
        with self._core.lock:
            if not opened.resumed:
                self._epoch = opened.epoch
                self._received = 0
                self.generation = opened.generation
            self._drop_older(opened.generation)
            self._is_open = True
            self._credit_sent = -1
            again = [packet for _, packet, _ in self._unproven]
        # Before any credit: a dispatcher that has not heard of them must not deliver these messages again.
        for packet in again:
            self.link.send(packet)
        self.send_credit()

    def on_detached(self) -> None:
        """The carrier is gone; what was delivered stays in the queue."""
        with self._core.lock:
            self._is_open = False

    # --- credit ----------------------------------------------------------------------------------------------------

    def send_credit(self) -> None:
        """Tell the dispatcher how much the queue takes, if that changed enough to matter."""
        with self._core.lock:
            if not self._is_open:
                return
            window = self._core.window
            credit = self.consumed + window
            if self._credit_sent >= 0 and credit - self._credit_sent < max(1, window // 2):
                return
            self._credit_sent = credit
            packet = encode_request(Credit(self.consumer_id, credit, self._received, self.consumed))
        self.link.send(packet)

    # --- deliveries ------------------------------------------------------------------------------------------------

    def on_request(self, request: Any, body: memoryview) -> None:
        """A delivery, or the order to drop what is queued."""
        if isinstance(request, Deliver):
            self._delivered(request, body)
        elif isinstance(request, Reset):
            with self._core.lock:
                self._drop_older(request.generation)

    def on_receipts(self, rows: list[tuple[int, int, int, int, int]]) -> None:
        """Dispatchers send no receipts."""

    def _delivered(self, request: Deliver, body: memoryview) -> None:
        granted: list[Granted] = []
        with self._core.lock:
            if request.epoch < self._epoch or request.generation < self.generation or not self._is_open:
                # Until it is open again, numbers may have holes: what was lost with the carrier comes after that.
                return
            self._drop_older(request.generation)
            offset = 0
            for number, grant in request.grants:
                ledger_id, segment, at, length, first, entries, rows, count, messages = grant
                path = self._segment_path(ledger_id, segment)
                granted_rows: RowRanges = rows
                data = None
                if body:
                    data = body[offset : offset + length]
                    offset += length
                if number <= self._received:
                    continue
                self._received = number
                self.held.add(ledger_id, first, entries, granted_rows, messages)
                if self.start is not None:
                    # A non-durable cursor dies with its dispatcher: the next one goes on behind what arrived.
                    last = first + rows[-1][1] - 1 if entries > 1 else first
                    self.start = {"target": [ledger_id, last], "inclusive": False}
                granted.append(
                    Granted(self, request.generation, ledger_id, path, at, length, first, granted_rows, count, data)
                )
            if granted:
                self._core.arrived(granted)
        self._core.serve_waiting()

    def _segment_path(self, ledger_id: int, segment_index: int) -> str:
        attached = self.link.attached
        assert attached is not None
        return f"{attached.directory}/{segment_name(ledger_id, segment_index)}"

    def _drop_older(self, generation: int) -> None:
        """Called with the lock held: what is queued from before a seek or rewind comes again by itself."""
        if generation > self.generation:
            self.generation = generation
            self._drop_queue()

    def _drop_queue(self) -> None:
        self.consumed += self._core.drop_queued(self)
        self.held.clear()
        self.nacks.clear()
        self.acks.clear()

    def decode(self, granted: Granted) -> ReceivedBlock:
        """Read, verify and decode a granted block. Raises CorruptData, SegmentGone, InvalidMessage."""
        key = (granted.ledger_id, granted.first_entry_id)
        for known, block in self._decoded:
            if known == key and block.redelivery_count == granted.redelivery_count:
                return block
        data: Any = granted.data
        if data is None:
            data = self._core.files.read_block(granted.path, granted.offset, granted.length)
        block = ReceivedBlock(
            decode_block(data, 0, granted.path or self.route.topic),
            topic_name=self.route.topic,
            partition=self.route.partition,
            ledger_id=granted.ledger_id,
            first_entry_id=granted.first_entry_id,
            redelivery_count=granted.redelivery_count,
            schema=self._core.options.schema,
        )
        # A block that was granted in parts is decoded once.
        self._decoded = [(key, block), *self._decoded[: KEEP_DECODED - 1]]
        return block

    # --- acknowledging ---------------------------------------------------------------------------------------------

    @property
    def ack_pending(self) -> bool:
        """True if what was added will be sent by a timer that runs, and no limit is reached."""
        return self._ack_timer_armed and self.acks.count < self._core.options.ack_grouping_max_size

    def acks_added(self) -> None:
        """Something was put into `acks`: send it at the limit, or after the grouping time. Call without the lock."""
        options = self._core.options
        if self.acks.count >= options.ack_grouping_max_size or options.ack_grouping_time_ms == 0:
            self.flush_acks()
        elif not self._ack_timer_armed:
            self._ack_timer_armed = True
            self._io.call_later(options.ack_grouping_time_ms / 1000, self._ack_timer)

    def _ack_timer(self) -> None:
        self._ack_timer_armed = False
        self.flush_acks()

    def flush_acks(self) -> None:
        """Send what was gathered; while detached it stays until the consumer is open again."""
        with self._core.lock:
            if not self._is_open:
                return
            pending = self.acks.drain()
        if pending is not None:
            self._send_lasting(encode_request(Acknowledge(0, self.consumer_id, *pending)), pending)

    def _send_lasting(self, packet: list[Any], acks: PendingAcks | None = None) -> None:
        """Send what must not be lost with the carrier: kept, and sent again after a re-attach, until it has arrived.

        What is acknowledged counts as held until then, so that nobody else is given it meanwhile.
        """
        with self._core.lock:
            self._unproven.append((self.link.ping_number, packet, acks))
        self.link.send(packet)

    def on_pong(self, number: int) -> None:
        """What was sent before the ping that this answers has arrived (one older, because sending is not one step)."""
        with self._core.lock:
            while self._unproven and self._unproven[0][0] < number - 1:
                _, _, acks = self._unproven.popleft()
                if acks is not None:
                    self._let_go(acks)

    def _let_go(self, pending: PendingAcks) -> None:
        """Called with the lock held: what was acknowledged is not held any more."""
        self.held.remove_entries(pending.ranges)
        for ledger_id, entry_id, rows in pending.batch_rows:
            self.held.remove_rows(ledger_id, entry_id, rows)
        if pending.cumulative is not None:
            ledger_id, entry_id, row = pending.cumulative
            if row >= 0:
                self.held.remove_rows(ledger_id, entry_id, ((0, row + 1),))
                entry_id -= 1
            self.held.remove_up_to(ledger_id, entry_id)

    def acknowledge_durably(self, deadline: float) -> None:
        """Send what was gathered and wait until the dispatcher has made it durable."""
        with self._core.lock:
            pending = self.acks.drain()
        if pending is not None:
            self.link.request(lambda rid: Acknowledge(rid, self.consumer_id, *pending), deadline)
            with self._core.lock:
                self._let_go(pending)

    def nacks_added(self) -> None:
        """Something was put into `nacks`: a timer sends it when it is due."""
        with self._core.lock:
            due = self.nacks.next_deadline_ms()
            if due is None or self._nack_timer_armed:
                return
            self._nack_timer_armed = True
        self._io.call_later(max(0.0, (due - _now_ms()) / 1000), self._send_nacks)

    def _send_nacks(self) -> None:
        with self._core.lock:
            self._nack_timer_armed = False
            items = []
            if self._is_open:
                for ledger_id, entry_id, rows, count in self.nacks.due(_now_ms()):
                    self.held.remove_entries([(ledger_id, entry_id, entry_id)])
                    items.append((ledger_id, entry_id, rows, count))
        if items:
            self._send_lasting(encode_request(NegativeAcknowledge(self.consumer_id, items)))
        if self._is_open:
            self.nacks_added()
        elif len(self.nacks):
            self._nack_timer_armed = True
            self._io.call_later(DETACHED_RETRY_S, self._send_nacks)

    def redeliver_unacknowledged(self) -> None:
        """Everything not acknowledged comes again; what is queued is dropped."""
        self.flush_acks()
        with self._core.lock:
            received = self._received
            self._drop_queue()
        self._send_lasting(encode_request(RedeliverUnacknowledged(self.consumer_id, received)))
        self.send_credit()

    # --- control ---------------------------------------------------------------------------------------------------

    def call(self, method: str, deadline: float, **arguments: Any) -> Any:
        """A control request to the dispatcher, after what was acknowledged before."""
        self.flush_acks()
        return self.link.request(lambda rid: Call(rid, self.consumer_id, method, arguments), deadline)

    def sought(self, generation: int, skip: tuple[int, int, int] | None) -> None:
        """A seek was carried out: what is queued is dropped. `skip` are (ledger id, entry id, rows) not to be handed out."""
        with self._core.lock:
            self._drop_older(generation)
            # Told once more, acknowledgments from before would hide what the seek brings back.
            self._unproven.clear()
            self.skip = skip
        self.send_credit()

    def close(self, deadline: float) -> None:
        """Make acknowledgments durable and leave; what is held goes to others."""
        try:
            if self._is_open:
                self.acknowledge_durably(deadline)
                self.link.request(lambda rid: CloseEndpoint(rid, self.consumer_id), deadline)
        finally:
            self.link.remove_endpoint(self.consumer_id)
            self._is_open = False

    @property
    def is_connected(self) -> bool:
        """True while open at the dispatcher."""
        return self._is_open


def count_rows(granted: Granted) -> int:
    """Messages of a grant."""
    return row_ranges.count(granted.rows)


def _can_read(reach: tuple[str, str]) -> bool:
    """Whether this process sees the segments: the value beside them can be read back."""
    path, value = reach
    try:
        with open(path) as file:
            return file.read() == value
    except OSError:
        return False


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
