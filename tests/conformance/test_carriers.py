from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.errors import PulsarException
from pulsar_ray.lane.waiting import Completion
from pulsar_ray.session.packet import Packet, encode_packet
from pulsar_ray.transport import ray_connection
from tests.conformance.packet_carriers import KINDS, EchoLink, LaneLink, TunnelLink
from tests.unit.lane.server_thread import DEADLINE_S, ECHO, FLOOD


@pytest.fixture(params=KINDS)
def link(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EchoLink]:
    # What is tested is what arrives while connected: bad luck must not end the connection.
    monkeypatch.setattr(ray_connection, "LOST_CALLS", 1_000_000)
    seed = random.randrange(1 << 32)
    print(f"seed of the tunnel's faults: {seed}", file=sys.stderr)
    kind = str(request.param)
    link: EchoLink = LaneLink(tmp_path, kind) if kind in ("socket", "tcp") else TunnelLink(kind, seed)
    yield link
    link.close()


def numbers_of(events: list[Any]) -> list[int]:
    return [event.fields[0] for event in events if isinstance(event, Packet)]


def test_packets_come_back_once_and_in_order(link: EchoLink) -> None:
    for number in range(300):
        link.connection.send(encode_packet(ECHO, (number, "text", None), [b"%d" % number]))
    events = link.receiver.journal.wait_for(lambda events: len(events) >= 300)
    assert numbers_of(events) == list(range(300))
    assert all(event.body.tobytes() == b"%d" % event.fields[0] for event in events)
    assert all(event.fields[1:] == ("text", None) for event in events)


def test_a_waiting_thread_gets_its_own_answer(link: EchoLink) -> None:
    for number in range(30):
        done = link.receiver.awaited[number] = Completion()
        link.connection.send(encode_packet(ECHO, (number,)))
        assert link.connection.wait(done, time.monotonic() + DEADLINE_S)
    assert numbers_of(link.receiver.journal.events()) == list(range(30))


def test_who_is_about_to_wait_says_so_and_gets_its_answer(link: EchoLink) -> None:
    for number in range(30):
        done = link.receiver.awaited[number] = Completion()
        link.connection.send(encode_packet(ECHO, (number,)), waits=True)
        assert link.connection.wait(done, time.monotonic() + DEADLINE_S)
    assert numbers_of(link.receiver.journal.events()) == list(range(30))


def test_who_does_not_wait_after_all_is_answered_all_the_same(link: EchoLink) -> None:
    link.connection.send(encode_packet(ECHO, (1,)), waits=True)
    events = link.receiver.journal.wait_for(lambda events: len(events) >= 1)
    assert numbers_of(events) == [1]


def test_large_and_small_bodies_mixed(link: EchoLink) -> None:
    bodies = [
        random.Random(size).randbytes(size)
        for size in (0, 5_000_000, 1, 65_536, 1_048_576, 70_000, 8_000_000)
    ]
    for number, body in enumerate(bodies):
        link.connection.send(encode_packet(ECHO, (number,), [body[:100], memoryview(body)[100:]]))
    events = link.receiver.journal.wait_for(lambda events: len(events) >= len(bodies))
    assert numbers_of(events) == list(range(len(bodies)))
    assert [event.body.tobytes() for event in events] == bodies


def test_threads_keep_their_own_order(link: EchoLink) -> None:
    def work(worker: int) -> None:
        for number in range(40):
            link.connection.send(encode_packet(ECHO, (worker * 100 + number,), [bytes(worker * 10_000)]))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = numbers_of(link.receiver.journal.wait_for(lambda events: len(events) >= 240))
    for worker in range(6):
        assert [number for number in numbers if number // 100 == worker] == [
            worker * 100 + number for number in range(40)
        ]


def test_more_down_than_up(link: EchoLink) -> None:
    link.connection.send(encode_packet(FLOOD, (40, 500_000)))
    events = link.receiver.journal.wait_for(lambda events: len(events) >= 40)
    assert numbers_of(events) == list(range(40))


def test_a_cut_is_told_once_and_nothing_is_out_of_order(link: EchoLink) -> None:
    cutter = threading.Timer(0.02, link.cut)
    cutter.start()
    sent = 0
    try:
        while sent < 1_000_000 and not link.connection.is_lost:
            link.connection.send(encode_packet(ECHO, (sent,), [bytes(20_000)]))
            sent += 1
    except PulsarException:
        pass
    cutter.join()
    link.receiver.wait_lost()
    with pytest.raises(PulsarException):
        link.connection.send(encode_packet(ECHO, (sent,)))
    assert not link.connection.wait(Completion(), time.monotonic() + DEADLINE_S)
    numbers = numbers_of(link.receiver.journal.events())
    assert numbers == list(range(len(numbers)))
    assert len(numbers) <= sent + 1


def test_closing_it_tells_no_loss(link: EchoLink) -> None:
    done = link.receiver.awaited[1] = Completion()
    link.connection.send(encode_packet(ECHO, (1,)))
    assert link.connection.wait(done, time.monotonic() + DEADLINE_S)
    link.connection.close()
    link.cut()
    with pytest.raises(PulsarException):
        link.connection.send(encode_packet(ECHO, (2,)))
    assert numbers_of(link.receiver.journal.events()) == [1]
    assert len(link.receiver.journal.events()) == 1
