"""Subscriptions and topics that come and go at the same moment as other things, over every carrier."""

from __future__ import annotations

import random
import re
import threading
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.options.policies import ConsumerKeySharedPolicy
from pulsar_ray.errors import (
    BrokerMetadataError,
    ConsumerAssignError,
    ConsumerBusy,
    PulsarException,
    TopicNotFound,
)
from pulsar_ray.model.enums import ConsumerType, KeySharedMode
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.cluster import AttachReply, SubscriptionRequest
from tests.conformance.broker import Broker, numbers, values
from tests.conformance.non_persistent import new_topic, send_until_received

SOON: dict[str, Any] = {"pattern_auto_discovery_period": 1}


class HeldUp:
    """Holds up whoever asks for the dispatchers of a topic, until `let_go`."""

    def __init__(self, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.let_go = threading.Event(), threading.Event()
        ask = broker.cluster.dispatcher

        def dispatcher(request: SubscriptionRequest, timeout_s: float) -> str:
            if request.topic == topic:
                self.asked.set()
                self.let_go.wait(20)
            return ask(request, timeout_s)

        monkeypatch.setattr(broker.cluster, "dispatcher", dispatcher)


def found_later(client: Client, broker: Broker) -> tuple[Consumer, str]:
    """A consumer of a pattern, and a topic that it has not found yet."""
    broker.cluster.create_topic("found-1", 0)
    consumer = client.subscribe(re.compile("found-.*"), "s", ConsumerType.Shared, **SOON)
    return consumer, "persistent://public/default/found-2"


def test_a_consumer_that_closes_while_it_finds_a_topic_leaves_nothing_there(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, topic = found_later(client, broker)
    held_up = HeldUp(broker, topic, monkeypatch)
    broker.cluster.create_topic(topic, 0)
    assert held_up.asked.wait(20)
    consumer.close()
    held_up.let_go.set()
    wait_until(lambda: broker.admin().topics.subscriptions(topic) == ["s"], what="it was attached")
    client.create_producer(topic).send(b"for somebody else")
    other = client.subscribe(topic, "s", ConsumerType.Shared)
    assert values(other, 1) == [b"for somebody else"]
    wait_until(lambda: len(broker.unacked(topic, "s")) == 1, what="the other one is alone")


def test_unsubscribing_while_a_topic_is_found_reaches_it_too(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, topic = found_later(client, broker)
    held_up = HeldUp(broker, topic, monkeypatch)
    broker.cluster.create_topic(topic, 0)
    assert held_up.asked.wait(20)
    leaving = threading.Thread(target=consumer.unsubscribe)
    leaving.start()
    held_up.let_go.set()
    leaving.join(30)
    assert broker.admin().topics.subscriptions(topic) == []


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_topic_that_is_deleted_and_created_again_at_once_is_followed(
    broker: Broker, client: Client, partitions: int
) -> None:
    topic, other = broker.topic(partitions), broker.topic()
    listed = client.subscribe([topic, other], "listed", **SOON)
    matching = client.subscribe(re.compile("t[0-9]+"), "matching", **SOON)
    producer = client.create_producer(other)
    for turn in range(2):
        broker.cluster.delete_topic(topic)
        broker.cluster.create_topic(topic, partitions + turn if partitions else 0)
        again = broker.client().create_producer(topic)
        for value in numbers(0, 4):
            again.send(value)
        for consumer in (listed, matching):
            assert sorted(values(consumer, 4, acknowledge=True)) == numbers(0, 4)
    producer.send(b"unharmed")
    assert values(listed, 1) == values(matching, 1) == [b"unharmed"]


def test_a_subscription_that_is_deleted_under_a_consumer_of_several_topics_stays_deleted(
    broker: Broker, client: Client
) -> None:
    topic, other = broker.topic(), broker.topic()
    consumer = client.subscribe([topic, other], "s", **SOON)
    broker.admin().topics.unsubscribe(topic, "s", force=True)
    wait_until(lambda: len(consumer._core.partitions.all) == 1, what="it noticed")
    assert consumer._core.partitions.discovery is not None
    consumer._core.partitions.discovery.look()
    assert broker.admin().topics.subscriptions(topic) == []


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("has_own_client", [True, False])
def test_who_subscribes_anew_while_another_one_unsubscribes_is_left_alone(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch, is_stored: bool, has_own_client: bool
) -> None:
    topic = broker.topic() if is_stored else new_topic()
    leaving = client.subscribe(topic, "s")
    later = broker.client() if has_own_client else client
    anew: list[Consumer] = []
    gone = broker.cluster.dispatcher_gone

    def after_somebody_else(address: str, *, was_deleted: bool) -> None:
        if not anew:
            monkeypatch.setattr(broker.cluster, "dispatcher_gone", gone)
            anew.append(later.subscribe(topic, "s"))
        gone(address, was_deleted=was_deleted)

    monkeypatch.setattr(broker.cluster, "dispatcher_gone", after_somebody_else)
    leaving.unsubscribe()
    assert send_until_received(client.create_producer(topic), anew[0])
    wait_until(anew[0].is_connected, what="it is connected")


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("has_own_client", [True, False])
def test_any_number_may_subscribe_and_unsubscribe_at_the_same_time(
    broker: Broker, client: Client, is_stored: bool, has_own_client: bool
) -> None:
    topic = broker.topic() if is_stored else new_topic()
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    failures: list[PulsarException] = []

    def come_and_go(number: int) -> None:
        rng = random.Random(seed + number)
        mine = broker.client() if has_own_client else client
        for _ in range(12):
            kind = rng.choice([ConsumerType.Shared, ConsumerType.Exclusive])
            try:
                consumer = mine.subscribe(topic, "s", kind)
                try:
                    consumer.unsubscribe() if rng.random() < 0.5 else consumer.close()
                except BrokerMetadataError:
                    consumer.close()
            except ConsumerBusy:
                continue
            except PulsarException as error:
                failures.append(error)

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    last = client.subscribe(topic, "s")
    assert send_until_received(client.create_producer(topic), last)


@pytest.mark.parametrize("mode", list(KeySharedMode))
def test_a_new_key_shared_consumer_takes_no_place_of_those_whose_dispatcher_died(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch, mode: KeySharedMode
) -> None:
    topic = broker.topic()
    everything = ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=[(0, 65_535)])
    policy = everything if mode == KeySharedMode.Sticky else ConsumerKeySharedPolicy()
    present = client.subscribe(topic, "s", ConsumerType.KeyShared, key_shared_policy=everything)
    producer = client.create_producer(topic)
    producer.send(b"before", partition_key="k")
    assert values(present, 1, acknowledge=True) == [b"before"]
    address, new_is_here, attach = f"{topic} -> s", threading.Event(), broker.cluster.attach

    def new_one_first(address_: str, client_id: str, **arguments: Any) -> AttachReply:
        if address_ != address:
            return attach(address_, client_id, **arguments)
        if client_id == client._links._client_id:
            new_is_here.wait(20)
            return attach(address_, client_id, **arguments)
        reply = attach(address_, client_id, **arguments)
        threading.Timer(0.2, new_is_here.set).start()
        return reply

    monkeypatch.setattr(broker.cluster, "attach", new_one_first)
    broker.cluster.kill(address)
    with pytest.raises((ConsumerAssignError, ConsumerBusy)):
        broker.client().subscribe(topic, "s", ConsumerType.KeyShared, key_shared_policy=policy)
    producer.send(b"after", partition_key="k")
    assert values(present, 1) == [b"after"]


def test_names_with_arrows_are_names_like_others(broker: Broker, client: Client) -> None:
    pairs = [("a", "x -> y"), ("a -> x", "y"), ("a -> x -> y", "z"), ("a => readers", "s"), ("a%2D>x", "y")]
    consumers = [client.subscribe(topic, name) for topic, name in pairs]
    reader = client.create_reader("a", consumers[0].get_last_message_id())
    for topic, name in pairs:
        client.create_producer(topic).send(f"{topic} {name}".encode())
    for consumer, (topic, name) in zip(consumers, pairs, strict=True):
        assert values(consumer, 1, acknowledge=True) == [f"{topic} {name}".encode()]
    assert reader.read_next(20_000).data() == b"a x -> y"
    for topic, name in pairs:
        assert name in broker.admin().topics.subscriptions(topic)
    broker.cluster.delete_topic("a")
    client.create_producer("a -> x").send(b"still there")
    assert values(consumers[1], 1) == [b"still there"]
    with pytest.raises(TopicNotFound):
        values(consumers[0], 1)
