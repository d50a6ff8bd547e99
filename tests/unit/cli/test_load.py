from __future__ import annotations

import threading
from typing import Any

import pytest

from pulsar_ray.cli.messages import load as work
from pulsar_ray.cli.messages.load import Load, Meter
from pulsar_ray.client.received.message_batch import MessageBatchView
from pulsar_ray.errors import DiskSpaceLow
from pulsar_ray.model.enums import ConsumerType, InitialPosition
from tests.unit.cli.conftest import Run
from tests.unit.cli.fakes import FakeConsumer, FakeProducer, FakeTarget


def run_load(load: Load, step: Any) -> None:
    load.start(step)
    load.wait(30)
    load.finish()


def test_the_count_is_shared_among_threads() -> None:
    load = Load(3, 10)
    producers = [FakeProducer() for _ in range(3)]
    each = iter(producers)
    run_load(load, lambda meter, quota: work.produce(next(each), b"x" * 5, 0, load, meter, quota))  # type: ignore[arg-type]
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
    run_load(load, lambda meter, _: work.consume(consumer, load, meter))  # type: ignore[arg-type]
    meter: Meter = load.meters[0]
    assert (meter.messages, meter.bytes, meter.latencies.count) == (3, 3, 3)
    assert consumer.acknowledged == 3


def test_consuming_ends_whichever_consumer_gets_the_messages(run: Run) -> None:
    class Subscription(FakeConsumer):
        """Both threads take from its batches, as consumers of a Shared subscription do: one gets all."""

        turn = threading.Lock()

        def batch_receive(self) -> MessageBatchView:
            with self.turn:
                return super().batch_receive()

    target = FakeTarget(consumer=Subscription([[(b"a", None)] * 4]))
    result = run(target, "perf", "consume", "t", "--count", "4", "--threads", "2", "--seconds", "20")
    assert result.exit_code == 0, result.output
    # It is done before it could report twice.
    assert result.stderr.count("messages") <= 1
    assert "4 messages" in result.stdout


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ((), ConsumerType.Exclusive),
        (("--threads", "2"), ConsumerType.Shared),
        (("--threads", "2", "--type", "key_shared"), ConsumerType.KeyShared),
        (("--type", "failover"), ConsumerType.Failover),
    ],
)
def test_consumers_are_of_the_type_that_is_asked_for(
    run: Run, options: tuple[str, ...], kind: ConsumerType
) -> None:
    target = FakeTarget(consumer=FakeConsumer([[(b"a", None)], [(b"b", None)]]))
    result = run(target, "perf", "consume", "t", "--count", "2", "--from", "earliest", *options)
    assert result.exit_code == 0, result.output
    assert "2 messages" in result.stdout
    assert target.the_client.options["type"] is kind
    assert target.the_client.options["initial_position"] is InitialPosition.Earliest


def test_ctrl_c_tells_the_whole_and_is_exit_code_130(run: Run) -> None:
    target = FakeTarget(FakeProducer(interrupts_at=5))
    result = run(target, "perf", "produce", "t", "--rate", "1000", "--size", "10")
    assert result.exit_code == 130
    sent = len(target.the_client.producer.sent)
    assert sent > 5
    assert f"{sent:,} messages" in result.stdout
    assert target.the_client.is_closed
