from __future__ import annotations

from datetime import date, datetime, time, timezone
from itertools import islice

import pytest

from pulsar_ray.clock import Clock, SystemClock, growing_pauses_s, written_time
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


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("2026-11-26T23:02:23Z", 0),
        ("2026-11-26T23:02:23.2Z", 200_000),
        ("2026-11-26T23:02:23.28Z", 280_000),
        ("2026-11-26T23:02:23,2801+00:00", 280_100),
        ("2026-11-26T23:02:23.123456789Z", 123_456),
    ],
)
def test_times_are_read_as_java_writes_them(text: str, microseconds: int) -> None:
    assert written_time(text) == datetime(2026, 11, 26, 23, 2, 23, microseconds, timezone.utc)


def test_dates_times_of_day_and_wrong_texts() -> None:
    assert written_time("2026-11-26", date) == date(2026, 11, 26)
    assert written_time("23:02:23.5", time) == time(23, 2, 23, 500_000)
    for wrong in ("", "Z", "noon", "2026-11-26T25:00:00Z"):
        with pytest.raises(ValueError, match=r"\w"):
            written_time(wrong)
