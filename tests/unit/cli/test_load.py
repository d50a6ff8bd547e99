from __future__ import annotations

from typing import Any

import pytest

from pulsar_ray.cli import load as work
from pulsar_ray.cli.load import Load, Meter
from pulsar_ray.errors import DiskSpaceLow
from tests.unit.cli.fakes import FakeConsumer, FakeProducer


def run(load: Load, step: Any) -> None:
    load.start(step)
    load.wait(30)
    load.finish()


def test_the_count_is_shared_among_threads() -> None:
    load = Load(3, 10)
    producers = [FakeProducer() for _ in range(3)]
    each = iter(producers)
    run(load, lambda meter, quota: work.produce(next(each), b"x" * 5, 0, load, meter, quota))  # type: ignore[arg-type]
    assert sorted(len(producer.sent) for producer in producers) == [3, 3, 4]
    assert sum(meter.messages for meter in load.meters) == 10
    assert sum(meter.bytes for meter in load.meters) == 50
    assert sum(meter.latencies.count for meter in load.meters) == 10


def test_the_first_error_ends_all_and_is_raised() -> None:
    load = Load(1, None)
    producer = FakeProducer(error=DiskSpaceLow("no space"), fails_at=2)
    load.start(lambda meter, quota: work.produce(producer, b"", 0, load, meter, quota))  # type: ignore[arg-type]
    load.wait(30)
    with pytest.raises(DiskSpaceLow, match="no space"):
        load.finish()


def test_consuming_counts_and_acknowledges() -> None:
    load = Load(1, 3)
    consumer = FakeConsumer([[(b"ab", None), (b"c", None)], [(None, None)]])
    run(load, lambda meter, quota: work.consume(consumer, load, meter, quota))  # type: ignore[arg-type]
    meter: Meter = load.meters[0]
    assert (meter.messages, meter.bytes, meter.latencies.count) == (3, 3, 3)
    assert consumer.acknowledged == 3
