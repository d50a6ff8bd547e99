"""One producer's queue for one partition: enqueue, seal, number, and write in order, by turns.

Two locks. The state lock guards the builder and the queue and is held for moments. The write role is taken
by whoever finds work and nobody writing; it is never waited for, so the I/O thread cannot be held up by a
thread that a full socket blocks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.batch_builder import OPENED, REFUSED, SEALED, BatchBuilder, builder_for
from pulsar_ray.client.producer.block_numbers import BlockNumbers
from pulsar_ray.client.producer.bulk_limits import BulkLimits
from pulsar_ray.client.producer.callback_queue import CallbackQueue
from pulsar_ray.client.producer.routing import BatchTurnsRouter
from pulsar_ray.client.producer.sealed_batch import SendCallback
from pulsar_ray.client.producer.send_callbacks import completion_of
from pulsar_ray.client.producer.single_message_encoder import SingleMessageEncoder
from pulsar_ray.client.producer.unconfirmed_blocks import BlockDone, UnconfirmedBlock, UnconfirmedBlocks
from pulsar_ray.errors import MessageTooBig, ProducerQueueIsFull, PulsarException, Timeout, WrongNode
from pulsar_ray.format.block import MAX_ROWS, check_block_size
from pulsar_ray.format.table import MAX_BATCH_BYTES
from pulsar_ray.session.publish_packets import PublishPackets
from pulsar_ray.session.requests import ProducerOpened
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.carriers import Connection
from pulsar_ray.transport.cluster import PartitionRoute

MAX_PENDING_BYTES = 64 * 1024 * 1024
IN_FLIGHT_UNBATCHED = 2
"""Without batching, messages gather into one block while so many blocks are under way."""
UNLIMITED = 1 << 62
PATIENCE_S = 2.0
"""For an actor that is not open: one that died is restarted within about a second."""


class SendQueue:
    """The part of a PartitionProducer that messages go through; written on `_carrier` while it is open."""

    def __init__(
        self, link: ActorLink, producer_id: int, route: PartitionRoute, options: ProducerOptions
    ) -> None:
        self.link = link
        self.route = route
        self.producer_id = producer_id
        self.name = options.producer_name or ""
        self._options = options
        self._io = link.timers
        self._drop_all()
        self._is_gathering = False
        self.on_room: Callable[[], None] | None = None
        """Called under the state lock when receipts or refusals have made room."""
        self._numbers = BlockNumbers()
        self._carrier: Connection | None = None
        self._error: PulsarException | None = None
        self._builder: BatchBuilder | None = None
        """None before the partition has answered for the first time."""
        self._absent_since_opening: WrongNode | None = None
        """Why it could not be opened, until it is."""
        self._single_messages: SingleMessageEncoder | None = None
        """For messages that need neither a batch nor compression."""
        self._packets = PublishPackets(producer_id)
        self._batching = options.batching_enabled
        self._max_pending = options.max_pending_messages
        self._max_message_size = 0
        self.bulk_limits = BulkLimits(MAX_ROWS, MAX_BATCH_BYTES)
        self._batch_timer_armed = False
        self._send_timeout_s = options.send_timeout_millis / 1000
        self._turns: BatchTurnsRouter | None = None
        self._on_turn_over: Callable[[], None] | None = None
        self._closed_at_s = 0.0
        self.last_sequence_id = -1

    def _drop_all(self) -> None:
        """At first; and in a forked child: new locks, and nothing of what the parent was sending."""
        self._state = threading.Lock()
        self._room = threading.Condition(self._state)
        self._write_role = threading.Lock()
        self._callbacks = CallbackQueue(self.link.loop_timers)
        self._pending = UnconfirmedBlocks()
        self._sure_room = 0
        """So many messages fit without a look; what else fills the queue sets it to 0."""
        self._waiting_for_room = 0
        self._is_open = False

    def _make_builder(self, opened: ProducerOpened) -> None:
        options = self._options
        self.name = opened.name
        self._max_message_size = opened.max_message_size
        self.bulk_limits = BulkLimits.of(opened)
        self._builder = builder_for(options, opened)
        if self._on_turn_over is not None:
            self._builder.on_turn_over = self._on_turn_over
        if not options.batching_enabled and not options.compression_type:
            self._single_messages = SingleMessageEncoder(opened.name, self.route.partition, self._stored)
        self.last_sequence_id = options.first_sequence_id - 1

    def take_turns(self, turns: BatchTurnsRouter) -> None:
        """Messages may be enqueued `in_turn`; called once, before any is."""
        with self._state:
            self._turns = turns
            partition = self.route.partition
            self._on_turn_over = lambda: turns.batch_sealed(partition)
            if self._builder is not None:
                self._builder.on_turn_over = self._on_turn_over

    # --- enqueueing -------------------------------------------------------------------------------

    def enqueue(
        self,
        value: bytes | None,
        callback: SendCallback | None,
        fields: tuple[Any, ...] | None = None,
        *,
        seal: bool = False,
        in_turn: bool = False,
    ) -> bool:
        """Add one message; `fields` are key, ordering key, properties, event time, sequence id.

        `seal`: somebody waits for it, so its batch does not wait for more. `in_turn`: it is here because this
        is the partition whose turn it is. False if the turn has moved on, so that it was not added.
        Raises ProducerQueueIsFull, MessageTooBig, AlreadyClosed, WrongNode; then nothing was added.
        """
        with self._state:
            if self._error is not None:
                raise self._error.again()
            if not self._sure_room:
                self._find_room(in_turn)
            if in_turn and self._is_turn_elsewhere():
                return False
            self._sure_room -= 1
            is_refused = False
            if self._pending.messages or fields is not None or not self._add_single(value, callback):
                builder: BatchBuilder = self._builder  # type: ignore[assignment]
                flags = (
                    builder.add(value, callback, in_turn)
                    if fields is None
                    else builder.add_message(value, callback, *fields, in_turn=in_turn)
                )
                is_refused = bool(flags & REFUSED)
                if not flags and self._batching and not seal:
                    return True
                if flags & SEALED and not self._is_open:
                    # Nobody takes it before the producer is open again, and it fills the queue from now on.
                    self._take_sealed(seal=False)
                if seal and self._batching and not is_refused:
                    self._take_sealed(seal=True)
                elif self._batching:
                    if flags & OPENED and not self._batch_timer_armed:
                        self._arm_batch_timer()
                    if not flags & SEALED:
                        return True
                elif (
                    self._callbacks.is_running
                    or self._is_gathering
                    or (self._pending.sent >= IN_FLIGHT_UNBATCHED and not flags & SEALED)
                ):
                    return True
        self._write(waits=seal and not is_refused)
        return not is_refused

    def end_turn(self) -> None:
        """Finish a batch with messages in turn, if one is open: a whole batch from elsewhere comes next."""
        with self._state:
            if self._builder is not None and self._builder.has_turn:
                self._take_sealed(seal=True)
        self._pump()

    def _is_turn_elsewhere(self) -> bool:
        return self._turns is not None and self._turns.current != self.route.partition

    def _add_single(self, value: bytes | None, callback: SendCallback | None) -> bool:
        """Called with the state lock held: make a message a block at once if it would not gather with others.

        False if nothing was added.
        """
        single = self._single_messages
        if single is None or value is None or not self._is_open:
            return False
        if self._callbacks.is_running or self._is_gathering:
            return False
        sequence_id = self._builder.id_alone(value)  # type: ignore[union-attr]
        if sequence_id is None:
            return False
        self._pending.add(single.encode(value, callback, sequence_id, self._numbers))
        return True

    def gather(self) -> None:
        """On a loop: what is sent without batching in this turn of it goes out together at its end."""
        if not self._is_gathering and not self._batching:
            self._is_gathering = True
            self._io.call_soon(self._gathered)

    def _gathered(self) -> None:
        self._is_gathering = False
        self._pump()

    @property
    def room(self) -> int:
        """How many messages the queue takes without waiting."""
        pending = self._pending
        if pending.size > MAX_PENDING_BYTES:
            return 0
        if not self._max_pending or self._builder is None:
            return UNLIMITED
        return max(0, self._max_pending - pending.messages - self._builder.message_count)

    def _made_room(self) -> None:
        """Called with the state lock held."""
        self._room.notify_all()
        if self.on_room is not None:
            self.on_room()

    def _find_room(self, in_turn: bool) -> None:
        """Called with the state lock held: wait until a message fits, and see how many more do for sure.

        A message in turn does not wait once the turn is elsewhere, which the end of an open batch makes it.
        While the partition is not open each message looks. Raises WrongNode if it is known to be away.
        """
        if not self._is_open:
            if in_turn and self._turns is not None and not self.takes_keyless:
                self._turns.pass_on(self.route.partition)
                if self._is_turn_elsewhere():
                    return
            self._check_there()
        if self._is_full(1, 0):
            if in_turn:
                self._seal_for_room()
            if not (in_turn and self._is_turn_elsewhere()):
                self._wait_for_room(1, 0, in_turn)
            if in_turn and self._is_turn_elsewhere():
                return
        # One at least, for the message itself: a queue may be full of less than a message.
        self._sure_room = max(1, self.room) if self._is_open else 1

    @property
    def absence(self) -> WrongNode | None:
        """Why the partition is away, if it is known to be: nothing more is taken for it then."""
        if self._is_open:
            return None
        return self.link.absence or self._absent_since_opening

    @property
    def takes_keyless(self) -> bool:
        """Whether messages that may go to any partition should come here: not while it is away, or silent."""
        if self._is_open:
            return True
        return self.absence is None and time.monotonic() - self._closed_at_s < PATIENCE_S

    def _check_there(self) -> None:
        if not self._is_open and (absence := self.absence) is not None:
            raise absence.again()

    def _is_full(self, messages: int, size: int) -> bool:
        pending = self._pending
        if pending.size + size > MAX_PENDING_BYTES and pending.size:
            return True
        limit = self._max_pending
        if not limit or not messages:
            return False
        return pending.messages + self._builder.message_count + messages > limit  # type: ignore[union-attr]

    def _wait_for_room(self, messages: int, size: int, in_turn: bool = False) -> None:
        """Called with the state lock held."""
        if not self._options.block_if_queue_full and messages:
            pending, still_open = self._pending, self._builder.message_count  # type: ignore[union-attr]
            raise ProducerQueueIsFull(
                f"{pending.messages + still_open} messages wait to be stored and confirmed; wait for "
                f"callbacks, raise max_pending_messages={self._max_pending}, or set block_if_queue_full=True"
            )
        if self._io.is_current or (self._callbacks.is_running and self._write_role.locked()):
            raise ProducerQueueIsFull("the queue is full, and a callback must not wait for it")
        deadline = time.monotonic() + (self._send_timeout_s or 1e9)
        while self._is_full(messages, size):
            self._seal_for_room()
            self._waiting_for_room += 1
            try:
                self._room.wait(min(0.1, max(0.0, deadline - time.monotonic())))
            finally:
                self._waiting_for_room -= 1
            if self._is_full(messages, size) and time.monotonic() > deadline:
                raise Timeout(f"the producer's queue stayed full for {self._send_timeout_s} s")
            if self._error is not None:
                raise self._error.again()
            if in_turn and self._is_turn_elsewhere():
                return

    def _seal_for_room(self) -> None:
        """What is still open would otherwise fill the queue until its delay is over."""
        builder = self._builder
        if builder is not None and builder.is_open:
            self._take_sealed(seal=True)
            self._io.call_soon(self._pump)

    def check_size(self, payload_bytes: int) -> None:
        """Raise MessageTooBig for a payload above what the partition takes; compression may only make it
        smaller.

        Raises WrongNode if the partition is known to be away.
        """
        self._check_there()
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
                raise self._error.again()
            self._check_there()
            if self._is_full(0, size):
                self._wait_for_room(0, size)
            self._sure_room = 0
            builder = self._builder
            assert builder is not None
            if builder.sealed or builder.is_open:
                self._take_sealed(seal=True)
            first_id = builder.next_sequence_id
            seq = self._numbers.next_seq
            buffers = encode(self._numbers.incarnation, seq, self.name, first_id)
            builder.skip_sequence_ids(messages)
            self._numbers.take(entries)

            def confirmed(ledger_id: int, entry_id: int, error: PulsarException | None) -> None:
                if error is None:
                    self._stored(first_id + messages - 1)
                done(ledger_id, entry_id, error)

            self._pending.add(
                UnconfirmedBlock(seq, entries, messages, buffers, size, time.monotonic(), confirmed)
            )
        self._write()

    def seal(self) -> None:
        """Finish what is open and write it: a flush or a synchronous send."""
        with self._state:
            self._take_sealed(seal=True)
        self._pump()

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Write what is open; call back once all of it was confirmed or failed, behind its own callbacks."""
        with self._state:
            self._take_sealed(seal=True)
            last = self._pending.last
            if last is not None:
                last.then(callback)
            else:
                # Behind what is settled and not called back yet.
                nothing = UnconfirmedBlock(-1, 0, 0, [], 0, 0.0, lambda *_: callback())
                nothing.outcome = (-1, -1, None)
                self._callbacks.settled.append(nothing)
        self._callbacks.run()
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
        if builder is None:
            return
        if seal:
            builder.seal()
        for batch in builder.take_sealed():
            seq = self._numbers.next_seq
            buffers = batch.encode(
                incarnation=self._numbers.incarnation,
                entry_seq=seq,
                producer_name=self.name,
                codec=int(self._options.compression_type),
                schema_version=None,
            )
            self._numbers.take(batch.entries)
            block = UnconfirmedBlock(
                seq,
                batch.entries,
                batch.message_count,
                buffers,
                batch.payload_bytes,
                time.monotonic(),
                completion_of(batch, self.route.partition, self._stored),
            )
            self._pending.add(block)
            if self._pending.size > MAX_PENDING_BYTES:
                self._sure_room = 0

    def _next_block(self) -> tuple[UnconfirmedBlock, Connection] | None:
        """The next block to write and the carrier on which it is next."""
        with self._state:
            carrier = self._carrier
            if not self._is_open or carrier is None:
                return None
            builder: BatchBuilder = self._builder  # type: ignore[assignment]
            if builder.sealed or builder.is_open:
                self._take_sealed(seal=self._is_turn())
            block = self._pending.next_unsent()
            return None if block is None else (block, carrier)

    def _is_turn(self) -> bool:
        """Whether unbatched messages that have gathered may be written."""
        return (
            not self._batching
            and not self._callbacks.is_running
            and not self._is_gathering
            and self._pending.sent < IN_FLIGHT_UNBATCHED
        )

    def _has_work(self) -> bool:
        """Asked without the lock: whoever adds work asks again behind it."""
        if not self._is_open:
            return False
        builder: BatchBuilder = self._builder  # type: ignore[assignment]
        return bool(self._pending.has_unsent or builder.sealed or (builder.is_open and self._is_turn()))

    def _pump(self) -> None:
        """Write what can be written."""
        if self._has_work():
            self._write()

    def _write(self, *, waits: bool = False) -> None:
        """Write what can be written, unless somebody else is doing it: they look again when they have
        finished. `waits`: the caller is about to wait for a receipt.
        """
        while self._write_role.acquire(blocking=False):
            try:
                if (work := self._next_block()) is not None:
                    block, carrier = work
                    packet = self._packets.encode(block.buffers, waits=waits)
                    if not self.link.send(packet, only_on=carrier, waits=waits):
                        return
            finally:
                self._write_role.release()
            if not self._has_work():
                return

    def _stored(self, sequence_id: int) -> None:
        """Called for each block before its callbacks."""
        self.last_sequence_id = max(self.last_sequence_id, sequence_id)
