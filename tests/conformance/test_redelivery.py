"""What comes again over every carrier: after failures, on request, and from consumers that are gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.options.policies import MultiplierRedeliveryBackoff, RedeliveryBackoff
from pulsar_ray.client.received.message import Message
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import Broker, numbers, receive, send_batch

Quiet = Callable[[Consumer], None]


def counts(messages: list[Message]) -> list[tuple[bytes, int]]:
    return [(message.data(), message.redelivery_count()) for message in messages]


def test_a_nacked_message_of_a_shared_subscription_comes_alone(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(topic)
    for value in numbers(0, 5):
        producer.send(value)
    messages = receive(consumer, 5)
    consumer.negative_acknowledge(messages[3])
    consumer.negative_acknowledge(messages[1].message_id())
    assert sorted(counts(receive(consumer, 2))) == [(b"000001", 1), (b"000003", 1)]
    assert_quiet(consumer)


def test_nacked_messages_of_an_exclusive_subscription_come_in_order_with_all_behind_them(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(topic)
    for value in numbers(0, 6):
        producer.send(value)
    messages = receive(consumer, 6)
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[4])
    consumer.negative_acknowledge(messages[2])
    again = receive(consumer, 3)
    assert [message.data() for message in again] == [b"000002", b"000003", b"000005"]
    assert again[0].redelivery_count() == 1
    assert_quiet(consumer)


class OneAfterTheOther(RedeliveryBackoff):
    """Of the first failures, each is due this much later than the one before."""

    def __init__(self) -> None:
        self._delay_ms = 0

    def next(self, redelivery_count: int) -> int:
        self._delay_ms += 300
        return self._delay_ms


@pytest.mark.parametrize("batching", [False, True])
def test_failures_that_come_due_one_after_the_other_lose_nothing_that_waits(
    broker: Broker, client: Client, batching: bool
) -> None:
    topic = broker.topic()
    backoff = OneAfterTheOther()
    consumer = client.subscribe(topic, "s", negative_ack_redelivery_backoff=backoff)
    producer = client.create_producer(topic, batching_enabled=batching)
    producer.send_many(numbers(0, 5))
    producer.send_many(numbers(5, 10))
    messages = receive(consumer, 10)
    consumer.negative_acknowledge(messages[0])
    consumer.negative_acknowledge(messages[6])
    with broker.admin() as admin:
        wait_until(
            lambda: admin.topics.stats(topic)["subscriptions"]["s"]["msgOutCounter"] >= 25,
            what="both failures have had their effect",
        )
    again = receive(consumer, 10)
    assert [message.data() for message in again] == numbers(0, 10)
    for message in again:
        consumer.acknowledge(message)


def test_one_nack_in_a_batch_brings_its_whole_entry_but_not_what_was_acked(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    send_batch(client, topic, numbers(0, 5))
    messages = receive(consumer, 5)
    consumer.acknowledge(messages[0])
    consumer.negative_acknowledge(messages[2])
    assert counts(receive(consumer, 4)) == [(value, 1) for value in numbers(1, 5)]
    assert_quiet(consumer)


def failures(messages: list[Message]) -> list[tuple[bytes, int, int]]:
    return [(message.data(), message.redelivery_count(), message.failures) for message in messages]


def test_each_message_of_a_batch_knows_its_own_failures_also_after_restarts(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=20)
    send_batch(client, topic, numbers(0, 3))
    consumer.negative_acknowledge(receive(consumer, 3)[1])
    messages = receive(consumer, 3)
    assert failures(messages) == [(b"000000", 1, 0), (b"000001", 1, 1), (b"000002", 1, 0)]
    consumer.negative_acknowledge(messages[1].message_id())
    messages = receive(consumer, 3)
    assert [message.failures for message in messages] == [0, 2, 0]
    consumer.negative_acknowledge(messages[2])
    expected = [(b"000000", 3, 0), (b"000001", 3, 2), (b"000002", 3, 1)]
    assert failures(receive(consumer, 3)) == expected
    consumer.close()
    broker.restart(kill=True)
    again = broker.client().subscribe(topic, "s", ConsumerType.Shared)
    assert failures(receive(again, 3)) == expected


class Recorded:
    """A backoff that writes down what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def next(self, redelivery_count: int) -> int:
        self.asked.append(redelivery_count)
        return 10


def test_a_backoff_goes_by_the_failures_of_the_message_and_not_of_its_batch(
    broker: Broker, client: Client
) -> None:
    topic, backoff = broker.topic(), Recorded()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_backoff=backoff)
    send_batch(client, topic, numbers(0, 3))
    consumer.negative_acknowledge(receive(consumer, 3)[1])
    consumer.negative_acknowledge(receive(consumer, 3)[1])
    consumer.negative_acknowledge(receive(consumer, 3)[0])
    table = consumer.receive_arrow()
    consumer.negative_acknowledge_arrow(table.slice(1, 1))
    receive(consumer, 3)
    assert backoff.asked == [0, 1, 0, 2]


def test_redelivery_counts_rise_and_survive_restarts(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=20)
    client.create_producer(topic).send(b"x")
    for expected in range(4):
        (message,) = receive(consumer, 1)
        assert message.redelivery_count() == expected
        consumer.negative_acknowledge(message)
    (message,) = receive(consumer, 1)
    assert message.redelivery_count() == 4
    consumer.close()
    broker.restart(kill=True)
    again = broker.client().subscribe(topic, "s", ConsumerType.Shared)
    (message,) = receive(again, 1)
    assert message.redelivery_count() == 4


def test_the_backoff_is_asked_with_the_messages_own_count(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    backoff = Recorded()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_backoff=backoff)
    client.create_producer(topic).send(b"x")
    for _ in range(4):
        (message,) = receive(consumer, 1)
        consumer.negative_acknowledge(message)
    receive(consumer, 1)
    assert backoff.asked == [0, 1, 2, 3]


def test_an_ack_takes_back_a_nack(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=60)
    producer = client.create_producer(topic)
    for value in numbers(0, 2):
        producer.send(value)
    first, second = receive(consumer, 2)
    consumer.negative_acknowledge(first)
    consumer.acknowledge(first)
    consumer.acknowledge(second)
    consumer.negative_acknowledge(second)
    assert_quiet(consumer)


def test_redeliver_unacknowledged_brings_everything_back(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    for consumer_type in (ConsumerType.Exclusive, ConsumerType.Shared):
        consumer = client.subscribe(topic, f"s{consumer_type}", consumer_type, receiver_queue_size=4)
        producer = client.create_producer(topic)
        for value in numbers(0, 12):
            producer.send(value)
        for message in receive(consumer, 6)[:3]:
            consumer.acknowledge(message)
        consumer.redeliver_unacknowledged_messages()
        again = receive(consumer, 9)
        came = [message.data() for message in again]
        if consumer_type == ConsumerType.Shared:
            # What was on its way comes before what was taken back.
            again.sort(key=Message.data)
        else:
            assert came == sorted(came)
        assert [message.data() for message in again] == numbers(3, 12)
        assert [message.redelivery_count() for message in again[:3]] == [1, 1, 1]
        assert_quiet(consumer)
        consumer.close()


def test_what_a_closed_consumer_held_goes_to_the_others_uncounted(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    leaving = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    for value in numbers(0, 6):
        producer.send(value)
    held = receive(leaving, 4)
    leaving.acknowledge(held[1])
    staying = broker.client().subscribe(topic, "s", ConsumerType.Shared)
    leaving.close()
    assert counts(receive(staying, 5)) == [(v, 0) for v in numbers(0, 6) if v != b"000001"]


@pytest.mark.parametrize("consumer_type", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_what_failed_at_an_ordered_consumer_that_closes_comes_in_order_and_counted(
    broker: Broker, client: Client, assert_quiet: Quiet, consumer_type: ConsumerType
) -> None:
    topic = broker.topic()
    leaving = client.subscribe(topic, "s", consumer_type)
    producer = client.create_producer(topic)
    for value in numbers(0, 6):
        producer.send(value)
    held = receive(leaving, 5)
    leaving.acknowledge(held[0])
    leaving.negative_acknowledge(held[4])
    leaving.negative_acknowledge(held[2])
    leaving.acknowledge(held[3])
    leaving.close()
    staying = client.subscribe(topic, "s", consumer_type)
    assert counts(receive(staying, 4)) == [(b"000001", 0), (b"000002", 1), (b"000004", 1), (b"000005", 0)]
    assert_quiet(staying)


def test_what_a_vanished_client_held_goes_to_the_others_in_the_end(
    make_broker: Callable[..., Broker],
) -> None:
    # Over a lane its grace ends; over the tunnel, where nothing tells that it is gone, its lease.
    broker = make_broker(session_lease_seconds=5)
    client, topic = broker.client(), broker.topic()
    vanishing = broker.client()
    lost = vanishing.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    for value in numbers(0, 4):
        producer.send(value)
    receive(lost, 2)
    staying = client.subscribe(topic, "s", ConsumerType.Shared)
    vanishing.shutdown()
    messages = receive(staying, 4)
    assert sorted(message.data() for message in messages) == numbers(0, 4)
    assert [message.redelivery_count() for message in messages] == [0] * 4


def test_backoff_figures_are_those_of_the_table() -> None:
    backoff = MultiplierRedeliveryBackoff(1000, 60_000, 2)
    assert [backoff.next(count) for count in range(8)] == [
        1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000
    ]  # fmt: skip


@pytest.mark.parametrize(("limit", "reason"), [(5, "max_unacked_messages_per_consumer"), (50, "delivered")])
def test_why_blocked_names_failures_that_wait_for_their_delay(
    make_broker: Callable[..., Broker], limit: int, reason: str
) -> None:
    broker = make_broker(max_unacked_messages_per_consumer=limit)
    topic, why_blocked = broker.topic(), broker.admin().topics.why_blocked
    consumer = broker.client().subscribe(
        topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=3_000, receiver_queue_size=5
    )
    broker.client().create_producer(topic).send_many(numbers(0, 5 if limit > 5 else 10))
    for message in receive(consumer, 5):
        consumer.negative_acknowledge(message)
    wait_until(lambda: why_blocked(topic, "s")["nackedMessages"] == 5, what="it is told of them")
    told = why_blocked(topic, "s")
    assert reason in told["reason"]
    assert "5 of them were acknowledged negatively" in told["reason"]
    assert 0 <= told["nackedDueInMs"] <= 3_000
    receive(consumer, 5)
    wait_until(lambda: why_blocked(topic, "s")["nackedMessages"] == 0, what="none waits any more")
    assert why_blocked(topic, "s")["nackedDueInMs"] is None


def test_why_blocked_does_not_name_failures_that_were_acknowledged_after_all(
    make_broker: Callable[..., Broker],
) -> None:
    broker = make_broker()
    topic, why_blocked = broker.topic(), broker.admin().topics.why_blocked
    consumer = broker.client().subscribe(
        topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=600_000
    )
    broker.client().create_producer(topic).send_many(numbers(0, 5))
    messages = receive(consumer, 5)
    for message in messages:
        consumer.negative_acknowledge(message)
    wait_until(lambda: why_blocked(topic, "s")["nackedMessages"] == 5, what="it is told of them")
    for message in messages:
        consumer.acknowledge(message)
    wait_until(lambda: why_blocked(topic, "s")["nackedMessages"] == 0, what="none waits any more")
    assert why_blocked(topic, "s")["nackedDueInMs"] is None
