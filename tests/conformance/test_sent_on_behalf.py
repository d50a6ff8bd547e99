"""Whoever sends for others sends whatever a topic can hold: publishers by kinds of messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.client.received.message import Message
from pulsar_ray.data.writing.publishing import Part, Sending, publish_part
from pulsar_ray.data.writing.query_batch import QueryBatch
from pulsar_ray.data.writing.write_target import WriteTarget
from pulsar_ray.model.enums import ConsumerType
from tests.conformance.broker import WAIT_MS, Broker, receive

LIMIT = 20_000
"""Bytes of the largest block that the topics take."""


class Sent(NamedTuple):
    value: bytes | None
    key: str | None = None
    ordering_key: str | None = None
    properties: tuple[tuple[str, str], ...] = ()
    event_time: int | None = None


def with_all(value: bytes | None) -> Sent:
    return Sent(value, "k\U0001f511", "o", (("a", "1"), ("é", "")), 7)


KINDS = {
    "plain": Sent(b"plain"),
    "empty": Sent(b""),
    "tombstone": Sent(None, "k"),
    "keyless tombstone": Sent(None),
    "key": Sent(b"key", "k"),
    "all fields": with_all(b"fields"),
    "all fields of a tombstone": with_all(None),
    "below a block": with_all(b"b" * (LIMIT - 1)),
    "a block": with_all(b"l" * LIMIT),
    "above a block": with_all(b"a" * (LIMIT + 1)),
    "many chunks": with_all(bytes(range(250)) * 700),
    "last": Sent(b"last"),
}


def sent(message: Message) -> Sent:
    """What its publisher said of a message; a mover's own properties are left out."""
    own = {name: text for name, text in message.properties().items() if not re.fullmatch(r"[A-Z_]+", name)}
    return Sent(
        None if message.has_null_value() else message.data(),
        message.partition_key() or None,
        message.ordering_key() or None,
        tuple(sorted(own.items())),
        message.event_timestamp() or None,
    )


Publisher = Callable[[Broker, Client, str], list[Message]]
"""Has the messages of a topic sent on, all of them, and returns the copies."""
KEEPING = ConsumerDeadLetterPolicy(1, initial_subscription_name="keeps")


def publish(client: Client, topic: str) -> None:
    producer = client.create_producer(topic, chunking_enabled=True)
    for each in KINDS.values():
        producer.send(
            each.value,
            properties=dict(each.properties),
            partition_key=each.key,
            ordering_key=each.ordering_key,
            event_timestamp=each.event_time,
        )


def failing(client: Client, topic: str) -> Consumer:
    """A consumer that has failed to process all messages, so that they are dead letters."""
    consumer = client.subscribe(
        topic, "s", ConsumerType.Shared, dead_letter_policy=KEEPING, negative_ack_redelivery_delay_ms=0
    )
    for _ in range(2 * len(KINDS)):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    return consumer


def dead_letters(broker: Broker, client: Client, topic: str) -> list[Message]:
    letters = client.subscribe(f"{topic}-s-DLQ", "looks")
    failing(client, topic)
    return receive(letters, len(KINDS))


def retries(broker: Broker, client: Client, topic: str) -> list[Message]:
    consumer = client.subscribe(
        topic, "s", ConsumerType.Shared, enable_retry=True, dead_letter_policy=ConsumerDeadLetterPolicy(5)
    )
    for message in receive(consumer, len(KINDS)):
        consumer.reconsume_later(message, timedelta(0))
    return receive(consumer, len(KINDS))


def redriven(broker: Broker, client: Client, topic: str) -> list[Message]:
    letters = client.subscribe(f"{topic}-s-DLQ", "looks")
    consumer = failing(client, topic)
    receive(letters, len(KINDS))
    with broker.admin() as admin:
        assert admin.topics.redrive(f"{topic}-s-DLQ", subscription="keeps") == {topic: len(KINDS)}
    return receive(consumer, len(KINDS))


def peeked(broker: Broker, client: Client, topic: str) -> list[Message]:
    with broker.admin() as admin:
        return admin.topics.peek_messages(topic, "s", len(KINDS))


def written(broker: Broker, client: Client, topic: str, batch: QueryBatch | None) -> list[Message]:
    """As the rows of a DataFrame or Dataset are sent that was read of the topic."""
    rows = pa.table(
        {
            "value": pa.array([each.value for each in KINDS.values()], pa.binary()),
            "key": pa.array([each.key for each in KINDS.values()], pa.string()),
            "ordering_key": pa.array([each.ordering_key for each in KINDS.values()], pa.string()),
            "properties": pa.array(
                [each.properties for each in KINDS.values()], pa.map_(pa.string(), pa.string())
            ),
            "event_time": pa.array([each.event_time for each in KINDS.values()], pa.int64()),
        }
    )
    target = limited(broker)
    copies = client.subscribe(target, "looks")
    writes = WriteTarget(target, client, broker.admin())
    for _ in range(1 if batch is None else 2):
        named = None if batch is None else writes.begin(batch, 1)
        counts = publish_part(client, Part(0, lambda: rows, target, Sending(), named))
        assert sum(counts.values()) == len(KINDS)
    return receive(copies, len(KINDS))


PUBLISHERS: dict[str, Publisher] = {
    "dead letters": dead_letters,
    "retry letters": retries,
    "redrive": redriven,
    "peek": peeked,
    "write": partial(written, batch=None),
    "write of a query, twice": partial(written, batch=QueryBatch("q", 0)),
}


def limited(broker: Broker) -> str:
    topic = broker.topic()
    with broker.admin() as admin:
        admin.topics.policies.set(topic, "max_message_size", LIMIT)
    return topic


@pytest.mark.parametrize("name", PUBLISHERS)
def test_everything_that_a_topic_holds_is_sent_on_as_it_was(
    broker: Broker, client: Client, name: str
) -> None:
    topic = limited(broker)
    with broker.admin() as admin:
        for letters in (f"{topic}-s-DLQ", f"{topic}-s-RETRY"):
            admin.topics.create_topic(letters)
            admin.topics.policies.set(letters, "max_message_size", LIMIT)
    client.subscribe(topic, "s", ConsumerType.Shared).close()
    publish(client, topic)
    copies = [sent(message) for message in PUBLISHERS[name](broker, client, topic)]
    assert {kind: copies.count(each) for kind, each in KINDS.items()} == dict.fromkeys(KINDS, 1)
