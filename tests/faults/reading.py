"""What a topic holds, and what a subscription gives."""

from __future__ import annotations

from typing import Any, NamedTuple

import pulsar_ray
from pulsar_ray import InitialPosition
from pulsar_ray.errors import Timeout
from pulsar_ray.model.message_id import MessageId
from tests.faults.journal import Id, id_of

READ_TIMEOUT_MS = 60_000


class Stored(NamedTuple):
    """One message of the log."""

    place: Id
    payload: bytes


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Payloads that are told apart."""
    return [b"%d" % number for number in range(first, first + count)]


def subscribe(client: pulsar_ray.Client, topic: str, **options: Any) -> pulsar_ray.Consumer:
    """A consumer of everything from the earliest message on."""
    return client.subscribe(topic, "sub", initial_position=InitialPosition.Earliest, **options)


def read_all(client: pulsar_ray.Client, topic: str) -> list[Stored]:
    """Every message of an unpartitioned topic or of one partition, in the order of the log."""
    reader = client.create_reader(topic, MessageId.earliest)
    found: list[Stored] = []
    while reader.has_message_available():
        message = reader.read_next(READ_TIMEOUT_MS)
        found.append(Stored(id_of(message.message_id()), message.data()))
    reader.close()
    return found


def payloads(stored: list[Stored]) -> list[bytes]:
    return [message.payload for message in stored]


def receive_quiet(consumer: pulsar_ray.Consumer, quiet_ms: int = 2000) -> list[bytes]:
    """What the consumer is given until nothing came for a while; nothing of it is acknowledged."""
    found: list[bytes] = []
    while True:
        try:
            found.append(consumer.receive(quiet_ms).data())
        except Timeout:
            return found


def receive_acknowledged(consumer: pulsar_ray.Consumer, count: int, timeout_ms: int = 60_000) -> list[bytes]:
    """The next `count` messages, acknowledged one by one."""
    found: list[bytes] = []
    for _ in range(count):
        message = consumer.receive(timeout_ms)
        consumer.acknowledge(message)
        found.append(message.data())
    return found
