"""A client's lane for threads that block.

Callers write it in their own thread, and read it while they wait.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pulsar_ray.errors import (
    AlreadyClosed,
    ForkedClient,
    ProtocolError,
    PulsarException,
    SessionLost,
)
from pulsar_ray.lane.address import LaneAddress, UnixAddress, set_kernel_timeout
from pulsar_ray.lane.handshake import HelloFields, LaneLimits, open_lane, parse_error
from pulsar_ray.lane.io_thread import IoInterest, IoThread
from pulsar_ray.lane.lane_writer import LaneWriter
from pulsar_ray.lane.shared_memory import MIN_SHARED_BYTES, MemoryLender
from pulsar_ray.session.packet import CARRIER_TYPES, ERROR, Buffer, Packet, PacketParser, total_bytes

logger = logging.getLogger(__name__)

_WAIT_SLICE_S = 0.1
"""Interval at which a waiting caller looks for a loss or an event.

Neither the loss nor the event brings a packet.
"""
_READS_PER_TURN = 8
_HANGS_UP = select.EPOLLHUP | select.EPOLLRDHUP | select.EPOLLERR
_never = bool  # what it says when called


class ConnectionHandler(Protocol):
    """The session's side of a connection.

    `on_packets` comes under the reader role: from the I/O thread or a thread inside `wait`, never from two
    at once, and must not wait for anything another thread may hold across `send` or `wait`. A
    PulsarException it raises ends the connection.
    """

    def on_packets(self, connection: LaneConnection, packets: list[Packet]) -> None:
        """All packets one read completed, in order."""

    def on_lost(self, connection: LaneConnection, error: PulsarException) -> None:
        """The connection is lost: called once, on the I/O thread, after the last `on_packets`.

        Not at all if `close` came first.

        Packets written before may or may not have arrived.
        """


class Awaited(Protocol):
    """An event that `wait` can wait for.

    A `threading.Event` or anything like it, set by the handler.
    """

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class LaneConnection:
    """One connection of a client process to an actor, shared by its threads.

    Exactly one thread at a time reads: a caller inside `wait` if there is one, otherwise the I/O thread. It
    hands packets to the handler for everybody, and never blocks on writing, so that a peer which writes
    never finds nobody reading.

    While `is_quiet` returns True nothing will come, and the I/O thread does not look again behind a caller's
    wait.
    """

    def __init__(
        self,
        address: LaneAddress,
        sock: socket.socket,
        welcome: tuple[Any, ...],
        handler: ConnectionHandler,
        limits: LaneLimits,
        io: IoThread,
        is_quiet: Callable[[], bool] | None = None,
    ) -> None:
        self.address = address
        self.kind = address.kind
        self.welcome = welcome
        """The fields of the server's welcome."""
        self._sock = sock
        self._fd = sock.fileno()
        self._handler = handler
        self._io = io
        self._parser = PacketParser(max_packet_bytes=limits.packet_bytes)
        self._lost: PulsarException | None = None
        self._tells_loss = False
        # Taken for short whiles only; the one lock that may be taken while holding any other.
        self._state_lock = threading.Lock()
        self._reader_role = threading.Lock()
        self._reader_ident: int | None = 0
        self._is_quiet = is_quiet or _never
        self._interest = IoInterest(io, self._fd)
        self._is_dispatching = False
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._outgoing = LaneWriter(sock, limits, io, self._want_write, self.lose)
        self._lending = MemoryLender() if isinstance(address, UnixAddress) else None

    @classmethod
    def connect(
        cls,
        address: LaneAddress,
        hello: HelloFields,
        handler: ConnectionHandler,
        *,
        limits: LaneLimits | None = None,
        io: IoThread | None = None,
        is_quiet: Callable[[], bool] | None = None,
    ) -> LaneConnection:
        """Connect and be let in, within `limits.connect_s` and `limits.hello_s`; blocks.

        Raises ConnectError when nobody is there or answers, the server's error when it refuses,
        ProtocolError when it is no lane server. All of them mean: attach again.
        """
        limits = limits or LaneLimits()
        io = io or IoThread.get()
        sock, welcome = open_lane(address, hello, limits)
        set_kernel_timeout(sock, socket.SO_RCVTIMEO, _WAIT_SLICE_S)
        connection = cls(address, sock, welcome, handler, limits, io, is_quiet)
        io.own(connection)
        connection._interest.start(connection)
        return connection

    @property
    def is_lost(self) -> bool:
        """True once the connection cannot be used any more, for whatever reason."""
        return self._lost is not None

    @property
    def unsent_bytes(self) -> int:
        """Bytes accepted from threads that must not block, which the kernel has not taken yet."""
        return self._outgoing.unsent_bytes

    def send(self, buffers: Sequence[Buffer], *, waits: bool = False) -> None:
        """Write one or more whole packets; from any thread, packets of different calls never mix.

        Blocks while the peer is not reading, at most `limits.write_s`, except on the I/O thread and in
        `on_packets`, where what the kernel does not take is queued; what is sent in `on_packets` is written
        together at its end. Buffers must not change while `unsent_bytes` is not 0. Success says nothing about
        arrival. Raises the error the connection was lost with; whatever interrupts a write loses it.
        With `waits` no thread is told to read.
        """
        lost = self._lost
        if lost is not None:
            raise lost.again()
        if self._lending is not None and total_bytes(buffers) >= MIN_SHARED_BYTES:
            buffers = self._lending.shortened(buffers)
        ident = threading.get_ident()
        try:
            if ident == self._reader_ident and self._is_dispatching:
                self._outgoing.hold(buffers)
            elif ident in (self._reader_ident, self._io.ident):
                self._outgoing.queue(buffers)
            else:
                self._outgoing.write(buffers)
        finally:
            if self._lost is not None:
                self._close_if_idle()
        if not waits and not self._interest.is_armed:
            self._interest.apply()

    def wait(self, awaited: Awaited, deadline: float) -> bool:
        """Wait until `awaited` is set, reading the connection meanwhile if nobody else does.

        True when it is set; False at `deadline` (of `time.monotonic()`) or once the connection is lost. Never
        to be called from the handler. Every caller that sends with `waits` calls it, set or not.
        """
        try:
            while not awaited.is_set():
                may_read = self._lost is None and self._reader_role.acquire(blocking=False)
                if may_read and self._read_until(awaited, deadline):
                    break
                remaining = deadline - time.monotonic()
                if self._lost is not None or remaining <= 0:
                    return awaited.is_set()
                if not may_read:
                    awaited.wait(min(remaining, _WAIT_SLICE_S))
            return True
        finally:
            # Behind the last look at the socket: a sender that comes meanwhile is seen, or sees that nobody
            # reads.
            if not self._interest.is_armed and not self._is_quiet():
                self._interest.apply()

    def room(self, length: int) -> memoryview | None:
        """Memory for so much of a later packet, which then need not be copied.

        None if there is none.
        """
        return None if self._lending is None else self._lending.room(length)

    has_unread = False
    """Read until nothing that arrived is left, in any thread that has the time."""

    def keep_alive(self, packet: bytes) -> None:
        """Write a small packet that shows that this process lives.

        On the I/O thread.
        """
        self.send([packet])

    def write_at_once(self) -> None:
        """Do nothing: the I/O thread writes as long as the process lives."""

    def close(self) -> None:
        """Write what is queued if the kernel takes it, and close; `on_lost` is not called.

        Repeating it is harmless.
        """
        if self._lost is None:
            self._outgoing.flush()
            self.lose(AlreadyClosed("the connection was closed by its owner"), tells=False)

    def lose(self, error: PulsarException, *, tells: bool = True) -> None:
        """End the connection because of `error`; only the first call has an effect.

        From any thread.
        """
        with self._state_lock:
            if self._lost is not None:
                return
            self._lost = error.again()
            self._interest.end()
            try:
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes whoever reads or writes
            except OSError:  # the peer was quicker
                pass
            self._tells_loss = tells
        self._io.call_soon(self._close_if_idle)

    def on_events(self, mask: int) -> None:
        """Read or write, because the socket is ready; called by the I/O thread."""
        interest = self._interest
        interest.reported(mask)
        if mask & select.EPOLLOUT:
            self._outgoing.flush_writable()
            interest.apply()
        if mask & ~select.EPOLLOUT and self._reader_role.acquire(blocking=False):
            self._reader_ident = self._io.ident
            try:
                for _ in range(_READS_PER_TURN):
                    if self._lost is not None or not self._read(socket.MSG_DONTWAIT):
                        break
            finally:
                self._release_reader_role()
            if not interest.is_armed:  # somebody may wait for what this thread was to read
                interest.apply()
        elif mask & _HANGS_UP:
            self._is_quiet = _never  # the caller that reads may leave before the end, or has just left
            self._leave_to_caller()
        elif mask & select.EPOLLIN:
            self._leave_to_caller()

    def _leave_to_caller(self) -> None:
        """Leave reading to a caller, which has the reader role.

        It may be a while until the caller reads, or gives the role back.
        """
        self._interest.look_away()
        # Behind that: a caller that gives the role back later sees that nobody looks, one that did before is
        # seen here.
        if self._reader_role.acquire(blocking=False):
            self._release_reader_role()
            self._interest.apply()

    def abandon(self) -> None:
        """Let go of the socket in a forked child.

        The parent goes on with it, so nothing may be done to it here.
        """
        self._lost = ForkedClient("this connection belongs to the parent process")
        fd = self._sock.detach()
        if fd >= 0:
            os.close(fd)
        if self._lending is not None:
            self._lending.abandon()

    def _read_until(self, awaited: Awaited, deadline: float) -> bool:
        """Read in this thread, which has the reader role, and give the role back.

        Returns whether `awaited` is set.
        """
        self._reader_ident = threading.get_ident()
        self._interest.caller_reads = True
        try:
            self._interest.apply()
            while not (is_set := awaited.is_set()) and self._lost is None:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                # The socket's own timeout saves a system call but is a fixed one: too long at the end.
                if remaining > _WAIT_SLICE_S or self._poll.poll(remaining * 1000):
                    self._read(0)
        except BaseException:
            self.lose(SessionLost("interrupted while a packet was being read"))
            raise
        finally:
            self._interest.caller_reads = False
            self._release_reader_role()
        return is_set

    def _release_reader_role(self) -> None:
        self._reader_ident = 0
        self._reader_role.release()
        if self._lost is not None:
            self._close_if_idle()

    def _read(self, flags: int) -> bool:
        """Receive once and hand out the packets that this completed.

        True if there may be more to receive.
        """
        try:
            buffer = self._parser.get_buffer()
            count = self._sock.recv_into(buffer, 0, flags)
            if count == 0:
                self.lose(SessionLost(f"{self.address} closed the connection"))
                return False
            packets = self._parser.received(count)
            if packets:
                self._dispatch(packets)
        except BlockingIOError:
            return False
        except PulsarException as error:
            self.lose(error)
            return False
        except OSError as error:
            self.lose(SessionLost(f"{self.address}: {error.strerror or error}"))
            return False
        return count == buffer.nbytes

    def _dispatch(self, packets: list[Packet]) -> None:
        last = packets[-1]
        if last.type in CARRIER_TYPES:
            packets.pop()
        if packets:
            self._is_dispatching = True
            try:
                self._handler.on_packets(self, packets)
            except PulsarException:
                raise
            except Exception as error:
                logger.exception("a packet could not be handled")
                raise ProtocolError(f"a packet could not be handled: {error!r}") from error
            finally:
                self._is_dispatching = False
                if self._outgoing.held_bytes:
                    self._outgoing.flush_held()
        if last.type == ERROR:
            raise parse_error(last)
        if last.type in CARRIER_TYPES:
            raise ProtocolError(f"packet of type {last.type} on an open lane")

    def _want_write(self, wanted: bool) -> None:
        interest = self._interest
        if wanted != interest.wants_write:
            interest.wants_write = wanted
            interest.apply()

    def _close_if_idle(self) -> None:
        """Close the lost socket unless a thread is still in it.

        That thread will come here too.
        """
        if not self._reader_role.acquire(blocking=False):
            return
        try:
            # `lose` sets the loss before it has unregistered the descriptor, whose number is free once it
            # is closed.
            with self._state_lock:
                if not self._outgoing.close_if_idle():
                    return
                self._parser.close()
            self._io.disown(self)
            if self._lending is not None:
                self._lending.close()
            tells, self._tells_loss = self._tells_loss, False
        finally:
            self._reader_role.release()
        if tells:
            self._io.call_soon(self._tell_loss)

    def _tell_loss(self) -> None:
        assert self._lost is not None
        self._handler.on_lost(self, self._lost)
