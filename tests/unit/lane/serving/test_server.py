from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.errors import (
    AuthorizationError,
    InvalidConfiguration,
    Moved,
    NotAllowedError,
    ProtocolError,
    PulsarException,
    SessionLost,
    Timeout,
)
from pulsar_ray.lane.address import PeerCredentials, set_kernel_timeout
from pulsar_ray.lane.handshake import HelloFields, LaneLimits, SessionDecision, encode_hello, parse_error
from pulsar_ray.lane.serving.server import LaneServer
from pulsar_ray.lane.serving.server_lane import ServerLane
from pulsar_ray.session.packet import ERROR, WELCOME, Packet, PacketParser, encode_packet
from tests.unit.lane.server_thread import (
    DEADLINE_S,
    ECHO,
    FLOOD,
    HELLO_FIELDS,
    SWALLOW,
    EchoHandler,
    Journal,
    ServerThread,
)

SHORT = LaneLimits(hello_s=0.1, packet_s=0.1, write_s=0.1, close_s=0.1)


class RawClient:
    """A plain socket that speaks as badly as the test wants."""

    def __init__(self, address: Any, *, hello: bool = True) -> None:
        self.socket = address.new_socket()
        # Without O_NONBLOCK it waits for room in the listener's backlog, as a client does.
        set_kernel_timeout(self.socket, socket.SO_SNDTIMEO, DEADLINE_S)
        self.socket.connect(address.target())
        self.socket.settimeout(DEADLINE_S)
        self._parser = PacketParser()
        self._packets: list[Packet] = []
        if hello:
            self.send(encode_hello(HELLO_FIELDS))
            assert self.receive().type == WELCOME

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, buffers: list[Any]) -> None:
        self.socket.sendall(b"".join(bytes(buffer) for buffer in buffers))

    def receive(self) -> Packet:
        while not self._packets:
            count = self.socket.recv_into(self._parser.get_buffer())
            assert count, "closed"
            self._packets += self._parser.received(count)
        return self._packets.pop(0)

    def receive_error(self) -> PulsarException:
        """The error packet the server closes with; nothing follows it."""
        packet = self.receive()
        assert packet.type == ERROR
        self.wait_closed()
        return parse_error(packet)

    def wait_closed(self) -> None:
        try:
            assert self.socket.recv(1) == b""
        except ConnectionResetError:  # the server left some of our bytes unread
            pass


@pytest.fixture(params=["unix", "tcp"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path) as server:
        yield server


def still_serves(server: ServerThread) -> None:
    with RawClient(server.unix) as client:
        client.send(encode_packet(ECHO, (1,), [b"still here"]))
        assert client.receive().body.tobytes() == b"still here"


def test_echo_and_close(server: ServerThread, kind: str) -> None:
    with RawClient(getattr(server, kind)) as client:
        client.send(encode_packet(ECHO, (1, "a"), [b"body"]) * 3)
        assert [client.receive() for _ in range(3)] == [Packet(ECHO, (1, "a"), memoryview(b"body"))] * 3
    name = "socket" if kind == "unix" else "tcp"
    events = server.journal.wait_for(lambda events: len(events) == 2)
    assert events == [("open", name, "the session", 1), ("closed", name, False)]


def test_nothing_before_the_welcome_is_answered(server: ServerThread) -> None:
    with RawClient(server.unix, hello=False) as client:
        client.send([*encode_hello(HELLO_FIELDS), *encode_packet(ECHO, (1,))])
        assert isinstance(client.receive_error(), ProtocolError)
    still_serves(server)


@pytest.mark.parametrize("seed", range(8))
def test_garbage_instead_of_a_hello(server: ServerThread, kind: str, seed: int) -> None:
    with RawClient(getattr(server, kind), hello=False) as client:
        client.socket.sendall(b"\x00" + random.Random(seed).randbytes(20))
        assert isinstance(client.receive_error(), ProtocolError)
    still_serves(server)


def test_garbage_after_a_hello(server: ServerThread, kind: str) -> None:
    with RawClient(getattr(server, kind)) as client:
        client.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert isinstance(client.receive_error(), ProtocolError)
    server.journal.wait_for(lambda events: ("closed", "socket" if kind == "unix" else "tcp", False) in events)
    still_serves(server)


@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(encode_packet(ECHO, (1,)), id="not a hello"),
        pytest.param(encode_packet(1, (1, 2)), id="too few fields"),
        pytest.param(encode_packet(1, ("1", 4711, bytes(32), 1)), id="wrong type"),
        pytest.param(encode_packet(1, (1, 4711, bytes(31), 1)), id="short token"),
        pytest.param(encode_packet(1, HELLO_FIELDS, [b"body"]), id="with a body"),
        pytest.param(encode_packet(1, HELLO_FIELDS, [bytes(300)]), id="above 256 bytes"),
    ],
)
def test_bad_hello(server: ServerThread, packet: list[Any]) -> None:
    with RawClient(server.unix, hello=False) as client:
        client.send(packet)
        assert isinstance(client.receive_error(), ProtocolError)
    assert server.journal.events() == []


def test_wrong_token(server: ServerThread, kind: str) -> None:
    with RawClient(getattr(server, kind), hello=False) as client:
        client.send(encode_hello(HELLO_FIELDS._replace(token=bytes(32))))
        error = client.receive_error()
    assert isinstance(error, SessionLost)
    assert error.text == "session 4711 is not known here with that token: attach again"
    assert server.journal.events() == []


def test_another_user_is_refused_on_the_unix_socket(tmp_path: Path) -> None:
    def another(sock: socket.socket) -> PeerCredentials | None:
        return PeerCredentials(os.getpid(), os.geteuid() + 1) if sock.family == socket.AF_UNIX else None

    with ServerThread(tmp_path, credentials=another) as server:
        with RawClient(server.unix, hello=False) as client:
            assert isinstance(client.receive_error(), AuthorizationError)
        with RawClient(server.tcp) as client:
            client.send(encode_packet(ECHO, (1,)))
            assert client.receive().fields == (1,)


def test_silence_instead_of_a_hello(tmp_path: Path, kind: str) -> None:
    with ServerThread(tmp_path, SHORT) as server, RawClient(getattr(server, kind), hello=False) as client:
        assert isinstance(client.receive_error(), Timeout)


def test_half_a_packet_and_silence(tmp_path: Path, kind: str) -> None:
    with ServerThread(tmp_path, SHORT) as server, RawClient(getattr(server, kind)) as client:
        client.send(encode_packet(ECHO, (1,)))
        client.receive()
        whole = b"".join(encode_packet(ECHO, (1,), [bytes(300_000)]))
        client.socket.sendall(whole[:200_000])
        assert isinstance(client.receive_error(), Timeout)
        still_serves(server)


def test_a_client_that_does_not_read_is_not_read_and_then_cut(tmp_path: Path) -> None:
    limits = LaneLimits(write_s=0.2, unsent_high_bytes=100_000, unsent_low_bytes=50_000)
    with ServerThread(tmp_path, limits) as server, RawClient(server.unix) as client:
        client.send(encode_packet(FLOOD, (100, 100_000)))
        server.journal.wait_for(lambda events: ("closed", "socket", False) in events)
        still_serves(server)


def test_more_unsent_than_allowed_cuts_at_once(tmp_path: Path) -> None:
    limits = LaneLimits(unsent_bytes=1_000_000)
    with ServerThread(tmp_path, limits) as server, RawClient(server.unix) as client:
        client.send(encode_packet(FLOOD, (100, 100_000)))
        server.journal.wait_for(lambda events: ("closed", "socket", False) in events)


def test_a_lane_is_waited_for_until_it_has_drained(tmp_path: Path) -> None:
    class Filler(EchoHandler):
        def on_packets(self, lane: ServerLane, packets: list[Packet]) -> None:
            lane.send(encode_packet(FLOOD, (), [bytes(3_000_000)]))
            self.journal.add(("unsent", lane.unsent_bytes > 100_000))
            self.task = asyncio.get_running_loop().create_task(self._wait(lane))

        async def _wait(self, lane: ServerLane) -> None:
            await lane.drained()
            self.journal.add(("drained", lane.unsent_bytes <= 50_000))

    limits = LaneLimits(unsent_high_bytes=100_000, unsent_low_bytes=50_000)
    with ServerThread(tmp_path, limits) as server:
        server.server._handler = Filler(server.journal)
        with RawClient(server.unix) as client:
            client.send(encode_packet(SWALLOW, ()))
            server.journal.wait_for(lambda events: ("unsent", True) in events)
            assert client.receive().body.nbytes == 3_000_000
            server.journal.wait_for(lambda events: ("drained", True) in events)


def test_two_hundred_announcements_of_5_mib_stay_small(server: ServerThread) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    announcement = b"".join(encode_packet(ECHO, (), [bytes(5 * 1024 * 1024)]))[:1000]
    clients = [RawClient(server.unix) for _ in range(200)]
    for client in clients:
        client.socket.sendall(announcement)
    # Each has been read once this one, sent later, is answered on the same loop.
    still_serves(server)
    still_serves(server)
    assert len(server.server.lanes) >= 200
    assert server.server.budget.buffered_bytes <= 200 * 64 * 1024
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
    for client in clients:
        client.socket.close()


def test_retained_bytes_stop_reading_until_released(tmp_path: Path) -> None:
    class Keeper(EchoHandler):
        def on_packets(self, lane: ServerLane, packets: list[Packet]) -> None:
            for packet in packets:
                lane.retain(packet.body.nbytes)
                self.journal.add((lane, packet.body.nbytes))

    limits = LaneLimits(received_bytes=1_000_000, lane_received_bytes=600_000)
    with ServerThread(tmp_path, limits) as server:
        server.server._handler = Keeper(server.journal)
        with RawClient(server.unix) as client:
            packet = encode_packet(SWALLOW, (), [bytes(500_000)])
            client.send(packet)
            client.send(packet)
            unread = b"".join(packet)
            client.socket.settimeout(0.2)
            try:
                while True:
                    unread = unread[client.socket.send(unread[:1000]) :]
            except TimeoutError:
                assert unread
            kept = [event for event in server.journal.events() if event[0] != "open"]
            assert len(kept) == 2
            assert server.server.budget.retained_bytes == 1_000_000
            server.call(lambda: kept[0][0].release(500_000))
            client.socket.settimeout(DEADLINE_S)
            client.socket.sendall(unread)
            server.journal.wait_for(lambda events: len(events) == 4)


def test_a_peer_that_is_killed_is_reported_dead_even_with_a_forked_child(tmp_path: Path) -> None:
    program = (
        "import os, socket, sys\n"
        "sock = socket.socket(socket.AF_UNIX)\n"
        "sock.connect(sys.argv[1])\n"
        "sock.sendall(bytes.fromhex(sys.argv[2]))\n"
        "sock.recv(100)\n"
        "child = os.fork()\n"
        "if child:\n"
        "    print(child, flush=True)\n"
        "sys.stdin.read()\n"
    )
    hello = b"".join(encode_hello(HELLO_FIELDS)).hex()
    with ServerThread(tmp_path) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", program, server.unix.path, hello],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            process.kill()
            events = server.journal.wait_for(lambda events: len(events) == 2)
            assert events[1] == ("closed", "socket", True)
        finally:
            os.kill(child, signal.SIGKILL)
            process.communicate()


def test_a_handlers_error_closes_its_lane_only(tmp_path: Path) -> None:
    class Refusing(EchoHandler):
        def on_packets(self, lane: ServerLane, packets: list[Packet]) -> None:
            if packets[0].type == SWALLOW:
                raise Moved("to another node")
            super().on_packets(lane, packets)

    with ServerThread(tmp_path) as server:
        server.server._handler = Refusing(server.journal)
        with RawClient(server.unix) as client:
            client.send(encode_packet(SWALLOW, ()))
            error = client.receive_error()
            assert isinstance(error, Moved)
            assert error.text == "to another node"
        still_serves(server)


def test_closing_the_server_tells_why_and_removes_the_socket(tmp_path: Path) -> None:
    with ServerThread(tmp_path) as server, RawClient(server.unix) as client:
        server.run(server.server.close(Moved("resolve again")))
        assert isinstance(client.receive_error(), Moved)
        assert list(tmp_path.iterdir()) == []
        assert server.journal.wait_for(lambda events: len(events) == 2)[1] == ("closed", "socket", False)


def test_sockets_of_processes_that_were_killed_are_removed_by_the_next_one(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from pulsar_ray.lane.serving.server import LaneServer\n"
        "async def serve():\n"
        "    loop = asyncio.get_running_loop()\n"
        "    server = LaneServer(loop, sys.argv[1], node_address='', token_check=None, handler=None)\n"
        "    await server.start()\n"
        "    print('serving', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(serve())\n"
    )
    (tmp_path / "of somebody else").touch()
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"serving\n"
        with ServerThread(tmp_path):
            assert len(list(tmp_path.iterdir())) == 3, "one that runs keeps its socket"
        other.kill()
    with ServerThread(tmp_path) as server:
        assert {path.name for path in tmp_path.iterdir()} == {
            "of somebody else",
            Path(server.unix.path).name,
        }


def test_the_directory_is_private_and_ours(tmp_path: Path) -> None:
    directory = tmp_path / "lanes"
    with ServerThread(directory):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    link = tmp_path / "link"
    link.symlink_to(directory)
    with pytest.raises(NotAllowedError), ServerThread(link):
        pass


def test_too_long_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="107 bytes"), ServerThread(tmp_path / ("x" * 100)):
        pass


def test_tcp_port_out_of_a_range(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "a") as server:
        taken = server.tcp.port
        other = LaneServer(
            server.loop,
            tmp_path / "b",
            node_address="127.0.0.1",
            token_check=server._check,
            handler=EchoHandler(server.journal),
        )
        with pytest.raises(OSError, match="no free port"):
            server.run(other.listen_tcp(range(taken, taken + 1)))
        address = server.run(other.listen_tcp(range(taken, taken + 200)))
        assert taken < address.port < taken + 200
        assert server.run(other.listen_tcp()) == address
        server.run(other.close())


class LoopThatTakesNothing:
    """An event loop on which no accepted socket becomes a connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.refused = 0

    async def connect_accepted_socket(self, make: Any, sock: socket.socket) -> Any:
        make()
        self.refused += 1
        raise OSError(errno.ENOBUFS, "no buffer space")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


def nobody(hello: HelloFields) -> SessionDecision:
    raise SessionLost(f"nobody knows {hello}")


def test_a_connection_that_the_loop_cannot_take_counts_no_longer(tmp_path: Path) -> None:
    async def refused() -> tuple[int, int]:
        loop: Any = LoopThatTakesNothing(asyncio.get_running_loop())
        server = LaneServer(
            loop,
            tmp_path,
            node_address="127.0.0.1",
            token_check=nobody,
            handler=EchoHandler(Journal()),
        )
        address = await server.start()
        sock = address.new_socket()
        sock.connect(address.target())
        deadline = time.monotonic() + DEADLINE_S
        while not loop.refused and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        await server.close()
        sock.close()
        return loop.refused, len(server._unproven)

    assert asyncio.run(refused()) == (1, 0)
