from __future__ import annotations

from pulsar_ray.clock import LONGEST_GAP_MS, RunningClock
from pulsar_ray.testing.manual_clock import ManualClock


def test_time_goes_on_while_it_is_looked_at() -> None:
    manual = ManualClock()
    clock = RunningClock(manual)
    for second in range(1, 20):
        manual.advance(1000)
        assert clock.monotonic_ms() == second * 1000
    assert clock.now_ms() == manual.now_ms()


def test_time_in_which_nobody_looked_counts_little() -> None:
    manual = ManualClock()
    clock = RunningClock(manual)
    manual.advance(1000)
    assert clock.monotonic_ms() == 1000
    manual.advance(60_000)
    assert clock.monotonic_ms() == 1000 + LONGEST_GAP_MS
    manual.advance(500)
    assert clock.monotonic_ms() == 1500 + LONGEST_GAP_MS
    assert clock.now_ms() == manual.now_ms()
