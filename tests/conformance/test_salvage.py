"""What an ended store had and did not ship is published again, with all that its producers said."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.admin.salvaging import SALVAGED_MESSAGE_ID, publish_again
from pulsar_ray.client.client import Client
from pulsar_ray.client.options.schema import StringSchema
from pulsar_ray.config import Settings
from pulsar_ray.errors import CryptoError
from pulsar_ray.journal.objects import SEALED, JournalObject, Place, journal_key, pack_journal
from pulsar_ray.journal.storage.file_store import FileStore
from pulsar_ray.maintenance.salvage import find_unshipped
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity, write_identity
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.stub_cluster import STORE, StubCluster
from tests.rsa_keys import key_reader

TOPIC = "persistent://public/default/orders"
WAIT_MS = 30_000
LARGE = bytes(range(256)) * 24_000  # in two chunks


def test_messages_come_again_with_everything_but_their_ids(tmp_path: Path) -> None:
    source, ended = tmp_path / "data", tmp_path / "ended"
    cluster = StubCluster(source, Settings(data_dir=str(source)))
    write_identity(source, StoreIdentity(STORE))
    client = Client._on(cluster, transport="socket")
    try:
        consumer = client.subscribe(TOPIC, "s", ConsumerType.Shared)
        producer = client.create_producer(TOPIC, producer_name="p", chunking_enabled=True)
        producer.send(b"a", properties={"x": "1"}, partition_key="k", ordering_key="o", event_timestamp=1_000)
        producer.send(None, partition_key="gone")
        producer.send_many([b"c", b"d"], partition_keys=["k", "l"])
        producer.send(LARGE)
        producer.send(b"late", deliver_after=timedelta(milliseconds=1))
        client.create_producer(TOPIC, schema=StringSchema()).send("typed")
        producer.send(b"plain again")
        wanted = [consumer.receive(WAIT_MS) for _ in range(8)]
        for message in wanted:
            consumer.acknowledge(message)
        shutil.copytree(source, ended, ignore=shutil.ignore_patterns("*.sock"))
        store = FileStore(tmp_path / "bucket")
        store.create(journal_key(STORE, Place(0, 0)), pack_journal(JournalObject(b"n", SEALED, 0)))
        found = find_unshipped(ended, store)
        assert publish_again(client, found) == {TOPIC: 8}
        got = [consumer.receive(WAIT_MS) for _ in range(8)]

        def all_of(message: object) -> tuple[object, ...]:
            properties = {k: v for k, v in message.properties().items() if k != SALVAGED_MESSAGE_ID}  # type: ignore[attr-defined]
            names = (
                "data", "has_null_value", "partition_key", "ordering_key", "event_timestamp", "schema_version"
            )  # fmt: skip
            return (tuple(sorted(properties.items())), *(getattr(message, name)() for name in names))

        assert sorted(map(all_of, got), key=repr) == sorted(map(all_of, wanted), key=repr)
        former = {message.properties()[SALVAGED_MESSAGE_ID] for message in got}
        assert len(former) == 8
        first = wanted[0].message_id()
        assert f"{first.ledger_id()}:{first.entry_id()}:-1:-1" in former
    finally:
        client.shutdown()
        cluster.close()


def test_encrypted_messages_are_left_out_and_counted(tmp_path: Path) -> None:
    source, ended = tmp_path / "data", tmp_path / "ended"
    cluster = StubCluster(source, Settings(data_dir=str(source)))
    write_identity(source, StoreIdentity(STORE))
    client = Client._on(cluster, transport="socket")
    try:
        keys: dict[str, Any] = {"encryption_key": "app", "crypto_key_reader": key_reader("ours")}
        secret = client.create_producer(TOPIC, batching_enabled=True, **keys)
        secret.send_many([b"1", b"2"])
        client.create_producer(TOPIC, chunking_enabled=True, **keys).send(LARGE)
        client.create_producer(TOPIC).send(b"clear")
        shutil.copytree(source, ended, ignore=shutil.ignore_patterns("*.sock"))
        store = FileStore(tmp_path / "bucket")
        store.create(journal_key(STORE, Place(0, 0)), pack_journal(JournalObject(b"n", SEALED, 0)))
        consumer = client.subscribe(TOPIC, "s")
        counted: list[int] = []
        with pytest.raises(CryptoError, match=f"left out.*: 3 of {TOPIC}.*published before: 1 to {TOPIC}"):
            publish_again(client, find_unshipped(ended, store), counted.append)
        assert sum(counted) == 4
        assert consumer.receive(WAIT_MS).data() == b"clear"
    finally:
        client.shutdown()
        cluster.close()
