"""Stats of topics as an administrator sees them, over every carrier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.broker.partition.partition_server import STATS_SLICE
from pulsar_ray.client.client import Client
from pulsar_ray.errors import NotAllowedError, OperationNotSupported, TopicNotFound
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import dispatcher_name
from tests.conformance.broker import EARLIEST, Broker, numbers, receive, values


def test_what_went_in_and_out_is_counted_with_rates(broker: Broker, client: Client) -> None:
    topic, admin = broker.topic(), broker.admin()
    producer = client.create_producer(topic, producer_name="p")
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, consumer_name="c", receiver_queue_size=50)
    for value in numbers(0, 20):
        producer.send(value)
    for message in receive(consumer, 20)[:5]:
        consumer.acknowledge(message)
    wait_until(lambda: admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 15, what="the acks")
    # Samples are taken once a second.
    wait_until(lambda: admin.topics.stats(topic)["msgRateIn"] > 0, what="a sample")
    wait_until(lambda: admin.topics.stats(topic)["msgRateOut"] > 0, what="a sample")
    wait_until(lambda: admin.topics.stats(topic)["subscriptions"]["s"]["messageAckRate"] > 0, what="a sample")
    stats = admin.topics.stats(topic)
    assert (stats["msgInCounter"], stats["msgOutCounter"]) == (20, 20)
    assert stats["bytesInCounter"] == stats["bytesOutCounter"] > 20 * 6
    assert stats["averageMsgSize"] == pytest.approx(stats["bytesInCounter"] / 20)
    assert 0 < stats["backlogSize"] < stats["storageSize"]
    (publisher,) = stats["publishers"]
    assert (publisher["producerName"], publisher["msgInCounter"]) == ("p", 20)
    assert publisher["msgRateIn"] > 0
    subscription = stats["subscriptions"]["s"]
    assert (subscription["type"], subscription["durable"], subscription["unackedMessages"]) == (
        "Shared",
        True,
        15,
    )
    (one,) = subscription["consumers"]
    assert (one["consumerName"], one["unackedMessages"], one["msgOutCounter"]) == ("c", 15, 20)
    assert 0 < one["availablePermits"] <= 50
    assert 0 < one["lastConsumedTimestamp"] <= one["lastAckedTimestamp"]
    assert one["blockedConsumerOnUnackedMsgs"] is subscription["blockedSubscriptionOnUnackedMsgs"] is False


def test_redeliveries_and_limits_show(carriers_are_kept: None, make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(max_unacked_messages_per_consumer=5, max_unacked_messages_per_subscription=8)
    topic, admin = broker.topic(), broker.admin()
    client = broker.client()
    producer = client.create_producer(topic)
    first = client.subscribe(topic, "s", ConsumerType.Shared, consumer_name="a")
    for value in numbers(0, 20):
        producer.send(value)

    def subscription() -> dict[str, Any]:
        found: dict[str, Any] = admin.topics.stats(topic)["subscriptions"]["s"]
        return found

    wait_until(lambda: subscription()["consumers"][0]["blockedConsumerOnUnackedMsgs"], what="its limit")
    assert (subscription()["unackedMessages"], subscription()["blockedSubscriptionOnUnackedMsgs"]) == (
        5,
        False,
    )
    second = broker.client().subscribe(topic, "s", ConsumerType.Shared, consumer_name="b")
    wait_until(lambda: subscription()["blockedSubscriptionOnUnackedMsgs"], what="the subscription's limit")
    assert subscription()["unackedMessages"] == 8
    receive(first, 2)
    first.redeliver_unacknowledged_messages()
    second.redeliver_unacknowledged_messages()
    wait_until(lambda: subscription()["msgOutCounter"] > 8, what="they come again")
    wait_until(lambda: subscription()["msgRateRedeliver"] > 0, what="a sample")


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_properties_show_as_metadata(broker: Broker, client: Client, domain: str) -> None:
    topic = broker.topic().replace("persistent", domain)
    client.subscribe(topic, "s", properties={"team": "blue", "äöü": ""})
    client.subscribe(topic, "plain")
    client.create_producer(topic, producer_name="p", properties={"host": "a"})

    def shown() -> list[dict[str, str]]:
        stats = broker.admin().topics.stats(topic)
        subscriptions = sorted(stats["subscriptions"].items())
        consumers = [one for _, subscription in subscriptions for one in subscription["consumers"]]
        return [one["metadata"] for one in (*stats["publishers"], *consumers)]

    expected = [{"host": "a"}, {}, {"team": "blue", "äöü": ""}]
    assert shown() == expected
    for address in (topic, f"{topic} -> s"):
        broker.cluster.kill(address)
    wait_until(lambda: shown() == expected, what="they are told again")


def test_properties_have_a_bound(broker: Broker, client: Client) -> None:
    too_long = {"k": "v" * 16_384}
    with pytest.raises(ValueError, match="16385 bytes"):
        client.subscribe(broker.topic(), "s", properties=too_long)
    with pytest.raises(ValueError, match="16385 bytes"):
        client.create_producer(broker.topic(), properties=too_long)


def test_the_active_consumer_and_readers_show(broker: Broker, client: Client) -> None:
    topic, admin = broker.topic(), broker.admin()
    consumer = client.subscribe(topic, "s", consumer_name="only")
    reader = client.create_reader(topic, MessageId.earliest)
    stats = admin.topics.stats(topic)["subscriptions"]
    assert (stats["s"]["type"], stats["s"]["activeConsumerName"]) == ("Exclusive", "only")
    (name,) = set(stats) - {"s"}
    assert stats[name]["durable"] is False
    assert admin.topics.subscriptions(topic) == sorted(["s", name])
    reader.close()
    consumer.close()
    wait_until(lambda: admin.topics.subscriptions(topic) == ["s"], what="the reader is gone")
    assert admin.topics.stats(topic)["subscriptions"]["s"]["consumers"] == []


def test_asking_wakes_no_dispatcher_and_knows_where_it_was(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    for value in numbers(0, 10):
        producer.send(value)
    messages = receive(consumer, 10)
    for message in messages[:2] + messages[5:8]:
        consumer.acknowledge(message)
    consumer.close()
    broker.restart(kill=False)
    admin = broker.admin()
    admin.topics.create_subscription(topic, "never used")
    for _ in range(2):
        found = admin.topics.stats(topic)["subscriptions"]
        assert (found["s"]["msgBacklog"], found["s"]["nonContiguousDeletedMessagesRanges"]) == (5, 1)
        assert found["never used"]["msgBacklog"] == 10
        assert found["s"]["backlogSize"] * 2 == pytest.approx(found["never used"]["backlogSize"], rel=0.01)
        internal = admin.topics.stats_internal(topic)["cursors"]
        assert (internal["s"]["state"], internal["never used"]["state"]) == ("Asleep", "Asleep")
    assert dispatcher_name(topic, "s", durable=True) not in broker.cluster.addresses
    # What is learnt while it sleeps does not stay when it has woken and moved on.
    consumer = broker.client().subscribe(topic, "s", ConsumerType.Shared)
    values(consumer, 5, acknowledge=True)
    consumer.close()
    broker.cluster.kill(dispatcher_name(topic, "s", durable=True))
    wait_until(
        lambda: admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0, what="asleep again"
    )


def test_what_stands_still_is_named_with_its_host(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_ray.admin.topic_calls.ANSWER_S", 0.5)
    topic, admin = broker.topic(), broker.admin()
    client.subscribe(topic, "s", ConsumerType.Shared)
    client.subscribe(topic, "other", ConsumerType.Shared, consumer_name="c")
    broker.cluster.dispatcher_of(topic, "s").freeze()
    stats = admin.topics.stats(topic)
    assert stats["subscriptions"]["s"]["problem"] == f"its process does not answer on {stats['host']}"
    assert [each["consumerName"] for each in stats["subscriptions"]["other"]["consumers"]] == ["c"]
    assert not stats["subscriptions"]["other"]["problem"]
    broker.cluster.partition(topic).freeze()
    assert "stands still and does not answer" in admin.topics.stats(topic)["refused"]


def test_internal_stats(broker: Broker, client: Client) -> None:
    topic, admin = broker.topic(), broker.admin()
    empty = admin.topics.stats_internal(topic)
    assert (empty["numberOfEntries"], empty["ledgers"], empty["cursors"]) == (0, [], {})
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, ack_receipt_enabled=True)
    ids = [producer.send(value) for value in numbers(0, 5)]
    messages = receive(consumer, 5)
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[2])
    internal = admin.topics.stats_internal(topic)
    ledger = ids[0].ledger_id()
    assert internal["lastConfirmedEntry"] == f"{ledger}:4"
    assert [(one["ledgerId"], one["entries"]) for one in internal["ledgers"]] == [(ledger, 5)]
    cursor = internal["cursors"]["s"]
    assert cursor["markDeletePosition"] == f"{ledger}:0"
    assert cursor["individuallyDeletedMessages"] == f"[({ledger}:1..{ledger}:2]]"
    assert (cursor["state"], cursor["active"]) == ("Open", True)


def test_partitions_come_to_sums(broker: Broker, client: Client) -> None:
    topic, admin = broker.topic(partitions=2), broker.admin()
    producer = client.create_producer(topic, producer_name="p")
    client.subscribe(topic, "s", initial_position=EARLIEST, receiver_queue_size=1)
    for value in numbers(0, 6):
        producer.send(value)
    stats = admin.topics.partitioned_stats(topic)
    assert stats["msgInCounter"] == 6
    assert [part["msgInCounter"] for part in stats["partitions"].values()] == [3, 3]
    assert stats["subscriptions"]["s"]["msgBacklog"] == 6
    assert [one["producerName"] for one in stats["publishers"]] == ["p"]
    part = f"{topic}-partition-1"
    assert admin.topics.stats(part)["msgInCounter"] == 3
    assert set(admin.topics.stats_internal(topic)["partitions"]) == {f"{topic}-partition-0", part}
    with pytest.raises(NotAllowedError):
        admin.topics.partitioned_stats(part)
    with pytest.raises(OperationNotSupported, match="partition-0"):
        admin.topics.get_last_message_id(topic)
    assert admin.topics.get_last_message_id(part).partition() == 1


def test_the_last_id_and_missing_topics(broker: Broker, client: Client) -> None:
    topic, admin = broker.topic(), broker.admin()
    assert admin.topics.get_last_message_id(topic) == MessageId()
    sent = client.create_producer(topic).send(b"x")
    assert admin.topics.get_last_message_id(topic) == sent
    for call in (admin.topics.stats, admin.topics.subscriptions, admin.topics.get_last_message_id):
        with pytest.raises(TopicNotFound):
            call(f"{topic}-missing")


def test_every_one_of_many_subscriptions_shows(broker: Broker) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    names = sorted(f"s{number}" for number in range(2 * STATS_SLICE + 1))
    for name in names:
        topics.create_subscription(topic, name)
    assert sorted(topics.stats(topic)["subscriptions"]) == topics.subscriptions(topic) == names
