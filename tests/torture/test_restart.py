"""Clients behind a crash of the whole broker, at moments that rounds of the torture meet seldom."""

from __future__ import annotations

from pathlib import Path

from pulsar_ray import InitialPosition
from pulsar_ray.testing.stub_cluster import StubCluster
from pulsar_ray.testing.waiting import wait_until
from tests.faults.journal import Journal
from tests.torture.broker import TorturedBroker

TOPIC = "persistent://public/default/orders"
WAIT_MS = 20_000
RETENTION = {"default_retention_time_in_minutes": -1, "default_retention_size_in_mb": -1}


def test_consumers_come_back_that_were_sent_to_sleep_while_the_broker_crashed(tmp_path: Path) -> None:
    broker = TorturedBroker(tmp_path / "data", Journal(tmp_path / "run.journal"), 0, **RETENTION)
    try:
        broker.cluster.create_topic(TOPIC, 0)
        consumer = broker.client("socket").subscribe(
            TOPIC, "sub", initial_position=InitialPosition.Earliest, ack_receipt_enabled=True
        )
        broker.client("socket").create_producer(TOPIC).send(b"before")
        consumer.acknowledge(consumer.receive(WAIT_MS))

        def fall_asleep(life: StubCluster) -> None:
            wait_until(lambda: life.put_to_sleep(TOPIC, with_clients=True), WAIT_MS / 1000)

        broker.restart(fall_asleep)
        broker.client("socket").create_producer(TOPIC).send(b"behind")
        assert consumer.receive(WAIT_MS).data() == b"behind"
    finally:
        broker.close()
