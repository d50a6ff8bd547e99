"""Makes numbered blocks of one producer's messages for one partition."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_ray.client.endpoint.endpoint_link import EndpointLink
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.batch_builder import OPENED, REFUSED, SEALED, BatchBuilder, builder_for
from pulsar_ray.client.producer.block_numbers import BlockNumbers
from pulsar_ray.client.producer.block_writer import BlockWriter
from pulsar_ray.client.producer.bulk_limits import BulkLimits
from pulsar_ray.client.producer.callback_queue import CallbackQueue
from pulsar_ray.client.producer.routing import BatchTurnsRouter
from pulsar_ray.client.producer.sealed_batch import SendCallback
from pulsar_ray.client.producer.send_callbacks import completion_of
from pulsar_ray.client.producer.send_room import MAX_UNCONFIRMED_BYTES, SendRoom
from pulsar_ray.client.producer.single_message_encoder import SingleMessageEncoder
from pulsar_ray.client.producer.unconfirmed_blocks import (
    BlockDone,
    Outcome,
    UnconfirmedBlock,
    UnconfirmedBlocks,
)
from pulsar_ray.errors import ForkedClient, MessageTooBig, ProducerQueueIsFull, PulsarException, WrongNode
from pulsar_ray.format.block import MAX_ROWS, check_block_size
from pulsar_ray.format.table import MAX_BATCH_BYTES
from pulsar_ray.session.requests import ProducerOpened
from pulsar_ray.transport.carriers import Connection

IN_FLIGHT_UNBATCHED = 2
"""Without batching, messages gather into one block while so many blocks are under way."""
PATIENCE_S = 2.0
"""How long an actor that is not open counts as there.

One that died is restarted within about a second.
"""


class SendQueue:
    """Takes messages, seals them into blocks and keeps these until their receipts. Thread-safe.

    Blocks are written on a carrier while the producer is open there (`resume`, `pause`), and again on the
    next one while they have no receipt. The state lock guards all parts but the writer, and is held for
    moments; callbacks run without it.
    """

    def __init__(
        self, link: EndpointLink, producer_id: int, partition: int, options: ProducerOptions
    ) -> None:
        self._link = link
        self.partition = partition
        """The index in the topic, -1 of a topic without partitions."""
        self.name = options.producer_name or ""
        """Empty before the partition has answered, unless it was given."""
        self.error: PulsarException | None = None
        """Set once, by what ended the queue."""
        self.last_sequence_id = -1
        """The highest one that is stored."""
        self.bulk_limits = BulkLimits(MAX_ROWS, MAX_BATCH_BYTES)
        self._options = options
        self._io = link.timers
        self._batching = options.batching_enabled
        self._send_timeout_s = options.send_timeout_millis / 1000
        self._numbers = BlockNumbers()
        self._writer = BlockWriter(link, producer_id, self)
        self._carrier: Connection | None = None
        self._builder: BatchBuilder | None = None
        """None before the partition has answered for the first time."""
        self._absent_since_opening: WrongNode | None = None
        """Why it could not be opened, until it is."""
        self._single_messages: SingleMessageEncoder | None = None
        """For messages that need neither a batch nor compression."""
        self._opened: ProducerOpened | None = None
        self._is_gathering = False
        self._batch_timer_armed = False
        self._turns: BatchTurnsRouter | None = None
        self._on_turn_over: Callable[[], None] | None = None
        self._closed_at_s = 0.0
        self._start_empty()

    def _start_empty(self) -> None:
        self._state = threading.Lock()
        self._callbacks = CallbackQueue(self._link.loop_timers)
        self.unconfirmed = UnconfirmedBlocks()
        """The sealed blocks without a receipt; the state lock guards them."""
        self.room = SendRoom(self._state, self.unconfirmed, self._options)
        self._sure_room = 0
        """How many messages fit without a look.

        All else that fills the queue sets it to 0.
        """
        self.is_open = False
        """Whether blocks may be written."""

    def forked(self, error: ForkedClient) -> None:
        """Drop in a forked child what the parent sends, and take new locks.

        Each later call raises `error`.
        """
        self._start_empty()
        self._writer.forked()
        self.error = error

    # --- opening and ending -----------------------------------------------------------------------

    def opening_numbers(self) -> tuple[int, int, int]:
        """The numbers of the next request to open.

        They are the incarnation, the one that it replaces or 0, and the entry_seq that comes first.
        """
        with self._state:
            first = self.unconfirmed.first
            first_seq = first.entry_seq if first is not None else self._numbers.next_seq
            return self._numbers.incarnation, self._numbers.replaces, first_seq

    def begin(self, opened: ProducerOpened) -> None:
        """Take the limits and the name of the partition's first answer.

        Messages can be added from now on.
        """
        with self._state:
            self._begin(opened)

    def _begin(self, opened: ProducerOpened) -> None:
        options = self._options
        self.name = opened.name
        self._take_limits(opened)
        self._builder = builder_for(options, opened)
        if self._on_turn_over is not None:
            self._builder.on_turn_over = self._on_turn_over
        if not options.batching_enabled and not options.compression_type:
            self._single_messages = SingleMessageEncoder(opened.name, self.partition, self._stored)
        self.last_sequence_id = options.first_sequence_id - 1
        self._absent_since_opening = None

    @property
    def has_begun(self) -> bool:
        """Whether the partition has opened it before."""
        return self._builder is not None

    def set_max_message_size(self, max_message_size: int) -> None:
        """Take no larger messages from now on; those that were added go as they are."""
        with self._state:
            if self._opened is not None:
                self._take_limits(self._opened._replace(max_message_size=max_message_size))

    def _take_limits(self, opened: ProducerOpened) -> None:
        """Take what the partition allows now; called with the state lock held."""
        self._opened = opened
        self.bulk_limits = BulkLimits.of(opened)
        if self._builder is not None:
            self._builder.set_max_message_size(opened.max_message_size)

    def begin_later(self, absence: WrongNode) -> None:
        """Take no messages, because of `absence`, before the partition has answered."""
        self._absent_since_opening = absence

    def resume(self, opened: ProducerOpened, carrier: Connection | None) -> None:
        """Write from now on to `carrier`, on which the producer is open.

        Nothing is done if another carrier stands already, or the queue has ended. Unconfirmed blocks are
        written again, in order.
        """
        with self._state:
            if self.error is not None or carrier is None or self._link.carrier is not carrier:
                return
            if self._builder is None:
                self._begin(opened)
            else:
                self._take_limits(opened)
            self._carrier = carrier
            self.is_open = True
            self._numbers.replaces = 0
        self._writer.write_if_any()

    def pause(self) -> None:
        """Write nothing before `resume`: the carrier is gone."""
        with self._state:
            self.is_open = False
            self._carrier = None
            self._closed_at_s = time.monotonic()
            self._sure_room = 0
            self.unconfirmed.resend()

    def start_over(self, error: PulsarException) -> None:
        """Fail all that is unconfirmed, and count anew in an incarnation that replaces this one.

        The partition then refuses what is left of the old one.
        """
        with self._state:
            self.is_open = False
            self._take_sealed(seal=True)
            self._fail_unconfirmed(error)
            self._numbers.renew()
        self._callbacks.run()

    def end(self, error: PulsarException) -> None:
        """Fail all that is unconfirmed, and raise `error` for each later call."""
        with self._state:
            self.is_open = False
            self.error = error
            self._take_sealed(seal=True)
            self._fail_unconfirmed(error)
        self._callbacks.run()

    def check(self) -> None:
        """Raise what ended the queue, if anything did."""
        if self.error is not None:
            raise self.error.again()

    @property
    def absence(self) -> WrongNode | None:
        """Why the partition is away, if that is known.

        No message is taken for it then.
        """
        if self.is_open:
            return None
        return self._link.absence or self._absent_since_opening

    @property
    def has_pending(self) -> bool:
        """Whether messages wait here that the partition has not confirmed."""
        with self._state:
            return bool(self.unconfirmed) or self._gathered() > 0

    @property
    def takes_keyless(self) -> bool:
        """Whether messages that may go to any partition should come here.

        They should not while it is away, or silent.
        """
        if self.is_open or self._link.is_parked:
            return True
        return self.absence is None and time.monotonic() - self._closed_at_s < PATIENCE_S

    def take_turns(self, turns: BatchTurnsRouter) -> None:
        """Allow messages `in_turn`; called once, before any is added."""
        with self._state:
            self._turns = turns
            partition = self.partition
            self._on_turn_over = lambda: turns.batch_sealed(partition)
            if self._builder is not None:
                self._builder.on_turn_over = self._on_turn_over

    # --- receipts ---------------------------------------------------------------------------------

    def confirm(self, rows: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Complete the blocks of these receipts; one that came before is harmless."""
        with self._state:
            if not self.is_open:
                # They may be of an incarnation given up, whose numbers mean other blocks by now; or they
                # come again.
                return
            unconfirmed = self.unconfirmed
            for _, entry_seq, _, ledger_id, entry_id in rows:
                unconfirmed.answer(entry_seq, (ledger_id, entry_id, None))
            self._callbacks.settled.extend(unconfirmed.take_settled())
            room = self.room
            if room.waiting or room.on_room is not None:
                room.made()
        self._callbacks.run()
        self._writer.write_if_any()

    def refuse(self, entry_seq: int, error: PulsarException) -> None:
        """Fail the block that the partition has refused."""
        outcome: Outcome = (-1, -1, error)
        with self._state:
            if not self.is_open:
                return
            self.unconfirmed.answer(entry_seq, outcome)
            self._callbacks.settled.extend(self.unconfirmed.take_settled())
            self.room.made()
        self._callbacks.run()
        self._writer.write_if_any()

    def _fail_unconfirmed(self, error: PulsarException) -> None:
        """Fail all blocks; `_callbacks.run` must follow.

        Called with the state lock held.
        """
        blocks = self.unconfirmed.take_all()
        for block in blocks:
            block.outcome = block.outcome or (-1, -1, error)
        self._callbacks.settled.extend(blocks)
        self.room.made()

    def has_expired(self) -> bool:
        """Whether the oldest block has been unconfirmed for longer than the send timeout."""
        with self._state:
            if not self.is_open and not self._batching:
                # Messages that gather while detached get their time from here on.
                self._take_sealed(seal=True)
            first = self.unconfirmed.first
            return first is not None and time.monotonic() - first.sealed_s > self._send_timeout_s

    def _stored(self, sequence_id: int) -> None:
        """Note a stored sequence id; called for each block before its callbacks."""
        self.last_sequence_id = max(self.last_sequence_id, sequence_id)

    # --- adding messages --------------------------------------------------------------------------

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
            if self.error is not None:
                raise self.error.again()
            if not self._sure_room:
                self._find_room(in_turn)
            if in_turn and self._is_turn_elsewhere():
                return False
            self._sure_room -= 1
            is_refused = False
            if self.unconfirmed.messages or fields is not None or not self._add_single(value, callback):
                builder: BatchBuilder = self._builder  # type: ignore[assignment]
                flags = (
                    builder.add(value, callback, in_turn)
                    if fields is None
                    else builder.add_message(value, callback, *fields, in_turn=in_turn)
                )
                is_refused = bool(flags & REFUSED)
                if not flags and self._batching and not seal:
                    return True
                if flags & SEALED and not self.is_open:
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
                    or (self.unconfirmed.sent >= IN_FLIGHT_UNBATCHED and not flags & SEALED)
                ):
                    return True
        self._writer.write(waits=seal and not is_refused)
        return not is_refused

    def end_turn(self) -> None:
        """Finish an open batch with messages in turn.

        A whole batch from elsewhere comes next.
        """
        with self._state:
            if self._builder is not None and self._builder.has_turn:
                self._take_sealed(seal=True)
        self._writer.write_if_any()

    def _is_turn_elsewhere(self) -> bool:
        return self._turns is not None and self._turns.current != self.partition

    def _add_single(self, value: bytes | None, callback: SendCallback | None) -> bool:
        """Make a message a block at once if it would not gather with others.

        Called with the state lock held. False if nothing was added.
        """
        single = self._single_messages
        if single is None or value is None or not self.is_open:
            return False
        if self._callbacks.is_running or self._is_gathering:
            return False
        sequence_id = self._builder.id_alone(value)  # type: ignore[union-attr]
        if sequence_id is None:
            return False
        self.unconfirmed.add(single.encode(value, callback, sequence_id, self._numbers))
        return True

    def gather(self) -> None:
        """Send together what is sent without batching in this turn of the loop."""
        if not self._is_gathering and not self._batching:
            self._is_gathering = True
            self._io.call_soon(self._end_gathering)

    def _end_gathering(self) -> None:
        self._is_gathering = False
        self._writer.write_if_any()

    def _find_room(self, in_turn: bool) -> None:
        """Wait until a message fits, and see how many more do for sure.

        Called with the state lock held. A message in turn does not wait once the turn is elsewhere, which the
        end of an open batch makes it. While the partition is not open each message looks. Raises WrongNode if
        it is known to be away.
        """
        if not self.is_open:
            if in_turn and self._turns is not None and not self.takes_keyless:
                self._turns.pass_on(self.partition)
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
        self._sure_room = max(1, self.room_left) if self.is_open else 1

    def _check_there(self) -> None:
        """Wake the partition if it sleeps. Raises WrongNode if it is known to be away."""
        if self.is_open:
            return
        if (absence := self.absence) is not None:
            raise absence.again()
        if self._link.is_parked:
            self._closed_at_s = time.monotonic()
            self._link.wake()

    @property
    def room_left(self) -> int:
        """How many messages the queue takes without waiting."""
        return self.room.left(self._gathered())

    def _gathered(self) -> int:
        """How many messages are added and in no block yet."""
        builder = self._builder
        return 0 if builder is None else builder.message_count

    def _is_full(self, messages: int, size: int) -> bool:
        return self.room.is_full(self._gathered(), messages, size)

    def _wait_for_room(self, messages: int, size: int, in_turn: bool = False) -> None:
        """Wait for room. Called with the state lock held."""
        if not self._options.block_if_queue_full and messages:
            raise self.room.full_error(self._gathered())
        if self._io.is_current or (self._callbacks.is_running and self._writer.is_writing):
            raise ProducerQueueIsFull("the queue is full, and a callback must not wait for it")

        def is_over() -> bool:
            if self.error is not None:
                raise self.error.again()
            if (in_turn and self._is_turn_elsewhere()) or not self._is_full(messages, size):
                return True
            self._seal_for_room()
            return False

        self.room.wait_until(is_over)

    def _seal_for_room(self) -> None:
        """Finish what is open, which would fill the queue until its delay is over."""
        builder = self._builder
        if builder is not None and builder.is_open:
            self._take_sealed(seal=True)
            self._io.call_soon(self._writer.write_if_any)

    def check_size(self, payload_bytes: int) -> None:
        """Refuse a payload above the size that the partition takes.

        Raises MessageTooBig; compression may only make a payload smaller. Raises WrongNode if the partition
        is known to be away.
        """
        self._check_there()
        if not self._options.compression_type:
            limit = self._opened.max_message_size if self._opened is not None else 0
            check_block_size(payload_bytes, payload_bytes, limit)
        elif payload_bytes > MAX_UNCONFIRMED_BYTES:
            raise MessageTooBig(
                f"a message of {payload_bytes} bytes; at most {MAX_UNCONFIRMED_BYTES} uncompressed"
            )

    def payload_memory(self, length: int) -> memoryview | None:
        """Find memory for a payload that need not be copied to be sent.

        None if there is no such memory.
        """
        carrier = self._carrier
        if carrier is None or not self.is_open or self._options.compression_type:
            return None
        return carrier.room(length)

    def add_block(
        self,
        encode: Callable[[int, int, str, int], list[Any]],
        *,
        entries: int,
        messages: int,
        size: int,
        done: BlockDone,
    ) -> None:
        """Add a block that is encoded elsewhere. Waits for room by bytes.

        `encode(incarnation, entry_seq, producer name, first sequence id)` gives its buffers.
        """
        with self._state:
            if self.error is not None:
                raise self.error.again()
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

            self.unconfirmed.add(
                UnconfirmedBlock(seq, entries, messages, buffers, size, time.monotonic(), confirmed)
            )
        self._writer.write()

    def seal(self) -> None:
        """Finish what is open and write it: a flush or a synchronous send."""
        with self._state:
            self._take_sealed(seal=True)
        self._writer.write_if_any()

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Write what is open, and call back once all of it is settled.

        The call comes behind the callbacks of the messages, whether these were confirmed or failed.
        """
        with self._state:
            self._take_sealed(seal=True)
            last = self.unconfirmed.last
            if last is not None:
                last.then(callback)
            else:
                # Behind what is settled and not called back yet.
                nothing = UnconfirmedBlock(-1, 0, 0, [], 0, 0.0, lambda *_: callback())
                nothing.outcome = (-1, -1, None)
                self._callbacks.settled.append(nothing)
        self._callbacks.run()
        self._writer.write_if_any()

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
        self._writer.write_if_any()

    # --- writing ----------------------------------------------------------------------------------

    def _take_sealed(self, *, seal: bool) -> None:
        """Number finished batches and make them blocks.

        Called with the state lock held.
        """
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
                completion_of(batch, self.partition, self._stored),
            )
            self.unconfirmed.add(block)
            if self.unconfirmed.size > MAX_UNCONFIRMED_BYTES:
                self._sure_room = 0

    # --- what the writer asks ---------------------------------------------------------------------

    def next_block(self) -> tuple[UnconfirmedBlock, Connection] | None:
        """See BlockSource."""
        with self._state:
            carrier = self._carrier
            if not self.is_open or carrier is None:
                return None
            builder: BatchBuilder = self._builder  # type: ignore[assignment]
            if builder.sealed or builder.is_open:
                self._take_sealed(seal=self._may_seal_gathered())
            block = self.unconfirmed.next_unsent()
            return None if block is None else (block, carrier)

    def has_work(self) -> bool:
        """See BlockSource."""
        if not self.is_open:
            return False
        builder: BatchBuilder = self._builder  # type: ignore[assignment]
        return bool(
            self.unconfirmed.has_unsent or builder.sealed or (builder.is_open and self._may_seal_gathered())
        )

    def _may_seal_gathered(self) -> bool:
        """Whether unbatched messages that have gathered may be written."""
        return (
            not self._batching
            and not self._callbacks.is_running
            and not self._is_gathering
            and self.unconfirmed.sent < IN_FLIGHT_UNBATCHED
        )
