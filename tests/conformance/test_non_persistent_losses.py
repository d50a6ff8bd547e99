"""Non-persistent topics over every carrier: what is lost, and counted, and whom that does not hurt."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.errors import Result, TopicNotFound
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import dispatcher_name
from tests.conformance.broker import WAIT_MS, Broker, numbers, values
from tests.conformance.non_persistent import drops, new_topic, send_all, send_until_received

Quiet = Callable[[Consumer], None]
pytestmark = pytest.mark.usefixtures("carriers_are_kept")


def test_what_finds_no_permits_is_dropped_and_counted(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = new_topic()
    slow = client.subscribe(topic, "slow", receiver_queue_size=5)
    quick = client.subscribe(topic, "quick")
    producer = client.create_producer(topic)
    for value in numbers(0, 20):
        producer.send(value)
    assert values(quick, 20) == numbers(0, 20)
    wait_until(lambda: drops(broker, topic, "slow")["msgDropCounter"] == 15, what="15 drops")
    assert values(slow, 5) == numbers(0, 5)
    assert_quiet(slow)
    stats = drops(broker, topic, "slow")
    wait_until(lambda: drops(broker, topic, "slow")["msgDropRate"] > 0, what="a rate of drops")
    assert (stats["msgBacklog"], stats["unackedMessages"], stats["isDurable"]) == (0, 0, False)
    assert [consumer["msgOutCounter"] for consumer in stats["consumers"]] == [5]
    assert drops(broker, topic, "quick")["msgDropCounter"] == 0
    partition = broker.cluster.non_persistent_partition(topic).server
    assert partition is not None
    assert partition.stats()["msgInCounter"] == 20


def test_a_consumer_that_keeps_up_loses_nothing_however_small_its_queue(client: Client) -> None:
    topic = new_topic()
    consumer = client.subscribe(topic, "s", receiver_queue_size=20)
    producer = client.create_producer(topic)
    for value in numbers(0, 100):
        producer.send(value)
        # Without acknowledging: receiving is what gives permits back.
        assert consumer.receive(WAIT_MS).data() == value


def test_a_queue_of_zero_gets_what_is_sent_while_somebody_waits(client: Client) -> None:
    topic = new_topic()
    consumer = client.subscribe(topic, "s", receiver_queue_size=0)
    producer = client.create_producer(topic)
    future = consumer.receive_async()

    def arrived() -> bool:
        producer.send(b"x")
        return future.done()

    wait_until(arrived, what="the message somebody waits for")
    assert future.result(1).data() == b"x"


def test_a_killed_partition_loses_messages_and_nobody(broker: Broker, client: Client) -> None:
    topic = new_topic()
    consumers = [client.subscribe(topic, name) for name in ("a", "b")]
    producer = client.create_producer(topic)
    producer.send(b"before")
    assert [values(consumer, 1) for consumer in consumers] == [[b"before"]] * 2
    broker.cluster.kill(topic)
    for consumer in consumers:
        assert send_until_received(producer, consumer)


def test_what_is_sent_while_the_partition_is_away_is_answered_when_it_is_back(
    broker: Broker, client: Client
) -> None:
    topic = new_topic()
    producer = client.create_producer(topic)
    producer.send(b"before")
    broker.cluster.kill(topic, keep_down=True)
    told: list[Any] = []
    for value in numbers(0, 30):
        producer.send_async(value, lambda result, _: told.append(result))
    broker.cluster.allow(topic)
    producer.flush()
    assert told == [Result.Ok] * 30


def test_a_killed_dispatcher_loses_messages_and_nobody(broker: Broker, client: Client) -> None:
    topic = new_topic()
    consumer, other = client.subscribe(topic, "s"), client.subscribe(topic, "other")
    producer = client.create_producer(topic)
    send_all(producer, numbers(0, 10))
    assert values(other, 10) == numbers(0, 10)
    queue, partition = consumer._core.queue, consumer._core.partitions.all[0]
    wait_until(lambda: queue.messages_of(partition.deliveries) == 10, what="all of them at the consumer")
    broker.cluster.kill(dispatcher_name(topic, "s", durable=True))
    # What was here already is still handed out.
    assert values(consumer, 10) == numbers(0, 10)
    producer.send(b"meanwhile")
    assert values(other, 1) == [b"meanwhile"]
    assert send_until_received(producer, consumer)


def test_a_topic_that_is_gone_with_its_nodes_begins_anew_for_all_who_have_it_open(
    broker: Broker, client: Client
) -> None:
    topic = new_topic()
    consumer, other = client.subscribe(topic, "s"), broker.client().subscribe(topic, "other")
    reader = client.create_reader(topic, MessageId.latest)
    producer = broker.client().create_producer(topic)
    broker.cluster.lose_unstored(topic)
    assert send_until_received(producer, consumer)
    assert send_until_received(producer, other)
    assert send_until_received(producer, reader._consumer)


def test_a_topic_that_was_deleted_does_not_come_back_by_itself(broker: Broker, client: Client) -> None:
    topic = new_topic()
    consumer = client.subscribe(topic, "s")
    producer = broker.client().create_producer(topic)
    broker.admin().topics.delete(topic, force=True)
    with pytest.raises(TopicNotFound):
        consumer.receive(WAIT_MS)
    with pytest.raises(TopicNotFound):
        producer.send(b"x")
    assert topic not in broker.admin().topics.list("public/default")
    # Whoever makes it anew has another one.
    again = broker.client().subscribe(topic, "s")
    assert send_until_received(broker.client().create_producer(topic), again)


def test_a_subscription_that_is_stuck_delays_nobody(broker: Broker, client: Client) -> None:
    topic = new_topic()
    client.subscribe(topic, "stuck")
    quick = client.subscribe(topic, "quick")
    producer = client.create_producer(topic)
    frozen = broker.cluster.dispatcher_of(topic, "stuck")
    frozen.freeze()
    value = b"y" * 200_000
    for _ in range(100):
        producer.send(value)
        assert quick.receive(WAIT_MS).data() == value
    partition = broker.cluster.non_persistent_partition(topic).server
    assert partition is not None
    (publisher,) = partition.stats()["publishers"]
    assert publisher["producerName"] == producer.producer_name()
    assert publisher["msgDropCounter"] > 0
    frozen.thaw()


def test_a_lost_connection_is_made_again(broker: Broker, client: Client) -> None:
    if broker.transport not in ("socket", "tcp"):
        pytest.skip("needs a lane to cut")
    topic = new_topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for address in (topic, dispatcher_name(topic, "s", durable=True)):
        send_until_received(producer, consumer)
        broker.cluster.cut_lanes(address)
    assert send_until_received(producer, consumer)


def test_a_stream_as_fast_as_it_goes_arrives_in_order_as_far_as_it_arrives(
    broker: Broker, client: Client
) -> None:
    topic = new_topic()
    consumer = client.subscribe(topic, "s", receiver_queue_size=1000)
    producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
    count = 20_000
    for number in range(count):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    got: list[int] = []

    def is_complete() -> bool:
        while consumer._core.has_received():
            got.append(int(consumer.receive(WAIT_MS).data()))
        dropped: int = drops(broker, topic, "s")["msgDropCounter"]
        return len(got) + dropped == count

    wait_until(is_complete, what="every message received or counted as dropped")
    assert got == sorted(set(got))


def test_subscribing_amid_a_stream_loses_no_permits(broker: Broker, client: Client) -> None:
    topic = new_topic()
    producer = broker.client().create_producer(topic)
    ended = threading.Event()

    def stream() -> None:
        while not ended.is_set():
            producer.send(b"x")

    streaming = threading.Thread(target=stream)
    streaming.start()
    try:
        for number in range(5):
            consumer = client.subscribe(topic, f"s{number}", receiver_queue_size=2)
            assert values(consumer, 10) == [b"x"] * 10
            consumer.close()
    finally:
        ended.set()
        streaming.join()
