"""Holds that dispatchers report, and changes of the manifest that the disk refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.broker.partition import manifest_writer
from pulsar_ray.broker.partition.manifest_writer import ManifestWriter, ReportedHolds
from pulsar_ray.errors import BrokerPersistenceError
from pulsar_ray.model.message_id import Position

DEADLINE_S = 20.0
Done = Callable[[Any, BaseException | None], None]


class Partition:
    """Plays the log with its manifest, its disk and a change; `errors` are those of the next writes."""

    def __init__(self) -> None:
        played: Any = self
        self.loop = asyncio.new_event_loop()
        self.changes, self.directory = self, "p/1"
        self.written: list[tuple[int, Position]] = []
        self.errors: list[BaseException] = []
        self.fatal: list[BaseException] = []
        self.failed = 0
        self.held: list[tuple[Callable[[], Any], Done]] | None = None
        """What waits for the disk, while that stands still."""
        self.writer = ManifestWriter(played, self.loop, played, self.fatal.append, lambda receipt: receipt())
        self.holds = ReportedHolds(played, self.writer, self.loop)
        self._asked: list[tuple[int, Position]] = []

    def has_subscription(self, number: int) -> bool:
        return number < 10

    def move_hold(self, number: int, position: Position) -> Any:
        self._asked.append((number, position))
        return self

    def run(self) -> None: ...

    def finish(self, _change: Any) -> str:
        self.written.append(self._asked.pop(0))
        return "finished"

    def fail(self, _change: Any) -> None:
        self._asked.pop(0)
        self.failed += 1

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        if self.held is not None:
            self.held.append((work, done))
            return
        error = self.errors.pop(0) if self.errors else None
        self.loop.call_soon(done, None if error else work(), error)

    def go_on(self) -> None:
        """The disk goes on."""
        held, self.held = self.held or [], None
        for work, done in held:
            self.submit(work, done)

    def run_until(self, condition: Callable[[], Any]) -> None:
        async def met() -> None:
            while not condition():
                await asyncio.sleep(0.001)

        self.loop.run_until_complete(asyncio.wait_for(met(), DEADLINE_S))


@pytest.fixture
def partition(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(manifest_writer, "REPORT_DELAY_S", 0.001)
    monkeypatch.setattr(manifest_writer, "FULL_DISK_DELAY_S", 0.002)
    partition = Partition()
    yield partition
    partition.loop.close()


def test_the_last_report_of_each_subscription_is_written_together(partition: Partition) -> None:
    for number, entry in ((1, 1), (2, 5), (1, 3), (11, 9)):
        partition.holds.moved(number, Position(1, entry))
    partition.run_until(lambda: len(partition.written) >= 2)
    assert partition.written == [(1, Position(1, 3)), (2, Position(1, 5))]


def test_a_hold_that_a_full_disk_refused_is_written_later(partition: Partition) -> None:
    partition.errors = [OSError("no space")]
    partition.holds.moved(1, Position(1, 3))
    partition.run_until(lambda: partition.written)
    assert partition.written == [(1, Position(1, 3))]
    assert partition.failed == 1
    assert not partition.fatal


def test_what_is_on_its_way_to_the_disk_is_waited_for_too(partition: Partition) -> None:
    partition.held = []
    partition.holds.moved(1, Position(1, 3))
    partition.run_until(lambda: partition.held)
    writing = partition.loop.create_task(partition.holds.write_now())
    partition.run_until(lambda: len(partition.held or []) == 2 or writing.done())
    assert not writing.done()
    partition.go_on()
    partition.run_until(writing.done)
    assert partition.written == [(1, Position(1, 3))]


def test_a_refused_change_is_not_in_effect_and_its_caller_is_told(partition: Partition) -> None:
    partition.errors = [OSError("no space")]
    with pytest.raises(BrokerPersistenceError, match="no space"):
        partition.loop.run_until_complete(partition.writer.durable(partition.move_hold(1, Position(1, 1))))
    assert (partition.written, partition.failed) == ([], 1)
    change = partition.move_hold(1, Position(1, 2))
    assert partition.loop.run_until_complete(partition.writer.durable(change)) == "finished"
    assert partition.loop.run_until_complete(partition.writer.durable(None)) is None


def test_a_change_ends_though_nobody_waits_for_it_any_more(partition: Partition) -> None:
    task = partition.loop.create_task(partition.writer.durable(partition.move_hold(1, Position(1, 2))))
    partition.loop.call_soon(task.cancel)
    partition.run_until(lambda: task.done() and partition.written)
    assert task.cancelled()
    assert partition.written == [(1, Position(1, 2))]


def test_another_error_of_a_change_that_nobody_waits_for_is_fatal(partition: Partition) -> None:
    partition.errors = [RuntimeError("a defect")]
    partition.holds.moved(1, Position(1, 3))
    partition.run_until(lambda: partition.fatal)
    assert [str(error) for error in partition.fatal] == ["a defect"]
