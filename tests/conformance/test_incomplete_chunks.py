"""Messages in chunks that never become whole: their producer left, or the consumer wants the newest only."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.model.enums import ConsumerType, SubscriptionMode
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker
from tests.conformance.chunking import Halves

Quiet = Callable[[Consumer], None]
CHUNK_BYTES = 10_000


def large(seed: int) -> bytes:
    return random.Random(seed).randbytes(45_678)


def chunking(client: Client, topic: str, name: str) -> Producer:
    return client.create_producer(
        topic, chunking_enabled=True, chunk_max_message_size=CHUNK_BYTES, producer_name=name
    )


def subscription(broker: Broker, topic: str) -> dict[str, Any]:
    stats: dict[str, Any] = broker.admin().topics.stats(topic)["subscriptions"]["s"]
    return stats


# A producer that opens again says that what it has not begun to send is what comes next.
@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch, carriers_are_kept: None) -> Halves:
    return Halves(monkeypatch)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_a_message_whose_producer_left_expires(
    broker: Broker, client: Client, assert_quiet: Quiet, halves: Halves, kind: ConsumerType
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(
        topic, "s", consumer_type=kind, expire_time_of_incomplete_chunked_message_ms=100
    )
    producer = chunking(client, topic, "p")
    halves.begin(producer, large(1))
    producer.close()
    client.create_producer(topic).send(b"behind")
    consumer.acknowledge(consumer.receive(WAIT_MS))
    wait_until(lambda: subscription(broker, topic)["msgBacklog"] == 0, what="its chunks hold nothing")
    shown = subscription(broker, topic)
    assert (shown["incompleteChunkedMessages"], shown["droppedChunkedMessages"]) == (0, 1)
    assert_quiet(consumer)


def test_a_message_that_is_still_being_sent_does_not_expire(
    broker: Broker, client: Client, halves: Halves
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", expire_time_of_incomplete_chunked_message_ms=1)
    gone, slow = (chunking(client, topic, name) for name in ("gone", "slow"))
    halves.begin(slow, large(1))
    halves.begin(gone, large(2))
    gone.close()
    wait_until(
        lambda: subscription(broker, topic)["droppedChunkedMessages"] == 1, what="the other one expires"
    )
    halves.finish(slow)
    assert consumer.receive(WAIT_MS).data() == large(1)


def test_messages_are_kept_for_ever_where_the_time_is_0(
    broker: Broker, client: Client, halves: Halves
) -> None:
    topic = broker.topic()
    kept, dropped = broker.topic(), topic
    for name, expiry in ((kept, 0), (dropped, 1)):
        client.subscribe(name, "s", expire_time_of_incomplete_chunked_message_ms=expiry)
        producer = chunking(client, name, "p")
        halves.begin(producer, large(1))
        producer.close()
    wait_until(lambda: subscription(broker, dropped)["msgBacklog"] == 0, what="the other topic's expires")
    assert subscription(broker, kept)["msgBacklog"] == 2


def test_the_mildest_of_several_consumers_counts(broker: Broker, client: Client, halves: Halves) -> None:
    topic = broker.topic()
    patient = client.subscribe(
        topic, "s", consumer_type=ConsumerType.Shared, expire_time_of_incomplete_chunked_message_ms=0
    )
    client.subscribe(
        topic, "s", consumer_type=ConsumerType.Shared, expire_time_of_incomplete_chunked_message_ms=1
    )
    producer = chunking(client, topic, "p")
    halves.begin(producer, large(1))
    producer.close()
    wait_until(lambda: subscription(broker, topic)["incompleteChunkedMessages"] == 1, what="it is read")
    assert broker.served(topic, "s").core.blocks.chunks.limits.expire_ms == 0
    patient.close()
    wait_until(lambda: subscription(broker, topic)["msgBacklog"] == 0, what="it expires")


def test_a_producer_whose_message_was_given_up_begins_anew(
    broker: Broker, client: Client, assert_quiet: Quiet, halves: Halves
) -> None:
    """What was given up is never confirmed: its producer is not let in again with the rest of it."""
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", expire_time_of_incomplete_chunked_message_ms=1)
    producer = chunking(client, topic, "p")
    halves.begin(producer, large(1))
    server = broker.cluster.partition(topic).server
    assert server is not None
    incarnation = server.producers.by_name["p"].incarnation
    producer.close()
    wait_until(lambda: subscription(broker, topic)["droppedChunkedMessages"] == 1, what="it expires")
    assert server.ledger.incarnations.is_retired(incarnation)
    again = chunking(client, topic, "p")
    again.send(large(2))
    assert consumer.receive(WAIT_MS).data() == large(2)
    assert_quiet(consumer)


def test_more_than_the_allowed_messages_drop_the_oldest_where_that_is_wanted(
    broker: Broker, client: Client, assert_quiet: Quiet, halves: Halves
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(
        topic, "s", max_pending_chunked_message=2, auto_ack_oldest_chunked_message_on_queue_full=True
    )
    producers = [chunking(client, topic, f"p{number}") for number in range(3)]
    for number, producer in enumerate(producers):
        halves.begin(producer, large(number))
    for producer in producers:
        halves.finish(producer)
    got = []
    for _ in range(2):
        message = consumer.receive(WAIT_MS)
        got.append(message.data())
        consumer.acknowledge(message)
    assert got == [large(1), large(2)]
    assert_quiet(consumer)
    wait_until(lambda: subscription(broker, topic)["msgBacklog"] == 0, what="nothing is left of the oldest")
    producers[0].send(large(9))
    assert consumer.receive(WAIT_MS).data() == large(9)


def test_more_than_the_allowed_messages_all_come_where_nothing_may_be_dropped(
    broker: Broker, client: Client, halves: Halves
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", max_pending_chunked_message=2)
    producers = [chunking(client, topic, f"p{number}") for number in range(4)]
    for number, producer in enumerate(producers):
        halves.begin(producer, large(number))
    for producer in producers:
        halves.finish(producer)
    assert [consumer.receive(WAIT_MS).data() for _ in range(4)] == [large(number) for number in range(4)]


def test_a_reader_forgets_what_expired_and_finds_it_again(
    broker: Broker, client: Client, halves: Halves
) -> None:
    topic = broker.topic()
    producer = chunking(client, topic, "p")
    consumer = client.subscribe(
        topic,
        "s",
        initial_position=EARLIEST,
        subscription_mode=SubscriptionMode.NonDurable,
        expire_time_of_incomplete_chunked_message_ms=1,
    )
    halves.begin(producer, large(1))
    wait_until(
        lambda: subscription(broker, topic)["droppedChunkedMessages"] == 1, what="it is kept no longer"
    )
    halves.finish(producer)
    assert consumer.receive(WAIT_MS).data() == large(1)


@pytest.mark.parametrize("refused", [0, 2])
def test_a_message_that_was_refused_in_part_is_stored_when_it_is_sent_again(
    make_broker: Callable[..., Broker], halves: Halves, refused: int
) -> None:
    """The disk takes not all of its chunks: those behind must not pass for the message."""
    broker = make_broker(broker_deduplication_enabled=True)
    client, topic = broker.client(), broker.topic()
    consumer = client.subscribe(topic, "s")
    producer = chunking(client, topic, "p")
    producer.send(large(1))
    if refused:
        halves.begin(producer, large(2), refused)
    broker.cluster.disk.fail("writev", *[errno.EIO] * 2)
    if refused:
        halves.go_on(producer, 1)
    else:
        halves.begin(producer, large(2), 1)
    assert broker.cluster.disk.errors["writev"] == [], "the one chunk was refused"
    halves.finish(producer)
    producer.close()
    again = chunking(client, topic, "p")
    assert again.last_sequence_id() == 0
    again.send(large(2), sequence_id=1)
    again.send(large(3), sequence_id=2)
    assert [consumer.receive(WAIT_MS).data() for _ in range(3)] == [large(seed) for seed in (1, 2, 3)]
