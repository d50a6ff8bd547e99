"""A damaged compacted form is forgotten where the log still has it all; else what is left of it stays."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.config import Settings
from pulsar_ray.maintenance.repair import repair_directory
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.managed_ledger.compaction.compacted_form import numbers_of_forms
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity, write_identity
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.stub_cluster import STORE, StubCluster
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.cluster import Cluster

TOPIC = "persistent://public/default/prices"
WAIT_MS = 20_000


class Store:
    """A broker on a directory, for as long as somebody works with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster = StubCluster(
            directory, Settings(data_dir=str(directory), managed_ledger_max_entries_per_ledger=3,
                                managed_ledger_min_ledger_rollover_time_minutes=0,
                                new_topic_retention_seconds=0)
        )  # fmt: skip
        self.client = Client._on(cast("Cluster", self.cluster), transport="socket")
        self.admin = Admin._on(cast("Cluster", self.cluster))

    def publish(self, rows: list[tuple[str, bytes]]) -> None:
        with self.client.create_producer(TOPIC, batching_enabled=False) as producer:
            for key, value in rows:
                producer.send(value, partition_key=key)

    def compact(self) -> None:
        self.admin.topics.compact(TOPIC)
        wait_until(lambda: self.admin.topics.compaction_status(TOPIC)["status"] == "SUCCESS")

    def trim(self) -> None:
        partition = self.cluster.partition(TOPIC)
        assert partition.server is not None
        partition.result(partition.submit(partition.server.trim_now), WAIT_MS / 1000)

    def view(self) -> list[bytes]:
        reader = self.client.create_reader(TOPIC, MessageId.earliest, is_read_compacted=True)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(WAIT_MS).data())
        reader.close()
        return found

    def close(self) -> None:
        self.admin.close()
        self.client.close()
        self.cluster.close()
        write_identity(self.directory, StoreIdentity(STORE))


ROWS = [("a", b"a1"), ("b", b"b1"), ("c", b"c1"), ("a", b"a2"), ("d", b"d1"), ("e", b"e1"), ("f", b"f1")]
LATEST = [b"b1", b"c1", b"a2", b"d1", b"e1", b"f1"]


@pytest.fixture(params=[False, True], ids=["whole", "trimmed"])
def is_trimmed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def forms(tmp_path: Path, is_trimmed: bool) -> list[Path]:
    """The segments of a form."""
    store = Store(tmp_path)
    store.publish(ROWS)
    store.compact()
    if is_trimmed:
        store.trim()
    store.close()
    return sorted(tmp_path.glob("p/*/*-kept-*.seg"))


@pytest.mark.parametrize("place", [0, -1])
def test_a_damaged_form_is_mended(tmp_path: Path, forms: list[Path], is_trimmed: bool, place: int) -> None:
    assert len(forms) == 3
    forms[place].write_bytes(forms[place].read_bytes()[:-10])
    assert [damage.path for damage in verify_directory(tmp_path).damages] == [str(forms[place])]
    mended = repair_directory(tmp_path, 1, is_dry_run=False)
    assert bool(mended.left.damages) is is_trimmed, "nothing is given up unasked"
    if is_trimmed:
        mended = repair_directory(tmp_path, 2, is_dry_run=False, cuts_damaged=True)
    assert not mended.left.damages
    store = Store(tmp_path)
    rows = [value for _, value in ROWS] if not is_trimmed else LATEST[2:] if place == 0 else LATEST[:-1]
    assert store.view() == rows
    store.publish([("g", b"g1")])
    store.compact()
    kept = [*LATEST, b"g1"] if not is_trimmed else [*rows, b"g1"]
    assert store.view() == kept
    wait_until(lambda: len(numbers_of_forms(forms[0].parent)) == 1)
    store.close()
    assert not verify_directory(tmp_path).damages
