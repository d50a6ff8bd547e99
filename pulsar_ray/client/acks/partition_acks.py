"""Keeps one consumer's acknowledgments on one partition: what is gathered, unacked, unanswered or late."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeAlias

from pulsar_ray.client.acks.ack_timeouts import AckTimeouts
from pulsar_ray.client.acks.ack_tracker import (
    NO_FLAGS,
    WHOLE_ENTRY,
    AckBatch,
    AckTracker,
    RowFlags,
    entries_up_to,
    span_of,
)
from pulsar_ray.client.acks.nack_tracker import Nack, NackTracker
from pulsar_ray.client.acks.unacked_rows import UnackedRows
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.received.message import PlacedRows, Rows
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.errors import NotConnected, PulsarException, SessionLost, Timeout
from pulsar_ray.lane.waiting import Completion, ensure_may_wait
from pulsar_ray.model import row_sets
from pulsar_ray.model.row_ranges import RowRanges
from pulsar_ray.model.row_sets import RowSet
from pulsar_ray.session.packet import Buffer
from pulsar_ray.session.requests import Request
from pulsar_ray.transport.actor_link import ActorLink

LOOK_S = 0.5
"""Longest wait between two looks whether the partition is known to be away."""
REPEAT_S = 0.5
"""How long a request waits that a dispatcher could not carry out yet."""


class PendingRequest:
    """A request that `build(request id)` makes, until it is answered.

    `answered` is set once it was carried out, or refused with `error`. `acknowledged` is what it
    acknowledges. Unless it `survives_seeks` it is about messages that come again behind one.
    """

    __slots__ = ("_then", "acknowledged", "answered", "build", "carried_out", "error", "survives_seeks")

    def __init__(
        self,
        build: Callable[[int], Request],
        carried_out: Callable[[], None] | None = None,
        acknowledged: AckBatch | None = None,
        *,
        survives_seeks: bool = False,
    ) -> None:
        self.survives_seeks = survives_seeks
        self.build = build
        self.carried_out = carried_out
        self.acknowledged = acknowledged
        self.answered = Completion()
        self.error: PulsarException | None = None
        self._then: deque[Callable[[], None]] = deque()

    def settle(self, error: PulsarException | None) -> None:
        """End with the dispatcher's answer: None, or the error it refused the request with."""
        if error is None and self.carried_out is not None:
            self.carried_out()
        self.end(error)

    def end(self, error: PulsarException | None) -> None:
        """Release the threads that wait, and call back."""
        self.error = error
        self.answered.set()
        with suppress(IndexError):
            while True:
                callback = self._then.popleft()
                callback()

    def when_answered(self, callback: Callable[[], None]) -> None:
        """Call back once there is an answer, or when there will be none.

        The callback may come at once.
        """
        self._then.append(callback)
        # The thread that answers looks at the list after the event: one of the two always sees the other.
        if self.answered.is_set():
            self.end(self.error)


class UnansweredRequests:
    """Keeps requests until they are answered, and repeats them after each re-attach. Thread-safe.

    A dispatcher that answers SessionLost over a carrier that stands is asked again a little later.
    A repeat harms nothing. Whether an unanswered request arrived, or died with its dispatcher, cannot be
    known.
    """

    def __init__(self, link: ActorLink) -> None:
        self.link = link
        self.is_open = False
        """Whether the consumer is open at the dispatcher: until then requests are kept, not sent."""
        self._lock = threading.Lock()
        self._unanswered: dict[PendingRequest, None] = {}
        self.forgotten: list[PendingRequest] = []
        self._put_off: set[PendingRequest] = set()
        """Those that wait for `REPEAT_S`."""

    def forked(self) -> None:
        """Send nothing more, in a forked child, where another thread's lock would stay locked."""
        self._lock = threading.Lock()
        self.is_open = False
        self._unanswered = {}

    def attach_through(self, link: ActorLink) -> None:
        """Use this link from now on; nothing may have been sent yet."""
        self.link = link
        self._unanswered = {}

    def submit(
        self,
        build: Callable[[int], Request],
        carried_out: Callable[[], None] | None = None,
        *,
        survives_seeks: bool = False,
    ) -> PendingRequest:
        """Keep a request, and send it if the consumer is open."""
        request = PendingRequest(build, carried_out, survives_seeks=survives_seeks)
        self.add(request)
        if self.is_open:
            self.send(request)
        return request

    def add(self, request: PendingRequest) -> None:
        """Keep a request, for `send`, or for `send_all` after the next re-attach.

        A dispatcher that sleeps is woken for it.
        """
        with self._lock:
            self._unanswered[request] = None
        if not self.is_open:
            self.link.wake()

    def send(self, request: PendingRequest, behind: Sequence[Buffer] = ()) -> None:
        """Send a kept request, and the packets `behind` it in the same write.

        Without a carrier it stays for `send_all`.
        """

        def answered(_value: object, error: PulsarException | None) -> None:
            if isinstance(error, (SessionLost, NotConnected)):
                if self.is_open:
                    with self._lock:
                        self._put_off.add(request)
                    self.link.timers.call_later(REPEAT_S, partial(self._repeat, request))
                return
            with self._lock:
                if request not in self._unanswered:
                    return
                del self._unanswered[request]
            request.settle(error)

        self.link.request_async(request.build, answered, behind=behind)

    def repeat_at_once(self) -> None:
        """Send again now what waits for that: what is sent next must come behind."""
        for request in self.unanswered():
            self._repeat(request)

    def _repeat(self, request: PendingRequest) -> None:
        with self._lock:
            is_due = request in self._put_off and request in self._unanswered
            self._put_off.discard(request)
        if is_due and self.is_open:
            self.send(request)

    def send_all(self) -> None:
        """Send everything unanswered, in order, behind a new attachment."""
        with self._lock:
            self._put_off.clear()
        for request in self.unanswered():
            self.send(request)

    def unanswered(self) -> list[PendingRequest]:
        """Requests that may not have been carried out yet, in order."""
        with self._lock:
            return list(self._unanswered)

    def wait(self, requests: Sequence[PendingRequest], deadline: float) -> None:
        """Wait until all of these are answered.

        Raises Timeout; WrongNode if the partition is away, after which they are still repeated until an
        answer comes; or the error a request was refused with. Raises NotAllowedError in a callback that must
        not wait.
        """
        ensure_may_wait("waiting for a receipt")
        for request in requests:
            while not self.link.wait(request.answered, min(deadline, time.monotonic() + LOOK_S)):
                if (absence := self.link.absence) is not None:
                    raise absence.again()
                if time.monotonic() >= deadline or self.link.is_closed:
                    raise Timeout(
                        f"{self.link.where} did not answer in time; acknowledgments may not be durable yet"
                    )
            if request.error is not None:
                raise request.error.again()

    def forget(self) -> None:
        """Repeat nothing that a seek ends; call `end_forgotten` soon, without the consumer's lock."""
        with self._lock:
            self.forgotten += [request for request in self._unanswered if not request.survives_seeks]
            self._unanswered = {request: None for request in self._unanswered if request.survives_seeks}

    def end_forgotten(self) -> None:
        """Release the threads that wait for forgotten requests, as if these had been carried out."""
        if self.forgotten:
            with self._lock:
                forgotten, self.forgotten = self.forgotten, []
            for request in forgotten:
                request.end(None)

    def discard(self, error: PulsarException | None) -> None:
        """Repeat none of them again; threads that wait for one get `error`."""
        with self._lock:
            unanswered, self._unanswered = self._unanswered, {}
        for request in unanswered:
            request.end(error)


# Received messages are stored nowhere, so nothing of them can be acknowledged or come again.


class IgnoredAcks:
    """Takes the acknowledgments that an AckTracker would gather, and keeps none."""

    __slots__ = ()

    current = NO_FLAGS
    count = 0

    def add(self, ledger_id: int, entry_id: int) -> None:
        """Ignore an entry."""

    def add_range(self, ledger_id: int, first_entry_id: int, last_entry_id: int) -> None:
        """Ignore neighbouring entries."""

    def share(self, ledger_id: int, entry_id: int) -> None:
        """Ignore a batch."""

    def repeat_shared(self) -> None:
        """Do nothing: no batch was shared."""

    def add_message(self, block: ReceivedBlock, row: int) -> None:
        """Ignore a message."""

    def add_late(self, flagged: RowFlags, row: int) -> None:
        """Ignore a message."""

    def add_row(self, ledger_id: int, entry_id: int, row: int, batch_size: int) -> None:
        """Ignore a message of a batch."""

    def add_rows(
        self, ledger_id: int, entry_id: int, rows: Iterable[tuple[int, int]], batch_size: int = 0
    ) -> None:
        """Ignore messages of a batch."""

    def add_part(self, block: ReceivedBlock, rows: Rows) -> None:
        """Ignore rows of a block."""

    def add_moved(self, block: ReceivedBlock, rows: Rows) -> None:
        """Ignore rows of a block."""

    def add_cumulative(
        self, ledger_id: int, entry_id: int, row: int = WHOLE_ENTRY, batch_size: int = 0
    ) -> None:
        """Ignore a position."""

    def outstanding_rows(self, ledger_id: int, entry_id: int, rows: RowSet, batch_size: int = 0) -> RowSet:
        """All of these rows: none was acknowledged."""
        return rows

    def entries_in(self, ledger_id: int, first: int, count: int) -> RowSet:
        """None of these entries."""
        return 0

    def drain(self) -> AckBatch | None:
        """None: nothing was gathered."""
        return None

    def forget_gone(self, is_held: Callable[[int, int], object]) -> None:
        """Nothing is there to forget."""

    def clear(self) -> None:
        """Nothing is there to forget."""


class IgnoredNacks:
    """Takes the negative acknowledgments that a NackTracker would hold, and keeps none."""

    __slots__ = ()

    has_backoff = False
    """None is asked for the delay of what does not come again."""
    messages = 0

    def delay_ms(self, failures: int) -> int:
        """0: nothing comes again."""
        return 0

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        redelivery_count: int,
        now_ms: int,
        rows: RowRanges = (),
        delay_ms: int | None = None,
    ) -> None:
        """Ignore a failed message."""

    def __len__(self) -> int:
        return 0

    def holds(self, ledger_id: int, entry_id: int, redelivery_count: int) -> bool:
        """False: nothing waits."""
        return False

    def take(self, ledger_id: int, entry_id: int, redelivery_count: int) -> RowRanges:
        """No rows: nothing waits."""
        return ()

    def next_deadline_ms(self) -> int | None:
        """None: nothing waits."""
        return None

    def due(self, now_ms: float) -> list[Nack]:
        """Nothing is due."""
        return []

    def clear(self) -> None:
        """Nothing is there to forget."""


Acks: TypeAlias = "AckTracker | IgnoredAcks"
Nacks: TypeAlias = "NackTracker | IgnoredNacks"


class PartitionAcks(NamedTuple):
    """Acknowledgments by how far they have come; the consumer's lock guards all but `requests`."""

    acks: Acks
    """Gathered, not sent yet."""
    nacks: Nacks
    """Negative ones, not due yet."""
    unacked: UnackedRows
    """Delivered rows whose acknowledgment the dispatcher has not confirmed."""
    requests: UnansweredRequests
    """Sent or ready to be sent, not answered yet."""
    timeouts: AckTimeouts | None = None
    """Handed to the application, where there is an ack timeout."""

    @classmethod
    def stored(cls, options: ConsumerOptions, requests: UnansweredRequests) -> PartitionAcks:
        """Of a partition that stores its messages."""
        nacks = NackTracker(options.negative_ack_redelivery_delay_ms, options.negative_ack_redelivery_backoff)
        acks = AckTracker(batch_index_ack=options.batch_index_ack_enabled)
        timeouts = None
        if options.unacked_messages_timeout_ms:
            timeouts = AckTimeouts(
                options.unacked_messages_timeout_ms, options.ack_timeout_redelivery_backoff
            )
        return cls(acks, nacks, UnackedRows(), requests, timeouts)

    @classmethod
    def unstored(cls, requests: UnansweredRequests) -> PartitionAcks:
        """Of a partition of a non-persistent topic, where acknowledgments have no effect."""
        return cls(IgnoredAcks(), IgnoredNacks(), UnackedRows(), requests)

    def forget_failures(self) -> None:
        """Fail nothing any more: it comes again anyway, or the consumer leaves."""
        self.nacks.clear()
        if self.timeouts is not None:
            self.timeouts.clear()

    def forget(self) -> None:
        """Send nothing more of them. Called with the consumer's lock held, and `end_forgotten` soon after."""
        self.forget_failures()
        self.acks.clear()
        self.requests.forget()


class LateAcks:
    """Knows which rows of a delivery were acknowledged as rows of an earlier one.

    The consumer's lock guards it. The dispatcher does not repeat what it knows to be acknowledged: so an
    acknowledgment counts until it is answered, and then as long as something waits in the queue that was
    sent before.
    """

    def __init__(
        self, acks: AckTracker | IgnoredAcks, unacked: UnackedRows, requests: UnansweredRequests
    ) -> None:
        self._acks = acks
        self._unacked = unacked
        self._requests = requests
        self.confirmed: dict[tuple[int, int], RowSet] = {}

    def rows(self, ledger_id: int, first_entry_id: int, rows: RowSet, *, is_batch: bool) -> RowSet:
        """Those of a block's rows that were acknowledged, by whole entries."""
        count = 1 if is_batch else rows.bit_length()
        entries = self._acks.entries_in(ledger_id, first_entry_id, count)
        for request in self._requests.unanswered():
            if request.acknowledged is not None:
                entries |= _entries_in(request.acknowledged, ledger_id, first_entry_id, count)
        return (_rows(entries, rows, is_batch) | self.confirmed.get((ledger_id, first_entry_id), 0)) & rows

    def confirm(self, batch: AckBatch, waiting: Iterable[PlacedRows]) -> None:
        """Remember which rows that wait in the queue an acknowledgment names that is answered now.

        Before `UnackedRows` forgets them.
        """
        confirmed: dict[tuple[int, int], RowSet] = {}
        for ledger_id, first_entry_id, rows in waiting:
            key = (ledger_id, first_entry_id)
            is_batch = self._unacked.batch_size(*key) > 0
            entries = _entries_in(batch, *key, 1 if is_batch else rows.bit_length())
            known = self.confirmed.get(key, 0) | confirmed.get(key, 0) | _rows(entries, rows, is_batch)
            if known:
                confirmed[key] = known
        self.confirmed = confirmed

    def delivered(self, ledger_id: int, first_entry_id: int, rows: RowSet) -> None:
        """Rows were delivered once more, by a dispatcher that knows of no acknowledgment."""
        key = (ledger_id, first_entry_id)
        if self.confirmed and key in self.confirmed:
            self.confirmed[key] &= ~rows

    def clear(self) -> None:
        """Forget what was confirmed: nothing waits in the queue."""
        self.confirmed = {}


def _rows(entries: RowSet, rows: RowSet, is_batch: bool) -> RowSet:
    if is_batch:
        return rows if entries & 1 else 0
    return entries & rows


def _entries_in(batch: AckBatch, ledger_id: int, first: int, count: int) -> RowSet:
    """Which of `count` entries from `first` on are acknowledged as a whole, as bits."""
    end = first + count
    found = 0
    if batch.cumulative is not None:
        found |= entries_up_to(batch.cumulative, ledger_id, first, count)
    ranges = batch.ranges
    at = max(0, bisect_left(ranges, (ledger_id, first)) - 1)
    while at < len(ranges) and ranges[at] < (ledger_id, end):
        of_ledger, low, high = ranges[at]
        if of_ledger == ledger_id and high >= first:
            found |= span_of(low, high, first, count)
        at += 1
    for of_ledger, origin, data in batch.entry_bits:
        if of_ledger == ledger_id and origin < end and origin + 8 * len(data) > first:
            bits = int.from_bytes(data, "little")
            found |= bits >> (first - origin) if first > origin else bits << (origin - first)
    return found & row_sets.span(0, count)
