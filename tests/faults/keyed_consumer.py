"""A process that is a Key_Shared consumer every now and then, and writes down what it is given and when."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pulsar_ray
from pulsar_ray import ConsumerType, InitialPosition, Message
from pulsar_ray.errors import Timeout
from tests.faults.journal import Journal

RECEIVE_MS = 50
KEEPS_MESSAGES = 6
PAUSE_S = 0.002


class KeyedConsumer:
    """A Ray actor. It may be killed at any moment.

    The journal has (life, key, number) of each message that was `received`, and that was `acknowledged`,
    written before it was; and the life that `left`, written before it did.
    """

    def __init__(self, address: str, topic: str, journal: str, seed: int) -> None:
        self._client = pulsar_ray.Client(address)
        self._topic = topic
        self._journal = Journal(Path(journal))
        self._rng = random.Random(seed)
        self._leaves = threading.Event()
        self._thread = threading.Thread()

    def join(self, life: str) -> None:
        """Subscribe, and consume from now on."""
        consumer = self._client.subscribe(
            self._topic,
            "keyed",
            ConsumerType.KeyShared,
            consumer_name=life,
            initial_position=InitialPosition.Earliest,
            receiver_queue_size=self._rng.choice([1, 5, 100]),
        )
        self._leaves.clear()
        self._thread = threading.Thread(target=self._consume, args=(life, consumer), daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Close the consumer; what it holds goes to others."""
        self._leaves.set()
        self._thread.join()

    def _consume(self, life: str, consumer: pulsar_ray.Consumer) -> None:
        held: list[Message] = []
        while not self._leaves.wait(self._rng.random() * 2 * PAUSE_S):
            try:
                message = consumer.receive(RECEIVE_MS)
            except Timeout:
                pass
            else:
                self._write("received", life, message)
                held.append(message)
            while held and (len(held) > KEEPS_MESSAGES or self._rng.random() < 0.6):
                message = held.pop(self._rng.randrange(len(held)))
                self._write("acknowledged", life, message)
                consumer.acknowledge(message)
        self._journal.write("left", life)
        consumer.close()

    def _write(self, kind: str, life: str, message: Message) -> None:
        self._journal.write(kind, life, message.partition_key(), int(message.data()))
