"""Takes a producer's messages for one partition from many threads, and writes their blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from pulsar_ray.client.encryption.payload_cipher import PayloadCipher
from pulsar_ray.client.endpoint.endpoint_link import EndpointLink
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.message_fields import MessageFields
from pulsar_ray.client.producer.routing import BatchTurnsRouter
from pulsar_ray.client.producer.send_callbacks import BlockDone, SendCallback
from pulsar_ray.client.producer.send_state import (
    ATTACH,
    COMPLETE,
    ELSEWHERE,
    FULL,
    OPEN,
    TIME,
    WAKE,
    WRITE,
    Encode,
    SendState,
)
from pulsar_ray.errors import ForkedClient, ProducerQueueIsFull, PulsarException, Timeout, WrongNode
from pulsar_ray.format.encrypted_block import encrypted_block
from pulsar_ray.lane.waiting import HERE
from pulsar_ray.session.packet_encoders import PublishPackets
from pulsar_ray.session.requests import ProducerOpened
from pulsar_ray.transport.carriers import Connection

_FOREVER_S = 1e9
_LOOK_S = 0.1
_IN_LOCK: Final = TIME | ATTACH | WAKE
"""Actions that are done with the lock held: they take a moment."""


class SendQueue:
    """Tells a SendState what happens, and does what it answers. Thread-safe.

    One lock guards the state, and is held for moments; callbacks and writing go on without it. For each of
    these two there is a role, which a thread takes if no other one has it, and never waits for: the I/O
    thread cannot be held up by one that a full socket blocks. The holder of a role looks for more work when
    it has given the role back, so that nothing stays that another thread left to it.
    """

    def __init__(
        self,
        link: EndpointLink,
        producer_id: int,
        partition: int,
        options: ProducerOptions,
        cipher: PayloadCipher | None = None,
    ) -> None:
        self._link = link
        self._timers = link.timers
        self._home = link.loop_timers
        """Where callbacks run, if they complete futures of a loop."""
        self._options = options
        self._waits_if_full = options.block_if_queue_full
        self._packets = PublishPackets(producer_id)
        self.cipher = cipher
        """Encrypts blocks when they are written; None if they are sent in the clear."""
        self.waiting = 0
        """How many threads wait for room."""
        self.on_room: Callable[[], None] | None = None
        """Called with the lock held when receipts or refusals have made room."""
        self.state = SendState(options, partition, link)
        """Read by everybody, told of events by this queue alone."""
        self._take_locks()

    def _take_locks(self) -> None:
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._writes = threading.Lock()
        self._calls_back = threading.Lock()

    def forked(self, error: ForkedClient) -> None:
        """Drop in a forked child what the parent sends, and take new locks.

        Each later call raises `error`.
        """
        before = self.state
        self._take_locks()
        self.state = SendState(self._options, before.partition, self._link)
        self.state.producer_name = before.producer_name
        self.state.last_sequence_id = before.last_sequence_id
        self.state.ended(error)

    # --- opening and ending -----------------------------------------------------------------------

    def begin(self, opened: ProducerOpened) -> None:
        """Take the limits and the name of the partition's first answer."""
        with self._lock:
            self.state.begun(opened)

    def begin_later(self, absence: WrongNode) -> None:
        """Take no messages, because of `absence`, before the partition has answered."""
        self.state.unanswered(absence)

    def take_turns(self, turns: BatchTurnsRouter) -> None:
        """Allow messages `in_turn`; called once, before any is added."""
        with self._lock:
            self.state.joined(turns)

    def resume(self, opened: ProducerOpened, carrier: Connection | None) -> None:
        """Write from now on to `carrier`, on which the producer is open.

        Nothing is done if another carrier stands already, or the queue has ended. Unconfirmed blocks are
        written again, in order.
        """
        with self._lock:
            if carrier is None or self._link.carrier is not carrier:
                return
            self.state.opened(opened, carrier)
        self._write_if_any()

    def pause(self) -> None:
        """Write nothing before `resume`: the carrier is gone."""
        with self._lock:
            self.state.carrier_lost()

    def set_limits(self, max_message_size: int, max_delivery_delay_ms: int) -> None:
        """Take no larger or later messages from now on."""
        with self._lock:
            self.state.limited(max_message_size, max_delivery_delay_ms)

    def start_over(self, error: PulsarException) -> None:
        """Fail all that is unconfirmed, and count anew in another incarnation."""
        self._tell(lambda: self.state.started_over(error))

    def end(self, error: PulsarException) -> None:
        """Fail all that is unconfirmed, and raise `error` for each later call."""
        self._tell(lambda: self.state.ended(error))

    def opening_numbers(self) -> tuple[int, int, int]:
        """See SendState."""
        with self._lock:
            return self.state.opening_numbers()

    def has_pending(self) -> bool:
        """Whether messages wait here that the partition has not confirmed."""
        with self._lock:
            return self.state.has_pending

    def has_expired(self) -> bool:
        """Whether the oldest block has been unconfirmed for longer than the send timeout."""
        with self._lock:
            return self.state.has_expired()

    # --- adding messages --------------------------------------------------------------------------

    def enqueue(
        self,
        value: bytes | None,
        callback: SendCallback | None,
        fields: MessageFields | None = None,
        *,
        is_awaited: bool = False,
        in_turn: bool = False,
    ) -> bool:
        """Add one message.

        `is_awaited`: somebody waits for its receipt, so its batch does not wait for more. `in_turn`: it is
        here because this is the partition whose turn it is. False if the turn has moved on, so that it was
        not added.
        Raises ProducerQueueIsFull, MessageTooBig, AlreadyClosed, WrongNode; then nothing was added.
        """
        state = self.state
        if state.limits.chunk_bytes and self._enqueue_chunked(value, callback, fields, waits=is_awaited):
            return True
        with self._lock:
            actions = state.add(value, callback, fields, in_turn, is_awaited)
            if not actions:
                return True
            if actions & FULL:
                self._wait_for_room(actions, 1, 0, in_turn)
                actions = state.add(value, callback, fields, in_turn, is_awaited)
            if actions & _IN_LOCK:
                self._do_at_once(actions)
        if actions & WRITE:
            self._write(waits=is_awaited and not actions & ELSEWHERE)
        return not actions & ELSEWHERE

    def fail(self, callback: SendCallback | None, error: PulsarException) -> None:
        """Call back with the error that kept a message from being added."""
        if callback is not None:
            self._tell(lambda: self.state.not_added(callback, error))

    def _enqueue_chunked(
        self,
        value: bytes | None,
        callback: SendCallback | None,
        fields: MessageFields | None,
        *,
        waits: bool,
        counted: int = 1,
    ) -> bool:
        """Add a message in chunks; False if it is small enough, perhaps once compressed.

        It waits for room for all of its bytes, unless nothing else waits to be confirmed. `counted` is how
        many it is of `max_pending_messages`.
        """
        state = self.state
        if (message := state.limits.cut(value, fields)) is None:
            return False
        with self._lock:
            self._admit(counted, message.size)
            state.add_chunks(message, fields and fields.sequence_id, callback)
        self._write(waits=waits)
        return True

    def add_block(self, encode: Encode, *, entries: int, messages: int, size: int, done: BlockDone) -> None:
        """Add a block that is encoded elsewhere. Waits for room by bytes."""
        with self._lock:
            self._admit(0, size)
            self.state.add_encoded(encode, entries=entries, messages=messages, size=size, done=done)
        self._write()

    def add_row(self, value: bytes | None, callback: SendCallback, fields: MessageFields | None) -> None:
        """Add a row of a list or table as a message, perhaps in chunks.

        Waits for room by bytes alone, as `add_block`: the rows of a call may be many. Raises MessageTooBig,
        AlreadyClosed, WrongNode; then it was not added.
        """
        if self._enqueue_chunked(value, callback, fields, waits=False, counted=0):
            return
        with self._lock:
            self._admit(0, len(value or b""))
            self.state.add_alone(value, callback, fields)
        self._write()

    def _admit(self, messages: int, size: int) -> None:
        """Wait until there is room for so much; called with the lock held."""
        actions = self.state.admit(messages, size)
        if actions & FULL:
            self._wait_for_room(actions, messages, size)
        else:
            self._do_at_once(actions)

    def _wait_for_room(self, actions: int, messages: int, size: int, in_turn: bool = False) -> None:
        """Wait until what was found FULL may be added; called with the lock held.

        Raises ProducerQueueIsFull where it must not wait, Timeout after the send timeout, and what ends the
        queue.
        """
        self._do_at_once(actions)
        if messages and not self._waits_if_full:
            if actions & WRITE:
                self._timers.call_soon(self._write_if_any)
            raise self.state.full_error()
        if self._timers.is_current or HERE.runs_callbacks:
            raise ProducerQueueIsFull("the queue is full, and a callback must not wait for it")
        timeout_s = self._options.send_timeout_millis / 1000
        deadline = time.monotonic() + (timeout_s or _FOREVER_S)
        while True:
            looked = self.state.look_for_room(messages, size, in_turn)
            if (actions | looked) & WRITE:
                self._timers.call_soon(self._write_if_any)
            if not looked & FULL:
                return
            if time.monotonic() > deadline:
                raise Timeout(f"the producer's queue stayed full for {timeout_s} s")
            actions = 0
            self.waiting += 1
            try:
                self._room.wait(min(_LOOK_S, max(0.0, deadline - time.monotonic())))
            finally:
                self.waiting -= 1

    def gather(self) -> None:
        """Send together what is sent without batching in this turn of the loop."""
        if self.state.begin_gathering():
            self._timers.call_soon(self._end_gathering)

    def _end_gathering(self) -> None:
        self.state.end_gathering()
        self._write_if_any()

    def check_size(self, payload_bytes: int) -> None:
        """Refuse a payload above the size that the partition takes.

        The partition is woken if it sleeps. Raises MessageTooBig, and WrongNode if the partition is known to
        be away.
        """
        with self._lock:
            self._do_at_once(self.state.call())
        self.state.limits.check_size(payload_bytes)

    def payload_memory(self, length: int) -> memoryview | None:
        """Find memory for a payload that need not be copied to be sent.

        None if there is no such memory.
        """
        carrier = self.state.carrier
        if carrier is None or self.state.phase is not OPEN:
            return None
        if self._options.compression_type or self.cipher is not None:
            return None
        return carrier.room(length)

    def end_turn(self) -> None:
        """Finish an open batch with messages in turn."""
        self._tell(self.state.turn_ended)

    def seal(self) -> None:
        """Finish what is open and write it: a flush or a synchronous send."""
        self._tell(self.state.flushed)

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Write what is open, and call back once all of it is settled."""
        self._tell(lambda: self.state.when_settled(callback))

    # --- receipts ---------------------------------------------------------------------------------

    def confirm(self, rows: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Complete the blocks of these receipts; one that came before is harmless."""
        with self._lock:
            actions = self.state.confirmed(rows)
            if self.waiting or self.on_room is not None:
                self._do_at_once(actions)
        if actions:
            self._call_back()
            if self.state.has_work():
                self._write()

    def refuse(self, entry_seq: int, error: PulsarException) -> None:
        """Fail the block that the partition has refused."""
        self._tell(lambda: self.state.refused(entry_seq, error))

    def send_rest(self, entry_seq: int, stored_id: int) -> None:
        """Send a block again without what the partition has stored, and then all behind it."""
        self._tell(lambda: self.state.partly_stored(entry_seq, stored_id))

    # --- doing what the state asks for ------------------------------------------------------------

    def _tell(self, event: Callable[[], int]) -> None:
        with self._lock:
            actions = event()
            self._do_at_once(actions)
        if actions & COMPLETE:
            self._call_back()
        if actions & WRITE:
            self._write_if_any()

    def _do_at_once(self, actions: int) -> None:
        """Do what takes a moment; called with the lock held."""
        if actions & TIME:
            self._timers.call_later(self.state.batch_due_s, self._pass_time)
        if actions & ATTACH:
            self._link.wake()
        if actions & WAKE:
            self._room.notify_all()
            if self.on_room is not None:
                self.on_room()

    def _pass_time(self) -> None:
        self._tell(self.state.time_passed)

    def _call_back(self) -> None:
        """Run the callbacks of what is settled, in order, unless another thread does.

        Not to be called under a lock that a callback may need. With a home they run there only.
        """
        if self._home is not None and not self._home.is_current:
            self._home.call_soon(self._call_back)
            return
        state, role = self.state, self._calls_back
        while state.settled and role.acquire(blocking=False):
            before, HERE.runs_callbacks = HERE.runs_callbacks, True
            try:
                state.is_calling_back = True
                while state.settled:
                    state.settled.popleft().complete()
            finally:
                state.is_calling_back = False
                HERE.runs_callbacks = before
                role.release()

    def _write_if_any(self) -> None:
        """Write if there is work; costs no lock if there is none."""
        if self.state.has_work():
            self._write()

    def _write(self, *, waits: bool = False) -> None:
        """Write until nothing may be written, or another thread writes.

        `waits`: the caller is about to wait for a receipt.
        """
        state, role = self.state, self._writes
        while role.acquire(blocking=False):
            lost: Connection | None = None
            try:
                with self._lock:
                    work = state.next_block()
                if work is not None:
                    block, carrier = work
                    # Those of a chunk are made now.
                    buffers = block.buffers or block.encoded()
                    if self.cipher is not None:
                        buffers = encrypted_block(buffers, self.cipher)
                    packet = self._packets.encode(buffers, waits=waits)
                    if not self._link.send(packet, only_on=carrier, waits=waits):
                        lost = carrier
            finally:
                role.release()
            # On a carrier that stands by now, whoever opened on it found the role taken.
            if not state.has_work() or (lost is not None and state.carrier is lost):
                return
