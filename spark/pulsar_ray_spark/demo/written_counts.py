"""The counts that Spark writes back to a topic, as a consumer takes them."""

from __future__ import annotations

from collections import defaultdict

from pulsar_ray.client.client import Client

TIMEOUT_MS = 30_000


class WrittenCounts:
    """Subscribes to a topic of counts by module, and adds them up."""

    def __init__(self, client: Client, topic: str) -> None:
        self.topic = topic
        self.messages = 0
        self._consumer = client.subscribe(topic, "add-up")

    def take(self) -> dict[str, int]:
        """The sum of each module's counts, of all that are stored by now."""
        sums: dict[str, int] = defaultdict(int)
        while self._consumer.has_message_available():
            message = self._consumer.receive(timeout_millis=TIMEOUT_MS)
            sums[message.partition_key()] += int(message.data())
            self._consumer.acknowledge(message)
            self.messages += 1
        self._consumer.close()
        return dict(sums)
