"""Non-persistent topics over every carrier: the types of subscription, and what is asked of them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import (
    ConsumerBusy,
    NotAllowedError,
    OperationNotSupported,
    ProducerBusy,
    PulsarException,
    SubscriptionNotFound,
)
from pulsar_ray.model.enums import (
    BatchingType,
    ConsumerType,
    RegexSubscriptionMode,
    SubscriptionMode,
)
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import dispatcher_name
from tests.conformance.broker import WAIT_MS, Broker, keyed_numbers, numbers, receive, values
from tests.conformance.non_persistent import drops, new_topic, send_all, send_until_received, wait_for_permits

Quiet = Callable[[Consumer], None]
pytestmark = pytest.mark.usefixtures("carriers_are_kept")


def test_acknowledging_and_asking_again_are_taken_and_change_nothing(
    client: Client, assert_quiet: Quiet
) -> None:
    topic = new_topic()
    consumer = client.subscribe(
        topic, "s", ack_receipt_enabled=True, negative_ack_redelivery_delay_ms=0, batch_index_ack_enabled=True
    )
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=4)
    send_all(producer, numbers(0, 20))
    messages = receive(consumer, 20)
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[1].message_id())
    consumer.acknowledge(messages[2:4])
    consumer.acknowledge_cumulative(messages[9])
    consumer.acknowledge_cumulative(messages[10].message_id())
    consumer.negative_acknowledge(messages[11])
    consumer.negative_acknowledge(messages[12].message_id())
    consumer.redeliver_unacknowledged_messages()
    consumer.seek(MessageId.earliest)
    consumer.seek(messages[3].message_id())
    consumer.seek(1)
    assert_quiet(consumer)
    send_all(producer, numbers(20, 40))
    view = consumer.batch_receive()
    consumer.acknowledge(view)
    assert values(consumer, 20 - len(view)) == numbers(20 + len(view), 40)
    for question in (consumer.get_last_message_id, consumer.get_last_message_ids):
        with pytest.raises(OperationNotSupported, match="non-persistent"):
            question()


def test_what_is_not_acknowledged_is_not_remembered_either(client: Client) -> None:
    topic = new_topic()
    consumer = client.subscribe(topic, "s", receiver_queue_size=10)
    producer = client.create_producer(topic)
    for value in numbers(0, 30):
        producer.send(value)
        consumer.receive(WAIT_MS)
    (partition,) = consumer._core.partitions.all
    assert len(partition.ack_sender.unacked) == 0


def test_exclusive_and_shared_keep_their_rules(client: Client, broker: Broker) -> None:
    topic = new_topic()
    client.subscribe(topic, "x")
    with pytest.raises(ConsumerBusy):
        broker.client().subscribe(topic, "x")
    shared = [broker.client().subscribe(topic, "s", ConsumerType.Shared) for _ in range(2)]
    with pytest.raises(ConsumerBusy):
        client.subscribe(topic, "s")
    producer = client.create_producer(topic, "one")
    with pytest.raises(ProducerBusy):
        client.create_producer(topic, "one")
    send_all(producer, numbers(0, 200))
    got: list[bytes] = []

    def all_arrived() -> bool:
        for consumer in shared:
            if consumer._core.has_received():
                got.append(consumer.receive(WAIT_MS).data())
            else:
                consumer._core.wait(0.01)
        return len(got) == 200

    wait_until(all_arrived, what="all of 200 at two consumers")
    assert sorted(got) == numbers(0, 200)


def test_listeners_futures_and_batches(client: Client) -> None:
    topic = new_topic()
    heard: list[bytes] = []

    def listen(consumer: Consumer, message: Message) -> None:
        heard.append(message.data())
        consumer.acknowledge(message)

    client.subscribe(topic, "listening", message_listener=listen)
    waiting = client.subscribe(topic, "waiting")
    futures = [waiting.receive_async() for _ in range(10)]
    producer = client.create_producer(topic)
    send_all(producer, numbers(0, 10))
    assert [future.result(WAIT_MS / 1000).data() for future in futures] == numbers(0, 10)
    wait_until(lambda: heard == numbers(0, 10), what="what a listener hears")


def test_unsubscribing_forgets_the_subscription(broker: Broker, client: Client) -> None:
    topic = new_topic()
    client.subscribe(topic, "s", receiver_queue_size=1).unsubscribe()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    client.create_producer(topic).send(b"x")
    assert values(consumer, 1) == [b"x"]
    assert drops(broker, topic, "s")["msgDropCounter"] == 0


def test_subscriptions_are_not_created_in_advance(broker: Broker, client: Client) -> None:
    topic = new_topic()
    client.create_producer(topic)
    actor = broker.cluster.non_persistent_partition(topic)
    server = actor.server
    assert server is not None
    call = actor.submit(lambda: server.call("register_subscription", {"name": "s"}))
    with pytest.raises(PulsarException, match="non-persistent"):
        actor.result(call, 10)


def test_an_administrator_sees_drops_and_deletes_subscriptions(broker: Broker, client: Client) -> None:
    topic, topics = new_topic(), broker.admin().topics
    consumer = client.subscribe(topic, "s", receiver_queue_size=1)
    reader = client.create_reader(topic, MessageId.latest)
    producer = client.create_producer(topic)
    for value in numbers(0, 4):
        producer.send(value)
    wait_until(lambda: topics.stats(topic)["msgDropCounter"] == 3, what="three drops")
    stats = topics.stats(topic)
    assert stats["subscriptions"]["s"]["msgDropCounter"] == 3
    assert stats["subscriptions"]["s"]["isDurable"] is False
    assert len(stats["subscriptions"]) == 2
    assert (stats["msgInCounter"], stats["storageSize"], stats["backlogSize"]) == (4, 0, 0)
    assert [one["msgDropCounter"] for one in stats["publishers"]] == [0]
    for refused in (
        lambda: topics.create_subscription(topic, "t"),
        lambda: topics.skip(topic, "s", 1),
        lambda: topics.peek_messages(topic, "s"),
        lambda: topics.reset_cursor(topic, "s", "earliest"),
    ):
        with pytest.raises(OperationNotSupported, match="non-persistent"):
            refused()
    with pytest.raises(NotAllowedError, match="active connected consumers"):
        topics.unsubscribe(topic, "s")
    assert values(consumer, 1) == [b"000000"]
    topics.unsubscribe(topic, "s", force=True)
    with pytest.raises(SubscriptionNotFound):
        consumer.receive(WAIT_MS)
    assert topics.subscriptions(topic) == [reader._consumer.subscription_name()]
    assert [reader.read_next(WAIT_MS).data() for _ in range(4)] == numbers(0, 4)


def test_a_non_durable_subscription_shares_the_dispatcher_of_readers(broker: Broker, client: Client) -> None:
    topic = new_topic()
    durable = client.subscribe(topic, "s")
    other = client.subscribe(topic, "s", subscription_mode=SubscriptionMode.NonDurable)
    producer = client.create_producer(topic)
    send_all(producer, numbers(0, 10))
    assert values(durable, 10) == values(other, 10) == numbers(0, 10)
    broker.cluster.kill(dispatcher_name(topic, "s", durable=False))
    assert send_until_received(producer, other)


def test_a_failover_consumer_takes_over_and_the_former_one_keeps_what_it_has(
    broker: Broker, client: Client
) -> None:
    topic = new_topic()
    first = client.subscribe(topic, "s", ConsumerType.Failover, priority_level=2)
    producer = client.create_producer(topic)
    send_all(producer, numbers(0, 10))
    wait_until(first._core.has_received, what="the first messages")
    second = broker.client().subscribe(topic, "s", ConsumerType.Failover, priority_level=1)
    wait_for_permits(broker, topic, "s", consumers=2)
    send_all(producer, numbers(10, 20))
    assert values(second, 10) == numbers(10, 20)
    assert values(first, 10) == numbers(0, 10)
    second.close()
    producer.send(b"x")
    assert values(first, 1) == [b"x"]


def test_a_pattern_finds_non_persistent_topics_that_come_later(client: Client) -> None:
    mode = RegexSubscriptionMode.NonPersistentOnly
    name = new_topic().rsplit("/", 1)[1]
    consumer = client.subscribe(
        re.compile(f"public/default/{name}-.*"),
        "s",
        regex_subscription_mode=mode,
        pattern_auto_discovery_period=1,
    )
    producer = client.create_producer(f"non-persistent://public/default/{name}-x")
    assert send_until_received(producer, consumer)


@pytest.mark.parametrize("batching", [False, True])
def test_key_shared_consumers_get_all_messages_of_their_keys(
    broker: Broker, client: Client, batching: bool
) -> None:
    topic = new_topic()
    consumers = [broker.client().subscribe(topic, "s", ConsumerType.KeyShared) for _ in range(3)]
    producer = client.create_producer(
        topic,
        batching_enabled=batching,
        batching_type=BatchingType.KeyBased if batching else BatchingType.Default,
    )
    for number in range(300):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % 20}")
    producer.flush()
    got = keyed_numbers(consumers, 300)
    owners = {key: {index for index, of, _ in got if of == key} for _, key, _ in got}
    assert all(len(one) == 1 for one in owners.values())
    assert len({index for index, _, _ in got}) > 1
    for key in owners:
        sent = [number for _, of, number in got if of == key]
        assert sent == sorted(sent)
    consumers[0].close()
    producer.send(b"300", partition_key=next(key for key, one in owners.items() if one == {0}))
    wait_until(lambda: any(c._core.has_received() for c in consumers[1:]), what="a key that moved at once")
