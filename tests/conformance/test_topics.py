"""Consumers of several topics over every carrier: lists, patterns, topics that come and go."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.errors import (
    ConsumerBusy,
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    InvalidTopicName,
    NotAllowedError,
    OperationNotSupported,
    TopicNotFound,
)
from pulsar_ray.model.enums import ConsumerType, InitialPosition
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, Broker, numbers, receive, values

Quiet = Callable[[Consumer], None]
Make = Callable[..., Broker]
DEFAULT = "persistent://public/default"


def send(client: Client, topic: str, *sent: bytes) -> list[MessageId]:
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in sent]
    producer.close()
    return ids


def pattern(client: Client, text: str, name: str = "s", **arguments: Any) -> Consumer:
    return client.subscribe(re.compile(text), name, pattern_auto_discovery_period=1, **arguments)


def by_topic(consumer: Consumer, count: int) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for message in receive(consumer, count):
        found.setdefault(message.topic_name(), []).append(message.data())
        consumer.acknowledge(message)
    return found


def connected(client: Client, consumer: Consumer) -> set[str]:
    return {last.topic_name for last in consumer.get_last_message_ids() if last.topic_name}


def test_a_list_of_topics_and_partitions_comes_to_one_consumer(broker: Broker, client: Client) -> None:
    plain, partitioned, missing = broker.topic(), broker.topic(3), "brought-about"
    consumer = client.subscribe([plain, partitioned, missing, plain], "s", receiver_queue_size=10)
    assert re.fullmatch(rf"{plain}-TopicsConsumerFakeName-[0-9a-f]{{10}}", consumer.topic())
    send(client, plain, *numbers(0, 20))
    send(client, partitioned, *numbers(20, 50))
    send(client, missing, *numbers(50, 70))
    found = by_topic(consumer, 70)
    assert found[plain] == numbers(0, 20)
    assert found[f"{DEFAULT}/{missing}"] == numbers(50, 70)
    partitions = [found[f"{partitioned}-partition-{index}"] for index in range(3)]
    assert sorted(value for partition in partitions for value in partition) == numbers(20, 50)
    assert all(partition == sorted(partition) for partition in partitions)
    assert len(consumer.get_last_message_ids()) == 5
    with pytest.raises(OperationNotSupported):
        consumer.get_last_message_id()
    consumer.close()
    again = client.subscribe([plain, partitioned, missing], "s", initial_position=EARLIEST)
    assert not again.has_message_available()
    again.unsubscribe()


def test_acknowledgments_go_to_their_topic(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    one, two, other = broker.topic(), broker.topic(), broker.topic()
    consumer = client.subscribe([one, two], "s", negative_ack_redelivery_delay_ms=0)
    send(client, one, *numbers(0, 5))
    send(client, two, *numbers(5, 10))
    (foreign,) = send(client, other, b"foreign")
    got = receive(consumer, 10)
    ids = {message.data(): message.message_id() for message in got}
    consumer.acknowledge_cumulative(ids[b"000003"])
    plain = MessageId.deserialize(ids[b"000006"].serialize())
    for unknown in (plain, MessageId.deserialize(foreign.serialize(), topic=other)):
        for call in (consumer.acknowledge, consumer.acknowledge_cumulative, consumer.seek):
            with pytest.raises(OperationNotSupported):
                call(unknown)
    consumer.acknowledge_cumulative(MessageId.deserialize(plain.serialize(), topic=two))
    consumer.negative_acknowledge(ids[b"000008"])
    again = receive(consumer, 2)
    assert [(message.data(), message.redelivery_count()) for message in again] == [
        (b"000008", 1),
        (b"000009", 0),
    ]
    consumer.close()
    left = client.subscribe([one, two], "s")
    assert sorted(values(left, 4)) == [b"000004", b"000007", b"000008", b"000009"]
    assert_quiet(left)


def test_seeking_all_topics_or_one(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    one, two = broker.topic(), broker.topic()
    consumer = client.subscribe([one, two], "s")
    send(client, one, *numbers(0, 3))
    send(client, two, *numbers(3, 6))
    got = {message.data(): message for message in receive(consumer, 6)}
    consumer.seek(got[b"000004"].message_id())
    assert values(consumer, 1) == [b"000005"]
    assert_quiet(consumer)
    consumer.seek(MessageId.earliest)
    assert sorted(values(consumer, 6)) == numbers(0, 6)
    consumer.seek(MessageId.latest)
    assert_quiet(consumer)
    consumer.seek(got[b"000000"].publish_timestamp())
    assert sorted(values(consumer, 6)) == numbers(0, 6)


def test_a_subscribe_that_is_refused_on_one_topic_leaves_nothing_attached(
    broker: Broker, client: Client
) -> None:
    one, two = broker.topic(), broker.topic()
    holder = client.subscribe(two, "s")
    with pytest.raises(ConsumerBusy):
        client.subscribe([one, two], "s")
    client.subscribe(one, "s").close()
    holder.close()
    with pytest.raises(TopicNotFound):
        client.subscribe([one, "nobody/nowhere/t"], "s")
    with pytest.raises(InvalidTopicName):
        client.subscribe([one, "a/b"], "s")
    with pytest.raises(InvalidConfiguration):
        client.subscribe([one, "not-there"], "s", receiver_queue_size=0)
    assert f"{DEFAULT}/not-there" not in broker.admin().topics.list("public/default")
    client.subscribe([one, two], "s").close()
    with pytest.raises(ValueError, match=r"topic=\[\] must be a list of at least one topic"):
        client.subscribe([], "s")


def test_shared_consumers_of_several_topics_know_no_cumulative_acknowledgment(
    broker: Broker, client: Client
) -> None:
    one, two = broker.topic(), broker.topic()
    consumers = [client.subscribe([one, two], "s", ConsumerType.Shared) for _ in range(2)]
    send(client, one, b"1")
    send(client, two, b"2")
    consumers[0].close()
    got = receive(consumers[1], 2)
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        consumers[1].acknowledge_cumulative(got[0])
    consumers[1].acknowledge(got)


def test_failover_consumers_of_several_topics_share_them(broker: Broker) -> None:
    first, second = broker.client(), broker.client()
    topics = [f"{DEFAULT}/topic-{index}" for index in range(1, 5)]
    consumers = {
        name: client.subscribe(topics, "s", ConsumerType.Failover, consumer_name=name)
        for name, client in (("A", first), ("B", second))
    }
    for topic in topics:
        send(first, topic, topic.encode())
    assert values(consumers["A"], 1) == [topics[2].encode()]
    assert sorted(values(consumers["B"], 3)) == [topics[index].encode() for index in (0, 1, 3)]


def test_a_pattern_matches_whole_names_now_and_later(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    send(client, "aa-1", b"before")
    send(client, "baa-1", b"not this")
    broker.cluster.create_topic("aa-parts", 2)
    consumer = pattern(client, "aa-.*", initial_position=InitialPosition.Latest)
    assert consumer.topic() == "aa-.*"
    send(client, "aa-1", b"1")
    send(client, "aa-parts", b"2", b"3")
    assert sorted(values(consumer, 3)) == [b"1", b"2", b"3"]
    send(client, "aa-2", b"sent before it is found")
    send(client, "aa-s-DLQ", b"own dead letters")
    send(client, "aa-s-RETRY", b"own retries")
    send(client, "baa-2", b"nor this")
    assert by_topic(consumer, 1) == {f"{DEFAULT}/aa-2": [b"sent before it is found"]}
    send(client, "aa-2", b"more")
    assert values(consumer, 1) == [b"more"]
    assert_quiet(consumer)
    consumer.unsubscribe()


def test_a_pattern_that_matches_nothing_yet_waits(broker: Broker, client: Client) -> None:
    consumer = pattern(client, "public/default/later-.*")
    elsewhere = pattern(client, "persistent://public/nowhere/.*")
    future = consumer.receive_async()
    send(client, "later-1", b"here")
    message = future.result(20)
    assert message.data() == b"here"
    consumer.acknowledge(message)
    elsewhere.close()
    for across in ("public/.*/aa", "default/aa"):
        with pytest.raises(InvalidTopicName):
            pattern(client, across)


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_topic_in_use_is_deleted_by_force_alone(broker: Broker, client: Client, domain: str) -> None:
    admin, topics = broker.admin(), [f"{domain}://public/default/used", f"{domain}://public/default/parts"]
    admin.topics.create_topic(topics[0])
    admin.topics.create_partitioned_topic(topics[1], 2)
    for topic in topics:
        for use in (client.create_producer, lambda topic: client.subscribe(topic, "s")):
            handle = use(topic)
            with pytest.raises(
                NotAllowedError, match=r"connected producers/consumers .*close them, or force"
            ):
                admin.topics.delete(topic)
            handle.close()
        admin.topics.delete(topic)
        admin.topics.create_topic(topic)
        client.create_producer(topic)
        admin.topics.delete(topic, force=True)
    assert admin.topics.list() == []


def test_a_topic_that_is_deleted_is_dropped_and_comes_back_when_it_does(
    broker: Broker, client: Client
) -> None:
    one, two = broker.topic(), broker.topic()
    consumer = pattern(client, "t[0-9]+", initial_position=EARLIEST)
    listed = client.subscribe([one, two], "listed", pattern_auto_discovery_period=1)
    send(client, one, b"one")
    send(client, two, b"two")
    old = {message.topic_name(): message for message in receive(consumer, 2)}
    assert sorted(values(listed, 2)) == [b"one", b"two"]
    broker.cluster.delete_topic(one)
    for each in (consumer, listed):
        wait_until(lambda each=each: len(each.get_last_message_ids()) == 1)  # type: ignore[misc]
    consumer.acknowledge(old[one])
    send(client, two, b"still")
    assert values(consumer, 1) == values(listed, 1) == [b"still"]
    broker.cluster.create_topic(one, 0)
    send(client, one, b"anew")
    assert values(consumer, 1) == values(listed, 1) == [b"anew"]
    consumer.close()


def test_nothing_is_lost_when_actors_of_several_topics_die(broker: Broker, client: Client) -> None:
    topics = [broker.topic() for _ in range(3)]
    consumer = client.subscribe(topics, "s")
    for index, topic in enumerate(topics):
        send(client, topic, *numbers(index * 100, index * 100 + 100))
    got = []
    for turn in range(3):
        got += values(consumer, 50, acknowledge=True)
        broker.cluster.kill(f"{topics[turn]} -> s")
        broker.cluster.kill(topics[(turn + 1) % 3])
    got += values(consumer, 150, acknowledge=True)
    assert sorted(got) == numbers(0, 300)


def test_without_auto_creation_a_listed_topic_is_waited_for(make_broker: Make) -> None:
    broker = make_broker(allow_auto_topic_creation=False)
    client, topic = broker.client(), broker.topic()
    consumer = client.subscribe([topic, "to-come"], "s", pattern_auto_discovery_period=1)
    assert len(consumer.get_last_message_ids()) == 1
    broker.cluster.create_topic("to-come", 0)
    send(client, "to-come", b"here")
    assert values(consumer, 1) == [b"here"]


def test_all_of_a_topic_comes_to_everybody_who_looks_for_it(make_broker: Make) -> None:
    broker = make_broker(
        new_topic_retention_seconds=120,
        retention_check_interval_in_seconds=1,
        managed_ledger_max_entries_per_ledger=2,
        managed_ledger_min_ledger_rollover_time_minutes=0,
    )
    client = broker.client()
    early = pattern(client, "late-.*", "early")
    late = client.subscribe(re.compile("late-.*"), "late", pattern_auto_discovery_period=4)
    topics = [f"{DEFAULT}/late-{number}" for number in range(6)]
    for topic in topics:
        send(client, topic, *numbers(0, 10))
    # What the first one has consumed is kept for the other.
    everything = {topic: numbers(0, 10) for topic in topics}
    assert by_topic(early, 60) == everything
    assert by_topic(late, 60) == everything
