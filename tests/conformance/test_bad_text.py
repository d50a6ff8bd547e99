"""Text that UTF-8 cannot hold is refused where it is given: no name, file, packet or hash ever gets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.errors import InvalidTopicName
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from tests.conformance.broker import EARLIEST, Broker, values

LONE = "a\ud800"
NOT_UTF8 = "text that UTF-8 can hold, without lone surrogates"

OPENINGS: dict[str, Callable[[Client, str], Any]] = {
    "subscription_name": lambda client, topic: client.subscribe(topic, LONE),
    "consumer_name": lambda client, topic: client.subscribe(
        topic, "s", ConsumerType.KeyShared, consumer_name=LONE
    ),
    "properties": lambda client, topic: client.subscribe(topic, "s", properties={"a": LONE}),
    "subscription_properties": lambda client, topic: client.subscribe(
        topic, "s", subscription_properties={LONE: "a"}
    ),
    "producer_name": lambda client, topic: client.create_producer(topic, LONE),
    "reader_name": lambda client, topic: client.create_reader(topic, MessageId.earliest, reader_name=LONE),
    "subscription_role_prefix": lambda client, topic: client.create_reader(
        topic, MessageId.earliest, subscription_role_prefix=LONE
    ),
    "subscription_name of a view": lambda client, topic: client.create_table_view(topic, LONE),
}


@pytest.mark.parametrize("argument", list(OPENINGS))
def test_names_and_properties(broker: Broker, client: Client, argument: str) -> None:
    with pytest.raises(ValueError, match=rf"{argument.split(maxsplit=1)[0]}=?.* must be {NOT_UTF8}"):
        OPENINGS[argument](client, broker.topic())


def test_keys_and_properties_of_messages(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.KeyShared, initial_position=EARLIEST)
    producer = client.create_producer(topic)
    for arguments in ({"partition_key": LONE}, {"ordering_key": LONE}, {"properties": {"a": LONE}}):
        with pytest.raises(ValueError, match=NOT_UTF8):
            producer.send(b"", **arguments)
        name = next(iter(arguments))
        many = {name if name == "properties" else f"{name}s": [arguments[name]]}
        with pytest.raises(ValueError, match="surrogate"):
            producer.send_many([b""], **many)  # type: ignore[arg-type]
    producer.send(b"fine", partition_key="\U0001f600")
    assert values(consumer, 1) == [b"fine"]


def test_topics(client: Client) -> None:
    for opening in (
        lambda: client.create_producer(LONE),
        lambda: client.subscribe(LONE, "s"),
        lambda: client.subscribe(["t", LONE], "s"),
        lambda: client.create_reader(LONE, MessageId.earliest),
    ):
        with pytest.raises(InvalidTopicName, match="lone surrogate"):
            opening()


def test_an_administrators_questions(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.subscribe(topic, "s", ConsumerType.KeyShared)
    topics = broker.admin().topics
    for question in (
        lambda: topics.create_subscription(topic, LONE),
        lambda: topics.create_subscription(topic, "t", properties={"a": LONE}),
        lambda: topics.why_blocked(topic, LONE),
        lambda: topics.key_owner(topic, "s", LONE),
        lambda: topics.unsubscribe(topic, LONE),
    ):
        with pytest.raises(ValueError, match=NOT_UTF8):
            question()
    assert topics.key_owner(topic, "s", "\U0001f600")["owner"]
