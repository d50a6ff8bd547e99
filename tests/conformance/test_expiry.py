"""Messages that are older than `message_ttl` are acknowledged by the broker, over every carrier."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.managed_ledger.store.wake_times import read_wake_times
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, values

Quiet = Callable[[Consumer], None]


@pytest.fixture
def awake(transport: str) -> None:
    """For what is counted by actors."""
    if transport == "sleepy":
        pytest.skip("only actors that are awake count")


def backlog(broker: Broker, topic: str, subscription: str) -> int:
    count: int = broker.admin().topics.stats(topic)["subscriptions"][subscription]["msgBacklog"]
    return count


def expired(broker: Broker, topic: str, subscription: str) -> tuple[int, int]:
    stats = broker.admin().topics.stats(topic)["subscriptions"][subscription]
    return stats["totalMsgExpired"], stats["lastExpireTimestamp"]


@pytest.mark.usefixtures("awake")
def test_expired_messages_are_gone_for_subscriptions_and_not_for_readers(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    for name in "ab":
        client.subscribe(topic, name).close()
    held = client.subscribe(topic, "held", ConsumerType.Shared, receiver_queue_size=1)
    producer = client.create_producer(topic)
    for value in numbers(0, 4):
        producer.send(value)
    first = held.receive(WAIT_MS)
    broker.cluster.override(topic, ttl_duration_default_in_seconds=1)
    wait_until(lambda: [backlog(broker, topic, name) for name in ("a", "b", "held")] == [0] * 3, what="gone")
    for name in ("a", "b", "held"):
        wait_until(lambda name=name: expired(broker, topic, name)[0] == 4, what=f"counted for {name}")  # type: ignore[misc]
        assert expired(broker, topic, name)[1] > 0
    broker.cluster.override(topic)
    held.acknowledge(first)
    reader = client.create_reader(topic, MessageId.earliest)
    assert reader.read_next(WAIT_MS).data() == numbers(0, 1)[0], "a reader still finds it"
    producer.send(b"young")
    late = client.subscribe(topic, "a")
    assert expired(broker, topic, "a")[0] == 4, "nothing is counted twice"
    assert values(late, 1) == [b"young"]
    assert_quiet(late)


@pytest.mark.usefixtures("awake")
def test_an_expiry_survives_the_death_of_the_broker(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    client.subscribe(topic, "s").close()
    producer = client.create_producer(topic)
    for value in numbers(0, 3):
        producer.send(value)
    broker.cluster.override(topic, ttl_duration_default_in_seconds=1)
    wait_until(lambda: backlog(broker, topic, "s") == 0, what="all has expired")
    broker.cluster.override(topic)
    broker.restart(kill=True)
    client = broker.client()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    client.create_producer(topic).send(b"later")
    assert values(consumer, 1) == [b"later"]
    assert_quiet(consumer)


@pytest.mark.usefixtures("awake")
def test_delayed_messages_expire_before_their_time(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send(b"far ahead", deliver_after=timedelta(hours=1))
    broker.cluster.override(topic, ttl_duration_default_in_seconds=1)
    wait_until(lambda: backlog(broker, topic, "s") == 0, what="it has expired")
    broker.cluster.override(topic)
    producer.send(b"now")
    assert values(consumer, 1) == [b"now"]
    assert_quiet(consumer)


@pytest.mark.usefixtures("awake")
def test_a_key_is_free_once_the_messages_that_hold_it_have_expired(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    holder = client.subscribe(topic, "s", ConsumerType.KeyShared)
    producer = client.create_producer(topic)
    for key in "abcdefgh":
        producer.send(b"held", partition_key=key)
    for _ in "abcdefgh":
        holder.receive(WAIT_MS)
    other = broker.client().subscribe(topic, "s", ConsumerType.KeyShared)
    for key in "abcdefgh":
        producer.send(key.encode(), partition_key=key)
    got: list[bytes] = []

    def take() -> bool:
        for consumer in (holder, other):
            while consumer._core.has_received():
                message = consumer.receive(WAIT_MS)
                got.append(message.data())
                consumer.acknowledge(message)
        return len(got) == 8

    # Those whose key has moved wait behind what `holder` has, until that has expired.
    broker.cluster.override(topic, ttl_duration_default_in_seconds=1)
    wait_until(lambda: backlog(broker, topic, "s") == 0, what="the old ones have expired")
    broker.cluster.override(topic)
    got.clear()
    take()
    got.clear()
    for key in "abcdefgh":
        producer.send(key.encode(), partition_key=key)
    wait_until(take, what="all of the new ones arrive")


@pytest.mark.usefixtures("awake")
def test_a_chunked_message_expires_as_a_whole(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=1)
    producer = client.create_producer(
        topic, chunking_enabled=True, batching_enabled=False, chunk_max_message_size=1000
    )
    producer.send(bytes(5000))
    broker.cluster.override(topic, ttl_duration_default_in_seconds=1)
    consumer.receive(WAIT_MS)
    wait_until(lambda: backlog(broker, topic, "s") == 0, what="it has expired")
    broker.cluster.override(topic)
    producer.send(bytes(range(100)) * 50)
    message = consumer.receive(WAIT_MS)
    assert message.data() == bytes(range(100)) * 50
    consumer.acknowledge(message)
    assert_quiet(consumer)


@pytest.mark.usefixtures("awake")
def test_a_subscription_that_sleeps_wakes_behind_what_has_expired(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    for value in numbers(0, 3):
        producer.send(value)
    last = [consumer.receive(WAIT_MS) for _ in range(3)][-1]
    consumer.acknowledge(last)
    consumer.close()
    producer.close()
    wait_until(lambda: broker.cluster.put_to_sleep(topic), what="its sleep")
    broker.cluster.override(topic, ttl_duration_default_in_seconds=1)
    producer = client.create_producer(topic)
    wait_until(lambda: backlog(broker, topic, "s") == 0, what="it expires without its dispatcher")
    wait_until(lambda: expired(broker, topic, "s")[0] == 2, what="what was not acknowledged is counted")
    counted = expired(broker, topic, "s")
    producer.close()
    wait_until(lambda: broker.cluster.put_to_sleep(topic), what="it sleeps again")
    assert expired(broker, topic, "s") == counted, "counts outlast a sleep"
    broker.cluster.override(topic)
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer.send(b"young")
    assert values(consumer, 1) == [b"young"]
    assert_quiet(consumer)


@pytest.mark.usefixtures("awake")
def test_a_subscription_that_nobody_uses_is_deleted_and_frees_the_topic(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_ray.broker.partition.backlog.due_deletions.MINUTE_MS", 300)
    topic, topics = broker.topic(), broker.admin().topics
    used = client.subscribe(topic, "used")
    topics.create_subscription(topic, "unused")
    producer = client.create_producer(topic)
    producer.send(b"before")
    broker.cluster.override(topic, subscription_expiration_time_minutes=1)
    wait_until(lambda: topics.subscriptions(topic) == ["used"], what="the other one is gone")
    assert values(used, 1) == [b"before"]
    anew = client.subscribe(topic, "unused")
    producer.send(b"behind")
    assert values(anew, 1) == [b"behind"], "it is another one, from where it began"


@pytest.mark.usefixtures("awake")
def test_a_subscription_expires_while_its_topic_sleeps(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expiry = "pulsar_ray.broker.partition.backlog.due_deletions"
    monkeypatch.setattr(f"{expiry}.MINUTE_MS", 500)
    monkeypatch.setattr("pulsar_ray.managed_ledger.store.wake_times.LEAST_SLACK_MS", 0)
    topic = broker.topic()
    client.subscribe(topic, "s").close()
    broker.cluster.override(topic, subscription_expiration_time_minutes=1)
    before_ms = time.time() * 1000
    wait_until(lambda: broker.cluster.put_to_sleep(topic), what="its sleep")
    ((_, due_ms),) = read_wake_times(tmp_path / "0" / "p").items()
    assert due_ms > before_ms
    wait_until(lambda: time.time() * 1000 > due_ms, what="the time to wake it")
    client.create_producer(topic)
    topics = broker.admin().topics
    wait_until(lambda: topics.subscriptions(topic) == [], what="it is gone")
