"""Clients of a broker whose directory was repaired."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.config import Settings
from pulsar_ray.maintenance.repair import repair_directory
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity, write_identity
from pulsar_ray.model.enums import ConsumerType, InitialPosition
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.stub_cluster import STORE, StubCluster
from pulsar_ray.testing.waiting import wait_until

TOPIC = "persistent://public/default/orders"
SUBSCRIPTION, LATER = "audit", "later"
VALUES = [b"order %d" % number for number in range(20)]
LOST = {VALUES[4], VALUES[5], VALUES[19]}
WAIT_MS = 30_000


@contextmanager
def serving(directory: Path, *, kill: bool = False) -> Iterator[tuple[StubCluster, Client]]:
    cluster = StubCluster(directory, Settings(data_dir=str(directory)))
    client = Client._on(cluster, transport="socket")
    try:
        yield cluster, client
    finally:
        client.shutdown()
        cluster.close(kill=kill)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared])
def test_subscriptions_go_on_over_entries_that_were_cut_out(tmp_path: Path, kind: ConsumerType) -> None:
    with serving(tmp_path) as (_, client):
        client.subscribe(TOPIC, SUBSCRIPTION, kind, initial_position=InitialPosition.Earliest).close()
        producer = client.create_producer(TOPIC)
        for value in VALUES:
            producer.send(value, partition_key=value.decode())
    write_identity(tmp_path, StoreIdentity(STORE))
    (segment,) = tmp_path.glob("p/*/*.seg")
    content = bytearray(segment.read_bytes())
    for value in LOST:
        content[content.index(value)] ^= 1
    segment.write_bytes(content)
    assert verify_directory(tmp_path).lost_entries == len(LOST)
    assert repair_directory(tmp_path, 1, is_dry_run=False, cuts_damaged=True).left.is_clean
    left = [value for value in VALUES if value not in LOST]
    with serving(tmp_path) as (cluster, client):
        for name in (SUBSCRIPTION, LATER):
            consumer = client.subscribe(TOPIC, name, kind, initial_position=InitialPosition.Earliest)
            found = [consumer.receive(WAIT_MS) for _ in left]
            assert sorted(message.data() for message in found) == sorted(left)
            for message in found:
                consumer.acknowledge(message)

            def backlog(name: str = name) -> int:
                server = cluster.dispatcher_of(TOPIC, name).server
                assert server is not None
                waiting: int = server.stats()["subscriptions"][name]["msgBacklog"]
                return waiting

            wait_until(lambda: backlog() == 0)
            consumer.close()
        reader = client.create_reader(TOPIC, MessageId.earliest)
        assert [reader.read_next(WAIT_MS).data() for _ in left] == left
        new = client.create_producer(TOPIC).send(b"new")
        assert reader.read_next(WAIT_MS).message_id() == new
