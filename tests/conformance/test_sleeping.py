"""Actors that went to sleep come back as if they had never left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.errors import ConsumerBusy, NotAllowedError, ProducerBusy, ProducerFenced, TopicNotFound
from pulsar_ray.managed_ledger.store.wake_times import read_wake_times
from pulsar_ray.model.enums import ConsumerType, ProducerAccessMode
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, receive, values

Quiet = Callable[[Consumer], None]
Make = Callable[..., Broker]


def test_what_was_not_acknowledged_comes_after_the_sleep(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, initial_position=EARLIEST)
    producer = client.create_producer(topic)
    for value in numbers(0, 10):
        producer.send(value)
    for message in receive(consumer, 10):
        if int(message.data()) % 2:
            consumer.acknowledge(message)
    producer.close()
    consumer.close()
    wait_until(lambda: broker.cluster.put_to_sleep(topic), what="its sleep")
    producer = client.create_producer(topic)
    producer.send(b"after")
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    assert sorted(values(consumer, 6)) == [*numbers(0, 10)[::2], b"after"]
    assert_quiet(consumer)


def test_delivery_counts_survive_the_sleep(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=10,
    )
    client.create_producer(topic).send(b"x")
    for count in range(2):
        message = consumer.receive(WAIT_MS)
        assert message.redelivery_count() == count
        consumer.negative_acknowledge(message)
    assert consumer.receive(WAIT_MS).redelivery_count() == 2
    client.close()
    wait_until(lambda: broker.cluster.put_to_sleep(topic), what="its sleep")
    again = broker.client().subscribe(topic, "s", ConsumerType.Shared)
    assert again.receive(WAIT_MS).redelivery_count() >= 2


def test_nobody_sleeps_with_clients_attached(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    assert not broker.cluster.put_to_sleep(topic)
    consumer.close()
    producer = client.create_producer(topic)
    assert not broker.cluster.put_to_sleep(topic)
    producer.close()
    wait_until(lambda: broker.cluster.put_to_sleep(topic), what="its sleep")


def test_a_link_that_nobody_uses_wakes_nobody(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
    producer.send(b"0")
    assert values(consumer, 1, acknowledge=True) == [b"0"]
    consumer.close()
    producer.close()
    addresses = set(broker.cluster.addresses)
    wait_until(lambda: broker.cluster.put_to_sleep(topic), what="its sleep")
    assert len(addresses - set(broker.cluster.addresses)) == 2
    # Another topic is served meanwhile, over links of the same client.
    other = broker.topic()
    client.create_producer(other).send(b"1")
    assert values(client.subscribe(other, "s", initial_position=EARLIEST), 1) == [b"1"]
    assert not any(topic in address for address in broker.cluster.addresses)


def test_a_deleted_topic_does_not_come_back_from_its_sleep(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.create_producer(topic).close()
    wait_until(lambda: broker.cluster.put_to_sleep(topic), what="its sleep")
    broker.cluster.delete_topic(topic)
    with pytest.raises(TopicNotFound):
        broker.cluster.resolve(topic, create=False, timeout_s=5)


def test_a_repeated_block_is_known_after_the_sleep(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    for value in numbers(0, 5):
        producer.send(value)
    producer.close()
    for number in range(5, 8):
        wait_until(lambda: broker.cluster.put_to_sleep(topic), what="its sleep")
        producer = client.create_producer(topic)
        producer.send(b"%06d" % number)
        producer.close()
    assert broker.stored(topic) == numbers(0, 8)


def test_consumed_messages_are_deleted_when_the_topic_falls_asleep(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for value in numbers(0, 5):
        producer.send(value)
    consumer.acknowledge_cumulative(receive(consumer, 5)[-1])
    producer.close()
    consumer.close()
    wait_until(lambda: broker.cluster.put_to_sleep(topic), what="it falls asleep")
    assert broker.stored(topic) == []


def test_messages_without_a_subscription_outlast_the_sleep(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send(b"kept")
    producer.close()
    wait_until(lambda: broker.cluster.put_to_sleep(topic), what="its sleep")
    assert values(client.subscribe(topic, "s", initial_position=EARLIEST), 1) == [b"kept"]


@pytest.mark.parametrize("kill", [True, False])
def test_a_partition_that_dies_with_its_broker_is_looked_at(
    broker: Broker, client: Client, tmp_path: Path, kill: bool
) -> None:
    topic = broker.topic()
    client.create_producer(topic).send(b"nobody has subscribed to it")
    broker.restart(kill=kill)
    ((_, due_ms),) = read_wake_times(tmp_path / "0" / "p").items()
    assert (due_ms == 0) == kill


def test_looking_and_counting_keep_nobody_awake(make_broker: Make) -> None:
    broker = make_broker(max_consumers_per_topic=5)
    if broker.transport == "sleepy":
        pytest.skip("its actors leave before they can be looked at")
    client, topic = broker.client(), broker.topic()
    consumer = client.subscribe(topic, "s")
    partition = broker.cluster.partition(topic)
    dispatcher = broker.cluster.dispatcher_of(topic, "s")

    servers: list[Any] = [partition.server, dispatcher.server]

    def uses() -> list[int]:
        return [servers[0]._parts.use._requests, servers[1]._uses]

    def are_idle() -> bool:
        return all(server.activity() is not None for server in servers)

    # Where their number is limited, consumers keep their places by keeping the actors awake.
    assert not are_idle()
    consumer.close()
    wait_until(are_idle, what="an end of the opening")
    before = uses()
    for _ in range(20):
        broker.admin().topics.stats(topic)
        dispatcher.owner.loop.call_soon_threadsafe(servers[1].tick)
    # Late packets of the opening may have come meanwhile.
    assert all(now - then < 10 for then, now in zip(before, uses(), strict=True))
    wait_until(are_idle, what="an end of looking")


def test_a_subscription_is_not_deleted_under_a_consumer_that_comes_back(broker: Broker) -> None:
    client, topic = broker.client(), broker.topic()
    consumer = client.subscribe(topic, "s")
    broker.cluster.kill(f"{topic} -> s")
    with pytest.raises(NotAllowedError, match="active connected consumers"):
        broker.admin().topics.unsubscribe(topic, "s")
    consumer.close()
    broker.admin().topics.unsubscribe(topic, "s")


def test_who_holds_a_place_that_others_could_take_keeps_the_topic_awake(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    named = client.create_producer(topic, producer_name="mine")
    named.send(b"1")
    assert not broker.cluster.put_to_sleep(topic, with_clients=True)
    with pytest.raises(ProducerBusy):
        broker.client().create_producer(topic, producer_name="mine")
    named.close()
    client.create_producer(topic).send(b"2")
    broker.cluster.override(topic, max_producers_per_topic=1)
    assert not broker.cluster.put_to_sleep(topic, with_clients=True)
    with pytest.raises(ProducerBusy):
        broker.client().create_producer(topic)
    broker.cluster.override(topic)
    wait_until(lambda: broker.cluster.put_to_sleep(topic, with_clients=True), what="its sleep")


def test_who_shares_a_topic_that_was_taken_before_keeps_out_who_would_take_it(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    client.create_producer(topic, access_mode=ProducerAccessMode.Exclusive).close()
    shared = client.create_producer(topic)
    shared.send(b"1")
    assert not broker.cluster.put_to_sleep(topic, with_clients=True)
    with pytest.raises(ProducerFenced):
        broker.client().create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
    shared.close()
    wait_until(lambda: broker.cluster.put_to_sleep(topic, with_clients=True), what="its sleep")
    broker.client().create_producer(topic, access_mode=ProducerAccessMode.Exclusive).send(b"2")


def test_a_limited_consumer_keeps_its_subscription_awake(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.subscribe(topic, "s", ConsumerType.Shared)
    broker.cluster.override(topic, max_consumers_per_subscription=1)
    assert not broker.cluster.put_to_sleep(topic, with_clients=True)
    with pytest.raises(ConsumerBusy):
        broker.client().subscribe(topic, "s", ConsumerType.Shared)
    broker.cluster.override(topic)
    wait_until(lambda: broker.cluster.put_to_sleep(topic, with_clients=True), what="its sleep")


def test_stats_count_what_was_acknowledged_also_if_the_dispatcher_leaves_just_then(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, ack_receipt_enabled=True)
    with client.create_producer(topic) as producer:
        for value in numbers(0, 3):
            producer.send(value)
    consumer.acknowledge(receive(consumer, 3)[1])
    consumer.close()
    dispatcher = broker.cluster.dispatcher_of(topic, "s").address
    ask = broker.cluster.stats
    asked: list[str] = []

    def leave_before(address: str, timeout_s: float) -> Any:
        if address == dispatcher and not asked:
            asked.append(address)
            wait_until(lambda: broker.cluster.put_to_sleep(topic), what="nobody uses it")
        return ask(address, timeout_s)

    monkeypatch.setattr(broker.cluster, "stats", leave_before)
    assert broker.admin().topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 2
    assert asked


def actors_of(broker: Broker, topic: str) -> list[str]:
    return [address for address in broker.cluster.addresses if topic in address]


def wait_asleep(broker: Broker, topic: str) -> None:
    """Wait until nobody of a topic runs, also while its clients are connected."""

    def sleeps() -> bool:
        broker.cluster.put_to_sleep(topic, with_clients=True)
        return not actors_of(broker, topic)

    wait_until(sleeps, 60, f"the sleep of {topic}")


def test_looking_at_a_sleeping_topic_wakes_nobody(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, initial_position=EARLIEST)
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number) for number in range(5)]
    for message in receive(consumer, 5)[1:3]:
        consumer.acknowledge(message)
    consumer.close()
    producer.close()
    wait_asleep(broker, topic)
    stats = topics.stats(topic)
    assert stats["subscriptions"]["s"]["msgBacklog"] == 3
    assert stats["storageSize"] > 0
    assert topics.subscriptions(topic) == ["s"]
    assert topics.get_last_message_id(topic).entry_id() == ids[-1].entry_id()
    assert topics.stats_internal(topic)["cursors"]["s"]["state"] == "Asleep"
    assert not actors_of(broker, topic)
    # A change is made by the actors: they are woken for it.
    assert topics.skip_all(topic, "s") == 3
    wait_asleep(broker, topic)
    assert topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0


def test_open_producers_and_consumers_keep_nobody_awake(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Exclusive)
    producer = client.create_producer(topic)
    wait_asleep(broker, topic)
    assert consumer.is_connected()
    broker.client().create_producer(topic).send(b"0")
    (message,) = receive(consumer, 1)
    assert message.data() == b"0"
    consumer.acknowledge(message)
    wait_asleep(broker, topic)
    producer.send(b"1")
    (message,) = receive(consumer, 1)
    assert (message.data(), message.redelivery_count()) == (b"1", 0)


def test_a_consumer_that_is_closed_while_parked_leaves_the_place(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Exclusive)
    wait_asleep(broker, topic)
    (partition,) = consumer._core.partitions.all
    wait_until(lambda: partition.link.is_parked, what="the notice of its sleep")
    consumer.close()
    assert not actors_of(broker, topic)
    consumer = broker.client().subscribe(topic, "s", ConsumerType.Exclusive)
    client.create_producer(topic).send(b"0")
    assert [message.data() for message in receive(consumer, 1)] == [b"0"]
