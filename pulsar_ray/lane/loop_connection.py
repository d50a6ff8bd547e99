"""A client's lane that lives on an event loop: for actors that follow actors, whose state that loop owns."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, cast

from pulsar_ray.errors import (
    AlreadyClosed,
    ConnectError,
    ProtocolError,
    PulsarException,
    SessionLost,
    error_from,
)
from pulsar_ray.lane.address import LaneAddress
from pulsar_ray.lane.connection import Awaited, ConnectionHandler
from pulsar_ray.lane.handshake import open_lane
from pulsar_ray.lane.hello import HelloFields, parse_error
from pulsar_ray.lane.limits import LaneLimits
from pulsar_ray.session.packet import CARRIER_TYPES, ERROR, Buffer, Packet, PacketParser

CONNECT_DEADLINE_S = 5.0


class LoopConnection(asyncio.BufferedProtocol):
    """Packets are handed over on the loop; `send` may be called from any thread and never blocks."""

    def __init__(
        self,
        address: LaneAddress,
        loop: asyncio.AbstractEventLoop,
        handler: ConnectionHandler,
        limits: LaneLimits,
    ) -> None:
        self.address = address
        self.kind = address.kind
        self._loop = loop
        self._loop_thread = 0
        self._handler = handler
        self._parser = PacketParser(max_packet_bytes=limits.packet_bytes)
        self._transport: asyncio.Transport | None = None
        self._lost: PulsarException | None = None

    @classmethod
    def connect(
        cls,
        address: LaneAddress,
        hello: HelloFields,
        handler: ConnectionHandler,
        loop: asyncio.AbstractEventLoop,
    ) -> LoopConnection:
        """Connect and be let in; blocks, so it must be called on another thread than the loop's.

        Raises as LaneConnection's.
        """
        limits = LaneLimits()
        sock, _ = open_lane(address, hello, limits)
        connection = cls(address, loop, handler, limits)
        adopting = connection._adopt(sock)
        try:
            asyncio.run_coroutine_threadsafe(adopting, loop).result(CONNECT_DEADLINE_S)
        except (RuntimeError, CancelledError, FutureTimeout):
            adopting.close()
            sock.close()
            raise ConnectError(f"{address}: the loop of this connection has ended or stands still") from None
        except BaseException:
            sock.close()
            raise
        return connection

    async def _adopt(self, sock: socket.socket) -> None:
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

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Queue whole packets. Raises the error the connection was lost with."""
        if self._lost is not None:
            raise error_from(type(self._lost).__name__, self._lost.text, self._lost.details)
        if threading.get_ident() == self._loop_thread:
            self._write(buffers)
        else:
            self._loop.call_soon_threadsafe(self._write, buffers)

    def _write(self, buffers: Sequence[Buffer]) -> None:
        if self._transport is not None:
            self._transport.writelines(buffers)

    def wait(self, awaited: Awaited, deadline: float) -> bool:
        """Nobody reads here but the loop: `awaited` is left to its own waiting."""
        return awaited.is_set()

    def close(self) -> None:
        """Close; `on_lost` is not called."""
        if self._lost is None:
            self._lost = AlreadyClosed("the connection was closed by its owner")
            with contextlib.suppress(RuntimeError):  # the loop has ended, and its sockets with it
                self._loop.call_soon_threadsafe(self._close_transport)

    def _close_transport(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._parser.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            packets = list(self._parser.received(nbytes))
            last = packets[-1] if packets else None
            if last is not None and last.type in CARRIER_TYPES:
                packets.pop()
            if packets and self._lost is None:
                self._handle(packets)
            if last is not None and last.type == ERROR:
                raise parse_error(last)
            if last is not None and last.type in CARRIER_TYPES:
                raise ProtocolError(f"packet of type {last.type} on an open lane")
        except PulsarException as error:
            self._lose(error)

    def _handle(self, packets: list[Packet]) -> None:
        handler: Any = self._handler
        handler.on_packets(self, packets)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lose(SessionLost(f"{self.address} closed the connection"))

    def _lose(self, error: PulsarException) -> None:
        if self._lost is not None:
            return
        self._lost = error
        self._close_transport()
        handler: Any = self._handler
        handler.on_lost(self, error)
