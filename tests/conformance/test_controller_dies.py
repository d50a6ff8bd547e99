"""The controller dies, and starts again: nobody's data or session depends on it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.errors import ProducerBusy
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, Broker, numbers, values

NAMESPACE = "public/default"


@pytest.fixture(autouse=True)
def _over_two_carriers(transport: str) -> None:
    if transport == "tcp":
        pytest.skip("what the controller does for a client is the same over every lane")


def test_all_that_runs_is_found_again_and_goes_on(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=2)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send_many(numbers(0, 10))
    running = set(broker.cluster.addresses)
    broker.cluster.kill_controller()
    producer.send_many(numbers(10, 20))
    assert sorted(values(consumer, 20, acknowledge=True)) == numbers(0, 20)
    other = broker.client().subscribe(topic, "s", ConsumerType.Shared)
    assert {name for name in broker.cluster.addresses if topic in name} == running
    broker.client().create_producer(topic).send(b"more")
    for each in (consumer, other):
        each.close()
    producer.close()
    client.shutdown()
    with broker.admin() as admin:
        admin.topics.delete(topic, force=True)
    assert not any(topic in name for name in broker.cluster.addresses)


def test_a_subscription_is_deleted_by_one_that_has_just_begun(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    client.create_producer(topic).send(b"x")
    assert values(consumer, 1, acknowledge=True) == [b"x"]
    broker.cluster.kill_controller(begins=False)
    consumer.unsubscribe()
    assert not any(name.endswith(" -> s") for name in broker.cluster.addresses)
    assert values(client.subscribe(topic, "s", initial_position=EARLIEST), 1) == [b"x"]


def test_an_actor_that_died_meanwhile_comes_back(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"before")
    for address in list(broker.cluster.addresses):
        broker.cluster.kill(address)
    broker.cluster.kill_controller()
    producer.send(b"behind")
    assert values(consumer, 2) == [b"before", b"behind"]


def test_what_sleeps_wakes(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.subscribe(topic, "s", initial_position=EARLIEST).close()
    client.create_producer(topic).send(b"kept")
    client.close()
    wait_until(lambda: broker.cluster.put_to_sleep(topic), what="its sleep")
    broker.cluster.kill_controller()
    with broker.admin() as admin:
        assert admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 1
    assert values(broker.client().subscribe(topic, "s"), 1) == [b"kept"]


def test_policies_hold_that_it_had_given(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    with broker.admin() as admin:
        admin.topics.policies.set(topic, "max_producers", 1)
        broker.cluster.kill_controller()
        assert admin.topics.policies.get(topic, "max_producers").value == {"max_producers": 1}
        held = client.create_producer(topic)
        with pytest.raises(ProducerBusy):
            broker.client().create_producer(topic)
        broker.cluster.kill_controller()
        admin.topics.policies.remove(topic, "max_producers")
        broker.client().create_producer(topic).send(b"x")
        held.send(b"y")


def test_what_was_confirmed_while_it_died_again_and_again_is_so(broker: Broker) -> None:
    confirmed: list[str] = []
    stop = threading.Event()

    def create() -> None:
        with broker.admin() as admin:
            while not stop.is_set():
                name = f"persistent://{NAMESPACE}/c{len(confirmed)}"
                admin.topics.create_topic(name)
                confirmed.append(name)

    def send() -> None:
        client = broker.client()
        while not stop.is_set():
            if confirmed:
                client.create_producer(confirmed[-1]).close()

    threads = [threading.Thread(target=work) for work in (create, send)]
    for thread in threads:
        thread.start()
    for _ in range(6):
        before = len(confirmed)
        broker.cluster.kill_controller()
        wait_until(lambda: len(confirmed) > before + 2, what="further topics")  # noqa: B023
    stop.set()
    for thread in threads:
        thread.join(30)
    broker.cluster.kill_controller()
    with broker.admin() as admin:
        there: Any = admin.topics.list(NAMESPACE)
        assert set(confirmed) <= set(there)
