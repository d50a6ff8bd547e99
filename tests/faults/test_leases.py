"""A client that is silent for longer than its lease: others get what it has, and it goes on when it wakes."""

from __future__ import annotations

import pytest

from pulsar_ray import ConsumerType
from pulsar_ray.testing.waiting import wait_until
from tests.faults.processes import ClientProcess
from tests.faults.reading import numbered, receive_acknowledged, subscribe
from tests.running_broker import Broker

LEASE_S = 5.0
DEADLINE_S = 60.0


@pytest.mark.long
@pytest.mark.parametrize("carrier", ["auto", "ray"])
def test_frozen_client_loses_what_it_has_and_goes_on(
    broker: Broker, topic: str, holder: ClientProcess
) -> None:
    client = broker.client()
    consumer = subscribe(client, topic, consumer_type=ConsumerType.Shared)
    holder.freeze()
    assert sorted(receive_acknowledged(consumer, 100)) == sorted(numbered(100))
    consumer.close()
    holder.thaw()
    client.create_producer(topic).send_many(numbered(10, 100))
    wait_until(lambda: len(holder.received()) >= 110, DEADLINE_S, "new messages at the frozen consumer")
    assert sorted(holder.received()[100:]) == [b.decode() for b in numbered(10, 100)]
