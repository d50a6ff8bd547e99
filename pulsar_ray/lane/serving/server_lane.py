"""One accepted connection: hello, packets in, buffers out, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from pulsar_ray.errors import ProtocolError, PulsarException, Timeout
from pulsar_ray.format.block_memory import BlockMemory
from pulsar_ray.lane.address import PeerCredentials, PeerWatch, is_stopped
from pulsar_ray.lane.handshake import (
    HelloFields,
    LaneLimits,
    SessionDecision,
    encode_error,
    encode_welcome,
    parse_hello,
)
from pulsar_ray.lane.shared_memory import IN_MEMORY, BorrowedMemory
from pulsar_ray.session.packet import Buffer, Packet, PacketParser, total_bytes


class ReadableLane(Protocol):
    """A lane whose reading the budget turns on and off."""

    def allow_reading(self, allowed: bool) -> None:
        """Read, or leave the bytes in the socket until reading is allowed again."""


class ReceiveBudget:
    """Bounds bytes in flight by not reading, never by dropping.

    Two kinds count: *retained* bytes, which the owner keeps until a commit, and *buffered* ones of large
    packets that are still incomplete. Retained bytes are released by progress elsewhere, so lanes simply wait
    for it. Buffered ones only go away by reading on: when they alone exceed the limit, the lane that began
    first goes on, or all would wait for each other. Lanes with small packets are not held up by others' large
    ones.
    """

    def __init__(self, limit_bytes: int, lane_limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._lane_limit = lane_limit_bytes
        self._retained: dict[ReadableLane, int] = {}
        self._buffered: dict[ReadableLane, int] = {}
        self._paused: dict[ReadableLane, None] = {}
        self.retained_bytes = 0
        self.buffered_bytes = 0

    def retain(self, lane: ReadableLane, count: int) -> None:
        """The owner keeps `count` bytes that came over this lane."""
        retained = self._retained[lane] = self._retained.get(lane, 0) + count
        self.retained_bytes += count
        if retained > self._lane_limit or self.retained_bytes + self.buffered_bytes > self._limit:
            self._apply(lane)

    def release(self, lane: ReadableLane, count: int) -> None:
        """The owner let go of `count` retained bytes; harmless for a lane that was forgotten."""
        retained = self._retained.get(lane, 0)
        if retained == 0:
            return
        if count >= retained:
            count = retained
            del self._retained[lane]
        else:
            self._retained[lane] = retained - count
        self.retained_bytes -= count
        if self._paused:
            self._resume()

    def set_buffered(self, lane: ReadableLane, count: int) -> None:
        """The lane's incomplete large packet takes `count` bytes now, 0 when it has none."""
        before = self._buffered.get(lane, 0)
        if count == before:
            return
        self.buffered_bytes += count - before
        if count:
            self._buffered[lane] = count
        else:
            del self._buffered[lane]
            self._resume()
        self._apply(lane)

    def forget(self, lane: ReadableLane) -> None:
        """The lane is gone and its incomplete packet with it;

        what the owner retains counts until released.
        """
        self.buffered_bytes -= self._buffered.pop(lane, 0)
        self._paused.pop(lane, None)
        self._resume()

    def may_read(self, lane: ReadableLane) -> bool:
        """Whether this lane may read on as things stand."""
        if self.retained_bytes > self._limit or self._retained.get(lane, 0) > self._lane_limit:
            return False
        if lane not in self._buffered or self.retained_bytes + self.buffered_bytes <= self._limit:
            return True
        return next(iter(self._buffered)) is lane

    def _apply(self, lane: ReadableLane) -> None:
        if not self.may_read(lane) and lane not in self._paused:
            self._paused[lane] = None
            lane.allow_reading(False)

    def _resume(self) -> None:
        for lane in list(self._paused):
            if self.may_read(lane):
                del self._paused[lane]
                lane.allow_reading(True)


class DrainSignal:
    """Wakes all that wait when a carrier has drained or ended."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Wait for the next `fire`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def fire(self) -> None:
        """Wake all that wait now."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


class LaneHandler(Protocol):
    """The owner's side of its lanes.

    Every call comes on the owner loop and must not block.

    A PulsarException raised by `on_open` or `on_packets` closes that lane with it. Any other exception is a
    defect and goes to the loop's exception handler.
    """

    def on_open(self, lane: ServerLane, hello: HelloFields) -> None:
        """A client was let in and sent a welcome.

        `lane.session` is what the token check answered.
        """

    def on_packets(self, lane: ServerLane, packets: list[Packet]) -> None:
        """All packets one read completed, in order.

        More lanes may follow in the same turn of the loop: to gather them all, schedule the commit with
        `loop.call_soon`. Bodies may be kept; keeping them beyond this turn is to be counted with
        `lane.retain` and `lane.release`.
        """

    def on_closed(self, lane: ServerLane, peer_died: bool) -> None:
        """The lane is closed: called once for each `on_open`.

        `peer_died`: its process is gone, else only the connection is known to be.
        """


class LaneHost(Protocol):
    """The server that accepted a lane.

    It holds what all its lanes share, and each lane reports to it.
    """

    loop: asyncio.AbstractEventLoop
    limits: LaneLimits
    budget: ReceiveBudget
    staging: bytearray
    memory: BlockMemory
    is_closing: bool

    @property
    def token_check(self) -> Callable[[HelloFields], SessionDecision]:
        """Answers with the session, or raises the PulsarException to refuse with."""

    def watch_deadlines(self) -> None:
        """A lane has a deadline running: look at all of them until none has."""

    def lane_opened(self, lane: ServerLane) -> None:
        """The lane is connected."""

    def lane_proven(self, lane: ServerLane) -> None:
        """The lane's client has shown its token."""

    def lane_ended(self, lane: ServerLane) -> None:
        """The connection is gone, and so is the question what became of its peer."""


class ServerLane(asyncio.BufferedProtocol):
    """A client's lane at the actor; `peer` is known of a Unix socket.

    All of it runs on the owner loop; nothing blocks or raises after the end.
    """

    def __init__(
        self, server: LaneHost, handler: LaneHandler, kind: str, peer: PeerCredentials | None
    ) -> None:
        self.kind = kind
        """'socket' or 'tcp'."""
        self.session: Any = None
        self.peer_pid: int | None = None
        """Of a client on the same node whose process can be seen."""
        self._server = server
        self._peer = peer
        self._budget = server.budget
        self._handler = handler
        self._limits = server.limits
        self._loop = server.loop
        self._parser = PacketParser(server.staging, server.limits.hello_bytes, server.memory)
        # The loop asks the parser itself where to put what it receives.
        self.get_buffer = self._parser.get_buffer  # type: ignore[method-assign]
        self._borrowed: BorrowedMemory | None = None
        self._transport: asyncio.Transport | None = None
        self._watch: PeerWatch | None = None
        self._is_open = False
        self._is_closing = False
        self._peer_died = False
        self._may_read = True
        self._is_held = False
        self._is_writable = True
        self._is_reading = True
        self._drain = DrainSignal()
        self._incomplete_since: float | None = None
        # Both count from the moment at which the lane was not writable any more.
        self._queued_bytes = 0
        self._taken_bytes = 0
        self._taken_at = 0.0
        self._abort_timer: asyncio.TimerHandle | None = None
        self._end_timer: asyncio.TimerHandle | None = None

    # Called by the owner.

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue a packet's buffers, which must not change until written.

        They are dropped when the lane is closing.

        The owner bounds what it queues by `unsent_bytes`: a lane with more than `limits.unsent_bytes` is
        closed.
        """
        transport = self._transport
        if transport is None or self._is_closing:
            return
        if not self._is_writable:
            self._queued_bytes += total_bytes(buffers)
        transport.writelines(buffers)
        if transport.get_write_buffer_size() > self._limits.unsent_bytes:
            self._abort()

    @property
    def is_peer_stopped(self) -> bool:
        """Whether the peer's process is stopped, as far as it can be seen from here."""
        is_alive = self._watch is not None and self._watch.is_watching
        return is_alive and self.peer_pid is not None and is_stopped(self.peer_pid)

    @property
    def unsent_bytes(self) -> int:
        """Bytes queued that the kernel has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    async def drained(self) -> None:
        """Wait until a congested lane has drained to the low mark, or ended."""
        if not self._is_writable and self._transport is not None:
            await self._drain.wait()

    @property
    def is_open(self) -> bool:
        """True from the welcome until the lane begins to close."""
        return self._is_open and not self._is_closing

    def retain(self, count: int) -> None:
        """Count `count` received bytes as kept.

        Beyond the budget this lane, then all, are not read.
        """
        self._budget.retain(self, count)

    def release(self, count: int) -> None:
        """Give back retained bytes; also after the lane has closed."""
        self._budget.release(self, count)

    def hold_reading(self, *, held: bool) -> None:
        """Leave unread what the client sends, while `held`; packets of the same read still come."""
        self._is_held = held
        self._update_reading()

    def close(self, error: PulsarException | None = None) -> None:
        """Send the error, write what is queued within `limits.close_s`, and close. `on_closed` follows."""
        if self._end_timer is not None:
            # Only what became of the peer is still waited for.
            self._end()
        if self._transport is None and not self._is_closing:
            # Its connection is not made yet, and will find it closed.
            self._is_closing = True
        if self._transport is None or self._is_closing:
            return
        if error is not None:
            self._transport.writelines(encode_error(error))
        self._is_closing = True
        self._abort_timer = self._loop.call_later(self._limits.close_s, self._abort)
        self._transport.close()

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(self._limits.unsent_high_bytes, self._limits.unsent_low_bytes)
        self._incomplete_since = self._loop.time()
        self._server.lane_opened(self)
        if self._is_closing:  # newer ones took its place meanwhile
            self._transport.abort()

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closing:
            return
        try:
            packets = self._parser.received(nbytes)
            buffered = self._parser.buffered_bytes
            if buffered or self._incomplete_since is not None:
                self._after_read(buffered, bool(packets))
            if not packets:
                return
            if self._is_open:
                if self._borrowed is not None:
                    for packet in packets:
                        if packet.type <= IN_MEMORY:
                            packets = self._borrowed.taken_out(packets)
                            break
                if packets:
                    self._handler.on_packets(self, packets)
            else:
                self._greet(packets)
        except PulsarException as error:
            self.close(error)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_writable = False
        self._queued_bytes = self.unsent_bytes
        self._taken_bytes = 0
        self._taken_at = self._loop.time()
        self._server.watch_deadlines()
        self._update_reading()

    def resume_writing(self) -> None:
        self._is_writable = True
        self._update_reading()
        self._drain.fire()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._transport = None
        self._drain.fire()
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._budget.forget(self)
        self._borrowed = None
        is_death_known = self._peer_died or self._watch is None or not self._watch.is_watching
        if is_death_known or self._server.is_closing:
            self._end()
        else:
            self._end_timer = self._loop.call_later(self._limits.peer_death_s, self._end)

    # Called by the server.

    def allow_reading(self, allowed: bool) -> None:
        """The budget's decision on this lane."""
        self._may_read = allowed
        self._update_reading()

    def check_deadlines(self, now: float) -> bool:
        """Close the lane if its peer is too slow.

        True while there is something to watch.
        """
        if self._is_closing:
            return False
        if self._incomplete_since is not None and self._is_reading:
            limit = self._limits.packet_s if self._is_open else self._limits.hello_s
            if now - self._incomplete_since > limit:
                what = "packet" if self._is_open else "hello"
                self.close(Timeout(f"no complete {what} within {limit} s"))
                return False
        if not self._is_writable:
            taken = self._queued_bytes - self.unsent_bytes
            if taken != self._taken_bytes:
                self._taken_bytes, self._taken_at = taken, now
            elif now - self._taken_at > self._limits.write_s:
                self._abort()
                return False
        return self._incomplete_since is not None or not self._is_writable

    def _greet(self, packets: list[Packet]) -> None:
        if len(packets) > 1:
            raise ProtocolError("packets after the hello before it was answered")
        hello = parse_hello(packets[0])
        decision = self._server.token_check(hello)
        self._server.lane_proven(self)
        self._know_peer()
        self.session = decision.session
        self._parser.max_packet_bytes = self._limits.packet_bytes
        self._is_open = True
        self.send(encode_welcome(decision.welcome))
        self._handler.on_open(self, hello)

    def _know_peer(self) -> None:
        """Nothing is opened for a connection that has not shown its token."""
        peer = self._peer
        if peer is None:
            return
        self._watch = PeerWatch(self._loop, peer.pid, self._on_peer_death)
        if self._watch.is_watching:
            self.peer_pid = peer.pid
            self._borrowed = BorrowedMemory(peer.pid, peer.uid, self._server.memory)

    def _after_read(self, buffered: int, has_progressed: bool) -> None:
        self._budget.set_buffered(self, buffered if self._parser.receives_large else 0)
        if not self._is_open:
            return
        if not buffered:
            self._incomplete_since = None
        elif has_progressed or self._incomplete_since is None:
            self._incomplete_since = self._loop.time()
            self._server.watch_deadlines()

    def _update_reading(self) -> None:
        reading = self._may_read and self._is_writable and not self._is_held
        if reading == self._is_reading or self._transport is None or self._is_closing:
            return
        self._is_reading = reading
        if not reading:
            self._transport.pause_reading()
            return
        if self._incomplete_since is not None:
            # The peer is not to blame for the time in which nobody read.
            self._incomplete_since = self._loop.time()
        self._transport.resume_reading()

    def _on_peer_death(self) -> None:
        self._peer_died = True
        if self._end_timer is not None:
            self._end()
        elif self._transport is not None and self._abort_timer is None:
            # The bytes that it sent before it died are still read; then end of file comes, unless a forked
            # child keeps
            # it away.
            self._abort_timer = self._loop.call_later(self._limits.peer_death_s, self._abort)

    def _abort(self) -> None:
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        if self._end_timer is not None:
            self._end_timer.cancel()
            self._end_timer = None
        self._server.lane_ended(self)
        if self._watch is not None:
            self._watch.close()
        if self._is_open:
            self._is_open = False
            self._handler.on_closed(self, self._peer_died)
