"""Connections whose bytes stall, are cut, or come in small pieces."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.errors import PulsarException, SessionLost, Timeout
from pulsar_ray.lane.connection import LaneConnection
from pulsar_ray.lane.handshake import LaneLimits
from pulsar_ray.lane.io_thread import IoThread
from pulsar_ray.session.packet import Packet, encode_packet
from pulsar_ray.testing.faults import DOWN, UP, LaneCutter
from tests.unit.lane.server_thread import ECHO, HELLO_FIELDS, SWALLOW, Receiver, ServerThread, echo


@contextmanager
def stalled(tmp_path: Path, limits: LaneLimits) -> Iterator[tuple[LaneConnection, Receiver]]:
    """A connection of which the server reads nothing any more."""
    receiver = Receiver()
    with ServerThread(tmp_path) as server, LaneCutter(server.unix, tmp_path) as cutter:
        connection = LaneConnection.connect(cutter.address, HELLO_FIELDS, receiver, limits=limits)
        cutter.stall()
        yield connection, receiver


def test_a_server_that_stops_reading_is_given_up(tmp_path: Path) -> None:
    with stalled(tmp_path, LaneLimits(write_s=0.2)) as (connection, receiver):
        with pytest.raises(Timeout):
            connection.send(encode_packet(SWALLOW, (), [bytes(4_000_000)]))
        assert isinstance(receiver.wait_lost(), Timeout)


def test_queued_packets_that_do_not_leave_are_given_up_too(tmp_path: Path) -> None:
    with stalled(tmp_path, LaneLimits(write_s=0.2)) as (connection, receiver):
        packet = encode_packet(SWALLOW, (), [bytes(4_000_000)])
        IoThread.get().call_soon(lambda: connection.send(packet))
        assert isinstance(receiver.wait_lost(), Timeout)


def test_more_queued_than_allowed_is_given_up(tmp_path: Path) -> None:
    with stalled(tmp_path, LaneLimits(unsent_bytes=2_000_000)) as (connection, receiver):
        packet = encode_packet(SWALLOW, (), [bytes(4_000_000)])
        IoThread.get().call_soon(lambda: connection.send(packet))
        assert isinstance(receiver.wait_lost(), SessionLost)


@pytest.mark.parametrize("direction", [UP, DOWN])
@pytest.mark.parametrize("count", [1, 11, 12, 13, 5000, 200_000])
def test_cut_in_the_middle_of_packets(tmp_path: Path, direction: str, count: int) -> None:
    receiver = Receiver()
    with ServerThread(tmp_path) as server, LaneCutter(server.unix, tmp_path) as cutter:
        connection = LaneConnection.connect(cutter.address, HELLO_FIELDS, receiver)
        cutter.cut_after(direction, count)
        sent = 0
        try:
            for number in range(50):
                connection.send(encode_packet(ECHO, (number,), [bytes([number]) * 30_000]))
                sent += 1
        except PulsarException:
            pass
        assert isinstance(receiver.wait_lost(), SessionLost)
        packets = [event for event in receiver.journal.events() if isinstance(event, Packet)]
        assert [packet.fields[0] for packet in packets] == list(range(len(packets)))
        assert len(packets) <= min(sent + 1, count // 30_000)
        assert all(packet.body.tobytes() == bytes([packet.fields[0]]) * 30_000 for packet in packets)


def test_bytes_one_by_one(tmp_path: Path) -> None:
    receiver = Receiver()
    with ServerThread(tmp_path) as server, LaneCutter(server.unix, tmp_path) as cutter:
        cutter.slice(1)
        connection = LaneConnection.connect(cutter.address, HELLO_FIELDS, receiver)
        for number in range(10):
            echo(connection, receiver, number, b"body")
        connection.close()


def test_an_interrupted_write_loses_the_connection(tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(_signal: int, _frame: Any) -> None:
        raise Interrupted

    receiver = Receiver()
    with ServerThread(tmp_path) as server, LaneCutter(server.unix, tmp_path) as cutter:
        connection = LaneConnection.connect(cutter.address, HELLO_FIELDS, receiver)
        cutter.stall()
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with pytest.raises(Interrupted):
                connection.send(encode_packet(SWALLOW, (), [bytes(4_000_000)]))
        finally:
            signal.signal(signal.SIGALRM, before)
        assert isinstance(receiver.wait_lost(), SessionLost)
