"""Rates: over the last minute, whatever was before."""

from __future__ import annotations

import random

from pulsar_ray.dispatch.message_rate import WINDOW_S, MessageRate


def test_nothing_recorded_is_a_rate_of_zero() -> None:
    assert MessageRate().per_second(10_000) == 0


def test_what_is_older_than_a_minute_counts_in_the_total_only() -> None:
    rate = MessageRate()
    rate.record(120, 500)
    assert rate.per_second(59_000) == 2
    assert rate.per_second(60_000) == 0
    assert rate.total == 120


def test_it_agrees_with_counting_everything_again() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    rate = MessageRate()
    events: list[tuple[int, int]] = []
    now_ms = 0
    for _ in range(500):
        now_ms += rng.choice((0, 1, 400, 3_000, 70_000))
        messages = rng.randrange(4)
        rate.record(messages, now_ms)
        events.append((now_ms, messages))
        recent = sum(count for at, count in events if at // 1000 > now_ms // 1000 - WINDOW_S)
        assert rate.per_second(now_ms) == recent / WINDOW_S
    assert rate.total == sum(count for _, count in events)
