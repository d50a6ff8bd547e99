"""Acknowledgments on a connection that is lost at that moment, over every carrier (ADR 0006)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.model.enums import ConsumerType
from tests.conformance.broker import Broker, numbers, values

Quiet = Callable[[Consumer], None]


@pytest.mark.parametrize("death", ["cut", "kill"])
@pytest.mark.parametrize("consumer_type", [ConsumerType.Exclusive, ConsumerType.Shared], ids=str)
def test_what_was_acknowledged_when_the_connection_went_stays_acknowledged(
    broker: Broker, client: Client, assert_quiet: Quiet, consumer_type: ConsumerType, death: str
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(
        topic, "s", consumer_type, receiver_queue_size=10, ack_grouping_time_ms=0, ack_grouping_max_size=1
    )
    address = f"{topic} -> s"
    producer.send_many(numbers(0, 80))
    got = []
    for _ in range(8):
        # Nobody waits for these to arrive.
        got += values(consumer, 10, acknowledge=True)
        if death == "cut":
            broker.cluster.cut_lanes(address)
        else:
            broker.cluster.kill(address)
    assert sorted(got) == numbers(0, 80)
    consumer.close()
    broker.restart(kill=True)
    again = broker.client().subscribe(topic, "s", consumer_type)
    assert_quiet(again)
