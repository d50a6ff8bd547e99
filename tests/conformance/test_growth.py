"""Partitioned topics that get more partitions while they are used, over every carrier."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.options.policies import ConsumerEventListener
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import (
    InvalidConfiguration,
    NotAllowedError,
    NotConnected,
    Timeout,
    TopicNotFound,
)
from pulsar_ray.model.enums import ConsumerType, HashingScheme, SubscriptionMode
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import (
    EARLIEST,
    QUIET_MS,
    WAIT_MS,
    Broker,
    keyed_numbers,
    numbers,
    receive,
    values,
)
from tests.conformance.event_loop import on_a_loop

Make = Callable[..., Broker]
SOON: dict[str, Any] = {"auto_update_partitions_interval_seconds": 1}


def uses(producer: Producer, partitions: int) -> None:
    wait_until(lambda: producer.partition_count == partitions, what=f"{partitions} partitions")


def has(consumer: Consumer, partitions: int) -> None:
    wait_until(lambda: len(consumer.get_last_message_ids()) == partitions, what=f"{partitions} partitions")


def partitions_of(messages: list[Message]) -> set[int]:
    return {message.message_id().partition() for message in messages}


@pytest.mark.parametrize("batching", [False, True])
def test_connected_producers_and_consumers_use_what_is_added(
    broker: Broker, client: Client, batching: bool
) -> None:
    topic = broker.topic(1)
    consumer = client.subscribe(topic, "s", **SOON)
    producer = client.create_producer(topic, batching_enabled=batching, **SOON)
    producer.send(b"before")
    broker.admin().topics.update_partitioned_topic(topic, 4)
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{index}" for index in range(4)]
    uses(producer, 4)
    for number in range(200):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % 20}")
    for _ in range(8):
        producer.send(b"keyless")
    got = receive(consumer, 209)
    assert partitions_of(got) == {0, 1, 2, 3}
    places: dict[str, set[int]] = {}
    for message in got:
        consumer.acknowledge(message)
        if message.partition_key():
            places.setdefault(message.partition_key(), set()).add(message.message_id().partition())
    assert all(len(one) == 1 for one in places.values())
    for key in places:
        of_key = [int(message.data()) for message in got if message.partition_key() == key]
        assert of_key == sorted(of_key)
    assert {m.message_id().partition() for m in got if m.data() == b"keyless"} == {0, 1, 2, 3}
    consumer.close()
    assert not client.subscribe(topic, "s").has_message_available()


def test_all_in_one_call_goes_where_single_messages_do(broker: Broker, client: Client) -> None:
    topic = broker.topic(2)
    consumer = client.subscribe(topic, "s", **SOON)
    producer = client.create_producer(topic, hashing_scheme=HashingScheme.Murmur3_32Hash, **SOON)
    broker.admin().topics.update_partitioned_topic(topic, 5)
    uses(producer, 5)
    keys = [f"k{number}" for number in range(50)]
    single = {key: producer.send(b"x", partition_key=key).partition() for key in keys}
    assert set(single.values()) == set(range(5))
    producer.send_many([b"x"] * 50, partition_keys=keys)
    producer.send_arrow(pa.table({"key": keys, "value": [b"x"] * 50}))
    for message in receive(consumer, 150):
        assert message.message_id().partition() == single[message.partition_key()]


def test_subscriptions_are_on_new_partitions_before_anybody_publishes_there(
    broker: Broker, client: Client
) -> None:
    topic, topics = broker.topic(2), broker.admin().topics
    topics.create_subscription(topic, "asleep", properties={"team": "a"})
    topics.create_subscription(f"{topic}-partition-1", "of one partition")
    client.subscribe(topic, "left", ConsumerType.Shared).close()
    other = client.subscribe(topic, "not durable", subscription_mode=SubscriptionMode.NonDurable)
    topics.update_partitioned_topic(topic, 3)
    added = f"{topic}-partition-2"
    assert topics.subscriptions(added) == ["asleep", "left"]
    properties = topics.stats(added)["subscriptions"]["asleep"]["subscriptionProperties"]
    assert properties == {"team": "a"}
    client.create_producer(added).send(b"long before the others know")
    for name in ("asleep", "left"):
        assert topics.stats(topic)["subscriptions"][name]["msgBacklog"] == 1
        assert values(client.subscribe(topic, name), 1) == [b"long before the others know"]
    other.close()


def test_nothing_is_lost_between_growth_and_its_discovery_whatever_the_initial_position(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic(1)
    consumers = [
        client.subscribe(topic, "durable", **SOON),
        client.subscribe(topic, "not durable", subscription_mode=SubscriptionMode.NonDurable, **SOON),
    ]
    reader = client.create_reader(topic, MessageId.latest, **SOON)
    broker.admin().topics.update_partitioned_topic(topic, 3)
    producer = client.create_producer(topic)
    for value in numbers(0, 30):
        producer.send(value)
    for consumer in consumers:
        assert sorted(values(consumer, 30)) == numbers(0, 30)
    assert sorted(reader.read_next(WAIT_MS).data() for _ in range(30)) == numbers(0, 30)


def test_lists_patterns_and_table_views_follow(broker: Broker, client: Client) -> None:
    topic, plain = broker.topic(1), broker.topic()
    name = topic.rsplit("/", 1)[1]
    listed = client.subscribe([topic, plain], "listed", **SOON)
    matching = client.subscribe(re.compile(name), "matching", **SOON)
    view = client.create_table_view(topic, **SOON)
    broker.admin().topics.update_partitioned_topic(topic, 4)
    producer = client.create_producer(topic)
    for number in range(40):
        producer.send(b"%d" % number, partition_key=f"k{number}")
    for consumer in (listed, matching):
        got = receive(consumer, 40)
        assert partitions_of(got) == {0, 1, 2, 3}
        consumer.acknowledge(got)
    wait_until(lambda: len(view) == 40, what="forty keys")


@pytest.mark.parametrize("topics", ["one", "listed"])
def test_who_does_not_want_more_partitions_stays_with_those_it_has(
    broker: Broker, client: Client, topics: str
) -> None:
    topic = broker.topic(1)
    wanted: Any = topic if topics == "one" else [topic]
    fixed: dict[str, Any] = {"auto_update_partitions": False, **SOON}
    consumer = client.subscribe(wanted, "s", pattern_auto_discovery_period=1, **fixed)
    producer = client.create_producer(topic, **fixed)
    other = client.subscribe([topic], "other", **SOON)
    broker.admin().topics.update_partitioned_topic(topic, 2)
    has(other, 2)
    for value in numbers(0, 4):
        producer.send(value)
    client.create_producer(f"{topic}-partition-1").send(b"on the new one")
    assert values(consumer, 4) == numbers(0, 4)
    assert sorted(values(other, 5)) == [*numbers(0, 4), b"on the new one"]
    assert len(consumer.get_last_message_ids()) == 1


class Told(ConsumerEventListener):
    def __init__(self) -> None:
        self.active: set[int] = set()

    def became_active(self, consumer: Consumer, partition_id: int) -> None:
        self.active.add(partition_id)

    def became_inactive(self, consumer: Consumer, partition_id: int) -> None:
        self.active.discard(partition_id)


def test_failover_hands_out_the_grown_set_by_turns(broker: Broker) -> None:
    topic = broker.topic(2)
    told = {name: Told() for name in "ABC"}
    for name, listener in told.items():
        broker.client().subscribe(
            topic,
            "s",
            ConsumerType.Failover,
            consumer_name=name,
            consumer_event_listener=listener,
            **SOON,
        )
    broker.admin().topics.update_partitioned_topic(topic, 7)
    expected = {"A": {0, 3, 6}, "B": {1, 4}, "C": {2, 5}}
    wait_until(
        lambda: {name: one.active for name, one in told.items()} == expected, what="partition i at i mod 3"
    )


def test_key_shared_keeps_a_key_at_one_consumer_on_new_partitions(broker: Broker) -> None:
    topic = broker.topic(1)
    consumers = [broker.client().subscribe(topic, "s", ConsumerType.KeyShared, **SOON) for _ in range(3)]
    broker.admin().topics.update_partitioned_topic(topic, 3)
    for consumer in consumers:
        has(consumer, 3)
    producer = broker.client().create_producer(topic)
    for number in range(300):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % 30}")
    producer.flush()
    got = keyed_numbers(consumers, 300)
    for key in {key for _, key, _ in got}:
        of_key = [(index, number) for index, of, number in got if of == key]
        assert len({index for index, _ in of_key}) == 1
        assert of_key == sorted(of_key)


def test_unsubscribing_reaches_partitions_that_were_not_found_yet(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(1), broker.admin().topics
    consumer = client.subscribe(topic, "s")
    topics.update_partitioned_topic(topic, 3)
    assert topics.subscriptions(f"{topic}-partition-2") == ["s"]
    consumer.unsubscribe()
    assert topics.subscriptions(topic) == []


def test_topics_grow_again_and_stay_grown(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(1), broker.admin().topics
    producer = client.create_producer(topic, **SOON)
    for count in (2, 3, 5):
        topics.update_partitioned_topic(topic, count)
        uses(producer, count)
    assert topics.get_partitions(topic) == 5
    assert len(topics.stats(topic)["partitions"]) == 5
    ids = [producer.send(value) for value in numbers(0, 10)]
    assert len({one.ledger_id() for one in ids}) == 5
    broker.restart(kill=True)
    assert broker.admin().topics.get_partitions(topic) == 5
    again = broker.client().subscribe(topic, "s", initial_position=EARLIEST)
    assert sorted(values(again, 10)) == numbers(0, 10)


def test_non_persistent_topics_grow(broker: Broker, client: Client) -> None:
    topic = "non-persistent://public/default/growing"
    broker.cluster.create_topic(topic, 1)
    consumer = client.subscribe(topic, "s", **SOON)
    broker.admin().topics.update_partitioned_topic(topic, 3)
    wait_until(lambda: len(consumer._core.partitions.all) == 3, what="three partitions")
    wait_until(consumer.is_connected, what="all are open")
    producer = client.create_producer(topic)
    if broker.transport != "lossy":
        for value in numbers(0, 9):
            producer.send(value)
        assert sorted(values(consumer, 9)) == numbers(0, 9)
    came: set[int] = set()

    def comes_from_all() -> bool:
        producer.send(b"m")  # which may be lost with a carrier, as anything on such a topic
        with suppress(Timeout):
            came.add(consumer.receive(QUIET_MS).message_id().partition())
        return came == {0, 1, 2}

    wait_until(comes_from_all, what="messages come from all partitions")


def test_what_is_no_growth_is_refused(broker: Broker, client: Client) -> None:
    topic, plain, topics = broker.topic(3), broker.topic(), broker.admin().topics
    for count in (1, 3):
        with pytest.raises(NotAllowedError, match=rf"3 partitions and can only grow: {count} is not more"):
            topics.update_partitioned_topic(topic, count)
    with pytest.raises(NotAllowedError, match=r"not partitioned.*another name"):
        topics.update_partitioned_topic(plain, 2)
    with pytest.raises(NotAllowedError, match=f"is a partition: give the topic, {topic}"):
        topics.update_partitioned_topic(f"{topic}-partition-0", 4)
    with pytest.raises(TopicNotFound):
        topics.update_partitioned_topic(f"{topic}-missing", 4)
    for wrong in (0, -1, True, "4", 2.0, None):
        with pytest.raises(InvalidConfiguration, match="partitions="):
            topics.update_partitioned_topic(topic, wrong)  # type: ignore[arg-type]
    taken = broker.topic(1)
    # A topic of such a name may be there from before the partitioned one.
    later = "persistent://public/default/later"
    client.create_producer(f"{later}-partition-1").close()
    broker.cluster.create_topic(later, 1)
    with pytest.raises(NotAllowedError, match="cannot have partition 1: there is a topic"):
        topics.update_partitioned_topic(later, 3)
    assert [topics.get_partitions(name) for name in (topic, plain, taken, later)] == [3, 0, 1, 1]


def test_growth_that_failed_half_way_is_seen_by_nobody_and_finished_by_the_next_attempt(
    broker: Broker, client: Client
) -> None:
    topic, topics = broker.topic(1), broker.admin().topics
    consumer = client.subscribe(topic, "s", **SOON)
    broker.cluster.kill(f"{topic}-partition-1", keep_down=True)
    hurried = broker.admin(operation_timeout_seconds=0.5)
    with pytest.raises(NotConnected):
        hurried.topics.update_partitioned_topic(topic, 3)
    assert topics.get_partitions(topic) == 1
    assert len(client.get_topic_partitions(topic)) == 1
    broker.cluster.allow(f"{topic}-partition-1")
    topics.update_partitioned_topic(topic, 2)
    has(consumer, 2)
    topics.update_partitioned_topic(topic, 4)
    producer = client.create_producer(topic)
    for value in numbers(0, 8):
        producer.send(value)
    assert sorted(values(consumer, 8)) == numbers(0, 8)


def test_a_grown_topic_is_deleted_whole_and_begins_anew(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(1), broker.admin().topics
    topics.update_partitioned_topic(topic, 3)
    client.create_producer(f"{topic}-partition-2").send(b"old")
    broker.cluster.delete_topic(topic)
    broker.cluster.create_topic(topic, 3)
    assert not client.subscribe(topic, "s", initial_position=EARLIEST).has_message_available()


@on_a_loop
async def test_an_asyncio_producer_and_consumer_use_what_is_added(broker: Broker) -> None:
    topic = broker.topic(1)
    async with broker.asyncio_client() as client:
        consumer = await client.subscribe(topic, "s", **SOON)
        producer = await client.create_producer(topic, block_if_queue_full=True, **SOON)
        await producer.send(b"before")
        await asyncio.to_thread(broker.admin().topics.update_partitioned_topic, topic, 3)
        places: set[int] = set()
        sent = 1
        while len(places) < 3:
            places.add((await producer.send(b"after")).partition())
            sent += 1
        await producer.flush()
        got = [await consumer.receive(WAIT_MS) for _ in range(sent)]
        assert partitions_of(got) == {0, 1, 2}
        for message in got:
            await consumer.acknowledge(message)


def test_subscriptions_are_copied_where_only_administrators_create_them(make_broker: Make) -> None:
    broker = make_broker(allow_auto_subscription_creation=False, allow_auto_topic_creation=False)
    client, topics, topic = broker.client(), broker.admin().topics, broker.topic(1)
    topics.create_subscription(topic, "s")
    consumer = client.subscribe(topic, "s", **SOON)
    topics.update_partitioned_topic(topic, 2)
    producer = client.create_producer(topic)
    for value in numbers(0, 6):
        producer.send(value)
    assert sorted(values(consumer, 6)) == numbers(0, 6)
