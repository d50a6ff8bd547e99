from __future__ import annotations

import contextlib
import mmap
import os
import random
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray.errors import (
    AlreadyClosed,
    ConnectError,
    ForkedClient,
    Moved,
    ProtocolError,
    SessionLost,
)
from pulsar_ray.lane.address import LaneAddress, TcpAddress, UnixAddress
from pulsar_ray.lane.connection import LaneConnection
from pulsar_ray.lane.handshake import LaneLimits
from pulsar_ray.lane.io_thread import IoThread
from pulsar_ray.lane.waiting import Completion
from pulsar_ray.session import packet as packet_module
from pulsar_ray.session.packet import Packet, encode_packet
from pulsar_ray.testing.waiting import wait_until
from tests.unit.lane.server_thread import (
    DEADLINE_S,
    ECHO,
    HELLO_FIELDS,
    SWALLOW,
    Receiver,
    ServerThread,
    echo,
    soon,
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path) as server:
        yield server


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture(params=["unix", "tcp"])
def connection(
    request: pytest.FixtureRequest, server: ServerThread, receiver: Receiver
) -> Iterator[LaneConnection]:
    connection = LaneConnection.connect(getattr(server, request.param), HELLO_FIELDS, receiver)
    yield connection
    connection.close()


def test_welcome(connection: LaneConnection) -> None:
    assert connection.welcome == (4711, "welcome")
    assert connection.kind == ("socket" if isinstance(connection.address, UnixAddress) else "tcp")


def test_requests_and_sends_come_back_in_order(connection: LaneConnection, receiver: Receiver) -> None:
    for number in range(0, 200, 2):
        connection.send(encode_packet(ECHO, (number,), [b"x" * number]))
        echo(connection, receiver, number + 1, b"y" * 3 * number)
    packets = receiver.journal.wait_for(lambda events: len(events) == 200)
    assert [packet.fields[0] for packet in packets] == list(range(200))


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_closed_connection_keeps_no_buffer(
    server: ServerThread, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    buffers: list[weakref.ref[mmap.mmap]] = []
    new_staging = packet_module._new_staging

    def recorded() -> mmap.mmap:
        buffer = new_staging()
        buffers.append(weakref.ref(buffer))
        return buffer

    monkeypatch.setattr(packet_module, "_new_staging", recorded)
    connection = LaneConnection.connect(getattr(server, kind), HELLO_FIELDS, receiver)
    echo(connection, receiver, 1)
    assert any(buffer() is not None for buffer in buffers)
    connection.close()
    wait_until(lambda: all(buffer() is None for buffer in buffers), DEADLINE_S, "the buffers are gone")
    assert connection.is_lost


def test_the_io_thread_reads_when_nobody_waits(connection: LaneConnection, receiver: Receiver) -> None:
    connection.send(encode_packet(ECHO, (1,), [b"unasked"]))
    (packet,) = receiver.journal.wait_for(lambda events: len(events) == 1)
    assert packet.body.tobytes() == b"unasked"
    echo(connection, receiver, 2)
    connection.send(encode_packet(ECHO, (3,)))
    receiver.journal.wait_for(lambda events: len(events) == 3)


@pytest.mark.parametrize("size", [0, 1000, 64 * 1024, 1024 * 1024, 8 * 1024 * 1024 - 100])
def test_bodies_of_all_sizes(connection: LaneConnection, receiver: Receiver, size: int) -> None:
    body = random.Random(size).randbytes(size)
    for number in range(3):
        echo(connection, receiver, number, body)
    assert all(packet.body.tobytes() == body for packet in receiver.journal.events())


def test_many_threads_share_it(connection: LaneConnection, receiver: Receiver) -> None:
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        rng = random.Random(worker)
        try:
            for number in range(60):
                echo(
                    connection,
                    receiver,
                    worker * 1000 + number,
                    rng.randbytes(rng.choice([10, 1000, 200_000])),
                )
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    numbers = [packet.fields[0] for packet in receiver.journal.events()]
    for worker in range(8):
        own = [number for number in numbers if number // 1000 == worker]
        assert own == [worker * 1000 + number for number in range(60)]


def test_both_sides_sending_as_much_as_they_can_do_not_block_each_other(
    connection: LaneConnection, receiver: Receiver
) -> None:
    for number in range(60):
        connection.send(encode_packet(ECHO, (number,), [bytes(1_000_000)]))
    receiver.journal.wait_for(lambda events: len(events) == 60)


def test_sends_from_the_handler_never_block(server: ServerThread) -> None:
    class Amplifier(Receiver):
        def on_packets(self, connection: LaneConnection, packets: list[Packet]) -> None:
            super().on_packets(connection, packets)
            for packet in packets:
                if packet.fields[0] == 0:
                    for number in range(1, 41):
                        connection.send(encode_packet(ECHO, (number,), [bytes(500_000)]))

    receiver = Amplifier()
    connection = LaneConnection.connect(server.unix, HELLO_FIELDS, receiver)
    connection.send(encode_packet(ECHO, (0,)))
    packets = receiver.journal.wait_for(lambda events: len(events) == 41)
    assert [packet.fields[0] for packet in packets] == list(range(41))
    assert connection.unsent_bytes == 0
    connection.close()


def test_sends_of_one_dispatch_go_out_in_order_at_its_end(server: ServerThread) -> None:
    class Fan(Receiver):
        """Answers the first packet with many, small and large."""

        def on_packets(self, connection: LaneConnection, packets: list[Packet]) -> None:
            super().on_packets(connection, packets)
            if packets[0].fields == (0,):
                for number in range(1, 3001):
                    connection.send(encode_packet(ECHO, (number,), [bytes(1000 * (number % 3))]))

    receiver = Fan()
    connection = LaneConnection.connect(server.unix, HELLO_FIELDS, receiver)
    connection.send(encode_packet(ECHO, (0,)))
    packets = receiver.journal.wait_for(lambda events: len(events) == 3001)
    assert [packet.fields[0] for packet in packets] == list(range(3001))
    assert connection.unsent_bytes == 0
    connection.close()


def test_wait_ends_at_its_deadline(connection: LaneConnection, receiver: Receiver) -> None:
    never = Completion()
    assert not connection.wait(never, time.monotonic() + 0.01)
    connection.send(encode_packet(SWALLOW, ()), waits=True)
    assert not connection.wait(never, time.monotonic() + 0.01)
    echo(connection, receiver, 1)


def test_what_another_thread_sets_ends_a_wait(connection: LaneConnection) -> None:
    done = Completion()
    threading.Timer(0.01, done.set).start()
    assert connection.wait(done, soon())


@pytest.mark.parametrize("missing", ["socket", "listener", "port"])
def test_nobody_there(tmp_path: Path, missing: str) -> None:
    address: LaneAddress = UnixAddress(str(tmp_path / "lane"))
    if missing == "listener":
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(address.target())
    if missing == "port":
        with socket.create_server(("127.0.0.1", 0)) as sock:
            address = TcpAddress("127.0.0.1", sock.getsockname()[1])
    with pytest.raises(ConnectError):
        LaneConnection.connect(address, HELLO_FIELDS, Receiver())


@pytest.mark.parametrize("full", [True, False], ids=["nobody accepts", "nobody answers"])
def test_silence_instead_of_a_welcome(tmp_path: Path, full: bool) -> None:
    address = UnixAddress(str(tmp_path / "lane"))
    limits = LaneLimits(connect_s=0.05, hello_s=0.05)
    with address.new_socket() as listener, address.new_socket() as first:
        listener.bind(address.path)
        listener.listen(0)
        if full:
            first.connect(address.path)
        with pytest.raises(ConnectError):
            LaneConnection.connect(address, HELLO_FIELDS, Receiver(), limits=limits)


def test_a_server_that_is_none(tmp_path: Path) -> None:
    address = UnixAddress(str(tmp_path / "lane"))
    with address.new_socket() as listener:
        listener.bind(address.path)
        listener.listen()

        def answer() -> None:
            with listener.accept()[0] as sock:
                sock.recv(1000)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(ProtocolError):
            LaneConnection.connect(address, HELLO_FIELDS, Receiver())
        thread.join()


def test_a_refusal_is_the_servers_own_error(server: ServerThread) -> None:
    with pytest.raises(SessionLost, match="not known here with that token"):
        LaneConnection.connect(server.unix, HELLO_FIELDS._replace(token=bytes(32)), Receiver())


def test_the_servers_reason_for_closing_is_told_once(
    connection: LaneConnection, receiver: Receiver, server: ServerThread
) -> None:
    server.call(lambda: server.server.lanes[0].close(Moved("resolve again")))
    error = receiver.wait_lost()
    assert type(error) is Moved
    assert error.text == "resolve again"
    assert connection.is_lost
    with pytest.raises(Moved):
        connection.send(encode_packet(ECHO, (1,)))
    assert not connection.wait(Completion(), soon())


def test_a_waiting_thread_notices_the_loss(
    connection: LaneConnection, receiver: Receiver, server: ServerThread
) -> None:
    def close_when_it_waits() -> None:
        receiver.journal.wait_for(lambda events: len(events) == 1)
        server.call(server.server.lanes[0].close)

    closing = threading.Thread(target=close_when_it_waits)
    closing.start()
    with contextlib.suppress(SessionLost):
        connection.send(encode_packet(ECHO, (1,)), waits=True)
    assert not connection.wait(Completion(), soon())
    closing.join()
    assert type(receiver.wait_lost()) is SessionLost


def test_closing_it_is_no_loss(connection: LaneConnection, receiver: Receiver, server: ServerThread) -> None:
    connection.close()
    connection.close()
    server.journal.wait_for(lambda events: len(events) == 2)
    with pytest.raises(AlreadyClosed):
        connection.send(encode_packet(ECHO, (1,)))
    drained = threading.Event()
    IoThread.get().call_soon(drained.set)
    assert drained.wait(DEADLINE_S)
    assert receiver.journal.events() == []


def test_closing_wakes_a_waiting_thread(connection: LaneConnection) -> None:
    threading.Timer(0.02, connection.close).start()
    assert not connection.wait(Completion(), soon())


def test_a_handler_that_fails_loses_the_connection(server: ServerThread) -> None:
    class Failing(Receiver):
        def on_packets(self, connection: LaneConnection, packets: list[Packet]) -> None:
            raise KeyError("no such consumer")

    receiver = Failing()
    connection = LaneConnection.connect(server.unix, HELLO_FIELDS, receiver)
    connection.send(encode_packet(ECHO, (1,)))
    assert isinstance(receiver.wait_lost(), ProtocolError)


def test_a_forked_child_cannot_use_it_and_the_parent_can(
    connection: LaneConnection, receiver: Receiver, server: ServerThread
) -> None:
    echo(connection, receiver, 1)
    parents_io = IoThread.get()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            verdict = b"wrong"
            try:
                connection.send(encode_packet(ECHO, (2,)))
            except ForkedClient:
                connection.close()
                if not connection.wait(Completion(), soon()) and IoThread.get() is not parents_io:
                    verdict = b"ok"
            os.write(write_end, verdict)
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    assert os.read(read_end, 10) == b"ok"
    os.close(read_end)
    echo(connection, receiver, 3)


def test_connections_that_are_lost_and_closed_at_once_leave_no_descriptor(tmp_path: Path) -> None:
    IoThread.get()
    with ServerThread(tmp_path):
        pass  # the process's first event loop opens a pipe for signals and keeps it
    before = len(os.listdir("/proc/self/fd"))
    with ServerThread(tmp_path) as server:
        for number in range(60):
            connection = LaneConnection.connect(
                server.unix if number % 2 else server.tcp, HELLO_FIELDS, Receiver()
            )
            for lane in server.call(lambda: server.server.lanes):
                server.loop.call_soon_threadsafe(lane.close)
            connection.close()
    drained = threading.Event()
    IoThread.get().call_soon(drained.set)
    assert drained.wait(DEADLINE_S)
    assert len(os.listdir("/proc/self/fd")) <= before
