"""Makes numbered blocks of one producer's messages for one partition."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence, Sized
from typing import Any

from pulsar_ray.client.endpoint.endpoint_link import EndpointLink
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.blocks.batch_builder import OPENED, REFUSED, SEALED, BatchBuilder
from pulsar_ray.client.producer.blocks.block_numbers import BlockNumbers
from pulsar_ray.client.producer.blocks.bulk_limits import BulkLimits
from pulsar_ray.client.producer.blocks.sealed_batch import SendCallback
from pulsar_ray.client.producer.blocks.unconfirmed_blocks import (
    BlockDone,
    Outcome,
    UnconfirmedBlock,
    UnconfirmedBlocks,
)
from pulsar_ray.client.producer.queue.admission import Admission
from pulsar_ray.client.producer.queue.batch_timer import BatchTimer
from pulsar_ray.client.producer.queue.block_sealer import BlockSealer, Encode
from pulsar_ray.client.producer.queue.block_writer import BlockWriter
from pulsar_ray.client.producer.queue.callback_queue import CallbackQueue
from pulsar_ray.client.producer.queue.chunk_cutter import ChunkCutter
from pulsar_ray.client.producer.queue.gathering import Gathering
from pulsar_ray.client.producer.queue.partition_access import PartitionAccess
from pulsar_ray.client.producer.queue.partition_turn import PartitionTurn
from pulsar_ray.client.producer.queue.send_room import MAX_UNCONFIRMED_BYTES, SendRoom
from pulsar_ray.client.producer.queue.stored_sequence import StoredSequence
from pulsar_ray.client.producer.routing import BatchTurnsRouter
from pulsar_ray.errors import ForkedClient, MessageTooBig, PulsarException, WrongNode
from pulsar_ray.format.block import MAX_MESSAGE_SIZE, MAX_ROWS, check_block_size
from pulsar_ray.format.delivery_times import check_delay
from pulsar_ray.format.table import MAX_BATCH_BYTES
from pulsar_ray.session.requests import ProducerOpened
from pulsar_ray.transport.carriers import Connection


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
        self._producer_id = producer_id
        self.partition = partition
        """The index in the topic, -1 of a topic without partitions."""
        self._options = options
        self._batching = options.batching_enabled
        self._sends_singly = not options.batching_enabled and not options.compression_type
        """Whether a message may become a block at once."""
        self._send_timeout_s = options.send_timeout_millis / 1000
        self._stored = StoredSequence(options)
        self._turn = PartitionTurn(partition)
        self._cutter = ChunkCutter(options)
        self._opened: ProducerOpened | None = None
        """The partition's answer, with the limits of now."""
        self.bulk_limits = BulkLimits(MAX_ROWS, MAX_BATCH_BYTES)
        self._compose()

    def _compose(self) -> None:
        """Make the parts that share one lock; they are empty."""
        link, options, timers = self._link, self._options, self._link.timers
        self._state = threading.Lock()
        self._numbers = BlockNumbers()
        self.unconfirmed = UnconfirmedBlocks()
        """The sealed blocks without a receipt; the state lock guards them."""
        self._access = PartitionAccess(link, self._numbers, self.unconfirmed)
        self.room = SendRoom(self._state, self.unconfirmed, options)
        self._callbacks = CallbackQueue(link.loop_timers)
        self._writer = BlockWriter(link, self._producer_id, self)
        write = self._writer.write_if_any
        self._batch_timer = BatchTimer(
            timers, self._state, options.batching_max_publish_delay_ms / 1000, self._batch_finished, write
        )
        self._gathering = Gathering(
            timers, self._callbacks, self.unconfirmed, write, is_batching=options.batching_enabled
        )
        self._sealer = BlockSealer(
            options, self.partition, self._numbers, self.unconfirmed, self.room, self._stored.note
        )
        self._admission = Admission(
            self._access,
            self.room,
            self._sealer,
            self._turn,
            self._writer,
            timers,
            waits_if_full=options.block_if_queue_full,
        )

    def forked(self, error: ForkedClient) -> None:
        """Drop in a forked child what the parent sends, and take new locks.

        Each later call raises `error`.
        """
        name = self.name
        self._compose()
        self._sealer.producer_name = name
        self._access.end(error)

    # --- opening and ending -----------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The producer's name: empty before the partition has answered, unless it was given."""
        return self._sealer.producer_name

    @property
    def last_sequence_id(self) -> int:
        """The highest one that is stored, also by an earlier producer of the name."""
        return self._stored.last_id

    @property
    def is_open(self) -> bool:
        """Whether blocks may be written."""
        return self._access.is_open

    @property
    def error(self) -> PulsarException | None:
        """The error that ended the queue, if any did."""
        return self._access.error

    def check(self) -> None:
        """Raise what ended the queue, if anything did."""
        self._access.raise_if_ended()

    @property
    def absence(self) -> WrongNode | None:
        """Why the partition is away, if that is known.

        No message is taken for it then.
        """
        return self._access.absence

    @property
    def takes_keyless(self) -> bool:
        """See Destination."""
        return self._access.takes_keyless

    @property
    def has_begun(self) -> bool:
        """Whether the partition has opened it before."""
        return self._sealer.builder is not None

    @property
    def has_pending(self) -> bool:
        """Whether messages wait here that the partition has not confirmed."""
        with self._state:
            return bool(self.unconfirmed) or self._sealer.gathered > 0

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
        self._sealer.begin(opened, self._turn.end)
        self._take_limits(opened)
        self._stored.begin(opened.name, opened.last_sequence_id)
        self._access.answered()

    def set_limits(self, max_message_size: int, max_delivery_delay_ms: int) -> None:
        """Take no larger or later messages from now on.

        Those that were added go as they are.
        """
        with self._state:
            if self._opened is not None:
                opened = self._opened._replace(
                    max_message_size=max_message_size, max_delivery_delay_ms=max_delivery_delay_ms
                )
                self._take_limits(opened)

    def _take_limits(self, opened: ProducerOpened) -> None:
        """Take what the partition allows now; called with the state lock held."""
        self._opened = opened
        self.bulk_limits = BulkLimits.of(opened)
        self._cutter.set_max_message_size(opened.max_message_size)
        if self._sealer.builder is not None:
            self._sealer.builder.set_max_message_size(opened.max_message_size)
            self._sealer.builder.max_delivery_delay_ms = opened.max_delivery_delay_ms

    def begin_later(self, absence: WrongNode) -> None:
        """Take no messages, because of `absence`, before the partition has answered."""
        self._access.await_opening(absence)

    def take_turns(self, turns: BatchTurnsRouter) -> None:
        """Allow messages `in_turn`; called once, before any is added."""
        with self._state:
            self._turn.join(turns)

    def resume(self, opened: ProducerOpened, carrier: Connection | None) -> None:
        """Write from now on to `carrier`, on which the producer is open.

        Nothing is done if another carrier stands already, or the queue has ended. Unconfirmed blocks are
        written again, in order.
        """
        with self._state:
            if self.error is not None or carrier is None or self._link.carrier is not carrier:
                return
            if not self.has_begun:
                self._begin(opened)
            else:
                self._take_limits(opened)
            self._access.open_on(carrier)
        self._writer.write_if_any()

    def pause(self) -> None:
        """Write nothing before `resume`: the carrier is gone."""
        with self._state:
            self._sealer.take_finished(seal=False)
            self._access.lost_carrier()
            self.room.sure = 0
            self.unconfirmed.resend()

    def _batch_finished(self) -> None:
        """Make a block of a finished batch at once while nobody writes it.

        Called with the state lock held. In the builder it would not count as waiting: it would not wake the
        partition, nor time out.
        """
        if not self.is_open:
            self._sealer.take_finished(seal=False)

    def start_over(self, error: PulsarException) -> None:
        """Fail all that is unconfirmed, and count anew in an incarnation that replaces this one.

        The partition then refuses what is left of the old one.
        """
        with self._state:
            self._access.suspend()
            self._fail_all(error)
            self._numbers.renew()
        self._callbacks.run()

    def end(self, error: PulsarException) -> None:
        """Fail all that is unconfirmed, and raise `error` for each later call."""
        with self._state:
            self._access.end(error)
            self.room.sure = 0
            self._fail_all(error)
        self._callbacks.run()

    def _fail_all(self, error: PulsarException) -> None:
        """Fail all that was added; `_callbacks.run` must follow.

        Called with the state lock held.
        """
        self._sealer.take_finished(seal=True)
        blocks = self.unconfirmed.take_all()
        for block in blocks:
            block.outcome = block.outcome or (-1, -1, error)
        self._callbacks.settled.extend(blocks)
        self.room.made()

    # --- receipts ---------------------------------------------------------------------------------

    def confirm(self, rows: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Complete the blocks of these receipts; one that came before is harmless."""
        with self._state:
            if not self._access.is_open:
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
            if not self._access.is_open:
                return
            self.unconfirmed.answer(entry_seq, outcome)
            self._callbacks.settled.extend(self.unconfirmed.take_settled())
            self.room.made()
        self._callbacks.run()
        self._writer.write_if_any()

    def send_rest(self, entry_seq: int, stored_id: int) -> None:
        """Send a block again without what the partition has stored, and then all behind it.

        `stored_id` is the highest sequence id of this producer that is stored.
        """
        with self._state:
            if not self._access.is_open:
                return
            if (block := self.unconfirmed.find(entry_seq)) is not None:
                block.drop_stored(stored_id)
                self.unconfirmed.resend()
        self._writer.write_if_any()

    def has_expired(self) -> bool:
        """Whether the oldest block has been unconfirmed for longer than the send timeout."""
        with self._state:
            if not self._access.is_open and not self._batching:
                # Messages that gather while detached get their time from here on.
                self._sealer.take_finished(seal=True)
            first = self.unconfirmed.first
            return first is not None and time.monotonic() - first.begin_waiting() > self._send_timeout_s

    # --- adding messages --------------------------------------------------------------------------

    def enqueue(
        self,
        value: bytes | None,
        callback: SendCallback | None,
        fields: tuple[Any, ...] | int | None = None,
        *,
        seal: bool = False,
        in_turn: bool = False,
    ) -> bool:
        """Add one message.

        `fields` are those of `BatchBuilder.add_message`, or just the time when it is due. `seal`: somebody
        waits for it, so its batch does not wait for more. `in_turn`: it is here because this is the partition
        whose turn it is. False if the turn has moved on, so that it was not added.
        Raises ProducerQueueIsFull, MessageTooBig, AlreadyClosed, WrongNode; then nothing was added.
        """
        if self._cutter.chunk_bytes and self._enqueue_chunked(value, callback, fields, waits=seal):
            return True
        with self._state:
            room = self.room
            if not room.sure:
                self._admission.admit(in_turn)
            if in_turn and self._turn.is_elsewhere():
                return False
            room.sure -= 1
            is_refused = False
            if not (self._sends_singly and fields is None and self._add_single(value, callback)):
                builder: BatchBuilder = self._sealer.builder  # type: ignore[assignment]
                flags = (
                    builder.add(value, callback, in_turn)
                    if fields is None
                    else builder.add_delayed(value, callback, fields, in_turn)
                    if isinstance(fields, int)
                    else builder.add_message(value, callback, *fields, in_turn=in_turn)
                )
                is_refused = bool(flags & REFUSED)
                if not flags and self._batching and not seal:
                    return True
                if flags & SEALED and not self._access.is_open:
                    # Nobody takes it before the producer is open again, and it fills the queue from now on.
                    self._sealer.take_finished(seal=False)
                if seal and self._batching and not is_refused:
                    self._sealer.take_finished(seal=True)
                elif self._batching:
                    if flags & OPENED:
                        self._batch_timer.arm(builder)
                    if not flags & SEALED:
                        return True
                elif self._gathering.goes_on(has_finished=bool(flags & SEALED)):
                    return True
        self._writer.write(waits=seal and not is_refused)
        return not is_refused

    def _add_single(self, value: bytes | None, callback: SendCallback | None) -> bool:
        """Make a message a block at once if it would not gather with others.

        Called with the state lock held. False if nothing was added.
        """
        if self.unconfirmed.messages or value is None or not self._access.is_open:
            return False
        return not self._gathering.is_expecting() and self._sealer.add_single(value, callback)

    def is_chunked(self, value: bytes | None) -> bool:
        """Whether a message is cut into chunks, unless compression makes it small enough."""
        return self._cutter.is_chunked(value)

    def goes_alone(self, value: Sized | None) -> bool:
        """Whether a row without room for others is sent as `send` sends it.

        It is one of a table or list. A producer that makes chunks may cut it up; its fields take room, too.
        """
        chunk_bytes = self._cutter.chunk_bytes
        return bool(chunk_bytes) and value is not None and len(value) > chunk_bytes // 2

    def _enqueue_chunked(
        self,
        value: bytes | None,
        callback: SendCallback | None,
        fields: tuple[Any, ...] | int | None,
        *,
        waits: bool,
        counted: int = 1,
    ) -> bool:
        """Add a message in chunks; False if it is small enough, perhaps once compressed.

        It waits for room for all of its bytes, unless nothing else waits to be confirmed. `counted` is how
        many it is of `max_pending_messages`.
        """
        message = self._cutter.cut(value, fields)
        if message is None:
            return False
        with self._state:
            self._admission.admit_block(counted, message.size)
            self._sealer.add_chunks(message, fields[4] if isinstance(fields, tuple) else None, callback)
        self._writer.write(waits=waits)
        return True

    def add_block(self, encode: Encode, *, entries: int, messages: int, size: int, done: BlockDone) -> None:
        """Add a block that is encoded elsewhere. Waits for room by bytes."""
        with self._state:
            self._admission.admit_block(0, size)
            self._sealer.add_encoded(encode, entries=entries, messages=messages, size=size, done=done)
        self._writer.write()

    def add_row(self, value: bytes, callback: SendCallback, fields: tuple[Any, ...] | None) -> None:
        """Add a row of a list or table as a message, perhaps in chunks.

        Waits for room by bytes alone, as `add_block`: the rows of a call may be many. `fields` are those of
        `BatchBuilder.add_message`. Raises MessageTooBig, AlreadyClosed, WrongNode; then it was not added.
        """
        if self._enqueue_chunked(value, callback, fields, waits=False, counted=0):
            return
        with self._state:
            self._admission.admit_block(0, len(value))
            builder: BatchBuilder = self._sealer.builder  # type: ignore[assignment]
            builder.add_message(value, callback, *(fields or ()))
            self._sealer.take_finished(seal=True)
        self._writer.write()

    def end_turn(self) -> None:
        """Finish an open batch with messages in turn.

        A whole batch from elsewhere comes next.
        """
        with self._state:
            builder = self._sealer.builder
            if builder is not None and builder.has_turn:
                self._sealer.take_finished(seal=True)
        self._writer.write_if_any()

    def gather(self) -> None:
        """Send together what is sent without batching in this turn of the loop."""
        self._gathering.hold_turn()

    @property
    def room_left(self) -> int:
        """How many messages the queue takes without waiting."""
        return self._admission.room_left

    @property
    def max_message_size(self) -> int:
        """The size in bytes that the partition takes in one block."""
        return MAX_MESSAGE_SIZE if self._opened is None else self._opened.max_message_size

    def check_size(self, payload_bytes: int) -> None:
        """Refuse a payload above the size that the partition takes.

        Raises MessageTooBig; compression may only make a payload smaller. Raises WrongNode if the partition
        is known to be away.
        """
        self._access.ensure_there()
        if not self._options.compression_type:
            limit = self._opened.max_message_size if self._opened is not None else 0
            check_block_size(payload_bytes, payload_bytes, limit)
        elif payload_bytes > MAX_UNCONFIRMED_BYTES:
            raise MessageTooBig(
                f"a message of {payload_bytes} bytes; at most {MAX_UNCONFIRMED_BYTES} uncompressed"
            )

    def check_delay(self, deliver_at: int, now_ms: int) -> None:
        """Raise NotAllowedError for a message that the topic does not deliver so late."""
        longest_ms = self._opened.max_delivery_delay_ms if self._opened is not None else 0
        if longest_ms:
            check_delay(deliver_at, now_ms, longest_ms)

    def payload_memory(self, length: int) -> memoryview | None:
        """Find memory for a payload that need not be copied to be sent.

        None if there is no such memory.
        """
        access = self._access
        carrier = access.carrier
        if carrier is None or not access.is_open or self._options.compression_type:
            return None
        return carrier.room(length)

    def seal(self) -> None:
        """Finish what is open and write it: a flush or a synchronous send."""
        with self._state:
            self._sealer.take_finished(seal=True)
        self._writer.write_if_any()

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Write what is open, and call back once all of it is settled.

        The call comes behind the callbacks of the messages, whether these were confirmed or failed.
        """
        with self._state:
            self._sealer.take_finished(seal=True)
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

    # --- what the writer asks ---------------------------------------------------------------------

    def next_block(self) -> tuple[UnconfirmedBlock, Connection] | None:
        """See BlockSource."""
        with self._state:
            carrier = self._access.carrier
            if not self._access.is_open or carrier is None:
                return None
            builder: BatchBuilder = self._sealer.builder  # type: ignore[assignment]
            if builder.sealed or builder.is_open:
                self._sealer.take_finished(seal=self._gathering.may_end())
            block = self.unconfirmed.next_unsent()
            return None if block is None else (block, carrier)

    def has_work(self) -> bool:
        """See BlockSource."""
        if not self._access.is_open:
            return False
        builder: BatchBuilder = self._sealer.builder  # type: ignore[assignment]
        return bool(
            self.unconfirmed.has_unsent or builder.sealed or (builder.is_open and self._gathering.may_end())
        )
