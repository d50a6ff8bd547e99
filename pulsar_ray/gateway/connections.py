"""Bounds the connections of the gateway, and how long each may take."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from pulsar_ray.broker.serving.logs.line_limits import audit
from pulsar_ray.gateway.body_room import BodyRoom
from pulsar_ray.gateway.replies import Handler, Refusal, refused
from pulsar_ray.lane.waiting import within

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware

logger = logging.getLogger(__name__)

CONNECTIONS = 2000
HEAD_S = 15.0
"""How long a request may take to arrive, up to its body."""
BODY_S = 60.0
KEEP_ALIVE_S = 60.0
PAUSE_S = 1.0
"""So long nobody is let in where the process has no more descriptors."""
_NAMED = 500
"""So much of what was no request is in its refusal."""


class JsonRefusals(web.RequestHandler):
    """Answers what is no request of HTTP as all else is refused."""

    def __init__(self, server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self.lost: Callable[[], None] = _nothing
        """Is called when the connection has ended."""

    def connection_lost(self, exc: BaseException | None) -> None:
        """See web.RequestHandler."""
        super().connection_lost(exc)
        self.lost()

    def log_exception(self, *args: Any, **named: Any) -> None:
        """See web.RequestHandler.

        Bytes that are no request are not logged: anybody who reaches the address could fill the disk.
        """
        if not isinstance(named.get("exc_info"), HttpProcessingError):
            super().log_exception(*args, **named)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """See web.RequestHandler."""
        super().handle_error(request, status, exc, message)
        answer = refused((message or "this is no request of HTTP")[:_NAMED], status)
        answer.force_close()
        return answer


def _nothing() -> None:
    pass


class Connections:
    """Accepts the connections to a server.

    A connection beyond the limit is closed at once, and one that ends no handshake in time, begins no
    request, or takes its answer too slowly. So whoever sends or reads a byte now and then holds nothing for
    long.
    """

    def __init__(self, *, most: int = CONNECTIONS, head_s: float = HEAD_S, body_s: float = BODY_S) -> None:
        self._server: web.Server | None = None
        self._protocol: Callable[..., JsonRefusals] = JsonRefusals
        self._room = BodyRoom()
        self._most = most
        self._head_s = head_s
        self._body_s = body_s
        self._deadlines: dict[asyncio.BaseTransport, asyncio.TimerHandle] = {}
        self._doors: dict[socket.socket, asyncio.Task[None]] = {}
        self._entering: set[asyncio.Task[None]] = set()
        self._entrances: set[_Entrance] = set()
        """Of connections that have not ended their handshake."""

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None) -> tuple[str, int]:
        """Accept connections, and return the first address. Raises OSError where one is taken.

        Connections are accepted here, not by the loop's server: that would count none before its handshake
        has ended.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                door = socket.create_server(address[:2], family=family, backlog=self._most)
                door.setblocking(False)
                self._doors[door] = loop.create_task(self._accept(door, context))
        except OSError:
            self.close()
            raise
        bound = next(iter(self._doors)).getsockname()
        return bound[0], bound[1]

    async def _accept(self, door: socket.socket, context: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(door)
            except OSError as error:
                logger.warning("no connection can be accepted for %g s: %s", PAUSE_S, error)
                await asyncio.sleep(PAUSE_S)
                continue
            if self._server is None or len(self._server.connections) + len(self._entrances) >= self._most:
                accepted.close()
                continue
            entrance = _Entrance(self)
            self._entrances.add(entrance)
            entering = loop.create_task(self._let_in(entrance, accepted, context))
            self._entering.add(entering)
            entering.add_done_callback(self._entering.discard)

    async def _let_in(
        self, entrance: _Entrance, accepted: socket.socket, context: ssl.SSLContext | None
    ) -> None:
        handshake_s = None if context is None else self._head_s
        try:
            address = accepted.getpeername()[0]
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: entrance, accepted, ssl=context, ssl_handshake_timeout=handshake_s
            )
        except ssl.SSLError as error:
            # The client itself sees only that its connection has ended.
            if reason := _certificate_problem(error):
                audit("%r at %s: TLS handshake refused: %s", "", address, reason)
        except (OSError, asyncio.TimeoutError):
            # Such as those of a handshake that the other side leaves, or that takes too long.
            pass
        finally:
            self._entrances.discard(entrance)

    def open(self, server: web.Server, protocol: Callable[..., JsonRefusals]) -> None:
        """Let connections in from now on, and none before; `protocol` is what speaks on each."""
        self._server, self._protocol = server, protocol

    def close(self) -> None:
        """Let nobody in any more; those who are in may go on."""
        self._server = None
        for task in (*self._doors.values(), *self._entering):
            task.cancel()
        for door in self._doors:
            door.close()
        self._doors.clear()

    def enter(self, entrance: _Entrance, transport: asyncio.Transport) -> None:
        """Let a connection speak, unless all are to end."""
        self._entrances.discard(entrance)
        if self._server is None:
            transport.abort()
            return
        protocol = self._protocol(self._server)
        protocol.lost = functools.partial(self._settle, transport)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        self._wait(transport, self._head_s)

    def _wait(self, transport: asyncio.Transport, within_s: float) -> None:
        self._settle(transport)
        loop = asyncio.get_running_loop()
        self._deadlines[transport] = loop.call_later(within_s, self._end, transport)

    def _settle(self, transport: asyncio.Transport) -> None:
        if (deadline := self._deadlines.pop(transport, None)) is not None:
            deadline.cancel()

    def _end(self, transport: asyncio.Transport) -> None:
        self._deadlines.pop(transport, None)
        transport.abort()

    def timed(self) -> Middleware:
        """Return the step that notes when requests begin and end, as the first."""

        @web.middleware
        async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
            transport = request.transport
            if transport is None:
                return await handler(request)
            self._settle(transport)
            try:
                return await handler(request)
            finally:
                # Else it has ended, and nothing is to be waited for.
                if request.transport is not None:
                    self._wait(transport, KEEP_ALIVE_S + self._head_s)

        return note

    def whole_bodies(self) -> Middleware:
        """Return the step that reads bodies, of those who may send them, as the last."""

        @web.middleware
        async def read(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.can_read_body:
                coding = request.headers.get("Content-Encoding", "identity")
                if coding.lower() != "identity":
                    raise Refusal(415, f"Content-Encoding: {coding[:50]}: send bodies as they are")
                return await self._read_in_turn(request, handler)
            return await handler(request)

        return read

    async def _read_in_turn(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        asked = request.content_length
        try:
            size = await self._room.take(request.client_max_size if asked is None else asked, self._body_s)
        except asyncio.TimeoutError:
            raise Refusal(503, "too many large bodies are under way: try again") from None
        try:
            try:
                await within(request.read(), self._body_s)
            except asyncio.TimeoutError:
                raise Refusal(408, f"the body did not arrive within {self._body_s:g} s") from None
            return await handler(request)
        finally:
            self._room.give_back(size)


def _certificate_problem(error: ssl.SSLError) -> str:
    """Return why a client's certificate was refused, "" for what else ends handshakes."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return "no certificate" if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE" else ""


class _Entrance(asyncio.Protocol):
    """Stands for a connection until it is let in."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        # Not asked for by its class: that of uvloop is none of asyncio's.
        self._connections.enter(self, cast("asyncio.Transport", transport))
