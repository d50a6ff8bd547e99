"""A topic's backlog stays within its policy `backlog_quota`, over every carrier."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import (
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    Timeout,
)
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import WAIT_MS, Broker, numbers, values

Quiet = Callable[[Consumer], None]
LIMIT = 20_000
HOLD, EXCEPTION, EVICTION = "producer_request_hold", "producer_exception", "consumer_backlog_eviction"


@pytest.fixture
def awake(transport: str) -> None:
    """For what a partition that sleeps does not show, or does later."""
    if transport == "sleepy":
        pytest.skip("only partitions that are awake measure backlogs")


def limit(broker: Broker, topic: str, policy: str, size: int = LIMIT, seconds: int = -1) -> None:
    broker.cluster.override(
        topic,
        backlog_quota_default_limit_bytes=size,
        backlog_quota_default_limit_second=seconds,
        backlog_quota_default_retention_policy=policy,
    )


def payload(number: int) -> bytes:
    return f"{number:04}".encode().ljust(1000, b".")


def stats(broker: Broker, topic: str) -> dict[str, Any]:
    described: dict[str, Any] = broker.admin().topics.stats(topic)
    return described


def drain(consumer: Consumer, count: int) -> list[int]:
    got = []
    for _ in range(count):
        message = consumer.receive(WAIT_MS)
        got.append(int(message.data()[:4]))
        consumer.acknowledge(message)
    return got


def fill(send: Callable[[bytes], Any], error: type[Exception]) -> tuple[int, Exception]:
    """Send until it fails; returns how many were sent before."""
    for number in range(100):
        try:
            send(payload(number))
        except error as raised:
            return number, raised
    pytest.fail("nothing was refused")


@pytest.mark.usefixtures("awake")
def test_a_full_backlog_refuses_messages_until_it_shrinks(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "slow", ConsumerType.Shared)
    client.subscribe(topic, "other", ConsumerType.Shared).close()
    broker.admin().topics.skip_all(topic, "other")
    producer = client.create_producer(topic)
    limit(broker, topic, EXCEPTION)
    sent, error = fill(producer.send, ProducerBlockedQuotaExceededException)
    assert 17 <= sent <= 20, "precise to one message"
    assert "'other'" in str(error) or "'slow'" in str(error)
    assert f"limit_size is {LIMIT}" in str(error)
    with pytest.raises(ProducerBlockedQuotaExceededException):
        client.create_producer(topic)
    described = stats(broker, topic)
    assert described["backlogQuotaLimitSize"] == LIMIT
    assert described["backlogQuotaExceeded"] in str(error)
    assert described["slowestSubscriptionBacklogSize"] >= LIMIT
    broker.admin().topics.skip_all(topic, "other")
    assert drain(consumer, sent) == list(range(sent))

    def goes_on() -> bool:
        try:
            producer.send(payload(sent))
        except ProducerBlockedQuotaExceededException:
            return False
        return True

    wait_until(goes_on, what="the same producer goes on")
    assert drain(consumer, 1) == [sent]
    assert stats(broker, topic)["backlogQuotaExceeded"] == ""
    assert_quiet(consumer)


@pytest.mark.parametrize("batching", [True, False])
def test_a_held_producer_goes_on_by_itself_without_loss_or_repeat(
    broker: Broker, client: Client, assert_quiet: Quiet, batching: bool
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "slow")
    limit(broker, topic, HOLD)
    producer = client.create_producer(
        topic, batching_enabled=batching, batching_max_messages=3, max_pending_messages=4,
        block_if_queue_full=True,
    )  # fmt: skip
    results: list[Any] = []

    def send() -> None:
        for number in range(60):
            producer.send_async(payload(number), lambda result, _: results.append(result))
        producer.flush()

    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(send)
        wait_until(lambda: stats(broker, topic)["backlogQuotaExceeded"] != "", what="it is held")
        assert 15 <= len(results) < 30
        assert drain(consumer, 60) == list(range(60))
        sending.result(timeout=20)
    assert [str(result) for result in results] == ["Result.Ok"] * 60
    assert_quiet(consumer)


def test_who_waits_too_long_learns_which_subscription_it_waits_for(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "slow")
    producer = client.create_producer(topic, send_timeout_millis=1500)
    limit(broker, topic, HOLD)
    sent, error = fill(producer.send, Timeout)
    assert "'slow'" in str(error)
    assert "backlog_quota" in str(error)
    with pytest.raises(ProducerBlockedQuotaExceededError, match="'slow'"):
        client.create_producer(topic)
    with pytest.raises(Timeout, match="'slow'"):
        producer.send(payload(76))
    assert drain(consumer, sent) == list(range(sent))
    assert_quiet(consumer)
    producer.send(payload(77))
    assert drain(consumer, 1) == [77]


def test_several_held_producers_all_go_on(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "slow", ConsumerType.Shared)
    producers = [broker.client().create_producer(topic, batching_enabled=False) for _ in range(3)]
    limit(broker, topic, HOLD)

    def send(index: int) -> None:
        for number in range(20):
            producers[index].send(payload(index * 20 + number))

    with ThreadPoolExecutor(3) as threads:
        sending = [threads.submit(send, index) for index in range(3)]
        got = drain(consumer, 60)
        for one in sending:
            one.result(timeout=20)
    assert sorted(got) == list(range(60))


@pytest.mark.usefixtures("awake")
def test_an_eviction_takes_the_oldest_of_slow_subscriptions_only(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    client.subscribe(topic, "slow").close()
    fast = client.subscribe(topic, "fast")
    producer = client.create_producer(topic, batching_enabled=False)
    limit(broker, topic, EVICTION)
    for number in range(60):
        producer.send(payload(number))
        assert drain(fast, 1) == [number]
    assert stats(broker, topic)["slowestSubscriptionBacklogSize"] <= LIMIT + 1200
    slow = client.subscribe(topic, "slow")
    # What the last message has evicted may go while the others come.
    left = drain(slow, 1)
    while left[-1] < 59:
        left += drain(slow, 1)
    assert left == list(range(left[0], 60))
    assert 13 <= len(left) <= 20
    assert_quiet(slow)
    assert_quiet(fast)


@pytest.mark.usefixtures("awake")
def test_a_quota_below_what_is_there_is_heeded_at_once(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.subscribe(topic, "slow").close()
    producer = client.create_producer(topic)
    for number in range(40):
        producer.send(payload(number))
    limit(broker, topic, EXCEPTION)
    with pytest.raises(ProducerBlockedQuotaExceededException):
        producer.send(payload(40))
    limit(broker, topic, EVICTION)
    wait_until(lambda: stats(broker, topic)["slowestSubscriptionBacklogSize"] < LIMIT, what="evicted")
    assert 10 <= stats(broker, topic)["subscriptions"]["slow"]["msgBacklog"] <= 20
    producer.send(payload(40))


@pytest.mark.usefixtures("awake")
def test_a_raised_quota_lets_held_producers_go_on(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.subscribe(topic, "slow").close()
    producer = client.create_producer(topic, batching_enabled=False)
    limit(broker, topic, HOLD)

    def send() -> None:
        for number in range(40):
            producer.send(payload(number))

    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(send)
        wait_until(lambda: stats(broker, topic)["backlogQuotaExceeded"] != "", what="it is held")
        assert not sending.done()
        limit(broker, topic, HOLD, size=-1)
        sending.result(timeout=20)
    assert stats(broker, topic)["subscriptions"]["slow"]["msgBacklog"] == 40


@pytest.mark.usefixtures("awake")
def test_an_old_backlog_refuses_messages(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "slow")
    producer = client.create_producer(topic)
    limit(broker, topic, EXCEPTION, size=-1, seconds=1)
    producer.send(payload(0))
    wait_until(lambda: stats(broker, topic)["backlogQuotaExceeded"] != "", what="too old")
    with pytest.raises(ProducerBlockedQuotaExceededException, match="limit_time is 1 seconds"):
        producer.send(payload(1))
    described = stats(broker, topic)
    assert described["oldestBacklogMessageAgeSeconds"] >= 1
    assert described["oldestBacklogMessageSubscriptionName"] == "slow"
    drain(consumer, 1)
    wait_until(lambda: stats(broker, topic)["backlogQuotaExceeded"] == "", what="nothing is left")
    producer.send(payload(2))


@pytest.mark.usefixtures("awake")
def test_an_old_backlog_is_evicted_though_nobody_publishes(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.subscribe(topic, "slow").close()
    producer = client.create_producer(topic)
    producer.send(payload(0))
    limit(broker, topic, EVICTION, size=-1, seconds=1)
    wait_until(lambda: stats(broker, topic)["subscriptions"]["slow"]["msgBacklog"] == 0, what="evicted")


def test_nothing_is_limited_without_a_durable_subscription(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    limit(broker, topic, EXCEPTION)
    client.create_reader(topic, MessageId.earliest)
    producer = client.create_producer(topic)
    for number in range(60):
        producer.send(payload(number))


def test_delayed_messages_count(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.subscribe(topic, "slow", ConsumerType.Shared)
    producer = client.create_producer(topic)
    limit(broker, topic, EXCEPTION)
    sent, _ = fill(
        lambda value: producer.send(value, deliver_after=timedelta(hours=1)),
        ProducerBlockedQuotaExceededException,
    )
    assert 15 <= sent <= 20


@pytest.mark.parametrize("policy", [HOLD, EXCEPTION])
def test_a_message_in_chunks_that_has_begun_is_stored_to_its_end(
    broker: Broker, client: Client, policy: str
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "slow")
    producer = client.create_producer(
        topic, chunking_enabled=True, batching_enabled=False, chunk_max_message_size=1000
    )
    limit(broker, topic, policy)
    large = bytes(range(256)) * 200
    producer.send(large)
    consumer.acknowledge(message := consumer.receive(WAIT_MS))
    assert message.data() == large
    wait_until(lambda: stats(broker, topic)["backlogQuotaExceeded"] == "", what="there is room")
    producer.send(large)
    assert consumer.receive(WAIT_MS).data() == large


def test_a_seek_back_counts(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    client.create_reader(topic, MessageId.earliest)
    producer = client.create_producer(topic)
    for number in range(30):
        producer.send(payload(number))
    drain(consumer, 30)
    wait_until(lambda: stats(broker, topic)["slowestSubscriptionBacklogSize"] == 0, what="all is consumed")
    limit(broker, topic, EXCEPTION)
    producer.send(payload(30))
    consumer.seek(MessageId.earliest)
    with pytest.raises(ProducerBlockedQuotaExceededException):
        producer.send(payload(31))


def test_producers_are_held_after_the_broker_has_died(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    client.subscribe(topic, "slow").close()
    producer = client.create_producer(topic)
    for number in range(30):
        producer.send(payload(number))
    broker.restart(kill=True)
    limit(broker, topic, HOLD)
    client = broker.client()
    with pytest.raises(ProducerBlockedQuotaExceededError, match="'slow'"):
        client.create_producer(topic)
    consumer = client.subscribe(topic, "slow")
    assert drain(consumer, 30) == list(range(30))
    wait_until(lambda: stats(broker, topic)["backlogQuotaExceeded"] == "", what="there is room")

    def opened() -> Producer | None:
        # A partition that sleeps shows no quota, while the last acknowledgments are on their way.
        try:
            return client.create_producer(topic)
        except ProducerBlockedQuotaExceededError:
            return None

    producer_again = wait_until(opened, what="there is room")
    assert producer_again is not None
    producer_again.send(numbers(0, 1)[0])
    assert values(consumer, 1) == numbers(0, 1)
    assert_quiet(consumer)


@pytest.mark.usefixtures("awake")
def test_a_quota_is_a_policy_of_a_namespace_that_its_topics_override(broker: Broker, client: Client) -> None:
    admin, topic = broker.admin(), broker.topic()
    client.subscribe(topic, "slow").close()
    producer = client.create_producer(topic)
    admin.namespaces.policies.set("public/default", "backlog_quota", limit_size=LIMIT, policy=EXCEPTION)
    sent, _ = fill(producer.send, ProducerBlockedQuotaExceededException)
    assert 17 <= sent <= 20
    admin.topics.policies.set(topic, "backlog_quota", limit_size=2 * LIMIT)
    more, error = fill(producer.send, ProducerBlockedQuotaExceededException)
    assert 17 <= more <= 20, "the namespace still says what happens"
    assert f"limit_size is {2 * LIMIT}" in str(error)
    admin.topics.policies.set(topic, "backlog_quota", limit_size=-1)
    admin.namespaces.policies.remove("public/default", "backlog_quota")
    producer.send(payload(0))


def test_expiry_lets_held_producers_go_on(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.subscribe(topic, "slow").close()
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(payload(number))
    broker.cluster.override(
        topic,
        backlog_quota_default_limit_bytes=LIMIT,
        backlog_quota_default_retention_policy=HOLD,
        ttl_duration_default_in_seconds=1,
    )
    producer.send(payload(20))


def test_a_held_producer_loses_and_repeats_nothing_when_its_partition_dies(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "slow")
    producer = client.create_producer(topic, batching_enabled=False)
    limit(broker, topic, HOLD)

    def send() -> None:
        for number in range(40):
            producer.send(payload(number))

    with ThreadPoolExecutor(1) as thread:
        sending = thread.submit(send)
        wait_until(lambda: stats(broker, topic)["backlogQuotaExceeded"] != "", what="it is held")
        broker.cluster.kill(broker.cluster.partition(topic).address)
        limit(broker, topic, HOLD)
        assert drain(consumer, 40) == list(range(40))
        sending.result(timeout=20)
    assert_quiet(consumer)


def test_lists_of_messages_are_held_as_others_are(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "slow")
    producer = client.create_producer(topic, batching_enabled=True)
    limit(broker, topic, HOLD)
    with ThreadPoolExecutor(1) as thread:
        lists = [[payload(number) for number in range(first, first + 10)] for first in range(0, 60, 10)]
        sending = thread.submit(lambda: [producer.send_many(messages) for messages in lists])
        assert drain(consumer, 60) == list(range(60))
        sending.result(timeout=20)
    assert_quiet(consumer)
