"""A broker in this process on a directory, with a client, as tests publish to it, read and consume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pulsar_ray import Client, ConsumerType, InitialPosition, MessageId
from pulsar_ray.config import Settings
from pulsar_ray.errors import PulsarException, Timeout
from pulsar_ray.model.message_id import MessageId as Id
from pulsar_ray.testing.stub_cluster import StubCluster

ORDERS, BILLS = "persistent://public/default/orders", "persistent://public/default/bills"
SUBSCRIPTION = "audit"
MESSAGES = 60
QUIET_MS = 500
WAIT_MS = 60_000
SETTINGS: dict[str, Any] = {
    "managed_ledger_max_entries_per_ledger": 20,
    "managed_ledger_min_ledger_rollover_time_minutes": 0,
    "new_topic_retention_seconds": 0,
    "default_retention_time_in_minutes": -1,
    "default_retention_size_in_mb": -1,
    # A damaged cursor may not know that its consumers closed.
    "reattach_grace_seconds": 0.2,
    "max_num_delayed_delivery_tracker_memory_entries": 10,
}


class Serving:
    """A broker on a directory, with a client."""

    def __init__(self, directory: Path) -> None:
        self.cluster = StubCluster(directory, Settings(data_dir=str(directory), **SETTINGS))
        self.client = Client._on(self.cluster, transport="socket")

    def end(self, *, kill: bool = False) -> None:
        self.client.shutdown()
        self.cluster.close(kill=kill)

    def publish(self, topic: str) -> dict[Id, bytes]:
        """Send messages one by one; returns what was confirmed."""
        producer = self.client.create_producer(topic)
        values = [b"%s %d" % (topic.encode(), number) for number in range(MESSAGES)]
        return {producer.send(value): value for value in values}

    def read(self, topic: str, expected: int = 0) -> dict[Id, bytes]:
        """What a reader is given from the start on, up to what cannot be read; waits for those expected."""
        reader = self.client.create_reader(topic, MessageId.earliest)
        found: dict[Id, bytes] = {}
        try:
            while reader.has_message_available():
                message = reader.read_next(QUIET_MS if len(found) >= expected else WAIT_MS)
                found[message.message_id()] = message.data()
        except PulsarException:
            pass
        return found

    def consume(self, topic: str, count: int, expected: int = 0) -> list[bytes]:
        """Receive and acknowledge with receipts; fewer if no more than those expected come."""
        consumer = self.client.subscribe(
            topic,
            SUBSCRIPTION,
            ConsumerType.Shared,
            initial_position=InitialPosition.Earliest,
            ack_receipt_enabled=True,
        )
        values: list[bytes] = []
        try:
            while len(values) < count:
                message = consumer.receive(QUIET_MS if len(values) >= expected else WAIT_MS)
                values.append(message.data())
                consumer.acknowledge(message)
        except Timeout:
            pass
        consumer.close()
        return values
