"""Commits of a partition: a large write begins before the last one is answered; answers stay in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pulsar_ray.broker.partition.publish_intake import PublishIntake
from pulsar_ray.config import Settings
from pulsar_ray.errors import PulsarException
from pulsar_ray.format.payload import encode_single
from pulsar_ray.managed_ledger.log.memory_log import MemoryLog
from pulsar_ray.session.packet import decode_packet
from pulsar_ray.session.requests import OpenProducer, Receipt, decode_request
from pulsar_ray.session.session_table import Session
from pulsar_ray.testing.manual_clock import ManualClock

INCARNATION = 7


class Disk:
    """Writes when it is told to."""

    is_idle = False

    def __init__(self, events: list[str]) -> None:
        self._events = events
        self._jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self._events.append("begun")
        self._jobs.append((work, done))

    def write(self) -> None:
        """Finish the oldest write."""
        work, done = self._jobs.pop(0)
        done(work(), None)


class Pipe:
    """A carrier that notes which blocks were answered."""

    is_peer_stopped = False
    kind = "test"
    unsent_bytes = 0

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def send(self, buffers: Sequence[Any]) -> None:
        receipt = decode_request(decode_packet(b"".join(bytes(buffer) for buffer in buffers)))
        assert isinstance(receipt, Receipt)
        self._events.append(f"answered {[row[1] for row in receipt.blocks]}")

    def close(self, error: PulsarException | None = None) -> None: ...

    def retain(self, count: int) -> None: ...

    def release(self, count: int) -> None: ...


def _fail(error: BaseException) -> None:
    raise error


class Partition:
    """An intake with one producer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.events: list[str] = []
        self.disk = Disk(self.events)
        clock = ManualClock()
        self._loop = loop
        self._intake = PublishIntake(
            MemoryLog(1, lambda _: None),
            Settings(),
            clock,
            loop,
            self.disk,
            on_durable=lambda _: self.events.append("followers told"),
            on_fatal=_fail,
            disk_refusal=lambda: None,
            name_prefix="p",
        )
        self._session = Session(1, "client", clock.now_ms())
        self._session.carrier = Pipe(self.events)
        self._intake.open_producer(self._session, OpenProducer(1, 1, None, INCARNATION, 0, 0, 0, False))
        self._seq = 0

    def publish(self, size: int, *, is_awaited: bool = True) -> None:
        """One block, in a turn of the loop of its own."""
        buffers = encode_single(
            bytes(size),
            incarnation=INCARNATION,
            entry_seq=self._seq,
            sequence_id=self._seq,
            publish_time_ms=5,
        )
        self._seq += 1
        block = memoryview(b"".join(bytes(buffer) for buffer in buffers))
        self._intake.publish(self._session, 1, block, is_awaited=is_awaited)
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_answers_come_in_order_whatever_the_disk_does_meanwhile(size: int) -> None:
    loop = asyncio.new_event_loop()
    partition = Partition(loop)
    for _ in range(4):
        partition.publish(size)
    partition.disk.write()
    partition.publish(size)
    partition.disk.write()
    partition.disk.write()
    loop.close()
    answers = [event for event in partition.events if event.startswith("answered")]
    assert answers == ["answered [0]", "answered [1, 2, 3]", "answered [4]"]
    assert partition.events.count("followers told") == 3


def test_a_large_write_begins_before_the_last_one_is_answered() -> None:
    loop = asyncio.new_event_loop()
    partition = Partition(loop)
    partition.publish(1_000_000)
    partition.publish(1_000_000)
    partition.disk.write()
    loop.close()
    assert partition.events == ["begun", "begun", "answered [0]", "followers told"]


def test_followers_are_told_first_unless_somebody_stands_still_for_the_receipt() -> None:
    loop = asyncio.new_event_loop()
    partition = Partition(loop)
    for is_awaited in (False, True, False):
        partition.publish(100, is_awaited=is_awaited)
        partition.disk.write()
    loop.close()
    assert partition.events == [
        *("begun", "followers told", "answered [0]"),
        *("begun", "answered [1]", "followers told"),
        *("begun", "followers told", "answered [2]"),
    ]
