"""A client's lane on an event loop.

An asyncio client has it, and an actor that follows another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, cast

from pulsar_ray.errors import (
    AlreadyClosed,
    ConnectError,
    ForkedClient,
    ProtocolError,
    PulsarException,
    SessionLost,
)
from pulsar_ray.lane.address import LaneAddress
from pulsar_ray.lane.connection import Awaited, ConnectionHandler
from pulsar_ray.lane.handshake import HelloFields, LaneLimits, open_lane, parse_error
from pulsar_ray.lane.io_thread import IoThread
from pulsar_ray.session.packet import CARRIER_TYPES, ERROR, Buffer, PacketParser, total_bytes

CONNECT_DEADLINE_S = 5.0


class LoopConnection(asyncio.BufferedProtocol):
    """Hands packets over on the loop.

    `send` may be called from any thread and never blocks.
    """

    def __init__(
        self,
        address: LaneAddress,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        handler: ConnectionHandler,
        limits: LaneLimits,
    ) -> None:
        self.address = address
        self.kind = address.kind
        self._sock = sock
        self._write_lock = threading.Lock()
        self._loop = loop
        self._loop_thread = 0
        self._handler = handler
        self._parser = PacketParser(max_packet_bytes=limits.packet_bytes)
        # The loop asks the parser itself where to put what it receives.
        self.get_buffer = self._parser.get_buffer  # type: ignore[method-assign]
        self._transport: asyncio.Transport | None = None
        self._lost: PulsarException | None = None
        self._writes_at_once = False

    @classmethod
    def connect(
        cls,
        address: LaneAddress,
        hello: HelloFields,
        handler: ConnectionHandler,
        loop: asyncio.AbstractEventLoop,
    ) -> LoopConnection:
        """Connect and be let in.

        It blocks, so it must be called on another thread than the loop's.

        Raises as LaneConnection's.
        """
        limits = LaneLimits()
        sock, _ = open_lane(address, hello, limits)
        connection = cls(address, sock, loop, handler, limits)
        adopting = connection._adopt()
        try:
            asyncio.run_coroutine_threadsafe(adopting, loop).result(CONNECT_DEADLINE_S)
        except (RuntimeError, CancelledError, FutureTimeout):
            adopting.close()
            sock.close()
            raise ConnectError(f"{address}: the loop of this connection has ended or stands still") from None
        except BaseException:
            sock.close()
            raise
        IoThread.get().own(connection)
        return connection

    async def _adopt(self) -> None:
        sock = self._sock
        self._loop_thread = threading.get_ident()
        sock.setblocking(False)
        if sock.family == socket.AF_UNIX:
            await self._loop.create_unix_connection(lambda: self, sock=sock)
        else:
            await self._loop.create_connection(lambda: self, sock=sock)

    @property
    def is_lost(self) -> bool:
        """True once the connection cannot be used any more."""
        return self._lost is not None

    def send(self, buffers: Sequence[Buffer], *, waits: bool = False) -> None:
        """Queue whole packets. Raises the error the connection was lost with. `waits` makes no difference."""
        if self._lost is not None:
            raise self._lost.again()
        if self._writes_at_once:
            self._write_directly(buffers)
        elif threading.get_ident() == self._loop_thread:
            self._write(buffers)
        else:
            self._loop.call_soon_threadsafe(self._write, buffers)

    def _write(self, buffers: Sequence[Buffer]) -> None:
        with self._write_lock:
            if self._transport is not None:
                self._transport.writelines(buffers)

    def room(self, length: int) -> memoryview | None:
        """None: what a loop writes is copied into its transport at most."""
        return None

    def keep_alive(self, packet: bytes) -> None:
        """Write a small packet even while the loop stands still.

        It may overtake packets that other threads queued.

        The session of a program that computes on its loop for minutes must not end. From any thread.
        """
        self._write_directly([packet])

    def write_at_once(self) -> None:
        """Write in the thread that sends, from now on, if the loop runs no more."""
        self._writes_at_once = not self._loop.is_running()

    def _write_directly(self, buffers: Sequence[Buffer]) -> None:
        with self._write_lock:
            transport = self._transport
            # Bytes that are queued will soon show that this process lives; and a packet of which a part
            # was written must not be interrupted.
            if self._lost is not None or transport is None or transport.get_write_buffer_size():
                return
            try:
                written = self._sock.sendmsg(buffers, (), socket.MSG_DONTWAIT)
            except OSError:  # full, or lost: the loop finds out
                return
        if written != total_bytes(buffers):
            self._lose(SessionLost("a packet could be written only in part"))

    @property
    def has_unread(self) -> bool:
        """Whether bytes arrived that the loop has not read yet.

        The peer is not silent then.
        """
        with contextlib.suppress(OSError, ValueError):
            poll = select.poll()
            poll.register(self._sock.fileno(), select.POLLIN)
            return bool(poll.poll(0))
        return False

    def abandon(self) -> None:
        """Let go of the socket in a forked child.

        The parent goes on with it, so nothing may be done to it here.
        """
        self._lost = ForkedClient("this connection belongs to the parent process")
        fd = self._sock.detach()
        if fd >= 0:
            os.close(fd)

    def wait(self, awaited: Awaited, deadline: float) -> bool:
        """Nobody reads here but the loop: `awaited` is left to its own waiting."""
        return awaited.is_set()

    def close(self) -> None:
        """Close; `on_lost` is not called."""
        if self._lost is None:
            self._lost = AlreadyClosed("the connection was closed by its owner")
            self._end()

    def _end(self) -> None:
        IoThread.get().disown(self)
        try:
            self._loop.call_soon_threadsafe(self._close_transport)
        except RuntimeError:  # the loop is closed, and will not close its sockets
            self._sock.close()
            self._transport = None
            self._parser.close()

    def _close_transport(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            packets = self._parser.received(nbytes)
            last = packets[-1] if packets else None
            if last is not None and last.type in CARRIER_TYPES:
                packets.pop()
            if packets and self._lost is None:
                handler: Any = self._handler
                handler.on_packets(self, packets)
            if last is not None and last.type == ERROR:
                raise parse_error(last)
            if last is not None and last.type in CARRIER_TYPES:
                raise ProtocolError(f"packet of type {last.type} on an open lane")
        except PulsarException as error:
            self._lose(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._parser.close()
        self._lose(SessionLost(f"{self.address} closed the connection"))

    def _lose(self, error: PulsarException) -> None:
        if self._lost is not None:
            return
        self._lost = error.again()
        self._end()
        handler: Any = self._handler
        handler.on_lost(self, error)
