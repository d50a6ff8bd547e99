"""Drops are counted and have a rate."""

from __future__ import annotations

from pulsar_ray.model.traffic import Drops


def test_the_counter_grows_and_the_rate_goes_back_to_nothing() -> None:
    drops = Drops(0)
    assert drops.describe() == {"msgDropRate": 0.0, "msgDropCounter": 0}
    drops.record(30)
    drops.sample(1000)
    assert drops.describe() == {"msgDropRate": 30.0, "msgDropCounter": 30}
    for second in range(2, 20):
        drops.sample(1000 * second)
    assert drops.describe() == {"msgDropRate": 0.0, "msgDropCounter": 30}
