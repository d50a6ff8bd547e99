"""A client's lane on an event loop, against a real server: its lock, its loop and other threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.errors import AlreadyClosed, ConnectError, PulsarException, SessionLost
from pulsar_ray.lane.loop_connection import LoopConnection
from pulsar_ray.lane.waiting import Completion
from pulsar_ray.session.packet import Packet, encode_packet
from pulsar_ray.testing.waiting import wait_until
from tests.unit.lane.server_thread import (
    DEADLINE_S,
    ECHO,
    FLOOD,
    HELLO_FIELDS,
    SWALLOW,
    Receiver,
    ServerThread,
)


async def _some_turns() -> None:
    """Transports that were closed are gone after that."""
    for _ in range(5):
        await asyncio.sleep(0)


class LoopThread:
    """A client's event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    @property
    def ident(self) -> int | None:
        return self._thread.ident

    def end(self) -> None:
        if not self.loop.is_closed():
            asyncio.run_coroutine_threadsafe(_some_turns(), self.loop).result(DEADLINE_S)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(DEADLINE_S)
            self.loop.close()


@pytest.fixture
def client() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.end()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path) as thread:
        yield thread


def ask(connection: LoopConnection, receiver: Receiver, number: int) -> None:
    done = receiver.awaited[number] = Completion()
    connection.send(encode_packet(ECHO, (number,)))
    assert done.wait(DEADLINE_S)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_packets_are_handed_over_on_the_loop_whatever_thread_sends(
    server: ServerThread, client: LoopThread, kind: str
) -> None:
    threads: set[int] = set()

    class Noting(Receiver):
        def on_packets(self, connection: Any, packets: list[Packet]) -> None:
            threads.add(threading.get_ident())
            super().on_packets(connection, packets)

    receiver = Noting()
    connection = LoopConnection.connect(getattr(server, kind), HELLO_FIELDS, receiver, client.loop)
    senders = [
        threading.Thread(target=ask, args=(connection, receiver, number), daemon=True) for number in range(8)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(DEADLINE_S)
    assert threads == {client.ident}
    connection.close()


def test_packets_of_one_thread_stay_in_order(server: ServerThread, client: LoopThread) -> None:
    receiver = Receiver()
    connection = LoopConnection.connect(server.unix, HELLO_FIELDS, receiver, client.loop)
    for number in range(200):
        connection.send(encode_packet(ECHO, (number,), [bytes(1000)]))
    events = receiver.journal.wait_for(lambda events: len(events) == 200)
    assert [packet.fields[0] for packet in events] == list(range(200))
    connection.close()


def test_a_loop_that_stands_still_keeps_its_session_alive(server: ServerThread, client: LoopThread) -> None:
    receiver = Receiver()
    connection = LoopConnection.connect(server.unix, HELLO_FIELDS, receiver, client.loop)
    may_go_on = threading.Event()
    client.loop.call_soon_threadsafe(may_go_on.wait, DEADLINE_S)
    connection.keep_alive(b"".join(encode_packet(ECHO, (1,))))
    wait_until(lambda: connection.has_unread)
    assert receiver.journal.events() == [], "the loop reads it, later"
    may_go_on.set()
    receiver.journal.wait_for(lambda events: len(events) == 1)
    connection.close()


def test_a_keep_alive_never_interrupts_a_packet_that_is_written_in_part(
    server: ServerThread, client: LoopThread
) -> None:
    receiver = Receiver()
    connection = LoopConnection.connect(server.unix, HELLO_FIELDS, receiver, client.loop)
    body = bytes(range(256)) * 16 * 1024
    done = receiver.awaited[3] = Completion()
    for number in range(4):
        connection.send(encode_packet(ECHO, (number,), [body]))
    while not done.wait(0.001):
        connection.keep_alive(b"".join(encode_packet(SWALLOW, (100,))))
    assert [packet.fields[0] for packet in receiver.journal.events()] == list(range(4))
    assert all(packet.body == body for packet in receiver.journal.events())
    assert not connection.is_lost
    connection.close()


def test_the_end_of_the_server_is_told_once_and_raised_from_then_on(
    server: ServerThread, client: LoopThread
) -> None:
    receiver = Receiver()
    connection = LoopConnection.connect(server.unix, HELLO_FIELDS, receiver, client.loop)
    server.run(server.server.close(SessionLost("the actor ends")))
    assert receiver.wait_lost().text == "the actor ends"
    assert connection.is_lost
    with pytest.raises(SessionLost, match="the actor ends"):
        connection.send(encode_packet(ECHO, (1,)))


def test_its_owner_closes_it_without_being_told(server: ServerThread, client: LoopThread) -> None:
    receiver = Receiver()
    connection = LoopConnection.connect(server.unix, HELLO_FIELDS, receiver, client.loop)
    connection.send(encode_packet(FLOOD, (50, 1000)))
    connection.close()
    connection.close()
    with pytest.raises(AlreadyClosed):
        connection.send(encode_packet(ECHO, (1,)))
    server.journal.wait_for(lambda events: ("closed", "socket", False) in events)
    assert not [event for event in receiver.journal.events() if isinstance(event, PulsarException)]


def test_a_loop_that_has_ended_takes_no_connection(server: ServerThread, client: LoopThread) -> None:
    client.end()
    with pytest.raises(ConnectError, match="has ended"):
        LoopConnection.connect(server.unix, HELLO_FIELDS, Receiver(), client.loop)
