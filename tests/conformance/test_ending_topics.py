"""Topics that are terminated, truncated, cleared or deleted together, over every carrier."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.errors import NotAllowedError, TopicNotFound, TopicTerminated
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, values

Quiet = Callable[[Consumer], None]


def backlog(broker: Broker, topic: str, subscription: str) -> int:
    count: int = broker.admin().topics.stats(topic)["subscriptions"][subscription]["msgBacklog"]
    return count


def test_a_terminated_topic_is_read_to_its_end_and_takes_no_more(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for value in numbers(0, 5):
        last = producer.send(value)
    ended = topics.terminate_topic(topic)
    assert (ended.ledger_id(), ended.entry_id()) == (last.ledger_id(), last.entry_id())
    with pytest.raises(TopicTerminated, match="was terminated"):
        producer.send(b"late")
    with pytest.raises(TopicTerminated):
        client.create_producer(topic)
    assert topics.terminate_topic(topic) == ended, "it may be repeated"
    assert values(consumer, 5) == numbers(0, 5)
    assert_quiet(consumer)
    late = client.subscribe(topic, "late", initial_position=EARLIEST)
    assert values(late, 5) == numbers(0, 5)
    reader = client.create_reader(topic, MessageId.earliest)
    for value in numbers(0, 5):
        assert reader.has_message_available()
        assert reader.read_next(WAIT_MS).data() == value
    assert not reader.has_message_available()
    assert topics.stats_internal(topic)["state"] == "Terminated"


def test_a_topic_stays_terminated_when_the_broker_has_died(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.subscribe(topic, "s").close()
    client.create_producer(topic).send(b"only")
    ended = broker.admin().topics.terminate_topic(topic)
    broker.restart(kill=True)
    with pytest.raises(TopicTerminated):
        broker.client().create_producer(topic)
    assert broker.admin().topics.terminate_topic(topic) == ended
    assert values(broker.client().subscribe(topic, "s"), 1) == [b"only"]


def test_what_was_confirmed_is_there_and_what_was_not_is_told_when_a_topic_ends(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    confirmed: list[bytes] = []

    def send() -> None:
        for value in numbers(0, 100_000):
            producer.send(value)
            confirmed.append(value)

    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(send)
        wait_until(lambda: len(confirmed) > 5, what="it is published to")
        broker.admin().topics.terminate_topic(topic)
        with pytest.raises(TopicTerminated):
            sending.result(timeout=20)
    assert values(consumer, len(confirmed)) == confirmed
    assert_quiet(consumer)


def test_partitions_are_terminated_by_a_call_of_its_own(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(partitions=2), broker.admin().topics
    with pytest.raises(NotAllowedError, match="Termination of a partitioned topic is not allowed"):
        topics.terminate_topic(topic)
    producer = client.create_producer(topic)
    producer.send(b"there")
    ended = topics.terminate_partitioned_topic(topic)
    assert sorted(ended) == [0, 1]
    for value in numbers(0, 2):
        with pytest.raises(TopicTerminated):
            producer.send(value)
    with pytest.raises(NotAllowedError, match="not partitioned"):
        topics.terminate_partitioned_topic(f"{topic}-partition-0")


def test_a_held_producer_learns_that_its_topic_has_ended(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.subscribe(topic, "slow").close()
    producer = client.create_producer(topic)
    producer.send(bytes(2000))
    broker.cluster.override(topic, backlog_quota_default_limit_bytes=1000)
    results: list[Any] = []
    producer.send_async(b"held", lambda result, _: results.append(result))
    wait_until(lambda: broker.admin().topics.stats(topic)["backlogQuotaExceeded"] != "", what="it is held")
    broker.admin().topics.terminate_topic(topic)
    broker.cluster.override(topic)
    wait_until(lambda: results, what="it is told")
    assert "TopicTerminated" in str(results[0])


def segments(broker: Broker) -> set[Path]:
    return set(broker._directory.rglob("*.seg"))


def test_truncating_gives_back_the_space_of_all_messages(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    client.subscribe(topic, "away").close()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=1)
    broker.cluster.override(topic, default_retention_time_in_minutes=-1, default_retention_size_in_mb=-1)
    before = segments(broker)
    producer = client.create_producer(topic)
    for value in numbers(0, 20):
        producer.send(value)
    producer.send(b"later", deliver_after=timedelta(hours=1))
    held = consumer.receive(WAIT_MS)
    topics.truncate(topic)
    assert segments(broker) <= before, "its files are gone"
    assert topics.stats(topic)["storageSize"] == 0
    assert backlog(broker, topic, "away") == 0
    wait_until(lambda: backlog(broker, topic, "s") == 0, what="nothing is left")
    consumer.acknowledge(held)
    topics.truncate(topic)
    producer.send(b"after")
    late = client.subscribe(topic, "late", initial_position=EARLIEST)
    assert values(late, 1) == [b"after"]
    assert_quiet(late)


def test_truncating_while_somebody_publishes_loses_nothing_that_came_later(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic, batching_enabled=False)
    sent: list[int] = []
    stop: list[bool] = []

    def send() -> None:
        while not stop:
            producer.send(f"{len(sent):06}".encode())
            sent.append(len(sent))

    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(send)
        wait_until(lambda: len(sent) > 5, what="it is published to")
        broker.admin().topics.truncate(topic)
        behind = len(sent) + 1
        wait_until(lambda: len(sent) > behind + 5, what="publishing goes on")
        stop.append(True)
        sending.result(timeout=20)
    reader = client.create_reader(topic, MessageId.earliest)
    got = []
    while reader.has_message_available():
        got.append(int(reader.read_next(WAIT_MS).data()))
    assert got == list(range(got[0], len(sent)))
    assert got[0] <= behind


def test_the_backlogs_of_a_namespace_are_cleared(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    admin = broker.admin()
    admin.tenants.create("shop")
    admin.namespaces.create("shop/eu")
    names = ["shop/eu/a", "shop/eu/b"]
    admin.topics.create_partitioned_topic(names[1], 2)
    other = broker.topic()
    for topic in (*names, other):
        for subscription in ("one", "two"):
            client.subscribe(topic, subscription).close()
        producer = client.create_producer(topic)
        for value in numbers(0, 4):
            producer.send(value)
        producer.close()
    admin.namespaces.clear_backlog("shop/eu", "one")
    assert [backlog(broker, topic, "one") for topic in (*names, other)] == [0, 0, 4]
    assert [backlog(broker, topic, "two") for topic in names] == [4, 4]
    admin.namespaces.clear_backlog("shop/eu")
    assert [backlog(broker, topic, "two") for topic in (*names, other)] == [0, 0, 4]
    consumer = client.subscribe(names[0], "two")
    assert_quiet(consumer)
    client.create_producer(names[0]).send(b"new")
    assert values(consumer, 1) == [b"new"]
    with pytest.raises(TopicNotFound):
        admin.namespaces.clear_backlog("shop/us")


def test_several_topics_are_deleted_though_one_is_missing(broker: Broker) -> None:
    topics = broker.admin().topics
    names = [broker.topic() for _ in range(3)]
    with pytest.raises(TopicNotFound, match="missing"):
        topics.delete_many([names[0], "missing", names[1]])
    left = topics.list()
    assert [name for name in names if any(each.endswith(name) for each in left)] == [names[2]]
    topics.delete_many([names[2]])


@pytest.mark.parametrize("partitions", [0, 2])
def test_an_unloaded_topic_goes_on_with_all_its_clients(
    broker: Broker, client: Client, assert_quiet: Quiet, partitions: int
) -> None:
    topic, topics = broker.topic(partitions), broker.admin().topics
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    first = producer.send(b"before")
    held = consumer.receive(WAIT_MS)
    topics.unload(topic)
    last = producer.send(b"behind")
    consumer.acknowledge(held)
    consumer.acknowledge(message := consumer.receive(WAIT_MS))
    assert message.data() == b"behind"
    assert_quiet(consumer)
    if not partitions:
        assert last.ledger_id() > first.ledger_id()
    wait_until(lambda: backlog(broker, topic, "s") == 0, what="both acknowledgments count")
    with pytest.raises(TopicNotFound):
        topics.unload("missing")


def test_what_cannot_be_ended_or_emptied_is_refused(broker: Broker) -> None:
    topics = broker.admin().topics
    for call in (topics.terminate_topic, topics.truncate):
        with pytest.raises(NotAllowedError, match="non-persistent"):
            call("non-persistent://public/default/passing")
        with pytest.raises(TopicNotFound):
            call("missing")
    with pytest.raises(ValueError, match="list of names"):
        topics.delete_many("orders")


def test_a_producer_that_a_deletion_ended_calls_back_as_before(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send(b"first")
    broker.admin().topics.delete(topic, force=True)
    results: list[Any] = []

    def is_ended() -> bool:
        producer.send_async(b"late", lambda result, _: results.append(result))
        return TopicNotFound("").result in results

    wait_until(is_ended)
    with pytest.raises(TopicNotFound):
        producer.send(b"late")
