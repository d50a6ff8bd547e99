from __future__ import annotations

from itertools import islice

import pytest

from pulsar_ray.clock import Clock, SystemClock, growing_pauses_s
from pulsar_ray.testing.manual_clock import ManualClock


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_clocks_tell_whole_milliseconds(clock: Clock) -> None:
    assert isinstance(clock.now_ms(), int)
    first = clock.monotonic_ms()
    assert clock.monotonic_ms() >= first


def test_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(now_ms=1000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1000, 0)
    clock.advance(250)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1250, 250)
    clock.set_now(10)
    assert (clock.now_ms(), clock.monotonic_ms()) == (10, 250)
    with pytest.raises(ValueError, match="-1 ms"):
        clock.advance(-1)


def test_pauses_grow_up_to_the_longest() -> None:
    assert list(islice(growing_pauses_s(0.5, 3.0), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]
