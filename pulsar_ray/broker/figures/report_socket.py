"""Where a node's actors report their figures: a Unix socket of its store.

Each report is four bytes of length and an `ActorReport`. Nothing waits for anything: a store that is away or
slow gets the next report, and an actor's end is the end of its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from pulsar_ray.broker.figures.actor_report import MAX_REPORT_BYTES, ActorReport
from pulsar_ray.broker.figures.node_figures import NodeFigures, check_names
from pulsar_ray.closed_places import make_closed_directory
from pulsar_ray.errors import PulsarException
from pulsar_ray.lane.address import check_listener, is_abandoned

logger = logging.getLogger(__name__)

FIRST_REPORT_S = 1.0
"""An actor's first report follows its start by no more than that."""
_LENGTH = struct.Struct("<I")
_PREFIX = "figures-"
_BEGINNING_S = 60.0
"""A socket that is younger may be one that is about to listen."""


def report_socket(directory: Path, node_id: str) -> Path:
    """Return where the store of a node listens.

    Nodes of one machine share the directory.
    """
    return directory / f"{_PREFIX}{node_id[:16]}"


class FigureReporter:
    """Sends an actor's figures to its node's store once a period.

    Runs on the actor's own loop; with no report to `gather` nothing is sent.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        socket: Path,
        period_s: float,
        gather: Callable[[], Awaitable[ActorReport | None]],
    ) -> None:
        self._loop = loop
        self._socket = socket
        self._period_s = period_s
        self._gather = gather
        self._transport: asyncio.WriteTransport | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._has_failed = False
        # Actors that start together do not report together.
        self._loop.call_later(min(FIRST_REPORT_S, period_s) * random.random(), self._report)

    def _report(self) -> None:
        self._loop.call_later(self._period_s, self._report)
        if self._reporting is None or self._reporting.done():
            self._reporting = self._loop.create_task(self._send())

    async def _send(self) -> None:
        try:
            report = await self._gather()
            if report is None:
                return
            if self._transport is None or self._transport.is_closing():
                self._transport = await self._connect()
            if not self._transport.get_write_buffer_size():
                packed = report.encode()
                self._transport.write(_LENGTH.pack(len(packed)) + packed)
        except (OSError, PulsarException) as error:
            logger.debug("the figures of this actor are not reported: %s", error)
        except Exception as error:
            # Of an actor that is closing, say: figures are no reason to end its process. It is logged once,
            # not every few seconds.
            level = logging.DEBUG if self._has_failed else logging.WARNING
            self._has_failed = True
            logger.log(level, "the figures of this actor are not reported: %r", error, exc_info=error)

    async def _connect(self) -> asyncio.WriteTransport:
        transport, _ = await self._loop.create_unix_connection(asyncio.Protocol, str(self._socket))
        try:
            check_listener(transport.get_extra_info("socket"), self._socket)
        except BaseException:
            transport.abort()
            raise
        return transport


async def serve_reports(figures: NodeFigures, socket: Path) -> asyncio.AbstractServer:
    """Take the reports of a node's actors from now on.

    A former process listens in vain then. Raises UntrustedPath if another user has the directory, OSError.
    """
    _make_room(socket)
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: _ReportProtocol(figures), str(socket))
    os.chmod(socket, 0o600)
    return server


def _make_room(socket: Path) -> None:
    """Remove the former socket, and those of nodes that are gone."""
    make_closed_directory(socket.parent)
    socket.unlink(missing_ok=True)
    for path in socket.parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.lstat().st_mtime > _BEGINNING_S and is_abandoned(path):
                path.unlink()


class _ReportProtocol(asyncio.Protocol):
    """One actor's connection; anything but a report of figures ends it."""

    def __init__(self, figures: NodeFigures) -> None:
        self._figures = figures
        self._received = bytearray()
        self._life: int | None = None
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            while len(self._received) >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._received)
                if length > MAX_REPORT_BYTES:
                    raise ValueError(f"a report of {length} bytes")
                end = _LENGTH.size + length
                if len(self._received) < end:
                    return
                report = ActorReport.decode(bytes(self._received[_LENGTH.size : end]))
                del self._received[:end]
                self._take(report)
        except ValueError as error:
            logger.warning("figures are not taken: %s", error)
            assert self._transport is not None
            self._transport.close()

    def _take(self, report: ActorReport) -> None:
        check_names(report)
        if self._life not in (None, report.life):
            raise ValueError("a report of another process on the same connection")
        self._life = report.life
        self._figures.reported(report)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._life is not None:
            self._figures.ended(self._life)
