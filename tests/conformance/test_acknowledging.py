"""Acknowledgments and redelivery over every carrier: whole entries, rows of batches, counts, backoff."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer import Consumer
from pulsar_ray.client.message import Message
from pulsar_ray.client.policies import MultiplierRedeliveryBackoff, RedeliveryBackoff
from pulsar_ray.errors import AlreadyClosed, CumulativeAcknowledgementNotAllowedError
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import Broker, numbers, receive, values

Quiet = Callable[[Consumer], None]


def send_batch(client: Client, topic: str, sent: list[bytes]) -> None:
    """One entry."""
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for value in sent:
        producer.send_async(value, None)
    producer.close()


def counts(messages: list[Message]) -> list[tuple[bytes, int]]:
    return [(message.data(), message.redelivery_count()) for message in messages]


@pytest.mark.parametrize("by", ["message", "id", "serialized"])
def test_single_acks_leave_the_others(broker: Broker, client: Client, by: str, assert_quiet: Quiet) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    for value in numbers(0, 10):
        producer.send(value)
    for message in receive(consumer, 10)[::2]:
        what: Any = message
        if by != "message":
            what = message.message_id()
        if by == "serialized":
            what = MessageId.deserialize(what.serialize())
        consumer.acknowledge(what)
    consumer.close()
    again = client.subscribe(topic, "s", ConsumerType.Shared)
    assert values(again, 5) == numbers(0, 10)[1::2]
    assert_quiet(again)


def test_cumulative_acks_reach_back_and_survive_a_close(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for value in numbers(0, 10):
        producer.send(value)
    messages = receive(consumer, 10)
    consumer.acknowledge_cumulative(messages[6])
    consumer.acknowledge_cumulative(messages[2].message_id())
    consumer.close()
    again = client.subscribe(topic, "s")
    assert values(again, 3) == numbers(7, 10)
    assert_quiet(again)


def test_cumulative_acks_are_an_error_where_others_share(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    client.create_producer(topic).send(b"x")
    (message,) = receive(consumer, 1)
    for what in (message, message.message_id()):
        with pytest.raises(CumulativeAcknowledgementNotAllowedError):
            consumer.acknowledge_cumulative(what)
    consumer.close()
    assert values(client.subscribe(topic, "s"), 1) == [b"x"]


def test_acks_that_mean_nothing_change_nothing(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ack_receipt_enabled=True)
    producer = client.create_producer(topic)
    first = producer.send(b"0")
    (message,) = receive(consumer, 1)
    consumer.acknowledge(message)
    for meaningless in (
        message,
        MessageId(-1, first.ledger_id(), 999, -1),
        MessageId(-1, first.ledger_id() + 5, 0, -1),
        MessageId.earliest,
    ):
        consumer.acknowledge(meaningless)
    producer.send(b"1")
    assert values(consumer, 1) == [b"1"]
    for wrong in (None, 3, "x"):
        with pytest.raises((ValueError, TypeError)):
            consumer.acknowledge(wrong)  # type: ignore[arg-type]
    assert_quiet(consumer)


def test_a_partly_acked_batch_comes_back_whole_without_index_acks(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    send_batch(client, topic, numbers(0, 5))
    messages = receive(consumer, 5)
    consumer.acknowledge(messages[1])
    consumer.acknowledge(messages[3])
    # In this session the client does not hand out what it acknowledged itself.
    consumer.redeliver_unacknowledged_messages()
    assert counts(receive(consumer, 3)) == [(b"000000", 1), (b"000002", 1), (b"000004", 1)]
    consumer.close()
    again = client.subscribe(topic, "s")
    messages = receive(again, 5)
    assert [message.data() for message in messages] == numbers(0, 5)
    for message in messages:
        again.acknowledge(message)
    again.close()
    assert_quiet(client.subscribe(topic, "s"))


def test_index_acks_are_kept_for_good(make_broker: Callable[..., Broker], assert_quiet: Quiet) -> None:
    broker = make_broker(acknowledgment_at_batch_index_level_enabled=True)
    client, topic = broker.client(), broker.topic()
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True, ack_receipt_enabled=True)
    send_batch(client, topic, numbers(0, 5))
    messages = receive(consumer, 5)
    consumer.acknowledge(messages[1])
    consumer.acknowledge(messages[3])
    broker.restart(kill=True)
    client = broker.client()
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    again = receive(consumer, 3)
    assert [message.data() for message in again] == [b"000000", b"000002", b"000004"]
    for message in again:
        consumer.acknowledge(message)
    consumer.close()
    assert_quiet(client.subscribe(topic, "s"))


def test_cumulative_acks_inside_a_batch(make_broker: Callable[..., Broker], assert_quiet: Quiet) -> None:
    broker = make_broker(acknowledgment_at_batch_index_level_enabled=True)
    client, topic = broker.client(), broker.topic()
    for switch, left in ((True, numbers(8, 10)), (False, numbers(5, 10))):
        name = f"s-{switch}"
        consumer = client.subscribe(topic, name, batch_index_ack_enabled=switch)
        send_batch(client, topic, numbers(0, 5))
        send_batch(client, topic, numbers(5, 10))
        messages = receive(consumer, 10)
        consumer.acknowledge_cumulative(messages[7])
        consumer.close()
        again = client.subscribe(topic, name, batch_index_ack_enabled=switch)
        assert values(again, len(left)) == left
        assert_quiet(again)
        again.close()


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


class Recorded:
    """A backoff that writes down what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def next(self, redelivery_count: int) -> int:
        self.asked.append(redelivery_count)
        return 10


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


def test_receipts_mean_durable_at_the_broker(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ack_receipt_enabled=True)
    producer = client.create_producer(topic)
    for value in numbers(0, 3):
        producer.send(value)
    messages = receive(consumer, 3)
    server = broker.cluster.dispatcher_of(topic, "s").server
    assert server is not None
    flusher = server._subscriptions["s"]._flusher
    assert flusher is not None
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[1])
    assert flusher._store.durable_mark_delete[1] == messages[1].message_id().entry_id()


@pytest.mark.parametrize(("time_ms", "size"), [(0, 1000), (60_000, 3)])
def test_acks_are_grouped_by_time_and_by_size(
    broker: Broker, client: Client, time_ms: int, size: int
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ack_grouping_time_ms=time_ms, ack_grouping_max_size=size)
    producer = client.create_producer(topic)
    for value in numbers(0, 3):
        producer.send(value)
    values(consumer, 3, acknowledge=True)
    wait_until(lambda: broker.unacked(topic, "s") == [0], what="the acknowledgments are there")


def test_after_the_end_acknowledging_is_refused(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"x")
    (message,) = receive(consumer, 1)
    consumer.close()
    for call in (consumer.acknowledge, consumer.acknowledge_cumulative):
        with pytest.raises(AlreadyClosed):
            call(message)


def test_backoff_figures_are_those_of_the_table() -> None:
    backoff = MultiplierRedeliveryBackoff(1000, 60_000, 2)
    assert [backoff.next(count) for count in range(8)] == [
        1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000
    ]  # fmt: skip
