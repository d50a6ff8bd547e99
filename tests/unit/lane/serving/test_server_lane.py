"""One accepted connection, driven call by call as its loop would, with a stub transport and server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from pulsar_ray.errors import ProtocolError, PulsarException, SessionLost, Timeout
from pulsar_ray.format.block_memory import BlockMemory
from pulsar_ray.lane.handshake import HelloFields, LaneLimits, SessionDecision, encode_hello, parse_error
from pulsar_ray.lane.serving.server_lane import ReceiveBudget, ServerLane
from pulsar_ray.session.packet import (
    ERROR,
    STAGING_BYTES,
    WELCOME,
    Packet,
    PacketParser,
    encode_packet,
)
from tests.unit.lane.server_thread import ECHO, HELLO_FIELDS, TOKEN

LIMITS = LaneLimits(hello_s=1.0, packet_s=2.0, write_s=3.0, close_s=4.0, peer_death_s=5.0, unsent_bytes=1000)


class Timer:
    def __init__(self, callback: Callable[..., Any]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualLoop:
    """A loop whose time is set, and whose timers run when the test says."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: dict[float, Timer] = {}

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Callable[..., Any]) -> Timer:
        timer = self.timers[seconds] = Timer(callback)
        return timer


class StubTransport:
    def __init__(self) -> None:
        self.written = bytearray()
        self.unsent = 0
        self.is_reading = True
        self.end = ""

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def writelines(self, buffers: Any) -> None:
        self.written += b"".join(buffers)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def close(self) -> None:
        self.end = "closed"

    def abort(self) -> None:
        self.end = "aborted"


class Server:
    """Both what accepted the lane and what gets its packets; `told` is all the lane said."""

    def __init__(self) -> None:
        self.manual = ManualLoop()
        self.loop = cast("asyncio.AbstractEventLoop", self.manual)
        self.limits = LIMITS
        self.budget = ReceiveBudget(10_000, 5_000)
        self.staging = bytearray(STAGING_BYTES)
        self.memory = BlockMemory(0)
        self.is_closing = False
        self.told: list[Any] = []
        self.refusal: PulsarException | None = None

    def token_check(self, hello: HelloFields) -> SessionDecision:
        if hello.token != TOKEN:
            raise SessionLost("attach again")
        return SessionDecision("the session", ("welcome",))

    def watch_deadlines(self) -> None:
        pass

    def lane_opened(self, lane: ServerLane) -> None:
        self.told.append("opened")

    def lane_proven(self, lane: ServerLane) -> None:
        self.told.append("proven")

    def lane_ended(self, lane: ServerLane) -> None:
        self.told.append("ended")

    def on_open(self, lane: ServerLane, hello: HelloFields) -> None:
        self.told.append(("open", lane.session, hello.session_id))

    def on_packets(self, lane: ServerLane, packets: list[Packet]) -> None:
        self.told.append([packet.fields for packet in packets])
        if self.refusal is not None:
            raise self.refusal

    def on_closed(self, lane: ServerLane, peer_died: bool) -> None:
        self.told.append(("closed", peer_died))


class Lane:
    """A lane of that server; it is connected, and let in if `opened`."""

    def __init__(self, *, opened: bool = True) -> None:
        self.server = Server()
        self.transport = StubTransport()
        self.lane = ServerLane(self.server, self.server, "tcp", None)
        self.lane.connection_made(cast("asyncio.BaseTransport", self.transport))
        if opened:
            self.receive(encode_hello(HELLO_FIELDS))
            assert self.answers() == [WELCOME]

    def receive(self, buffers: Any) -> None:
        data = memoryview(b"".join(buffers))
        while data:
            place = memoryview(self.lane.get_buffer(-1))
            count = min(len(place), len(data))
            place[:count] = data[:count]
            self.lane.buffer_updated(count)
            data = data[count:]

    def packets(self) -> list[Packet]:
        data, self.transport.written = bytes(self.transport.written), bytearray()
        parser, found = PacketParser(), []
        while data:
            place = parser.get_buffer()
            count = min(len(place), len(data))
            place[:count] = data[:count]
            found += parser.received(count)
            data = data[count:]
        return found

    def answers(self) -> list[int]:
        return [packet.type for packet in self.packets()]

    def error(self) -> PulsarException:
        [packet] = self.packets()
        assert packet.type == ERROR
        return parse_error(packet)


def test_a_client_is_let_in_by_its_token_and_its_packets_follow() -> None:
    lane = Lane()
    lane.receive(encode_packet(ECHO, (1,)) + encode_packet(ECHO, (2,)))
    assert lane.server.told == [
        "opened",
        "proven",
        ("open", "the session", HELLO_FIELDS.session_id),
        [(1,), (2,)],
    ]
    assert lane.lane.is_open


def test_a_wrong_token_is_refused_and_never_proven() -> None:
    lane = Lane(opened=False)
    lane.receive(encode_hello(HELLO_FIELDS._replace(token=bytes(len(TOKEN)))))
    assert isinstance(lane.error(), SessionLost)
    assert lane.transport.end == "closed"
    lane.lane.connection_lost(None)
    assert lane.server.told == ["opened", "ended"]


def test_packets_that_come_with_the_hello_are_refused() -> None:
    lane = Lane(opened=False)
    lane.receive([*encode_hello(HELLO_FIELDS), *encode_packet(ECHO, (1,))])
    assert isinstance(lane.error(), ProtocolError)


def test_a_refused_packet_ends_the_lane_with_its_error_and_the_rest_is_not_read() -> None:
    lane = Lane()
    lane.server.refusal = ProtocolError("no such thing")
    lane.receive(encode_packet(ECHO, (1,)))
    assert lane.error().text == "no such thing"
    lane.receive(encode_packet(ECHO, (2,)))
    lane.lane.send(encode_packet(ECHO, (3,)))
    assert lane.answers() == []
    lane.lane.connection_lost(None)
    assert lane.server.told[-3:] == [[(1,)], "ended", ("closed", False)]


@pytest.mark.parametrize(("opened", "limit_s"), [(False, LIMITS.hello_s), (True, LIMITS.packet_s)])
def test_a_packet_that_is_never_complete_ends_the_lane(opened: bool, limit_s: float) -> None:
    lane = Lane(opened=opened)
    now = lane.server.manual.now
    lane.receive([b"".join(encode_packet(ECHO, (1,)))[:5]])
    assert lane.lane.check_deadlines(now + limit_s)
    assert not lane.lane.check_deadlines(now + limit_s + 0.1)
    assert isinstance(lane.error(), Timeout)


def test_time_in_which_the_server_did_not_read_is_not_the_clients_fault() -> None:
    lane = Lane()
    lane.receive([b"".join(encode_packet(ECHO, (1,)))[:5]])
    lane.lane.allow_reading(False)
    assert not lane.transport.is_reading
    lane.server.manual.now += LIMITS.packet_s + 1
    assert lane.lane.check_deadlines(lane.server.manual.now)
    lane.lane.allow_reading(True)
    assert lane.lane.check_deadlines(lane.server.manual.now + LIMITS.packet_s)
    assert lane.transport.is_reading


def test_a_client_that_takes_nothing_is_dropped_after_a_while_and_one_that_takes_some_is_not() -> None:
    lane = Lane()
    now = lane.server.manual.now
    lane.transport.unsent = 500
    lane.lane.pause_writing()
    assert not lane.transport.is_reading, "no answers to requests that cannot be sent"
    lane.transport.unsent = 499
    assert lane.lane.check_deadlines(now + LIMITS.write_s)
    assert lane.lane.check_deadlines(now + 2 * LIMITS.write_s)
    assert not lane.lane.check_deadlines(now + 2 * LIMITS.write_s + 0.1)
    assert lane.transport.end == "aborted"


def test_more_than_may_wait_unsent_ends_the_lane_at_once() -> None:
    lane = Lane()
    lane.transport.unsent = LIMITS.unsent_bytes + 1
    lane.lane.send(encode_packet(ECHO, (1,)))
    assert lane.transport.end == "aborted"


@pytest.mark.parametrize("ends", [False, True])
def test_the_owner_can_wait_until_a_slow_lane_has_drained_or_ended(ends: bool) -> None:
    async def run() -> None:
        lane = Lane()
        await lane.lane.drained()
        lane.lane.pause_writing()
        waiting = [asyncio.create_task(lane.lane.drained()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        if ends:
            lane.lane.connection_lost(None)
        else:
            lane.lane.resume_writing()
            assert lane.transport.is_reading
        await asyncio.gather(*waiting, lane.lane.drained())

    asyncio.run(run())


def test_a_lane_that_was_pushed_out_before_it_was_made_is_aborted() -> None:
    server, transport = Server(), StubTransport()
    lane = ServerLane(server, server, "tcp", None)
    lane.close(Timeout("the oldest goes"))
    lane.connection_made(cast("asyncio.BaseTransport", transport))
    assert transport.end == "aborted"


def test_closing_waits_for_what_is_queued_and_no_longer() -> None:
    lane = Lane()
    lane.lane.close()
    assert lane.transport.end == "closed"
    lane.server.manual.timers[LIMITS.close_s].callback()
    assert lane.transport.end == "aborted"
    lane.lane.connection_lost(None)
    assert lane.server.manual.timers[LIMITS.close_s].is_cancelled
    assert not lane.lane.is_open
