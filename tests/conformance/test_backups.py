"""Clients of a backup that was made while others published and acknowledged."""

from __future__ import annotations

import threading
from pathlib import Path

from pulsar_ray.client.client import Client
from pulsar_ray.config import Settings
from pulsar_ray.maintenance.backup import adopt_copy, back_up
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity, write_identity
from pulsar_ray.model.enums import ConsumerType, InitialPosition
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.stub_cluster import STORE, StubCluster
from pulsar_ray.testing.waiting import wait_until

TOPIC = "persistent://public/default/orders"
SUBSCRIPTION = "audit"
WAIT_MS = 30_000


def test_confirmed_messages_are_there_and_unacknowledged_ones_come(tmp_path: Path) -> None:
    source, target = tmp_path / "data", tmp_path / "copy"
    cluster = StubCluster(source, Settings(data_dir=str(source)))
    write_identity(source, StoreIdentity(STORE))
    client = Client._on(cluster, transport="socket")
    stop = threading.Event()
    confirmed: list[bytes] = []
    taken: list[bytes] = []
    try:
        consumer = client.subscribe(
            TOPIC,
            SUBSCRIPTION,
            ConsumerType.Shared,
            initial_position=InitialPosition.Earliest,
            ack_receipt_enabled=True,
        )
        producer = client.create_producer(TOPIC)

        def publish() -> None:
            while not stop.is_set():
                value = b"order %d" % len(confirmed)
                producer.send(value)
                confirmed.append(value)

        def consume() -> None:
            while not stop.is_set():
                message = consumer.receive(WAIT_MS)
                # Before the call: the acknowledgment may be durable before it returns.
                taken.append(message.data())
                consumer.acknowledge(message)

        threads = [threading.Thread(target=work) for work in (publish, consume)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(confirmed) >= 200)
        before = len(confirmed)
        back_up(source, target, 1)
        stop.set()
        for thread in threads:
            thread.join()
    finally:
        stop.set()
        client.shutdown()
        cluster.close(kill=True)
    assert verify_directory(target).damages == []
    adopt_copy(target)
    cluster = StubCluster(target, Settings(data_dir=str(target)))
    client = Client._on(cluster, transport="socket")
    try:
        reader = client.create_reader(TOPIC, MessageId.earliest)
        stored = []
        while reader.has_message_available():
            stored.append(reader.read_next(WAIT_MS).data())
        assert len(stored) >= before
        assert stored == [b"order %d" % number for number in range(len(stored))]
        consumer = client.subscribe(TOPIC, SUBSCRIPTION, ConsumerType.Shared)
        left = set(stored) - set(taken)
        while left:
            message = consumer.receive(WAIT_MS)
            assert message.data() in stored
            left.discard(message.data())
            consumer.acknowledge(message)
    finally:
        client.shutdown()
        cluster.close()
