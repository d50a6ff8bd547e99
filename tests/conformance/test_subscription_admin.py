"""Administering subscriptions over every carrier, with and without consumers connected."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.errors import (
    InvalidConfiguration,
    NotAllowedError,
    OperationNotSupported,
    PulsarException,
    SubscriptionNotFound,
    TopicNotFound,
)
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, QUIET_MS, WAIT_MS, Broker, numbers, receive, values

Quiet = Callable[[Consumer], None]


def publish(client: Client, topic: str, first: int, end: int) -> list[MessageId]:
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in numbers(first, end)]
    producer.close()
    return ids


def publish_batch(client: Client, topic: str, sent: list[bytes]) -> None:
    """One entry."""
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for value in sent:
        producer.send_async(value, None)
    producer.close()


def test_a_subscription_is_created_where_it_is_told(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    ids = publish(client, topic, 0, 5)
    topics.create_subscription(topic, "all")
    topics.create_subscription(topic, "none", "latest")
    topics.create_subscription(topic, "some", ids[3], properties={"team": "a"})
    assert topics.subscriptions(topic) == ["all", "none", "some"]
    publish(client, topic, 5, 6)
    for name, first in (("all", 0), ("none", 5), ("some", 3)):
        consumer = client.subscribe(topic, name)
        assert values(consumer, 6 - first) == numbers(first, 6)
        assert_quiet(consumer)
    assert topics.stats(topic)["subscriptions"]["some"]["subscriptionProperties"] == {"team": "a"}
    topics.update_subscription_properties(topic, "some", {"owner": "b"})
    assert topics.stats(topic)["subscriptions"]["some"]["subscriptionProperties"] == {"owner": "b"}
    with pytest.raises(NotAllowedError, match="'all' already exists"):
        topics.create_subscription(topic, "all", "latest")


@pytest.mark.parametrize("connected", [False, True])
def test_skipping_passes_entries_over(
    broker: Broker, client: Client, connected: bool, assert_quiet: Quiet
) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    topics.create_subscription(topic, "s")
    publish(client, topic, 0, 10)
    consumer = client.subscribe(topic, "s", receiver_queue_size=1) if connected else None
    if consumer is not None:
        assert values(consumer, 1) == [b"000000"]
    assert topics.skip(topic, "s", 4) == 4
    assert topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 6
    assert topics.skip(topic, "s", 0) == 0
    if consumer is not None:
        # What was delivered before stays with the consumer.
        consumer.close()
    consumer = client.subscribe(topic, "s")
    assert values(consumer, 6) == numbers(4, 10)
    assert topics.skip(topic, "s", 999) == 6
    consumer.close()
    consumer = client.subscribe(topic, "s")
    publish(client, topic, 10, 12)
    assert values(consumer, 2) == numbers(10, 12)
    assert topics.skip_all(topic, "s") == 2
    assert topics.skip_all(topic, "s") == 0
    consumer.close()
    assert_quiet(client.subscribe(topic, "s"))


def test_skipping_counts_a_batch_once_and_leaves_out_holes(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, ack_receipt_enabled=True)
    publish(client, topic, 0, 3)
    publish_batch(client, topic, numbers(3, 6))
    publish(client, topic, 6, 8)
    consumer.acknowledge(receive(consumer, 8)[1])
    consumer.close()
    assert topics.skip(topic, "s", 3) == 3
    assert values(client.subscribe(topic, "s"), 2) == numbers(6, 8)


def test_what_is_skipped_stays_skipped_after_a_crash(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    broker.admin().topics.create_subscription(topic, "s")
    publish(client, topic, 0, 5)
    assert broker.admin().topics.skip(topic, "s", 3) == 3
    broker.restart(kill=True)
    assert values(broker.client().subscribe(topic, "s"), 2) == numbers(3, 5)


def test_a_cursor_is_reset_and_its_consumer_goes_there(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    consumer = client.subscribe(topic, "s", ack_receipt_enabled=True)
    ids = publish(client, topic, 0, 5)
    last_ms = int(time.time() * 1000)
    wait_until(lambda: int(time.time() * 1000) > last_ms, what="the next millisecond")
    middle_ms = int(time.time() * 1000)
    ids += publish(client, topic, 5, 10)
    # With nothing in its queue it cannot hand out what came before it hears of the reset.
    for message in receive(consumer, 10)[:8]:
        consumer.acknowledge(message)
    beyond = MessageId(-1, ids[9].ledger_id(), 999)
    for to, first in ((ids[4], 4), (middle_ms, 5), ("earliest", 0), (MessageId.earliest, 0), (ids[9], 9)):
        topics.reset_cursor(topic, "s", to)
        assert values(consumer, 10 - first) == numbers(first, 10), to
        assert_quiet(consumer)
    for to in (beyond, "latest", MessageId.latest):
        topics.reset_cursor(topic, "s", to)
        assert_quiet(consumer)
        assert topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0
    consumer.close()
    topics.reset_cursor(topic, "s", ids[7])
    assert values(client.subscribe(topic, "s"), 3) == numbers(7, 10)


def test_peeking_moves_nothing(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, ack_receipt_enabled=True)
    assert topics.peek_messages(topic, "s", 3) == []
    producer = client.create_producer(topic)
    sent = producer.send(b"first", partition_key="k", properties={"a": "b"})
    publish_batch(client, topic, numbers(1, 4))
    producer.send_many(numbers(4, 8))
    messages = receive(consumer, 8)
    consumer.acknowledge(messages[5])
    expected = [b"first", *numbers(1, 5), *numbers(6, 8)]
    for count in (1, 3, 6, 7, 100):
        peeked = topics.peek_messages(topic, "s", count)
        assert [message.data() for message in peeked] == expected[:count]
    ones = [topics.peek_message(topic, "s", place) for place in range(1, 8)]
    assert [one and one.data() for one in ones] == expected
    assert topics.peek_message(topic, "s", 8) is None
    first = peeked[0]
    assert (first.message_id(), first.partition_key(), first.properties()) == (sent, "k", {"a": "b"})
    assert [message.message_id() for message in peeked] == [
        message.message_id() for index, message in enumerate(messages) if index != 5
    ]
    assert topics.stats(topic)["subscriptions"]["s"]["unackedMessages"] == 7
    consumer.close()
    assert sorted(values(client.subscribe(topic, "s"), 7)) == sorted(expected)


def test_peeking_goes_on_where_an_answer_was_full(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    topics.create_subscription(topic, "s")
    producer = client.create_producer(topic)
    large = [bytes([number]) * 3_000_000 for number in range(4)]
    for value in large:
        producer.send(value)
    assert [message.data() for message in topics.peek_messages(topic, "s", 10)] == large


@pytest.mark.parametrize("connected", [False, True])
def test_old_messages_expire(broker: Broker, client: Client, connected: bool, assert_quiet: Quiet) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    for name in ("s", "t"):
        topics.create_subscription(topic, name)
    publish(client, topic, 0, 5)
    consumer = client.subscribe(topic, "s") if connected else None
    assert topics.expire_messages(topic, "s", 3_600) == 0
    wait_until(lambda: topics.expire_messages(topic, "s", 0.001) or None, what="5 ms have passed")
    publish(client, topic, 5, 7)
    if consumer is not None:
        assert topics.stats(topic)["subscriptions"]["s"]["totalMsgExpired"] == 5
        consumer.close()
    consumer = client.subscribe(topic, "s")
    assert values(consumer, 2, acknowledge=True) == numbers(5, 7)
    consumer.close()
    expired = wait_until(
        lambda: (found := topics.expire_messages_all_subscriptions(topic, 0.001))["t"] == 7 and found,
        what="all are older than a millisecond",
    )
    assert expired == {"s": 0, "t": 7}
    assert_quiet(client.subscribe(topic, "t"))


def test_deleting_a_subscription(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    publish(client, topic, 0, 1)
    topics.create_subscription(topic, "asleep")
    consumer = client.subscribe(topic, "s", consumer_name="me")
    topics.unsubscribe(topic, "asleep")
    with pytest.raises(NotAllowedError, match=r"active connected consumers .me.*force"):
        topics.unsubscribe(topic, "s")
    assert topics.subscriptions(topic) == ["s"]
    publish(client, topic, 1, 2)
    assert values(consumer, 1) == [b"000001"]
    consumer.close()
    topics.unsubscribe(topic, "s")
    assert topics.subscriptions(topic) == []
    for name in ("s", "asleep", "never there"):
        with pytest.raises(SubscriptionNotFound, match=name):
            topics.unsubscribe(topic, name)
    again = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert values(again, 2) == numbers(0, 2)


def test_a_force_deleted_subscription_is_not_brought_back_by_its_consumers(
    broker: Broker, client: Client
) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    consumers = [client.subscribe(topic, "s", ConsumerType.Shared) for _ in range(2)]
    consumers.append(broker.client().subscribe(topic, "s", ConsumerType.Shared))
    topics.unsubscribe(topic, "s", force=True)
    for consumer in consumers:
        with pytest.raises(SubscriptionNotFound):
            consumer.receive(WAIT_MS)
    assert topics.subscriptions(topic) == []
    publish(client, topic, 0, 1)
    fresh = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert values(fresh, 1) == numbers(0, 1)


def test_partitions_together_and_one_by_one(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(partitions=2), broker.admin().topics
    part = f"{topic}-partition-1"
    topics.create_subscription(topic, "s")
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in numbers(0, 6)]
    with pytest.raises(OperationNotSupported, match="partition-0"):
        topics.skip(topic, "s", 1)
    assert topics.skip(part, "s", 1) == 1
    assert len(topics.peek_messages(topic, "s", 10)) == 5
    assert len(topics.peek_messages(topic, "s", 4)) == 4
    of_part = [one for one in ids if one.partition() == 1]
    topics.reset_cursor(topic, "s", of_part[0])
    assert len(topics.peek_messages(topic, "s", 10)) == 6
    with pytest.raises(OperationNotSupported, match="which partition"):
        topics.reset_cursor(topic, "s", MessageId(-1, of_part[0].ledger_id(), 0))
    assert topics.skip_all(topic, "s") == 6
    topics.reset_cursor(topic, "s", "earliest")
    assert sorted(values(client.subscribe(topic, "s"), 6)) == numbers(0, 6)
    with pytest.raises(OperationNotSupported):
        topics.create_subscription(topic, "t", ids[0])
    topics.unsubscribe(part, "s", force=True)
    assert topics.subscriptions(topic) == ["s"]
    topics.unsubscribe(topic, "s", force=True)
    assert topics.subscriptions(topic) == []


def test_what_means_nothing_is_refused(broker: Broker, client: Client) -> None:
    topic, other, topics = broker.topic(), broker.topic(), broker.admin().topics
    foreign = publish(client, other, 0, 1)[0]
    unnamed = MessageId(-1, foreign.ledger_id(), foreign.entry_id())
    publish(client, topic, 0, 1)
    topics.create_subscription(topic, "s")
    for one in (foreign, unnamed):
        with pytest.raises(InvalidConfiguration, match="give an id of"):
            topics.reset_cursor(topic, "s", one)
        with pytest.raises(InvalidConfiguration, match="give an id of"):
            topics.create_subscription(topic, "t", one)
    refused: list[Callable[[], object]] = [
        lambda: topics.skip(topic, "s", -1),
        lambda: topics.skip(topic, "s", True),
        lambda: topics.peek_messages(topic, "s", 0),
        lambda: topics.peek_messages(topic, "s", 10**9),
        lambda: topics.peek_message(topic, "s", 0),
        lambda: topics.peek_message(topic, "s", 10**9),
        lambda: topics.expire_messages(topic, "s", -1),
        lambda: topics.expire_messages(topic, "s", float("nan")),
        lambda: topics.reset_cursor(topic, "s", -5),
        lambda: topics.reset_cursor(topic, "s", "middle"),
        lambda: topics.create_subscription(topic, "t", "middle"),
        lambda: topics.create_subscription(topic, ""),
    ]
    for call in refused:
        with pytest.raises(ValueError):
            call()
    missing: list[Callable[[str, str], object]] = [
        lambda t, s: topics.skip(t, s, 1),
        topics.skip_all,
        topics.unsubscribe,
        topics.peek_messages,
        lambda t, s: topics.expire_messages(t, s, 1),
        lambda t, s: topics.reset_cursor(t, s, "latest"),
    ]
    for method in missing:
        with pytest.raises(SubscriptionNotFound, match="no such"):
            method(topic, "no such")
        with pytest.raises(TopicNotFound):
            method(f"{topic}-missing", "s")
    assert topics.subscriptions(topic) == ["s"]
    assert len(topics.peek_messages(topic, "s", 5)) == 1


def test_calls_survive_a_dispatcher_that_dies(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    ids = publish(client, topic, 0, 5)
    values(consumer, 5, acknowledge=True)
    broker.cluster.dispatcher_of(topic, "s")
    broker.cluster.kill(f"{topic} -> s")
    topics.reset_cursor(topic, "s", ids[3])
    assert values(consumer, 2) == numbers(3, 5)
    with pytest.raises(PulsarException):
        consumer.receive(QUIET_MS)
