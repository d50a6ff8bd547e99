"""Clients that ask for more than an actor keeps are held back, or told so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.errors import NotAllowedError
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import partition_name
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, receive

Quiet = Callable[[Consumer], None]
Make = Callable[..., Broker]


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared])
def test_a_consumer_that_acknowledges_nothing_is_stopped_until_it_does(
    make_broker: Make, assert_quiet: Quiet, kind: ConsumerType
) -> None:
    broker = make_broker(max_pending_acks_per_subscription=10)
    client, topic = broker.client(), broker.topic()
    producer = client.create_producer(topic)
    for value in numbers(0, 25):
        producer.send(value)
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST)
    held = receive(consumer, 10)
    assert_quiet(consumer)

    def is_said() -> bool:
        told = broker.admin().topics.why_blocked(topic, "s")
        return "max_pending_acks_per_subscription is reached: 10 entries" in str(told)

    wait_until(is_said, what="why nothing comes")
    got = [message.data() for message in held]
    while held:
        for message in held:
            consumer.acknowledge(message)
        held = receive(consumer, min(10, 25 - len(got)))
        got += [message.data() for message in held]
    assert sorted(got, key=int) == numbers(0, 25)
    if kind != ConsumerType.Shared:
        assert got == numbers(0, 25)


def test_a_partition_grants_no_more_leases_than_it_keeps(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_ray.broker.partition.partition_calls.MOST_LEASES", 3)
    topic = broker.topic()
    last = client.create_producer(topic).send(b"x")
    position = [last.ledger_id(), last.entry_id()]
    lease = {"first": position, "last": position, "expires_ms": 1 << 60}
    plan = {"start": "earliest", "end": "latest", "slice_bytes": 1 << 20, "lease_ms": WAIT_MS}
    address = partition_name(TopicName.parse(topic).full)

    def call(method: str, arguments: dict[str, object]) -> dict[str, int]:
        answer: dict[str, int] = broker.cluster.call(address, "call", method, arguments, timeout_s=20.0)
        return answer

    ids = [call("grant_lease", lease)["lease_id"] for _ in range(3)]
    for method, arguments in (("grant_lease", lease), ("plan_range", plan)):
        with pytest.raises(NotAllowedError, match="3 leases of bulk reads"):
            call(method, arguments)
    call("release_lease", {"lease_id": ids[0]})
    assert call("plan_range", plan)["lease_id"] not in ids
