"""A lane server on a loop of its own thread, with a handler that echoes and remembers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import uvloop

from pulsar_ray.errors import PulsarException, SessionLost
from pulsar_ray.lane.address import TcpAddress, UnixAddress
from pulsar_ray.lane.connection import LaneConnection
from pulsar_ray.lane.handshake import TOKEN_BYTES, HelloFields, LaneLimits, SessionDecision
from pulsar_ray.lane.serving.server import LaneServer
from pulsar_ray.lane.serving.server_lane import ServerLane
from pulsar_ray.lane.waiting import Completion
from pulsar_ray.session.packet import Packet, encode_packet

T = TypeVar("T")

TOKEN = bytes(range(TOKEN_BYTES))
HELLO_FIELDS = HelloFields(1, 4711, TOKEN, 1)
ECHO = 20
SWALLOW = 21
FLOOD = 22
DEADLINE_S = 60.0


class Journal:
    """What happened, appended by any thread; a test waits for what it expects."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: list[Any] = []

    def add(self, event: Any) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def events(self) -> list[Any]:
        with self._changed:
            return list(self._events)

    def wait_for(self, condition: Callable[[list[Any]], bool]) -> list[Any]:
        """All events, as soon as they meet the condition."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self._events), DEADLINE_S), self._events
            return list(self._events)


class EchoHandler:
    """Sends ECHO packets back, drops SWALLOW ones, answers FLOOD (count, size) with that many packets."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def on_open(self, lane: ServerLane, hello: HelloFields) -> None:
        self.journal.add(("open", lane.kind, lane.session, hello.attachment_number))

    def on_packets(self, lane: ServerLane, packets: list[Packet]) -> None:
        for packet in packets:
            if packet.type == ECHO:
                lane.send(encode_packet(ECHO, packet.fields, [packet.body]))
            elif packet.type == FLOOD:
                for number in range(packet.fields[0]):
                    lane.send(encode_packet(FLOOD, (number,), [bytes(packet.fields[1])]))

    def on_closed(self, lane: ServerLane, peer_died: bool) -> None:
        self.journal.add(("closed", lane.kind, peer_died))


class ServerThread:
    """Context manager: the server runs inside it."""

    def __init__(
        self, directory: Path, limits: LaneLimits | None = None, handler: Any = None, **options: Any
    ) -> None:
        self.journal = Journal()
        self.loop = uvloop.new_event_loop()
        self.loop.set_exception_handler(lambda _, context: self.journal.add(("defect", context["message"])))
        self.server = LaneServer(
            self.loop,
            directory,
            node_address="127.0.0.1",
            token_check=self._check,
            handler=handler or EchoHandler(self.journal),
            limits=limits,
            **options,
        )
        self._thread = threading.Thread(target=self.loop.run_forever, name="lane-server", daemon=True)

    def __enter__(self) -> ServerThread:
        self._thread.start()
        self.unix: UnixAddress = self.run(self.server.start())
        self.tcp: TcpAddress = self.run(self.server.listen_tcp())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self.server.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        assert not [event for event in self.journal.events() if event[0] == "defect"]

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on the server's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(DEADLINE_S)

    def call(self, function: Callable[[], T]) -> T:
        """Call it on the server's loop and wait for the result."""

        async def called() -> T:
            return function()

        return self.run(called())

    def _check(self, hello: HelloFields) -> SessionDecision:
        if hello.token != TOKEN:
            raise SessionLost("session 4711 is not known here with that token: attach again")
        return SessionDecision("the session", (hello.session_id, "welcome"))


class Receiver:
    """A client's handler: packets and losses into a journal, completions set by their number."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.awaited: dict[int, Any] = {}

    def on_packets(self, connection: LaneConnection, packets: list[Packet]) -> None:
        for packet in packets:
            self.journal.add(packet)
            completion = self.awaited.pop(packet.fields[0], None)
            if completion is not None:
                completion.set()

    def on_lost(self, connection: LaneConnection, error: PulsarException) -> None:
        self.journal.add(error)

    def wait_lost(self) -> PulsarException:
        """The error the connection was lost with."""
        events = self.journal.wait_for(lambda events: any(isinstance(event, Exception) for event in events))
        errors = [event for event in events if isinstance(event, PulsarException)]
        assert len(errors) == 1
        return errors[0]


def soon() -> float:
    return time.monotonic() + DEADLINE_S


def echo(connection: LaneConnection, receiver: Receiver, number: int, body: bytes = b"") -> None:
    """One round trip in this thread."""
    done = receiver.awaited[number] = Completion()
    connection.send(encode_packet(ECHO, (number,), [body]), waits=True)
    assert connection.wait(done, soon())
