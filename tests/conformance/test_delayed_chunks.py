"""Messages in chunks that are delayed, over every carrier."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import dispatcher_name
from tests.conformance.broker import WAIT_MS, Broker, values

Quiet = Callable[[Consumer], None]
LONG = timedelta(hours=1)
SHORT_MS = 700
DELAYING = (ConsumerType.Shared, ConsumerType.KeyShared)


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    """A broker that never delivers early."""
    return make_broker(is_delayed_delivery_deliver_at_time_strict=True)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def large(seed: int) -> bytes:
    return random.Random(seed).randbytes(45_678)


def chunking(client: Client, topic: str) -> Producer:
    return client.create_producer(topic, chunking_enabled=True, chunk_max_message_size=10_000)


def shown(broker: Broker, topic: str, name: str) -> int:
    found: int = broker.admin().topics.stats(topic)["subscriptions"]["s"][name]
    return found


@pytest.mark.parametrize("kind", DELAYING, ids=str)
def test_it_comes_whole_when_it_is_due_and_holds_nothing_up(
    broker: Broker, client: Client, assert_quiet: Quiet, kind: ConsumerType, patience: int
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", kind)
    producer = chunking(client, topic)
    due_ms = now_ms() + SHORT_MS * patience
    producer.send_async(large(1), None, partition_key="k", deliver_at=due_ms)
    producer.send_async(large(2), None, partition_key="k")
    producer.send(b"now", partition_key="k")
    assert values(consumer, 3, acknowledge=True) == [large(2), b"now", large(1)]
    assert now_ms() >= due_ms
    wait_until(lambda: shown(broker, topic, "msgBacklog") == 0, what="all chunks are acknowledged")
    assert_quiet(consumer)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover], ids=str)
def test_types_that_do_not_delay_deliver_it_at_once(
    broker: Broker, client: Client, kind: ConsumerType
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", kind)
    producer = chunking(client, topic)
    producer.send(large(1), deliver_after=LONG)
    producer.send(b"behind")
    assert values(consumer, 2) == [large(1), b"behind"]


def test_one_that_is_past_comes_at_once(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    chunking(client, topic).send(large(1), deliver_at=1)
    assert values(consumer, 1) == [large(1)]


@pytest.mark.parametrize("kind", DELAYING, ids=str)
def test_it_waits_for_its_time_over_a_death_of_the_dispatcher(
    broker: Broker, client: Client, kind: ConsumerType, patience: int
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", kind)
    producer = chunking(client, topic)
    due_ms = now_ms() + 2 * SHORT_MS * patience
    for number in range(3):
        producer.send(large(number), partition_key=str(number), deliver_at=due_ms)
    producer.send(b"now")
    assert values(consumer, 1, acknowledge=True) == [b"now"]
    broker.cluster.kill(dispatcher_name(topic, "s", durable=True))
    assert sorted(values(consumer, 3, acknowledge=True)) == sorted(large(number) for number in range(3))
    assert now_ms() >= due_ms
    wait_until(lambda: shown(broker, topic, "msgBacklog") == 0, what="all chunks are acknowledged")


def test_one_that_the_tracker_hands_over_before_it_was_read_again_is_whole(
    broker: Broker, client: Client, patience: int
) -> None:
    """After a seek the tracker knows what the dispatcher has not read yet, for want of room."""
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=1)
    producer = chunking(client, topic)
    for number in range(30):
        producer.send(b"%d" % number)
    due_ms = now_ms() + 2 * SHORT_MS * patience
    producer.send(large(1), deliver_at=due_ms)
    for _ in range(30):
        consumer.acknowledge(consumer.receive(WAIT_MS))
    why_blocked = broker.admin().topics.why_blocked
    wait_until(lambda: why_blocked(topic, "s")["delayedDueInMs"] is not None, what="the tracker knows it")
    consumer.seek(MessageId.earliest)
    got = [consumer.receive(WAIT_MS).data() for _ in range(31)]
    assert sorted(got) == sorted([large(1), *(b"%d" % number for number in range(30))])


def test_it_can_be_acknowledged_before_its_time(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    sent = chunking(client, topic).send(large(1), deliver_after=LONG)
    wait_until(lambda: shown(broker, topic, "msgDelayed") == 1, what="it waits")
    consumer.acknowledge(sent)
    wait_until(lambda: shown(broker, topic, "msgBacklog") == 0, what="its chunks go with it")


def test_a_large_message_can_be_retried_later(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        enable_retry=True,
        dead_letter_policy=ConsumerDeadLetterPolicy(3),
    )
    value = random.Random(1).randbytes(6_000_000)
    client.create_producer(topic, chunking_enabled=True).send(value, {"p": "q"}, partition_key="k")
    due_ms = now_ms() + SHORT_MS
    consumer.reconsume_later(consumer.receive(WAIT_MS), timedelta(milliseconds=SHORT_MS))
    again = consumer.receive(WAIT_MS)
    assert now_ms() >= due_ms
    assert (again.data(), again.partition_key(), again.properties()["p"]) == (value, "k", "q")
    consumer.acknowledge(again)
    wait_until(lambda: shown(broker, topic, "msgBacklog") == 0, what="the original is acknowledged")
