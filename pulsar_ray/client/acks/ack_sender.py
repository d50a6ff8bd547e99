"""How a consumer acknowledges on a partition: gathered, said, and said again until the dispatcher answers."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from pulsar_ray.client.acks.ack_tracker import AckBatch, AckTracker
from pulsar_ray.client.acks.nack_tracker import Nack, NackTracker
from pulsar_ray.client.acks.unacked_rows import UnackedRows
from pulsar_ray.client.acks.unanswered_requests import PendingRequest, UnansweredRequests
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.errors import Timeout
from pulsar_ray.model.row_sets import of_ranges, span
from pulsar_ray.session.packet import Buffer
from pulsar_ray.session.requests import Acknowledge, NegativeAcknowledge, Request
from pulsar_ray.transport.actor_link import ActorLink

MAX_RANGES_PER_PACKET = 20_000
RANGES_PER_BITS = 50
"""What takes about as much of a packet."""
MAX_NACKS_PER_PACKET = 10_000
LOOK_S = 0.5
"""How long nobody looks whether the partition is known to be away by now."""


class AckSender(ABC):
    """The part of a PartitionConsumer that acknowledges; `lock` is shared with the consumer above it."""

    def __init__(
        self, link: ActorLink, consumer_id: int, options: ConsumerOptions, lock: threading.Lock
    ) -> None:
        self.link = link
        self.consumer_id = consumer_id
        self.acks = AckTracker(batch_index_ack=options.batch_index_ack_enabled)
        self.nacks = NackTracker(
            options.negative_ack_redelivery_delay_ms, options.negative_ack_redelivery_backoff
        )
        self.held = UnackedRows()
        self.generation = 0
        self._io = link.timers
        self._lock = lock
        self._ack_options = options
        self._statements = UnansweredRequests(link)
        self._forgotten: list[PendingRequest] = []
        self._is_open = False
        self.acks_gathered = 0
        """So many acknowledgments may gather before `acks_added` has to hear of it: a timer sends them."""
        self._ack_timer_armed = False
        self._nack_timer_armed = False

    def forked(self, lock: threading.Lock) -> None:
        """In a forked child: nothing is said any more."""
        self._lock = lock
        self._is_open = False
        self._statements = UnansweredRequests(self.link)

    @property
    def is_connected(self) -> bool:
        """True while open at the dispatcher."""
        return self._is_open

    # --- acknowledging ---------------------------------------------------------------------------------

    def acks_added(self) -> None:
        """Something was put into `acks`: send it at the limit or after a while. Not under the lock."""
        options = self._ack_options
        if self.acks.count >= options.ack_grouping_max_size or options.ack_grouping_time_ms == 0:
            self.flush_acks()
        elif not self._ack_timer_armed:
            self._ack_timer_armed = True
            self.acks_gathered = options.ack_grouping_max_size
            self._io.call_later(options.ack_grouping_time_ms / 1000, self._ack_timer)

    def _ack_timer(self) -> None:
        self._ack_timer_armed = False
        self.acks_gathered = 0
        self.flush_acks()

    def flush_acks(self) -> None:
        """Send what was gathered; while detached it gathers on until the consumer is open again."""
        if self._is_open:
            self._say_acks(at_once=False)

    def acknowledge_durably(self, deadline: float) -> None:
        """Send what was gathered and wait until the dispatcher has made it durable.

        Raises Timeout or, if the partition is away, WrongNode, after which it is still repeated until an
        answer comes; or what it is refused with.
        """
        self._wait(self.say_durably(), deadline)

    def say_durably(self) -> list[PendingRequest]:
        """Send what was gathered, to be made durable at once; it is when these are answered."""
        said = self._say_acks(at_once=True)
        # What another thread took along is durable when its own statement is answered.
        return said or self._statements.unanswered()

    def _wait(self, statements: list[PendingRequest], deadline: float) -> None:
        for statement in statements:
            while not self.link.wait(statement.answered, min(deadline, time.monotonic() + LOOK_S)):
                if (absence := self.link.absence) is not None:
                    raise absence.again()
                if time.monotonic() >= deadline or self.link.is_closed:
                    raise Timeout(
                        "the dispatcher did not answer in time; acknowledgments may not be durable yet"
                    )
            if statement.error is not None:
                raise statement.error.again()

    def _say_acks(self, *, at_once: bool) -> list[PendingRequest]:
        with self._lock:
            # Added before anybody else can find that there is nothing to acknowledge any more.
            said = [self._acknowledgment(part, at_once=at_once) for part in _parts(self.acks.drain())]
            for statement in said:
                self._statements.add(statement)
            is_open = self._is_open
            credit = self.credit_beside() if said and is_open and not at_once else ()
        if is_open:
            for statement in said[:-1]:
                self._statements.send(statement)
            for statement in said[-1:]:
                self._statements.send(statement, behind=credit)
        return said

    @abstractmethod
    def credit_beside(self) -> Sequence[Buffer]:
        """Called with the lock held: the packet that says how much more may come, if it will be due soon.

        Whoever writes it for itself wakes the dispatcher twice, and is often preempted by it.
        """

    def _acknowledgment(self, acknowledged: AckBatch, *, at_once: bool) -> PendingRequest:
        def carried_out() -> None:
            # Not before: the successor of a dispatcher that died must learn that these rows are not free.
            with self._lock:
                _remove(self.held, acknowledged)

        ranges, batch_rows, cumulative, bits = acknowledged
        generation = self.generation
        return PendingRequest(
            lambda rid: Acknowledge(
                rid, self.consumer_id, ranges, batch_rows, cumulative, at_once, generation, bits
            ),
            carried_out,
        )

    def _say(
        self, build: Callable[[int], Request], carried_out: Callable[[], None] | None = None
    ) -> PendingRequest:
        statement = PendingRequest(build, carried_out)
        self._statements.add(statement)
        if self._is_open:
            self._statements.send(statement)
        return statement

    def forget_acknowledgments(self) -> None:
        """What was acknowledged and may not have been said is not said any more. Call without the lock."""
        with self._lock:
            self._forget()
        self._end_forgotten()

    def _forget(self) -> None:
        """Called with the lock held, and `_end_forgotten` soon after without it."""
        self.nacks.clear()
        self.acks.clear()
        self._forgotten += self._statements.take()

    def _end_forgotten(self) -> None:
        """Whoever waits for what will not be said goes on."""
        if self._forgotten:
            with self._lock:
                forgotten, self._forgotten = self._forgotten, []
            for statement in forgotten:
                statement.end(None)

    # --- negative acknowledgments ----------------------------------------------------------------------

    def nacks_added(self) -> None:
        """Something was put into `nacks`: a timer sends it when it is due."""
        with self._lock:
            due = self.nacks.next_deadline_ms()
            if due is None or self._nack_timer_armed:
                return
            self._nack_timer_armed = True
        self._io.call_later(max(0.0, (due - _now_ms()) / 1000), self._send_nacks)

    def _send_nacks(self) -> None:
        with self._lock:
            self._nack_timer_armed = False
            due = self.nacks.due(_now_ms())
        if due:
            # What was acknowledged meanwhile does not come again, although it was to.
            self._say_acks(at_once=False)
        for start in range(0, len(due), MAX_NACKS_PER_PACKET):
            self._say_nacks(due[start : start + MAX_NACKS_PER_PACKET])
        self.nacks_added()

    def _say_nacks(self, items: list[Nack]) -> None:
        def carried_out() -> None:
            with self._lock:
                self.held.remove_entries([(item[0], item[1], item[1]) for item in items])

        first_said = self.received()
        self._say(
            lambda rid: NegativeAcknowledge(self.consumer_id, items, rid, *self.arrived(), first_said),
            carried_out,
        )

    @abstractmethod
    def received(self) -> tuple[int, int]:
        """The numbering of deliveries, and the number of the last one."""

    @abstractmethod
    def arrived(self) -> tuple[int, tuple[int, int, int] | None]:
        """The number of the last delivery, and the first message that waits in the queue."""


def _parts(pending: AckBatch | None) -> Iterator[AckBatch]:
    """As it is, or cut into what fits into packets."""
    if pending is None:
        return
    size = len(pending.ranges) + sum(len(rows) for _, _, rows in pending.batch_rows)
    if size + len(pending.entry_bits) * RANGES_PER_BITS <= MAX_RANGES_PER_PACKET:
        yield pending
        return
    step = MAX_RANGES_PER_PACKET // RANGES_PER_BITS
    for start in range(0, len(pending.entry_bits), step):
        yield AckBatch([], [], None, pending.entry_bits[start : start + step])
    for start in range(0, len(pending.ranges), MAX_RANGES_PER_PACKET):
        yield AckBatch(pending.ranges[start : start + MAX_RANGES_PER_PACKET], [], None)
    for rows in pending.batch_rows:
        yield AckBatch([], [rows], None)
    if pending.cumulative is not None:
        yield AckBatch([], [], pending.cumulative)


def _remove(held: UnackedRows, acknowledged: AckBatch) -> None:
    held.remove_entries(acknowledged.ranges)
    for bits in acknowledged.entry_bits:
        held.remove_bits(bits)
    for ledger_id, entry_id, rows in acknowledged.batch_rows:
        held.remove_rows(ledger_id, entry_id, of_ranges(rows))
    if acknowledged.cumulative is not None:
        ledger_id, entry_id, row = acknowledged.cumulative
        if row >= 0:
            held.remove_rows(ledger_id, entry_id, span(0, row + 1))
            entry_id -= 1
        held.remove_up_to(ledger_id, entry_id)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
