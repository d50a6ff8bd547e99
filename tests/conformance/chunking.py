"""Messages that are sent in chunks, for the tests of these."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.producer import chunked_message
from pulsar_ray.client.producer.chunked_message import ChunkedMessage
from pulsar_ray.client.producer.producer import Producer
from tests.conformance.broker import Broker

CHUNK_BYTES = 10_000


def large(seed: int, size: int = 45_678) -> bytes:
    return random.Random(seed).randbytes(size)


def chunking(client: Client, topic: str, **arguments: Any) -> Producer:
    arguments = {"chunk_max_message_size": CHUNK_BYTES, **arguments}
    return client.create_producer(topic, chunking_enabled=True, **arguments)


def backlog(broker: Broker, topic: str) -> int:
    entries: int = broker.admin().topics.stats(topic)["subscriptions"]["s"]["msgBacklog"]
    return entries


class Halves:
    """Producers that stop in the middle of a message, and perhaps go on with it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._rests: dict[Producer, list[Any]] = {}

    def begin(self, producer: Producer, value: bytes, chunks: int = 2) -> None:
        """Send the first chunks of a message, durably."""
        whole = ChunkedMessage.blocks

        def first_ones(*arguments: Any) -> list[Any]:
            blocks = whole(*arguments)
            self._rests[producer] = blocks[chunks:]
            return blocks[:chunks]

        with self._monkeypatch.context() as patch:
            patch.setattr(chunked_message.ChunkedMessage, "blocks", first_ones)
            producer.send_async(value, None)
        producer.flush()

    def go_on(self, producer: Producer, chunks: int) -> None:
        """Send the next ones."""
        queue = producer._partitions[0].queue
        rest = self._rests[producer]
        with queue._lock:
            for block in rest[:chunks]:
                queue.state.unconfirmed.add(block)
        del rest[:chunks]
        producer.flush()

    def finish(self, producer: Producer) -> None:
        """Send the others."""
        self.go_on(producer, len(self._rests[producer]))
