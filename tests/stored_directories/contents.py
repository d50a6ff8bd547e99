"""What the stored directories hold: who makes one and who opens one agree on it here."""

from __future__ import annotations

from pathlib import Path

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.config import Settings
from pulsar_ray.model.enums import CompressionType, ConsumerType, InitialPosition
from pulsar_ray.testing.stub_cluster import StubCluster

HERE = Path(__file__).parent
TOPIC = "persistent://public/default/orders"
KEYED = "persistent://public/default/clicks"
LARGE = "persistent://public/default/scans"
PARTITIONS = 2
SUBSCRIPTION, PRODUCER = "audit", "till"
SINGLE = [b"order %d" % number for number in range(10)]
BATCH = [b"batched %d" % number for number in range(5)]
DELAYED = [b"for the year %d" % year for year in (2100, 2200)]
DUE_MS = [4_102_444_800_000, 7_258_118_400_000]
ACKNOWLEDGED = [SINGLE[number] for number in (0, 1, 2, 5)] + [BATCH[1], BATCH[3]]
CLICKS = {f"user-{number % 4}": b"click of user-%d" % (number % 4) for number in range(8)}
SCAN = bytes(range(256)) * 40
NAMESPACE, POLICY, LIMIT = "public/default", "max_consumers_per_subscription", 77
WAIT_MS = 30_000


def settings(data_dir: Path) -> Settings:
    """The settings that all directories were made with."""
    return Settings(
        data_dir=str(data_dir),
        broker_deduplication_enabled=True,
        acknowledgment_at_batch_index_level_enabled=True,
        default_retention_time_in_minutes=-1,
        default_retention_size_in_mb=-1,
    )


def fill(data_dir: Path) -> None:
    """Store one of everything, and leave it as kill -9 does."""
    cluster = StubCluster(data_dir, settings(data_dir))
    client = Client._on(cluster, transport="socket")
    try:
        _orders(client)
        cluster.create_topic(KEYED, PARTITIONS)
        client.subscribe(KEYED, SUBSCRIPTION).close()
        with client.create_producer(KEYED) as producer:
            for key, value in CLICKS.items():
                producer.send(value, properties={"of": key}, partition_key=key)
        client.subscribe(LARGE, SUBSCRIPTION).close()
        with client.create_producer(LARGE, chunking_enabled=True, chunk_max_message_size=4000) as producer:
            producer.send(SCAN)
        with Admin._on(cluster) as admin:
            admin.namespaces.policies.set(NAMESPACE, POLICY, LIMIT)
    finally:
        client.shutdown()
        cluster.close(kill=True)


def _orders(client: Client) -> None:
    consumer = client.subscribe(
        TOPIC,
        SUBSCRIPTION,
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        ack_receipt_enabled=True,
        batch_index_ack_enabled=True,
    )
    producer = client.create_producer(TOPIC, PRODUCER)
    for number, value in enumerate(SINGLE):
        producer.send(value, properties={"number": str(number)}, partition_key="key")
    producer.close()
    producer = client.create_producer(
        TOPIC,
        PRODUCER,
        batching_enabled=True,
        batching_max_publish_delay_ms=60_000,
        compression_type=CompressionType.ZSTD,
    )
    for value in BATCH:
        producer.send_async(value, None)
    producer.flush()
    for value, due_ms in zip(DELAYED, DUE_MS, strict=True):
        producer.send(value, deliver_at=due_ms)
    producer.close()
    for _ in (*SINGLE, *BATCH):
        message = consumer.receive(WAIT_MS)
        if message.data() in ACKNOWLEDGED:
            consumer.acknowledge(message)
    consumer.close()
