"""Token buckets: a burst of a second, debts that are paid, and when whoever waits is let on."""

from __future__ import annotations

import random

from pulsar_ray.model.rate_limit import NO_LIMIT, RateLimit


def test_without_rates_there_is_no_limit() -> None:
    assert RateLimit.of(0, 0) is None
    assert RateLimit.of(0, 5) is not None


def test_a_seconds_worth_passes_at_once_and_then_what_time_brings() -> None:
    limit = RateLimit(100, 0)
    assert limit.messages_left(1000) == 100
    limit.take(100, 10**9, 1000)
    assert limit.messages_left(1000) == 0
    assert limit.wait_ms(1000) == 50, "twenty portions a second"
    assert limit.messages_left(1049) == 4
    assert limit.wait_ms(1049) == 0
    assert limit.messages_left(1500) == 50
    assert limit.messages_left(99_000) == 100, "more than a second's worth is not saved"


def test_a_debt_is_paid_before_anything_else_passes() -> None:
    limit = RateLimit(10, 0)
    limit.take(40, 0, 0)
    assert limit.wait_ms(0) == 3100
    assert limit.messages_left(2999) == 0
    assert limit.messages_left(3100) == 1
    assert limit.wait_ms(3100) == 0


def test_messages_and_bytes_are_limited_each() -> None:
    limit = RateLimit(10, 1000)
    limit.take(1, 1500, 0)
    assert limit.messages_left(0) == 0
    assert limit.wait_ms(0) == 550
    assert limit.messages_left(550) == 10
    limit.take(10, 10, 550)
    assert limit.messages_left(550) == 0
    only_bytes = RateLimit(0, 100)
    only_bytes.take(10**6, 99, 0)
    assert only_bytes.messages_left(0) == NO_LIMIT


def test_slow_rates_wait_for_a_whole_message() -> None:
    limit = RateLimit(1, 0)
    limit.take(1, 0, 0)
    assert limit.wait_ms(0) == 1000
    assert limit.wait_ms(999) == 1
    assert limit.messages_left(1000) == 1


def test_a_clock_that_stands_or_goes_back_brings_nothing() -> None:
    limit = RateLimit(10, 0)
    limit.take(10, 0, 1000)
    assert limit.messages_left(500) == 0
    assert limit.messages_left(1000) == 0


def test_in_the_long_run_the_rate_is_kept_whatever_is_taken() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(20):
        rate, now, passed = draw.choice([1, 7, 300, 100_000]), 0, 0
        limit = RateLimit(rate, 0)
        while now < 60_000:
            if wait := limit.wait_ms(now):
                now += wait
            else:
                size = draw.randrange(1, max(2, rate // 4))
                limit.take(size, 0, now)
                passed += size
                now += draw.randrange(3)
        assert rate * (now / 1000 - 1) <= passed * 1.1
        assert passed <= rate * (now / 1000 + 1) + rate // 4 + 1
