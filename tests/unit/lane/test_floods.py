"""More connections than the process has files for."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.lane.address import TcpAddress, UnixAddress
from pulsar_ray.lane.serving.server import Listener
from pulsar_ray.session.packet import encode_packet
from pulsar_ray.testing.waiting import wait_until
from tests.unit.lane.server_thread import DEADLINE_S, ECHO, ServerThread
from tests.unit.lane.serving.test_server import RawClient

SILENT = 1500

SERVER = """
import resource, sys, pathlib
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from tests.unit.lane.server_thread import ServerThread
with ServerThread(pathlib.Path(sys.argv[1])) as server:
    print(server.unix.path, server.tcp.port, flush=True)
    sys.stdin.read()
print("ended well", flush=True)
"""


@pytest.fixture(params=["unix", "tcp"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def many_files() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[0] < 2 * SILENT:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def echo(client: RawClient, number: int) -> None:
    client.send(encode_packet(ECHO, (number,)))
    assert client.receive().fields == (number,)


def test_silent_connections_keep_nobody_out(tmp_path: Path, kind: str, many_files: None) -> None:
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", SERVER, str(tmp_path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert process.stdin is not None
        assert process.stdout is not None
        path, port = process.stdout.readline().split()
        address: Any = UnixAddress(path) if kind == "unix" else TcpAddress("127.0.0.1", int(port))
        early = stack.enter_context(RawClient(address))
        silent = [stack.enter_context(RawClient(address, hello=False)) for _ in range(SILENT)]
        echo(early, 1)
        late = stack.enter_context(RawClient(address))
        echo(late, 2)
        # The first of them is told why; the connections of clients stay.
        assert "have not said who they are" in silent[0].receive_error().text
        echo(early, 3)
        process.stdin.close()
        assert process.stdout.read() == "ended well\n"
        assert process.wait(DEADLINE_S) == 0


class ShortOfFiles:
    """A listening socket that cannot accept until it is told that it can."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.refusals = 0
        self.is_short = True

    def accept(self) -> Any:
        if self.is_short:
            self.refusals += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._sock.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def test_a_process_without_a_free_file_accepts_again_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_ray.lane.serving.server.PAUSE_S", 0.01)
    sockets: list[ShortOfFiles] = []

    class ShortListener(Listener):
        def __init__(self, loop: Any, sock: Any, accepted: Any) -> None:
            sockets.append(ShortOfFiles(sock))
            super().__init__(loop, sockets[-1], accepted)  # type: ignore[arg-type]

    monkeypatch.setattr("pulsar_ray.lane.serving.server.Listener", ShortListener)
    with ServerThread(tmp_path) as server, contextlib.closing(server.tcp.new_socket()) as waiting:
        waiting.connect(server.tcp.target())
        wait_until(lambda: sockets[1].refusals > 5)
        sockets[1].is_short = False
        with RawClient(server.tcp) as client:
            echo(client, 1)
    said = [record for record in caplog.records if "no connection can be accepted" in record.getMessage()]
    assert len(said) == 1
