"""What tests of non-persistent topics have in common."""

from __future__ import annotations

import itertools
from typing import Any

from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import (
    Timeout,
)
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import Broker

NOWHERE = (-1, -1)
_TOPICS = itertools.count()


def new_topic() -> str:
    return f"non-persistent://public/default/n{next(_TOPICS)}"


def place(message_id: MessageId) -> tuple[int, int]:
    return message_id.ledger_id(), message_id.entry_id()


def drops(broker: Broker, topic: str, subscription: str) -> dict[str, Any]:
    """The subscription's own stats, after a look at what its partition dropped for it."""
    actor = broker.cluster.dispatcher_of(topic, subscription)
    server = actor.server
    assert server is not None
    actor.result(actor.submit(server.look_around), 10)
    found: dict[str, Any] = server.stats()["subscriptions"][subscription]
    return found


def wait_for_permits(broker: Broker, topic: str, subscription: str, consumers: int = 1) -> None:
    """Subscribing does not wait for the first permits to arrive, and without any messages are dropped."""

    def all_have_some() -> bool:
        permits = [one["availablePermits"] for one in drops(broker, topic, subscription)["consumers"]]
        return len(permits) == consumers and min(permits) > 0

    wait_until(all_have_some, what="permits")


def send_all(producer: Producer, sent: list[bytes]) -> None:
    for value in sent:
        producer.send_async(value, None)
    producer.flush()


def send_until_received(producer: Producer, consumer: Consumer) -> list[bytes]:
    """Send until something arrives, as after a loss; what arrived. Fails if nothing does."""
    got: list[bytes] = []
    counter = itertools.count()

    def arrived() -> bool:
        producer.send(b"again %d" % next(counter))
        try:
            got.append(consumer.receive(100).data())
        except Timeout:
            return False
        return True

    wait_until(arrived, what="messages that flow again")
    return got
