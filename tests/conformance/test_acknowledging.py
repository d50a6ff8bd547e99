"""Acknowledgments over every carrier: whole entries, rows of batches, up to a message, durable or grouped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.broker.subscription.cursor_flusher import CursorFlusher
from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.errors import AlreadyClosed, CumulativeAcknowledgementNotAllowedError, NotConnected
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import EARLIEST, MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import Broker, numbers, receive, send_batch, values

Quiet = Callable[[Consumer], None]


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


# Of a batch that came again in part, as behind the loss of its carrier, acknowledged messages are kept.
@pytest.mark.usefixtures("carriers_are_kept")
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
    handed_out = [(message.data(), message.redelivery_count()) for message in receive(consumer, 3)]
    assert handed_out == [(b"000000", 1), (b"000002", 1), (b"000004", 1)]
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


def test_receipts_mean_durable_at_the_broker(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ack_receipt_enabled=True)
    producer = client.create_producer(topic)
    for value in numbers(0, 3):
        producer.send(value)
    messages = receive(consumer, 3)
    flusher = broker.served(topic, "s")._durability
    assert isinstance(flusher, CursorFlusher)
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
    wait_until(lambda: not any(broker.unacked(topic, "s")), what="the acknowledgments are there")


def test_after_the_end_acknowledging_is_refused(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"x")
    (message,) = receive(consumer, 1)
    consumer.close()
    for call in (consumer.acknowledge, consumer.acknowledge_cumulative):
        with pytest.raises(AlreadyClosed):
            call(message)


def test_no_receipt_comes_while_a_dispatcher_does_not_know_how_far_the_log_goes(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ack_receipt_enabled=True)
    client.create_producer(topic).send(b"x")
    (message,) = receive(consumer, 1)
    server: Any = broker.cluster.dispatcher_of(topic, "s").server
    looks: list[bool] = []

    async def look() -> None:
        looks.append(len(looks) == 2)
        if not looks[-1]:
            raise NotConnected("the partition is away")

    # As in a dispatcher that has just begun, and does not reach its partition.
    unknown = property(lambda _: EARLIEST, lambda *_: None)
    monkeypatch.setattr(type(server.subscriptions), "log_end", unknown, raising=False)
    monkeypatch.setattr(server._early, "_look", look)
    consumer.acknowledge(message)
    assert looks == [False, False, True]
    assert not any(broker.unacked(topic, "s"))
