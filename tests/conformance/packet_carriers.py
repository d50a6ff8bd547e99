"""Both ends of each carrier with nothing but an echo above them."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

from pulsar_ray.broker.serving.tunnel_carrier import TunnelCarrier
from pulsar_ray.errors import AlreadyClosed, NotConnected
from pulsar_ray.lane.connection import LaneConnection
from pulsar_ray.testing.lossy_tunnel import LOSSY, PERFECT, FateSource
from pulsar_ray.transport.cluster import AttachReply, Cluster
from pulsar_ray.transport.ray_connection import RayConnection
from tests.unit.lane.server_thread import HELLO_FIELDS, TOKEN, EchoHandler, Journal, Receiver, ServerThread

KINDS = ("socket", "tcp", "ray", "lossy")


class EchoLink(ABC):
    """A connection to an echo, and the power to cut it."""

    connection: LaneConnection | RayConnection

    def __init__(self) -> None:
        self.receiver = Receiver()

    @abstractmethod
    def cut(self) -> None:
        """End the carrier at the server's end, without a word to the client."""

    @abstractmethod
    def close(self) -> None:
        """End everything."""


class LaneLink(EchoLink):
    def __init__(self, directory: Path, kind: str) -> None:
        super().__init__()
        self._server = ServerThread(directory).__enter__()
        address = self._server.unix if kind == "socket" else self._server.tcp
        self.connection = LaneConnection.connect(address, HELLO_FIELDS, self.receiver)

    def cut(self) -> None:
        for lane in self._server.server.lanes:
            self._server.call(lane._abort)

    def close(self) -> None:
        self.connection.close()
        self._server.__exit__(None, None, None)


class TunnelLink(EchoLink):
    def __init__(self, kind: str, seed: int) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._echo = EchoHandler(Journal())
        self._carrier = TunnelCarrier(self._loop)
        self._fates = FateSource(LOSSY if kind == "lossy" else PERFECT, seed)
        self._late: list[threading.Timer] = []
        self._lock = threading.Lock()
        self._has_ended = False
        attached = AttachReply(4711, 1, TOKEN, 1, None, None, ("", ""), "", 1, {})
        self.connection = RayConnection(
            cast("Cluster", self), "the actor", attached, cast("Any", self.receiver), pushes=True
        )

    def exchange(self, *arguments: Any) -> Future[Any] | None:
        """As Cluster's: one call, with the fate drawn for it."""
        last_received, packets = arguments[-1]
        fate = self._fates.draw()
        future = None
        with self._lock:
            if self._has_ended:
                raise AlreadyClosed("the actor has ended")
            if fate.after_s == 0.0:
                for _ in range(fate.times):
                    future = self._call(last_received, packets)
            elif fate.after_s is not None:
                timer = threading.Timer(fate.after_s, self._call, (last_received, packets))
                timer.start()
                self._late.append(timer)
        return future if fate.has_reply else None

    def exchange_result(self, call: Future[Any] | None, timeout_s: float) -> Any:
        """As Cluster's."""
        if call is None:
            raise NotConnected("the call or its reply was lost")
        return call.result(timeout_s)

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._carrier.close)

    def close(self) -> None:
        self.connection.close()
        with self._lock:
            # A call that came later would wait for a loop that has stopped.
            self._has_ended = True
            late = list(self._late)
        for timer in late:
            timer.join()
        self._loop.call_soon_threadsafe(self._carrier.close)
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _finish(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    def _call(self, last_received: int, packets: Sequence[tuple[int, Any]]) -> Future[Any]:
        copies = [(number, bytes(packet)) for number, packet in packets]
        return asyncio.run_coroutine_threadsafe(
            self._carrier.exchange(
                last_received, copies, lambda fresh: self._echo.on_packets(cast("Any", self._carrier), fresh)
            ),
            self._loop,
        )
