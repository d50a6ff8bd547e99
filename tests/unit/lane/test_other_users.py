"""Who connects to a Unix socket looks who listens there, before anything is sent."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from pulsar_ray.errors import UntrustedPath
from pulsar_ray.lane.address import UnixAddress, check_listener, is_abandoned
from pulsar_ray.lane.connection import LaneConnection
from pulsar_ray.lane.loop_connection import LoopConnection
from tests.other_user import SOMEBODY, listening, needs_root
from tests.unit.lane.server_thread import HELLO_FIELDS, Receiver, ServerThread


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    loop = request.param()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@needs_root
def test_a_blocking_lane_says_nothing_to_another_user(tmp_path: Path) -> None:
    with listening(tmp_path / "socket") as listener:
        with pytest.raises(UntrustedPath, match=f"user {SOMEBODY} listens"):
            LaneConnection.connect(UnixAddress(str(tmp_path / "socket")), HELLO_FIELDS, Receiver())
        assert listener.received_bytes() == 0


@needs_root
def test_a_lane_on_a_loop_says_nothing_to_another_user(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    with listening(tmp_path / "socket") as listener:
        with pytest.raises(UntrustedPath, match=f"user {SOMEBODY} listens"):
            LoopConnection.connect(UnixAddress(str(tmp_path / "socket")), HELLO_FIELDS, Receiver(), loop)
        assert listener.received_bytes() == 0


@needs_root
def test_a_user_who_is_known_to_listen_there_may(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with listening(path) as listener, socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        check_listener(connection, path, SOMEBODY)
        with pytest.raises(UntrustedPath):
            check_listener(connection, path, SOMEBODY + 1)
        connection.close()
        assert listener.received_bytes() == 0


def test_who_was_never_accepted_is_no_other_user(tmp_path: Path) -> None:
    # As behind a `connect` that a signal ended: the kernel knows no user then.
    with socket.socket(socket.AF_UNIX) as connection, pytest.raises(OSError, match="not connected"):
        check_listener(connection, tmp_path / "socket")


def test_own_listeners_and_ports_pass(tmp_path: Path) -> None:
    with ServerThread(tmp_path) as server:
        for address in (server.unix, server.tcp):
            with address.new_socket() as connection:
                connection.connect(address.target())
                check_listener(connection, "there")


def test_a_socket_is_abandoned_once_nobody_listens(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    assert not is_abandoned(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert not is_abandoned(path)
    assert is_abandoned(path)


def test_sockets_of_processes_that_are_not_seen_here_stay_while_somebody_listens(tmp_path: Path) -> None:
    unseen = tmp_path / f"{2**22 + 1}-abcd"
    left = tmp_path / f"{2**22 + 2}-abcd"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(unseen))
        listener.listen()
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(str(left))
        with ServerThread(tmp_path) as server:
            own = os.path.basename(server.unix.path)
            assert {path.name for path in tmp_path.iterdir()} == {unseen.name, own}
