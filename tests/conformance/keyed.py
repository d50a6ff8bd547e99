"""What tests of Key_Shared subscriptions have in common."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.received.message import Message
from pulsar_ray.model.enums import ConsumerType
from tests.conformance.broker import EARLIEST

KEY_SHARED = ConsumerType.KeyShared
DIGITS = list("0123456789")
OF_C2 = ["5", "6", "8"]
"""Of the digits those whose hash is below 32768: a second consumer takes the lower half."""


def subscribe(client: Client, topic: str, name: str = "c1", **arguments: object) -> Consumer:
    return client.subscribe(
        topic,
        "s",
        KEY_SHARED,
        consumer_name=name,
        initial_position=EARLIEST,
        **arguments,  # type: ignore[arg-type]
    )


def publish(client: Client, topic: str, keys: Sequence[str | None], **options: object) -> None:
    producer = client.create_producer(topic, **options)  # type: ignore[arg-type]
    for number, key in enumerate(keys):
        producer.send_async(b"%d" % number, None, partition_key=key)
    producer.flush()
    producer.close()


def keys_of(messages: list[Message]) -> list[str]:
    return [message.partition_key() for message in messages]
