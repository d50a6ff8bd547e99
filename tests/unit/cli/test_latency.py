from __future__ import annotations

import random

import pytest

from pulsar_ray.cli.messages.load import Latencies


@pytest.mark.parametrize("value", [0, 1, 31, 32, 33, 1000, 999_999, 10**9, 10**12])
def test_a_single_value_is_known_to_three_percent(value: int) -> None:
    latencies = Latencies()
    latencies.add(value)
    for percent in (0, 50, 100):
        assert value <= latencies.percentile(percent) <= value * 1.04 + 1


def test_percentiles_of_many() -> None:
    random_ = random.Random(7)
    values = sorted(random_.randrange(10**9) for _ in range(5000))
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    assert latencies.count == 5000
    for percent in (1, 50, 90, 99):
        exact = values[5000 * percent // 100 - 1]
        assert exact <= latencies.percentile(percent) <= exact * 1.04


def test_none_and_negative_and_enormous_values() -> None:
    latencies = Latencies()
    assert latencies.percentile(50) == 0
    latencies.add(-5)
    assert latencies.percentile(100) == 0
    latencies.add(2**80)
    assert latencies.count == 2


def test_since_and_total() -> None:
    latencies = Latencies()
    latencies.add(100, 3)
    before = latencies.copy()
    latencies.add(10**6, 2)
    assert latencies.since(before).count == 2
    assert latencies.since(before).percentile(1) >= 10**6
    assert Latencies.total([before, latencies]).count == 8
    assert "p99" in latencies.summary()
