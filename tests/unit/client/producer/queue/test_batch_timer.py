"""The publish delay of batches."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pulsar_ray.client.producer.blocks.batch_builder import BatchBuilder, BatchLimits
from pulsar_ray.client.producer.queue.batch_timer import BatchTimer
from pulsar_ray.clock import SystemClock


class DelayedCalls:
    """Has the shape of timers; the test makes the calls."""

    is_current = False

    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_later(0.0, callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.calls.append((delay_s, callback))

    def run(self) -> None:
        calls, self.calls = self.calls, []
        for _, callback in calls:
            callback()


class Timed:
    """A builder with its timer."""

    def __init__(self, delay_ms: int) -> None:
        self.timers = DelayedCalls()
        self.writes = 0
        self.builder = BatchBuilder(BatchLimits(True, max_delay_ms=delay_ms), SystemClock())
        self.timer = BatchTimer(self.timers, threading.Lock(), delay_ms / 1000, lambda: None, self.write)

    def write(self) -> None:
        self.writes += 1

    def open_batch(self) -> None:
        self.builder.add(b"x", None)
        self.timer.arm(self.builder)


def test_a_batch_is_finished_and_written_when_its_delay_is_over() -> None:
    it = Timed(0)
    it.open_batch()
    assert it.builder.is_open
    it.timers.run()
    assert [len(it.builder.sealed), it.writes, len(it.timers.calls)] == [1, 1, 0]


def test_one_timer_runs_for_all_batches_that_are_opened_meanwhile() -> None:
    it = Timed(60_000)
    for _ in range(3):
        it.open_batch()
        it.builder.seal()
    assert [delay_s for delay_s, _ in it.timers.calls] == [60.0]


def test_a_batch_that_was_opened_later_gets_the_rest_of_its_delay() -> None:
    it = Timed(60_000)
    it.open_batch()
    it.timers.run()
    assert it.builder.is_open
    [(delay_s, _)] = it.timers.calls
    assert 0 < delay_s <= 60
    it.open_batch()
    assert len(it.timers.calls) == 1


def test_a_timer_that_finds_no_batch_ends() -> None:
    it = Timed(0)
    it.open_batch()
    it.builder.seal()
    it.timers.run()
    assert not it.timers.calls
    it.open_batch()
    assert len(it.timers.calls) == 1
