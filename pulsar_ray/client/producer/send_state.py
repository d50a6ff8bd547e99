"""Decides what becomes of one producer's messages for one partition (ADR 0117).

`SendState` is pure: it holds no lock, thread, socket or timer. Its caller tells it of events, one at a time,
and does what each answers. The phases, and what ends them:

    UNANSWERED  the partition has never answered       `begun`, then as CLOSED
    CLOSED      messages are taken, none is written    `opened`
    OPEN        blocks are written to `carrier`        `carrier_lost`, `started_over`
    ENDED       every call raises why                  nothing; `ended` leads here from each phase

A block is kept from its sealing until its outcome is known, and written anew on each carrier until then.
Callbacks come in the order of the blocks.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.batch_builder import (
    OPENED,
    REFUSED,
    SEALED,
    BatchBuilder,
    builder_for,
)
from pulsar_ray.client.producer.chunked_message import ChunkedMessage
from pulsar_ray.client.producer.message_fields import MessageFields
from pulsar_ray.client.producer.partition_limits import PartitionLimits
from pulsar_ray.client.producer.routing import BatchTurnsRouter
from pulsar_ray.client.producer.send_callbacks import (
    NO_ID,
    BlockDone,
    SendCallback,
    complete_callback,
    fail_callbacks,
)
from pulsar_ray.client.producer.unconfirmed_blocks import (
    BlockNumbers,
    UnconfirmedBlock,
    UnconfirmedBlocks,
)
from pulsar_ray.clock import Clock, SystemClock
from pulsar_ray.errors import ProducerQueueIsFull, PulsarException, WrongNode
from pulsar_ray.format.block import encode_block
from pulsar_ray.format.metadata import encode_producer_fields
from pulsar_ray.model.message_id import DUPLICATE_LEDGER, MessageId
from pulsar_ray.session.requests import ProducerOpened
from pulsar_ray.transport.carriers import Connection

logger = logging.getLogger(__name__)

# --- what an event asks its caller to do, as bits: an event may come with every message ---------------
WRITE: Final = 1
"""Write blocks, if there are any."""
COMPLETE: Final = 2
"""Call back the blocks in `settled`."""
WAKE: Final = 4
"""Let look again whoever waits for room."""
TIME: Final = 8
"""Call `time_passed` in `batch_due_s` seconds."""
ATTACH: Final = 16
"""Wake the partition, which sleeps."""
FULL: Final = 32
"""Nothing was added: there is no room. Wait for it by `look_for_room`, or raise `full_error`."""
ELSEWHERE: Final = 64
"""Nothing was added: another partition has the turn."""

MAX_UNCONFIRMED_BYTES = 64 * 1024 * 1024
UNLIMITED: Final = 1 << 62
IN_FLIGHT_UNBATCHED: Final = 2
"""Without batching, messages gather while so many blocks are under way (ADR 0008)."""
PATIENCE_S = 2.0
"""How long an actor that is not open counts as there.

One that died is restarted within about a second.
"""
SILENCE_S = 1800.0
"""After so long without its partition a producer counts anew.

Less than the time after which partitions forget where a producer without a session was.
"""
_SHORTEST_S = 0.0005

Encode = Callable[[int, int, str, int], list[Any]]
"""encode(incarnation, entry_seq, producer name, first sequence id) gives a block's buffers."""


class SendPhase(Enum):
    """Where a producer stands with its partition; the module says what each means."""

    UNANSWERED = "unanswered"
    CLOSED = "closed"
    OPEN = "open"
    ENDED = "ended"


UNANSWERED: Final = SendPhase.UNANSWERED
CLOSED: Final = SendPhase.CLOSED
OPEN: Final = SendPhase.OPEN
ENDED: Final = SendPhase.ENDED


class Whereabouts(Protocol):
    """Tells about the partition while it is not open; a link does."""

    @property
    def absence(self) -> WrongNode | None: ...

    @property
    def is_parked(self) -> bool: ...


class SendState:
    """All that one producer has on its way to one partition."""

    def __init__(
        self,
        options: ProducerOptions,
        partition: int,
        whereabouts: Whereabouts,
        clock: Clock | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self.partition = partition
        """The index in the topic, -1 of a topic without partitions."""
        self._whereabouts = whereabouts
        self._clock = clock or SystemClock()
        self._monotonic_s = monotonic_s
        self._is_batching = options.batching_enabled
        self._sends_singly = not options.batching_enabled and not options.compression_type
        """Whether a message may become a block at once."""
        self._max_messages = options.max_pending_messages

        self.phase = UNANSWERED
        self.error: PulsarException | None = None
        """Why everything raises, once it has ended."""
        self.carrier: Connection | None = None
        """The carrier on which the producer was opened last, until that is lost."""
        self.closed_at_s = 0.0
        """When the last carrier was lost or the partition answered first, by the monotonic clock."""
        self._absent_since_opening: WrongNode | None = None
        """Why the partition could not be opened, until it is."""
        self.limits = PartitionLimits(options)
        """The limits of the partition, as they are now."""
        self.producer_name = options.producer_name or ""
        """Empty before the partition has answered, unless it was given."""
        self._encoded_fields = b""
        """The fields that all of its blocks have."""
        self.schema_version: bytes | None = None
        """The version that all messages are of; set before any is added."""
        self.last_sequence_id = -1
        """The highest one that is stored, also by an earlier producer of the name.

        It is -1 if none is stored.
        """

        self._turns: BatchTurnsRouter | None = None
        self.builder: BatchBuilder | None = None
        """Gathers messages; None before the partition has answered for the first time."""
        self.numbers = BlockNumbers()
        self.unconfirmed = UnconfirmedBlocks(monotonic_s)
        """The sealed blocks without an outcome."""
        self.settled: deque[UnconfirmedBlock] = deque()
        """The blocks with an outcome that are not called back yet."""
        self.sure = 0
        """How many messages fit without a look.

        All else that fills the queue sets it to 0.
        """
        self.is_calling_back = False
        """Whether callbacks run now: what they send meanwhile goes out together afterwards."""
        self._is_gathering = False
        """Whether the program's loop sends more in its present turn."""
        self._is_timed = False
        """Whether `time_passed` is to be called."""

    # --- the partition ----------------------------------------------------------------------------

    def unanswered(self, absence: WrongNode) -> None:
        """Take the partition for absent before it has answered for the first time."""
        self._absent_since_opening = absence.again()

    def begun(self, opened: ProducerOpened) -> None:
        """Take the name, limits and numbers of the partition's first answer.

        Messages can be added from now on.
        """
        options = self._options
        self.producer_name = opened.name
        self._encoded_fields = encode_producer_fields(opened.name, self.schema_version)
        self.builder = builder_for(options, opened, self._clock, len(self._encoded_fields))
        self.builder.on_turn_over = self._end_turn
        self._take_limits(PartitionLimits(self._options, opened))
        stored_id = opened.last_sequence_id
        self.last_sequence_id = max(stored_id, options.first_sequence_id(stored_id) - 1)
        initial_id = options.initial_sequence_id
        if initial_id is not None and initial_id < stored_id:
            logger.warning(
                "the producer %r begins at sequence id %d, and the topic holds its messages up to %d: those "
                "up to there are taken for duplicates, and not stored again",
                opened.name,
                initial_id + 1,
                stored_id,
            )
        self._absent_since_opening = None
        # The carrier of the answer may be lost already, and nobody is told.
        self.closed_at_s = self._monotonic_s()
        self._leave_for(CLOSED)

    def _leave_for(self, phase: SendPhase) -> None:
        """Enter a phase, unless there is nothing behind the present one."""
        if self.phase is not ENDED:
            self.phase = phase

    def _take_limits(self, limits: PartitionLimits) -> None:
        self.limits = limits
        if self.builder is not None:
            self.builder.set_max_message_size(limits.max_message_size)
            self.builder.max_delivery_delay_ms = limits.max_delivery_delay_ms

    def limited(self, max_message_size: int, max_delivery_delay_ms: int) -> None:
        """Take no larger or later messages from now on.

        Those that were added go as they are.
        """
        self._take_limits(self.limits.changed(max_message_size, max_delivery_delay_ms))

    def opened(self, opened: ProducerOpened, carrier: Connection) -> int:
        """Write from now on to `carrier`, on which the producer is open."""
        if self.phase is ENDED:
            return 0
        if self.builder is None:
            self.begun(opened)
        else:
            self._take_limits(PartitionLimits(self._options, opened))
        self.carrier = carrier
        self.phase = OPEN
        # The partition knows now which incarnation was replaced.
        self.numbers.replaces = 0
        return WRITE

    def carrier_lost(self) -> None:
        """Write nothing before the producer is open again."""
        self._seal_finished()
        if self.builder is not None:
            self._leave_for(CLOSED)
        self.carrier = None
        self.closed_at_s = self._monotonic_s()
        self.sure = 0
        self.unconfirmed.resend()

    def started_over(self, error: PulsarException) -> int:
        """Fail all that is unconfirmed, and count anew in an incarnation that replaces this one.

        The partition then refuses what is left of the old one.
        """
        if self.builder is not None:
            self._leave_for(CLOSED)
        self._fail_all(error)
        self.numbers.renew()
        return COMPLETE | WAKE

    def ended(self, error: PulsarException) -> int:
        """Fail all that is unconfirmed, and raise `error` from now on."""
        self.phase = ENDED
        self.error = error.again()
        self.sure = 0
        self._fail_all(error)
        return COMPLETE | WAKE

    def _fail_all(self, error: PulsarException) -> None:
        self._seal_all()
        blocks = self.unconfirmed.take_all()
        for block in blocks:
            block.outcome = block.outcome or (-1, -1, error)
        self.settled.extend(blocks)

    def opening_numbers(self) -> tuple[int, int, int]:
        """The numbers of the next request to open.

        They are the incarnation, the one that it replaces or 0, and the entry_seq that comes first.
        """
        first = self.unconfirmed.first
        first_seq = first.entry_seq if first is not None else self.numbers.next_seq
        return self.numbers.incarnation, self.numbers.replaces, first_seq

    def raise_if_ended(self) -> None:
        """Raise what ended it, if anything did."""
        if self.error is not None:
            raise self.error.again()

    @property
    def absence(self) -> WrongNode | None:
        """Why the partition is away, if that is known.

        No message is taken for it then.
        """
        if self.phase is OPEN:
            return None
        return self._whereabouts.absence or self._absent_since_opening

    @property
    def takes_keyless(self) -> bool:
        """Whether messages that may go to any partition should come to this one.

        They should not while it is away, or silent.
        """
        if self.phase is OPEN or self._whereabouts.is_parked:
            return True
        return self.absence is None and self._monotonic_s() - self.closed_at_s < PATIENCE_S

    def call(self) -> int:
        """Wake a partition that sleeps, because there is something for it.

        Raises WrongNode if it is known to be away.
        """
        if self.phase is OPEN:
            return 0
        if (absence := self.absence) is not None:
            raise absence.again()
        if not self._whereabouts.is_parked:
            return 0
        now_s = self._monotonic_s()
        if now_s - self.closed_at_s > SILENCE_S and not self.unconfirmed.messages:
            # Before the first block gets a number: later it could not be told from one that was lost.
            self.numbers.renew_unreplaced()
        self.closed_at_s = now_s
        return ATTACH

    # --- turns of several partitions --------------------------------------------------------------

    def joined(self, turns: BatchTurnsRouter) -> None:
        """Take turns with other partitions; before any message is added in turn."""
        self._turns = turns

    def _end_turn(self) -> None:
        if self._turns is not None:
            self._turns.batch_sealed(self.partition)

    def _is_turn_elsewhere(self) -> bool:
        return self._turns is not None and self._turns.current != self.partition

    # --- room -------------------------------------------------------------------------------------

    @property
    def gathered(self) -> int:
        """How many messages are added and in no block yet."""
        return 0 if self.builder is None else self.builder.message_count

    @property
    def room_left(self) -> int:
        """How many messages fit without waiting."""
        blocks = self.unconfirmed
        if blocks.size > MAX_UNCONFIRMED_BYTES:
            return 0
        if not self._max_messages:
            return UNLIMITED
        return max(0, self._max_messages - blocks.messages - self.gathered)

    def _is_full(self, messages: int, size: int) -> bool:
        """Whether that many more messages, of `size` bytes together, do not fit.

        A block larger than the limit of bytes fits alone. 0 messages are limited by bytes only.
        """
        blocks = self.unconfirmed
        if blocks.size + size > MAX_UNCONFIRMED_BYTES and blocks.size:
            return True
        limit = self._max_messages
        return bool(limit and messages) and blocks.messages + self.gathered + messages > limit

    def full_error(self) -> ProducerQueueIsFull:
        """The error for a message that must not wait for room."""
        return ProducerQueueIsFull(
            f"{self.unconfirmed.messages + self.gathered} messages wait to be stored and confirmed; wait for "
            f"callbacks, raise max_pending_messages={self._max_messages}, or set block_if_queue_full=True"
        )

    def admit(self, messages: int, size: int, in_turn: bool = False) -> int:
        """Say whether so many messages may be added, of `size` bytes together.

        A message in turn does not wait where the turn is elsewhere, which the end of an open batch makes it.
        While the partition is not open each message looks. Raises WrongNode if it is known to be away, and
        what ended it.
        """
        self.raise_if_ended()
        actions = 0
        if self.phase is not OPEN:
            if in_turn and not self.takes_keyless:
                if self._turns is not None:
                    self._turns.pass_on(self.partition)
                if self._is_turn_elsewhere():
                    return ELSEWHERE
            actions = self.call()
        if self._is_full(messages, size):
            if in_turn:
                actions |= self._seal_for_room()
            if not (in_turn and self._is_turn_elsewhere()):
                return actions | FULL
        if in_turn and self._is_turn_elsewhere():
            return actions | ELSEWHERE
        self._count_room(messages, size)
        return actions

    def _count_room(self, messages: int, size: int) -> None:
        # One at least, for the message itself: a queue may be full of less than a message.
        self.sure = 0 if size or not messages else max(1, self.room_left) if self.phase is OPEN else 1

    def look_for_room(self, messages: int, size: int, in_turn: bool = False) -> int:
        """Look again whether there is room for what was found FULL.

        It may be added once it is not FULL any more. The open batch is finished, or it would fill the queue
        until its delay is over. Raises the error that ended it.
        """
        self.raise_if_ended()
        if (in_turn and self._is_turn_elsewhere()) or not self._is_full(messages, size):
            self._count_room(messages, size)
            return 0
        return FULL | self._seal_for_room()

    def _seal_for_room(self) -> int:
        if self.builder is None or not self.builder.is_open:
            return 0
        self._seal_all()
        return WRITE

    # --- messages ---------------------------------------------------------------------------------

    def add(
        self,
        value: bytes | None,
        callback: SendCallback | None,
        fields: MessageFields | None = None,
        in_turn: bool = False,
        is_awaited: bool = False,
    ) -> int:
        """Add one message, if there is room.

        `in_turn`: it is here because this is the partition whose turn it is. `is_awaited`: somebody waits for
        its receipt, so its batch does not wait for more. Raises MessageTooBig, AlreadyClosed, WrongNode; then
        nothing was added.
        """
        actions = 0
        if not self.sure:
            actions = self.admit(1, 0, in_turn)
            if actions & (FULL | ELSEWHERE):
                return actions
        elif in_turn and self._turns is not None and self._turns.current != self.partition:
            return ELSEWHERE
        self.sure -= 1
        builder: BatchBuilder = self.builder  # type: ignore[assignment]
        if (
            fields is None
            and value is not None
            and (rows := builder.plain) is not None
            and builder.bytes + (size := len(value)) < builder.limit
            and size <= builder.alone_bytes
        ):
            # As the builder would add it, without another call: most messages come this way.
            builder.bytes += size
            rows.callbacks.append(callback)
            values = rows.values
            values.append(value)
            if in_turn:
                builder.has_turn = True
            flags = SEALED if len(values) >= builder.max_rows and builder.seal() else 0
        elif self._sends_singly and self._add_single(value, callback, fields):
            return actions | WRITE
        else:
            flags = builder.add(value, callback, fields, in_turn)
        if not (flags or is_awaited) and (self._is_batching or self.unconfirmed.sent >= IN_FLIGHT_UNBATCHED):
            return actions
        return actions | self._added(flags, is_awaited)

    def _added(self, flags: int, is_awaited: bool) -> int:
        """Say what is to be done behind a message, by the builder's `flags`."""
        if flags & SEALED and self.phase is not OPEN:
            # Nobody takes it before the producer is open again, and it fills the queue from now on.
            self._seal_finished()
        if flags & REFUSED:
            return ELSEWHERE | WRITE
        if not self._is_batching:
            return 0 if self._gathers(IN_FLIGHT_UNBATCHED if not flags & SEALED else UNLIMITED) else WRITE
        if is_awaited:
            return self.flushed()
        actions = WRITE if flags & SEALED else 0
        if flags & OPENED and not self._is_timed:
            self._is_timed = True
            actions |= TIME
        return actions

    def _add_single(
        self, value: bytes | None, callback: SendCallback | None, fields: MessageFields | None
    ) -> bool:
        """Make a block at once of a message that would not gather with others.

        It is the block that a Batch of the one message gives, in a third of the steps: a synchronous send
        stands still for each. False, and nothing was added, if more than its size has to be looked at.
        """
        if (
            value is None
            or self.unconfirmed.messages
            or self.phase is not OPEN
            or self.is_calling_back
            or self._is_gathering
            or (sequence_id := self.builder.id_alone(value, fields)) is None  # type: ignore[union-attr]
        ):
            return False
        numbers = self.numbers
        seq = numbers.next_seq
        buffers = encode_block(
            value,
            incarnation=numbers.incarnation,
            entry_seq=seq,
            first_sequence_id=sequence_id,
            last_sequence_id=sequence_id,
            publish_time_ms=self._clock.now_ms(),
            metadata=None if fields is None else fields.metadata(self.producer_name, self.schema_version),
            fields=self._encoded_fields,
        )
        numbers.next_seq = seq + 1
        done = partial(self._complete_single, callback, sequence_id)
        self.unconfirmed.add(UnconfirmedBlock(seq, 1, 1, buffers, len(value), self._monotonic_s(), done))
        return True

    def _complete_single(
        self,
        callback: SendCallback | None,
        sequence_id: int,
        ledger_id: int,
        entry_id: int,
        error: PulsarException | None,
        stored_before: int,
    ) -> None:
        if error is not None:
            fail_callbacks((callback,), error)
            return
        self._note_stored(sequence_id)
        if callback is not None:
            is_stored = ledger_id != DUPLICATE_LEDGER
            message_id = MessageId(self.partition, ledger_id, entry_id) if is_stored else NO_ID
            complete_callback(callback, message_id)

    def add_alone(self, value: bytes | None, callback: SendCallback, fields: MessageFields | None) -> int:
        """Add a message that was admitted, and finish its block. Raises MessageTooBig."""
        self.builder.add(value, callback, fields)  # type: ignore[union-attr]
        self._seal_all()
        return WRITE

    def add_chunks(
        self, message: ChunkedMessage, sequence_id: int | None, callback: SendCallback | None
    ) -> int:
        """Add a message's chunks, which were admitted, behind all that was added before."""
        self._seal_all()
        taken_id = self.builder.take_sequence_id(sequence_id)  # type: ignore[union-attr]
        for block in message.blocks(
            self.numbers,
            self.producer_name,
            taken_id,
            callback,
            self.partition,
            self._note_stored,
            self.schema_version,
        ):
            self.unconfirmed.add(block)
        return WRITE

    def add_encoded(self, encode: Encode, *, entries: int, messages: int, size: int, done: BlockDone) -> int:
        """Add an admitted block that is encoded elsewhere, behind all before it."""
        self._seal_all()
        builder: BatchBuilder = self.builder  # type: ignore[assignment]
        first_id, seq = builder.next_sequence_id, self.numbers.next_seq
        buffers = encode(self.numbers.incarnation, seq, self.producer_name, first_id)
        builder.skip_sequence_ids(messages)
        self.numbers.next_seq = seq + entries

        def settled(ledger_id: int, entry_id: int, error: PulsarException | None, stored_before: int) -> None:
            if error is None:
                self._note_stored(first_id + messages - 1)
            done(ledger_id, entry_id, error, stored_before)

        self.unconfirmed.add(
            UnconfirmedBlock(seq, entries, messages, buffers, size, self._monotonic_s(), settled)
        )
        return WRITE

    # --- blocks -----------------------------------------------------------------------------------

    def _seal_all(self) -> None:
        """Make blocks of all messages, those of the open batch too."""
        if self.builder is not None:
            self.builder.seal()
            self._seal_finished()

    def _seal_finished(self) -> None:
        """Make numbered blocks of the finished batches."""
        if self.builder is None or not self.builder.sealed:
            return
        numbers, codec = self.numbers, int(self._options.compression_type)
        for batch in self.builder.take_sealed():
            seq = numbers.next_seq
            buffers = batch.encode(
                incarnation=numbers.incarnation,
                entry_seq=seq,
                producer_name=self.producer_name,
                codec=codec,
                schema_version=self.schema_version,
                typed=self._options.schema.typed,
            )
            numbers.next_seq = seq + batch.entries
            done = partial(batch.complete, self.partition, self._note_stored)
            self.unconfirmed.add(
                UnconfirmedBlock(
                    seq,
                    batch.entries,
                    batch.message_count,
                    buffers,
                    batch.payload_bytes,
                    self._monotonic_s(),
                    done,
                )
            )
        if self.unconfirmed.size > MAX_UNCONFIRMED_BYTES:
            self.sure = 0

    def _note_stored(self, sequence_id: int) -> None:
        """Note an id that is stored; called for each block before its callbacks."""
        self.last_sequence_id = max(self.last_sequence_id, sequence_id)

    def flushed(self) -> int:
        """Finish what is open: a flush or a synchronous send."""
        self._seal_all()
        return WRITE

    def when_settled(self, callback: Callable[[], None]) -> int:
        """Finish what is open, and have `callback` called once all of it is settled.

        The call comes behind the callbacks of the messages, whether these were confirmed or failed.
        """
        self._seal_all()
        if (last := self.unconfirmed.last) is not None:
            last.then(callback)
            return WRITE
        return WRITE | self._settle_nothing(callback)

    def not_added(self, callback: SendCallback, error: PulsarException) -> int:
        """Have `callback` called with the error that kept its message from being added."""
        return self._settle_nothing(partial(fail_callbacks, (callback,), error))

    def _settle_nothing(self, then: Callable[[], None]) -> int:
        """Have `then` called behind what is settled and not called back yet."""
        nothing = UnconfirmedBlock(-1, 0, 0, [], 0, 0.0, _done_with_nothing)
        nothing.then(then)
        nothing.outcome = (-1, -1, None)
        self.settled.append(nothing)
        return COMPLETE

    def turn_ended(self) -> int:
        """Finish an open batch with messages in turn: a whole batch from elsewhere comes next."""
        if self.builder is not None and self.builder.has_turn:
            self._seal_all()
        return WRITE

    @property
    def has_pending(self) -> bool:
        """Whether messages wait here that the partition has not confirmed."""
        return bool(self.unconfirmed) or self.gathered > 0

    def has_work(self) -> bool:
        """Whether a block may be written now.

        It is asked without a lock: threads that add work ask again behind it.
        """
        if self.phase is not OPEN:
            return False
        builder: BatchBuilder = self.builder  # type: ignore[assignment]
        return bool(
            self.unconfirmed.has_unsent
            or builder.sealed
            or (builder.is_open and not self._is_batching and not self._gathers())
        )

    def next_block(self) -> tuple[UnconfirmedBlock, Connection] | None:
        """Take the next block to write, with its carrier; None without one."""
        if self.phase is not OPEN or self.carrier is None:
            return None
        builder: BatchBuilder = self.builder  # type: ignore[assignment]
        if builder.is_open and not self._is_batching and not self._gathers():
            builder.seal()
        if builder.sealed:
            self._seal_finished()
        block = self.unconfirmed.next_unsent()
        return None if block is None else (block, self.carrier)

    def _gathers(self, in_flight: int = IN_FLIGHT_UNBATCHED) -> bool:
        """Whether messages without batching wait for more to go with them.

        They do while callbacks run, which may send more, in the turn of a loop that sends more, and while so
        many blocks are under way.
        """
        return self.is_calling_back or self._is_gathering or self.unconfirmed.sent >= in_flight

    # --- time -------------------------------------------------------------------------------------

    def begin_gathering(self) -> bool:
        """Send together what is sent in this turn of the program's loop.

        True if `end_gathering` is to be called at its end.
        """
        if self._is_gathering or self._is_batching:
            return False
        self._is_gathering = True
        return True

    def end_gathering(self) -> int:
        """Write what was sent in this turn of the loop."""
        self._is_gathering = False
        return WRITE

    @property
    def batch_due_s(self) -> float:
        """How long the open batch waits for more, from now on."""
        builder = self.builder
        deadline_ms = None if builder is None else builder.deadline_ms
        if deadline_ms is None:
            return 0.0
        return max(_SHORTEST_S, (deadline_ms - self._clock.monotonic_ms()) / 1000)

    def time_passed(self) -> int:
        """Finish the open batch if its delay is over.

        One call is on its way for all batches that are opened meanwhile: one that was opened later than the
        one it was asked for gets the rest of its own delay.
        """
        self._is_timed = False
        actions = WRITE
        builder = self.builder
        if builder is not None and not builder.seal_due(self._clock.monotonic_ms()) and builder.is_open:
            self._is_timed = True
            actions |= TIME
        if self.phase is not OPEN:
            # In the builder it would not count as waiting: it would not wake the partition, nor time out.
            self._seal_finished()
        return actions

    def has_expired(self) -> bool:
        """Whether the oldest block has been unconfirmed for longer than the send timeout."""
        if self.phase is not OPEN and not self._is_batching:
            # Messages that gather while detached get their time from here on.
            self._seal_all()
        first = self.unconfirmed.first
        if first is None:
            return False
        now_s = self._monotonic_s()
        first.sealed_s = first.sealed_s or now_s
        return now_s - first.sealed_s > self._options.send_timeout_millis / 1000

    # --- outcomes ---------------------------------------------------------------------------------

    def confirmed(self, rows: Sequence[tuple[int, int, int, int, int]]) -> int:
        """Settle the blocks of these receipts; one that came before is harmless."""
        if self.phase is not OPEN:
            # They may be of an incarnation given up, whose numbers mean other blocks by now; or they come
            # again.
            return 0
        self.settled.extend(self.unconfirmed.confirm(rows))
        return COMPLETE | WAKE | WRITE

    def refused(self, entry_seq: int, error: PulsarException) -> int:
        """Fail the block that the partition has refused."""
        if self.phase is not OPEN:
            return 0
        self.settled.extend(self.unconfirmed.refuse(entry_seq, error))
        return COMPLETE | WAKE | WRITE

    def partly_stored(self, entry_seq: int, stored_id: int) -> int:
        """Send a block again without what the partition has stored, and then all behind it.

        `stored_id` is the highest sequence id of this producer that is stored.
        """
        if self.phase is not OPEN:
            return 0
        if (block := self.unconfirmed.find(entry_seq)) is not None:
            block.drop_stored(stored_id)
            self.unconfirmed.resend()
        return WRITE


def _done_with_nothing(
    ledger_id: int, entry_id: int, error: PulsarException | None, stored_before: int
) -> None:
    """Complete a block that has no messages."""
