"""One producer's side of one partition: enqueue, seal, write in order, resend, complete.

Two locks. The state lock guards the builder and the queue and is held for moments. The write role is taken
by whoever finds work and nobody writing; it is never waited for, so the I/O thread cannot be held up by a
thread that a full socket blocks.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from pulsar_ray.client.batch_builder import OPENED, SEALED, BatchBuilder, BatchLimits
from pulsar_ray.client.forking import watch
from pulsar_ray.client.pending_blocks import BlockDone, PendingBlock, PendingBlocks
from pulsar_ray.client.producer_options import ProducerOptions
from pulsar_ray.client.sealed_batch import SealedBatch, SendCallback
from pulsar_ray.client.send_callbacks import complete_callbacks, fail_callbacks
from pulsar_ray.clock import SystemClock
from pulsar_ray.errors import (
    AlreadyClosed,
    ForkedClient,
    MessageTooBig,
    ProducerFenced,
    ProducerQueueIsFull,
    PulsarException,
    Timeout,
    error_from,
)
from pulsar_ray.format.block import check_block_size
from pulsar_ray.lane.io_thread import IoThread
from pulsar_ray.model.enums import BatchingType
from pulsar_ray.session.requests import (
    CloseEndpoint,
    OpenProducer,
    ProducerOpened,
    Publish,
    PublishFailed,
    encode_request,
)
from pulsar_ray.transport.carriers import Connection
from pulsar_ray.transport.cluster import AttachReply, PartitionRoute
from pulsar_ray.transport.link import ActorLink

MAX_PENDING_BYTES = 64 * 1024 * 1024
IN_FLIGHT_UNBATCHED = 2
"""Without batching, messages gather into one block while so many blocks are under way."""
RETRY_S = 0.1


class PartitionProducer:
    """An endpoint on the link to one partition."""

    def __init__(
        self, link: ActorLink, producer_id: int, route: PartitionRoute, options: ProducerOptions
    ) -> None:
        self.link = link
        self.route = route
        self.producer_id = producer_id
        self.name = options.producer_name or ""
        self._options = options
        self._io = IoThread.get()
        self._state = threading.Lock()
        self._room = threading.Condition(self._state)
        self._write_role = threading.Lock()
        self._callback_role = threading.Lock()
        self._completed: deque[PendingBlock] = deque()
        self._pending = PendingBlocks()
        self._incarnation = secrets.randbits(63) | 1
        self._replaces = 0
        self._next_seq = 0
        self._is_open = False
        self._carrier: Connection | None = None
        self._holding = False
        self._error: PulsarException | None = None
        self._builder: BatchBuilder | None = None
        self._batching = options.batching_enabled
        self._max_pending = options.max_pending_messages
        self._max_message_size = 0
        self._batch_timer_armed = False
        self._send_timeout_s = options.send_timeout_millis / 1000
        self.on_batch_sealed: Callable[[int], None] | None = None
        self.last_sequence_id = -1
        watch(self)

    def forked(self, error: ForkedClient) -> None:
        """In a forked child (see `forking`): what is pending is the parent's to send."""
        self._state = threading.Lock()
        self._room = threading.Condition(self._state)
        self._write_role = threading.Lock()
        self._callback_role = threading.Lock()
        self._completed.clear()
        self._pending = PendingBlocks()
        self._is_open = False
        self._error = error

    # --- opening ----------------------------------------------------------------------------------

    def open(self, deadline: float) -> None:
        """Open at the partition. Raises ProducerBusy, or what attaching raises."""
        self.link.ensure_attached(deadline)
        opened = self.link.request(self._open_request, deadline)
        self._make_builder(opened)
        self.link.add_endpoint(self.producer_id, self)
        with self._state:
            self._carrier = self.link.carrier
            self._is_open = self._carrier is not None
        if self._send_timeout_s:
            self._io.call_later(min(1.0, self._send_timeout_s), self._check_timeouts)

    def _make_builder(self, opened: ProducerOpened) -> None:
        options = self._options
        self.name = opened.name
        self._max_message_size = opened.max_message_size
        limits = BatchLimits(
            options.batching_enabled,
            options.batching_max_messages,
            options.batching_max_allowed_size_in_bytes,
            options.batching_max_publish_delay_ms,
            options.batching_type == BatchingType.KeyBased,
        )
        self._builder = BatchBuilder(
            limits,
            SystemClock(),
            first_sequence_id=options.first_sequence_id,
            codec=int(options.compression_type),
            max_message_size=opened.max_message_size,
            producer_name=opened.name,
        )
        self.last_sequence_id = options.first_sequence_id - 1

    def _open_request(self, request_id: int) -> OpenProducer:
        with self._state:
            first = self._pending.first
            first_seq = first.entry_seq if first is not None else self._next_seq
            return OpenProducer(
                request_id,
                self.producer_id,
                self.name or None,
                self._incarnation,
                self._replaces,
                first_seq,
                int(self._options.access_mode),
                self._options.producer_name is not None,
            )

    def reopen(self, attached: AttachReply) -> None:
        """A new attachment: open again, then everything pending is written again in order."""
        self._request_open()

    def _request_open(self) -> None:
        carrier = self.link.carrier
        self.link.request_async(
            self._open_request, lambda opened, error: self._reopened(carrier, opened, error)
        )

    def _reopened(
        self, carrier: Connection | None, opened: ProducerOpened | None, error: PulsarException | None
    ) -> None:
        if error is None:
            with self._state:
                if self.link.carrier is not carrier:
                    return
                self._carrier = carrier
                self._is_open = True
                self._replaces = 0
            self._pump()
        elif isinstance(error, ProducerFenced):
            self._start_incarnation(error)
            self._request_open()
        elif not error.retriable:
            self.fail(error)
        elif carrier is not None:
            # The partition could not just now. If its carrier stands, nothing else would ask again.
            self._io.call_later(RETRY_S, lambda: self._reopen_on(carrier))

    def _reopen_on(self, carrier: Connection) -> None:
        if self.link.carrier is carrier and not self._is_open and self._error is None:
            self._request_open()

    def on_refused(self, error: PulsarException) -> None:
        """The topic or subscription was deleted."""
        self.fail(error)

    def on_detached(self) -> None:
        """The carrier is gone: nothing is written until the producer is open again."""
        with self._state:
            self._is_open = False
            self._pending.resend()

    # --- enqueueing -------------------------------------------------------------------------------

    def enqueue(
        self,
        value: bytes | None,
        callback: SendCallback | None,
        fields: tuple[Any, ...] | None = None,
        *,
        seal: bool = False,
    ) -> None:
        """Add one message; `fields` are key, ordering key, properties, event time, sequence id.

        `seal`: somebody waits for it, so its batch does not wait for more.
        Raises ProducerQueueIsFull, MessageTooBig, AlreadyClosed; then nothing was added.
        """
        with self._state:
            builder = self._builder
            assert builder is not None
            if self._error is not None:
                raise self._error
            pending = self._pending
            if self._is_full(1, 0):
                self._wait_for_room(1, 0)
            flags = (
                builder.add(value, callback)
                if fields is None
                else builder.add_message(value, callback, *fields)
            )
            if seal and self._batching:
                self._take_sealed(seal=True)
            elif self._batching:
                if flags & OPENED and not self._batch_timer_armed:
                    self._arm_batch_timer()
                if not flags & SEALED:
                    return
            elif self._holding or (pending.sent >= IN_FLIGHT_UNBATCHED and not flags & SEALED):
                return
        self._pump()

    def _is_full(self, messages: int, size: int) -> bool:
        pending = self._pending
        if pending.size + size > MAX_PENDING_BYTES and pending.size:
            return True
        limit = self._max_pending
        if not limit or not messages:
            return False
        return pending.messages + self._builder.message_count + messages > limit  # type: ignore[union-attr]

    def _wait_for_room(self, messages: int, size: int) -> None:
        """Called with the state lock held."""
        if not self._options.block_if_queue_full and messages:
            raise ProducerQueueIsFull(
                f"{self._pending.messages} messages wait for their receipts; wait for callbacks, raise "
                "max_pending_messages, or set block_if_queue_full=True"
            )
        if self._io.is_current or (self._holding and self._write_role.locked()):
            raise ProducerQueueIsFull("the queue is full, and a callback must not wait for it")
        deadline = time.monotonic() + (self._send_timeout_s or 1e9)
        while self._is_full(messages, size):
            self._seal_for_room()
            if (
                not self._room.wait(min(0.1, max(0.0, deadline - time.monotonic())))
                and time.monotonic() > deadline
            ):
                raise Timeout(f"the producer's queue stayed full for {self._send_timeout_s} s")
            if self._error is not None:
                raise self._error

    def _seal_for_room(self) -> None:
        """What is still open would otherwise fill the queue until its delay is over."""
        builder = self._builder
        if builder is not None and builder.message_count:
            builder.seal()
            self._io.call_soon(self._pump)

    def check_size(self, payload_bytes: int) -> None:
        """Raise MessageTooBig for a payload above what the partition takes; compression may only make it
        smaller.
        """
        if not self._options.compression_type:
            check_block_size(payload_bytes, payload_bytes, self._max_message_size)
        elif payload_bytes > MAX_PENDING_BYTES:
            raise MessageTooBig(
                f"a message of {payload_bytes} bytes; at most {MAX_PENDING_BYTES} uncompressed"
            )

    def add_block(
        self,
        encode: Callable[[int, int, str, int], list[Any]],
        *,
        entries: int,
        messages: int,
        size: int,
        done: BlockDone,
    ) -> None:
        """Add a block that is encoded elsewhere: `encode(incarnation, entry_seq, producer name)`. Waits for
        room by bytes.
        """
        with self._state:
            if self._error is not None:
                raise self._error
            if self._is_full(0, size):
                self._wait_for_room(0, size)
            self._take_sealed(seal=True)
            seq = self._next_seq
            builder = self._builder
            assert builder is not None
            first_id = builder.next_sequence_id
            buffers = encode(self._incarnation, seq, self.name, first_id)
            builder.skip_sequence_ids(messages)
            self._next_seq += entries

            def confirmed(ledger_id: int, entry_id: int, error: PulsarException | None) -> None:
                if error is None:
                    self.last_sequence_id = max(self.last_sequence_id, first_id + messages - 1)
                done(ledger_id, entry_id, error)

            self._pending.add(
                PendingBlock(seq, entries, messages, buffers, size, time.monotonic(), confirmed)
            )
        self._pump()

    def seal(self) -> None:
        """Finish what is open and write it: a flush or a synchronous send."""
        with self._state:
            self._take_sealed(seal=True)
        self._pump()

    def _arm_batch_timer(self) -> None:
        self._batch_timer_armed = True
        delay_s = self._options.batching_max_publish_delay_ms / 1000
        self._io.call_later(delay_s, self._batch_due)

    def _batch_due(self) -> None:
        with self._state:
            self._batch_timer_armed = False
            builder = self._builder
            assert builder is not None
            now_ms = time.monotonic_ns() // 1_000_000
            if not builder.seal_due(now_ms) and (deadline := builder.deadline_ms) is not None:
                self._batch_timer_armed = True
                self._io.call_later(max(0.0005, (deadline - now_ms) / 1000), self._batch_due)
        self._pump()

    # --- writing ----------------------------------------------------------------------------------

    def _take_sealed(self, *, seal: bool) -> None:
        """Called with the state lock held: finished batches become pending blocks with their entry_seq."""
        builder = self._builder
        assert builder is not None
        if seal:
            builder.seal()
        for batch in builder.take_sealed():
            seq = self._next_seq
            buffers = batch.encode(
                incarnation=self._incarnation,
                entry_seq=seq,
                producer_name=self.name,
                codec=int(self._options.compression_type),
                schema_version=None,
            )
            self._next_seq += batch.entries
            block = PendingBlock(
                seq,
                batch.entries,
                batch.message_count,
                buffers,
                batch.payload_bytes,
                time.monotonic(),
                self._completion(batch),
            )
            self._pending.add(block)
            if self._batching and self.on_batch_sealed is not None:
                self.on_batch_sealed(self.route.partition)

    def _next_block(self) -> tuple[PendingBlock, Connection] | None:
        """The next block to write and the carrier on which it is next."""
        with self._state:
            carrier = self._carrier
            if not self._is_open or carrier is None:
                return None
            if self._has_sealable():
                self._take_sealed(seal=self._is_turn())
            block = self._pending.next_unsent()
            return None if block is None else (block, carrier)

    def _is_turn(self) -> bool:
        """Whether unbatched messages that have gathered may be written."""
        return not self._batching and not self._holding and self._pending.sent < IN_FLIGHT_UNBATCHED

    def _has_sealable(self) -> bool:
        builder = self._builder
        assert builder is not None
        return builder.has_sealed or (builder.message_count > 0 and self._is_turn())

    def _has_work(self) -> bool:
        """Asked without the lock: whoever adds work asks again behind it."""
        return self._is_open and (self._pending.has_unsent or self._has_sealable())

    def _pump(self) -> None:
        """Write what can be written, unless somebody else is doing it: they look again when they have
        finished.
        """
        while self._has_work() and self._write_role.acquire(blocking=False):
            try:
                while self._has_work() and (work := self._next_block()) is not None:
                    block, carrier = work
                    packet = encode_request(Publish(self.producer_id), block.buffers)
                    if not self.link.send(packet, only_on=carrier):
                        return
            finally:
                self._write_role.release()

    # --- receipts ---------------------------------------------------------------------------------

    def on_receipts(self, rows: list[tuple[int, int, int, int, int]]) -> None:
        """Complete blocks."""
        with self._state:
            if not self._is_open:
                # They may be of an incarnation given up, whose numbers mean other blocks by now; or they
                # come again.
                return
            pending = self._pending
            for _, entry_seq, _, ledger_id, entry_id in rows:
                pending.answer(entry_seq, (ledger_id, entry_id, None))
            self._completed.extend(pending.take_settled())
            self._room.notify_all()
        self._call_back()
        self._pump()

    def _call_back(self) -> None:
        """Run callbacks in the order of completion: one thread at a time, the others leave theirs to it.

        What callbacks send meanwhile goes out together afterwards.
        """
        while self._completed and self._callback_role.acquire(blocking=False):
            try:
                self._holding = True
                while self._completed:
                    block = self._completed.popleft()
                    assert block.outcome is not None
                    block.done(*block.outcome)
            finally:
                self._holding = False
                self._callback_role.release()

    def _fail_pending(self, error: PulsarException) -> None:
        """Called with the state lock held; `_call_back` must follow."""
        for block in self._pending.take_all():
            block.outcome = block.outcome or (-1, -1, error)
            self._completed.append(block)
        self._room.notify_all()

    def on_request(self, request: Any, body: memoryview) -> None:
        """A refusal of one block."""
        if isinstance(request, PublishFailed):
            with self._state:
                if not self._is_open:
                    return
                error = error_from(request.error, request.text, request.details)
                self._pending.answer(request.entry_seq, (-1, -1, error))
                self._completed.extend(self._pending.take_settled())
                self._room.notify_all()
            self._call_back()
            self._pump()

    def _completion(self, batch: SealedBatch) -> BlockDone:
        def complete(ledger_id: int, entry_id: int, error: PulsarException | None) -> None:
            if error is not None:
                fail_callbacks(batch.callbacks, error)
                return
            self.last_sequence_id = max(self.last_sequence_id, batch.last_sequence_id)
            complete_callbacks(batch, self.route.partition, ledger_id, entry_id)

        return complete

    # --- giving up and closing --------------------------------------------------------------------

    def _check_timeouts(self) -> None:
        if self._error is not None:
            return
        with self._state:
            if not self._is_open and not self._batching:
                # What gathers while detached gets its time from here on.
                self._take_sealed(seal=True)
            first = self._pending.first
            expired = first is not None and time.monotonic() - first.sealed_s > self._send_timeout_s
        if expired:
            self.give_up()
        self._io.call_later(min(1.0, self._send_timeout_s), self._check_timeouts)

    def give_up(self) -> None:
        """A message got no receipt in time: everything pending fails and is not written any more."""
        self._start_incarnation(
            Timeout(f"no receipt within {self._send_timeout_s} s; whether it was stored is unknown")
        )
        if self.link.is_attached:
            self._request_open()

    def _start_incarnation(self, error: PulsarException) -> None:
        """Fail everything pending and number anew; the partition then refuses what is left of the old
        incarnation.
        """
        with self._state:
            self._is_open = False
            self._take_sealed(seal=True)
            self._fail_pending(error)
            self._replaces = self._incarnation
            self._incarnation = secrets.randbits(63) | 1
            self._next_seq = 0
        self._call_back()

    def fail(self, error: PulsarException) -> None:
        """End this producer: pending messages and later calls get `error`."""
        with self._state:
            self._is_open = False
            self._error = error
            if self._builder is not None:
                self._take_sealed(seal=True)
            self._fail_pending(error)
        self._call_back()

    def flush(self, deadline: float) -> None:
        """Wait until everything enqueued so far is confirmed or failed. Raises Timeout."""
        if self._error is not None:
            raise self._error
        self.seal()
        with self._state:
            last = max((block.entry_seq for block in self._pending), default=-1)
            flushed = _Flushed(self, self._incarnation, last)
        if not self.link.wait(flushed, deadline):
            raise Timeout("flush: messages are still unconfirmed")

    def is_settled_up_to(self, incarnation: int, entry_seq: int) -> bool:
        """True when no block up to this entry_seq is pending any more and every callback of them has run."""
        with self._state:
            if self._completed or self._callback_role.locked():
                return False
            first = self._pending.first
            return first is None or first.entry_seq > entry_seq or self._incarnation != incarnation

    def close(self, deadline: float) -> None:
        """Write and confirm what is pending, then give the name back."""
        if self._error is not None:
            return
        try:
            self.flush(deadline)
        finally:
            self.link.remove_endpoint(self.producer_id)
            self.fail(AlreadyClosed("the producer is closed"))
        if self.link.is_attached:
            self.link.request(lambda request_id: CloseEndpoint(request_id, self.producer_id), deadline)

    @property
    def is_connected(self) -> bool:
        """True while open at the partition."""
        return self._is_open


class _Flushed:
    """Looks like an event that is set once everything up to an entry_seq is confirmed or has failed."""

    def __init__(self, producer: PartitionProducer, incarnation: int, entry_seq: int) -> None:
        self._producer = producer
        self._incarnation = incarnation
        self._entry_seq = entry_seq

    def is_set(self) -> bool:
        return self._producer.is_settled_up_to(self._incarnation, self._entry_seq)

    def wait(self, timeout: float | None = None) -> bool:
        time.sleep(min(timeout or 0.001, 0.001))
        return self.is_set()
