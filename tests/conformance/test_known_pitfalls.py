"""Failures that other brokers were seen to have, and that must not be here, over every carrier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.errors import TopicNotFound
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import WAIT_MS, Broker, numbers, receive, send_batch, values

Make = Callable[..., Broker]
Quiet = Callable[[Consumer], None]
INDEX_ACKS: dict[str, Any] = {"batch_index_ack_enabled": True, "ack_receipt_enabled": True}
NOWHERE = MessageId()


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared], ids=str)
def test_unacknowledged_messages_of_a_batch_are_counted_down_to_none(
    make_broker: Make, kind: ConsumerType
) -> None:
    broker = make_broker(acknowledgment_at_batch_index_level_enabled=True)
    client, topic = broker.client(), broker.topic()
    consumer = client.subscribe(topic, "s", kind, **INDEX_ACKS)
    send_batch(client, topic, numbers(0, 5))
    with broker.admin() as admin:

        def unacknowledged() -> list[int]:
            subscription = admin.topics.stats(topic)["subscriptions"]["s"]
            return [subscription["unackedMessages"], subscription["consumers"][0]["unackedMessages"]]

        messages = receive(consumer, 5)
        for left, message in zip(range(4, -1, -1), messages, strict=True):
            consumer.acknowledge(message)
            assert unacknowledged() == [left, left]
        # Once more, and after a restart as well.
        for message in messages:
            consumer.acknowledge(message)
        assert unacknowledged() == [0, 0]
        broker.cluster.kill(f"{topic} -> s")
        consumer.acknowledge(messages[0])
        assert unacknowledged() == [0, 0]


def test_index_acks_survive_the_topics_sleep(make_broker: Make, assert_quiet: Quiet) -> None:
    broker = make_broker(acknowledgment_at_batch_index_level_enabled=True)
    client, topic = broker.client(), broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, **INDEX_ACKS)
    send_batch(client, topic, numbers(0, 5))
    for message in receive(consumer, 5)[::2]:
        consumer.acknowledge(message)
    consumer.close()
    wait_until(lambda: broker.cluster.put_to_sleep(topic), what="the topic sleeps")
    again = client.subscribe(topic, "s", ConsumerType.Shared, **INDEX_ACKS)
    assert values(again, 2) == [b"000001", b"000003"]
    assert_quiet(again)


@pytest.mark.parametrize("first", [0, 1, 7])
def test_every_id_of_a_batch_is_known_after_a_restart(make_broker: Make, first: int) -> None:
    broker = make_broker(broker_deduplication_enabled=True)
    topic = broker.topic()
    broker.client().subscribe(topic, "s").close()

    def send(begin: int, end: int) -> list[MessageId]:
        ids: list[MessageId] = []
        producer = broker.client().create_producer(
            topic, "p", batching_enabled=True, batching_max_publish_delay_ms=60_000
        )
        for number in range(begin, end):
            producer.send_async(
                b"%06d" % number, lambda _, message_id: ids.append(message_id), sequence_id=number
            )
        producer.close()
        return ids

    send(0, 10)
    broker.restart(kill=True)
    again = send(first, 12)
    assert again[: 10 - first] == [NOWHERE] * (10 - first)
    assert broker.stored(topic) == numbers(0, 12)


def test_a_force_deleted_topic_is_not_brought_back_by_its_clients(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumers = [client.subscribe(topic, "s", ConsumerType.Shared) for _ in range(2)]
    producer = broker.client().create_producer(topic)
    with broker.admin() as admin:
        admin.topics.delete(topic, force=True)
        for consumer in consumers:

            def is_told(consumer: Consumer = consumer) -> bool:
                try:
                    consumer.receive(WAIT_MS)
                except TopicNotFound:
                    return True
                return False

            wait_until(is_told, what="the end of the topic at a consumer")
        with pytest.raises(TopicNotFound):
            producer.send(b"y")
        assert admin.topics.list() == []
