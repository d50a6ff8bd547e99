"""Whoever waits no longer for a consumer or producer to be open is not there, over every carrier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.errors import ConsumerBusy, SessionLost, Timeout
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.stub_actor import StubActor
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, values
from tests.conformance.keyed import DIGITS, publish

HURRIED = 1
"""Seconds for an operation."""


@contextmanager
def standing_still(actor: StubActor) -> Iterator[None]:
    """Meanwhile it reads nothing; afterwards it answers everything that was asked."""
    actor.freeze()
    try:
        yield
    finally:
        actor.thaw()


def once_there_is_room(client: Client, topic: str) -> Consumer:
    """An exclusive consumer, which has to wait until the actor has heard that nobody else wants to be it."""
    opened: list[Consumer] = []

    def has_opened() -> bool:
        with suppress(ConsumerBusy):
            opened.append(client.subscribe(topic, "s"))
        return bool(opened)

    wait_until(has_opened, what="an exclusive place")
    return opened[0]


@pytest.fixture
def hurried(broker: Broker) -> Client:
    return broker.client(operation_timeout_seconds=HURRIED)


def test_it_keeps_no_exclusive_place(broker: Broker, hurried: Client) -> None:
    topic = broker.topic()
    hurried.subscribe(topic, "s").close()
    with standing_still(broker.cluster.dispatcher_of(topic, "s")), pytest.raises((Timeout, SessionLost)):
        hurried.subscribe(topic, "s")
    consumer = once_there_is_room(broker.client(), topic)
    hurried.create_producer(topic).send(b"x")
    assert values(consumer, 1) == [b"x"]


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_it_gets_no_messages(broker: Broker, hurried: Client, kind: ConsumerType) -> None:
    topic = broker.topic()
    present = hurried.subscribe(topic, "s", kind, initial_position=EARLIEST)
    with standing_still(broker.cluster.dispatcher_of(topic, "s")), pytest.raises((Timeout, SessionLost)):
        hurried.subscribe(topic, "s", kind)
    publish(broker.client(), topic, DIGITS * 3)
    wait_until(lambda: len(broker.unacked(topic, "s")) == 1, what="the first one is alone")
    assert sorted(int(present.receive(WAIT_MS).data()) for _ in range(30)) == list(range(30))


def test_it_keeps_no_producers_name(broker: Broker, hurried: Client) -> None:
    topic = broker.topic()
    hurried.create_producer(topic)
    with standing_still(broker.cluster.partition(topic)), pytest.raises((Timeout, SessionLost)):
        hurried.create_producer(topic, "mine")
    patient = broker.client()
    patient.create_producer(topic)
    wait_until(lambda: len(broker.admin().topics.stats(topic)["publishers"]) == 2, what="two unnamed ones")
    patient.create_producer(topic, "mine").send(b"x")


def test_one_that_waits_for_a_place_gives_it_up_with_the_wait(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(reattach_grace_seconds=3)
    topic = broker.topic()
    vanished, hurried = broker.client(), broker.client(operation_timeout_seconds=HURRIED)
    vanished.subscribe(topic, "s")
    address = f"{topic} -> s"
    broker.cluster.kill(address, keep_down=True)
    vanished.shutdown()
    broker.cluster.allow(address)
    with pytest.raises((Timeout, SessionLost)):
        hurried.subscribe(topic, "s")
    patient = broker.client()
    consumer = once_there_is_room(patient, topic)
    patient.create_producer(topic).send_many(numbers(0, 3))
    assert values(consumer, 3) == numbers(0, 3)
