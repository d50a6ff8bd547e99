"""Sends a consumer's acknowledgments on one partition: grouped, and repeated until they are answered."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from pulsar_ray.client.acks.ack_tracker import AckBatch
from pulsar_ray.client.acks.deadline_timer import DeadlineTimer
from pulsar_ray.client.acks.nack_tracker import Nack, joined_by_block
from pulsar_ray.client.acks.partition_acks import PartitionAcks, PendingRequest
from pulsar_ray.client.acks.unacked_rows import UnackedRows
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.clock import SystemClock
from pulsar_ray.errors import PulsarException
from pulsar_ray.model.row_sets import of_ranges, ranges_of, span
from pulsar_ray.session.packet import Buffer
from pulsar_ray.session.requests import Acknowledge, Call, NegativeAcknowledge

_CLOCK = SystemClock()
MAX_RANGES_PER_PACKET = 20_000
RANGES_PER_BITS = 50
"""Ranges that take about as much of a packet as one set of bits."""
MAX_NACKS_PER_PACKET = 10_000
NACK_REPORT_S = 0.2
"""How long failures gather before the dispatcher is told of their delay."""
LEAST_REPORTED_MS = 1000
"""Failures that come again sooner are not told of."""


class DeliveryNumbers(Protocol):
    """Numbers of a partition's deliveries, which requests about them name."""

    generation: int

    def received(self) -> tuple[int, int]: ...

    def arrived(self) -> tuple[int, tuple[int, int, int] | None]: ...

    def credit_beside(self) -> Sequence[Buffer]: ...

    def acknowledged(self, batch: AckBatch) -> None: ...


class AckSender:
    """Groups the acknowledgments of one partition by number and time. `lock` is the consumer's.

    The application puts acknowledgments into `acks` under the lock and calls `added` without it.
    """

    def __init__(
        self,
        consumer_id: int,
        state: PartitionAcks,
        progress: DeliveryNumbers,
        options: ConsumerOptions,
        lock: threading.Lock,
    ) -> None:
        self.acks = state.acks
        self.nacks = state.nacks
        self.unacked = state.unacked
        self.gathered = 0
        """Acknowledgments that may gather before `added` has to be called: a timer sends them."""
        self._consumer_id = consumer_id
        self._state = state
        self._requests = state.requests
        self._progress = progress
        self._options = options
        self.lock = lock
        self._ack_timer_armed = False
        self._nack_timer = DeadlineTimer(self._requests, lock, self._send_due_nacks)
        self._nack_report_armed = False
        self._reported_nacks = 0
        self._one_sends_nacks = threading.Lock()

    def forked(self, lock: threading.Lock) -> None:
        """Take the new lock, in a forked child."""
        self.lock = lock
        self._one_sends_nacks = threading.Lock()

    # --- acknowledgments --------------------------------------------------------------------------

    def added(self) -> None:
        """Send `acks` at the size limit, or after the grouping time. Not under the lock."""
        options = self._options
        if self.acks.count >= options.ack_grouping_max_size or options.ack_grouping_time_ms == 0:
            self.flush()
        elif not self._ack_timer_armed:
            self._ack_timer_armed = True
            self.gathered = options.ack_grouping_max_size
            self._requests.link.timers.call_later(options.ack_grouping_time_ms / 1000, self._ack_timer)

    def _ack_timer(self) -> None:
        self._ack_timer_armed = False
        self.gathered = 0
        self.flush()

    def flush(self) -> None:
        """Send the gathered acknowledgments; while detached they gather until the consumer is open again.

        A dispatcher that sleeps is woken for them.
        """
        if self._requests.is_open:
            self.send(at_once=False)
        elif self.acks.count:
            self._requests.link.wake()

    def acknowledge_durably(self, deadline: float) -> None:
        """Send the gathered acknowledgments and wait until the dispatcher has made them durable.

        Raises Timeout or, if the partition is away, WrongNode, after which they are still repeated until an
        answer comes; or the error of a refusal.
        """
        self._requests.wait(self.send_durably(), deadline)

    def send_durably(self) -> list[PendingRequest]:
        """Send the gathered acknowledgments, durable once these requests are answered."""
        sent = self.send(at_once=True)
        # Acknowledgments that another thread took along are durable when its own request is answered.
        return sent or self._requests.unanswered()

    def send(self, *, at_once: bool) -> list[PendingRequest]:
        """Send the gathered acknowledgments, to be made durable soon, or `at_once`."""
        with self.lock:
            # Added before any other thread can find that there is nothing to acknowledge any more.
            sent = [self._request(part, at_once=at_once) for part in _parts(self.acks.drain())]
            self.acks.forget_gone(self.unacked.batch_size)
            for request in sent:
                self._requests.add(request)
            is_open = self._requests.is_open
            # Credit in a packet of its own would wake the dispatcher twice, which often preempts the writer.
            credit = self._progress.credit_beside() if sent and is_open and not at_once else ()
        if is_open:
            for request in sent[:-1]:
                self._requests.send(request)
            for request in sent[-1:]:
                self._requests.send(request, behind=credit)
        return sent

    def _request(self, batch: AckBatch, *, at_once: bool) -> PendingRequest:
        def carried_out() -> None:
            # Not before: the successor of a dispatcher that died must learn that these rows are not free.
            with self.lock:
                self._progress.acknowledged(batch)
                _remove(self.unacked, batch)

        ranges, batch_rows, cumulative, bits, moved = batch
        generation = self._progress.generation
        return PendingRequest(
            lambda rid: Acknowledge(
                rid, self._consumer_id, ranges, batch_rows, cumulative, at_once, generation, bits, moved
            ),
            carried_out,
            batch,
        )

    def send_last(self) -> None:
        """Send all that waits before the consumer leaves, failures too that are not due yet."""
        self.send(at_once=True)
        self._send_nacks(math.inf)

    def forget(self) -> None:
        """Drop all that was not sent or not answered. Call without the lock."""
        self.gathered = 0
        with self.lock:
            self._state.forget()
        self._requests.end_forgotten()
        self._requests.discard(None)

    # --- negative acknowledgments -----------------------------------------------------------------

    def nacks_added(self) -> None:
        """Have `nacks` sent when they are due. Not under the lock."""
        with self.lock:
            due_ms, now_ms = self.nacks.next_deadline_ms(), _CLOCK.monotonic_ms()
            if due_ms is not None:
                self._nack_timer.set(due_ms, now_ms)
            left_ms = (due_ms or 0) - now_ms
            reports = not self._nack_report_armed and (left_ms >= LEAST_REPORTED_MS or self._reported_nacks)
            self._nack_report_armed |= bool(reports)
        if reports:
            self._requests.link.timers.call_later(NACK_REPORT_S, self._report_nacks)

    def _report_nacks(self) -> None:
        """Tell the dispatcher how many failures wait here and when the first comes again.

        A report that was not made or not answered is made again with the next look, for instance when the
        consumer is open again.
        """
        with self.lock:
            self._nack_report_armed = False
            if not self._requests.is_open:
                return
            due_ms, waiting = self.nacks.next_deadline_ms(), self.nacks.messages
            former, self._reported_nacks = self._reported_nacks, waiting

        def answered(_value: Any, error: PulsarException | None) -> None:
            if error is not None:
                self._reported_nacks = max(self._reported_nacks, former, waiting)

        now_ms = _CLOCK.monotonic_ms()
        arguments = {"waiting": waiting, "due_in_ms": max(0, (due_ms or 0) - now_ms)}
        self._requests.link.request_async(
            lambda rid: Call(rid, self._consumer_id, "report_nacks", arguments), answered
        )

    def _send_due_nacks(self) -> None:
        self._send_nacks(_CLOCK.monotonic_ms())
        self.nacks_added()

    def _send_nacks(self, now_ms: float) -> None:
        # A thread that closes the consumer must not get ahead of what the timer has taken out.
        with self._one_sends_nacks:
            with self.lock:
                due = joined_by_block(self.nacks.due(now_ms), self.unacked.block_of)
            self.fail(due)

    def fail(self, items: list[Nack]) -> None:
        """Have failed messages delivered again now. Not under the lock."""
        if items:
            # A message that was acknowledged meanwhile does not come again, although it was to.
            self.send(at_once=False)
        for part in _nack_parts(items):
            self._submit_nacks(part)

    def _submit_nacks(self, items: list[Nack]) -> None:
        def build(request_id: int) -> NegativeAcknowledge:
            return NegativeAcknowledge(
                self._consumer_id,
                self._not_delivered_since(items),
                request_id,
                *self._progress.arrived(),
                first_sent,
            )

        def carried_out() -> None:
            left = self._not_delivered_since(items)
            with self.lock:
                for item in left:
                    self.unacked.remove_failed(*item)

        first_sent = self._progress.received()
        self._requests.submit(build, carried_out)

    def _not_delivered_since(self, items: list[Nack]) -> list[Nack]:
        """The failed messages without those that were delivered again.

        Their failure was counted by a dispatcher that may have died before it answered.
        """
        left: list[Nack] = []
        with self.lock:
            for ledger_id, entry_id, rows, count in items:
                newer = self.unacked.delivered_since(ledger_id, entry_id, rows, count)
                if newer:
                    rows = ranges_of(of_ranges(rows) & ~newer)
                if newer is not None and (rows or not newer):
                    left.append((ledger_id, entry_id, rows, count))
        return left


def _parts(batch: AckBatch | None) -> Iterator[AckBatch]:
    """The batch, or pieces of it that fit into packets."""
    if batch is None:
        return
    size = len(batch.ranges) + sum(len(rows) for _, _, rows in (*batch.batch_rows, *batch.moved_rows))
    if size + len(batch.entry_bits) * RANGES_PER_BITS <= MAX_RANGES_PER_PACKET:
        yield batch
        return
    step = MAX_RANGES_PER_PACKET // RANGES_PER_BITS
    for start in range(0, len(batch.entry_bits), step):
        yield AckBatch([], [], None, batch.entry_bits[start : start + step])
    for start in range(0, len(batch.ranges), MAX_RANGES_PER_PACKET):
        yield AckBatch(batch.ranges[start : start + MAX_RANGES_PER_PACKET], [], None)
    for rows in batch.batch_rows:
        yield AckBatch([], [rows], None)
    for rows in batch.moved_rows:
        yield AckBatch([], [], None, (), [rows])
    if batch.cumulative is not None:
        yield AckBatch([], [], batch.cumulative)


def _nack_parts(items: list[Nack]) -> Iterator[list[Nack]]:
    """Pieces of it that fit into packets."""
    part: list[Nack] = []
    size = 0
    for item in items:
        size += 1 + len(item[2])
        part.append(item)
        if size >= MAX_NACKS_PER_PACKET:
            yield part
            part, size = [], 0
    if part:
        yield part


def _remove(unacked: UnackedRows, batch: AckBatch) -> None:
    unacked.remove_entries(batch.ranges)
    for bits in batch.entry_bits:
        unacked.remove_bits(bits)
    for ledger_id, entry_id, rows in (*batch.batch_rows, *batch.moved_rows):
        unacked.remove_rows(ledger_id, entry_id, of_ranges(rows))
    if batch.cumulative is not None:
        ledger_id, entry_id, row = batch.cumulative
        if row >= 0:
            unacked.remove_rows(ledger_id, entry_id, span(0, row + 1))
            entry_id -= 1
        unacked.remove_up_to(ledger_id, entry_id)
