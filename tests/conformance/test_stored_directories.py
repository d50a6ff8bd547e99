"""Directories that earlier versions wrote: messages, cursors, delays and deduplication are all there."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pulsar_ray import __version__
from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.stub_cluster import StubCluster
from pulsar_ray.testing.waiting import wait_until
from tests.stored_directories import contents
from tests.stored_directories.contents import HERE, SUBSCRIPTION, TOPIC, WAIT_MS

STORED = sorted(HERE.glob("*.tar.gz"))


@pytest.fixture(params=STORED, ids=lambda path: path.name)
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A stored directory, unpacked."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@contextmanager
def serving(directory: Path) -> Iterator[tuple[StubCluster, Client]]:
    cluster = StubCluster(directory, contents.settings(directory))
    client = Client._on(cluster, transport="socket")
    try:
        yield cluster, client
    finally:
        client.shutdown()
        cluster.close()


def test_one_of_this_version_is_kept() -> None:
    assert f"{__version__}.tar.gz" in [path.name for path in STORED]


def test_it_is_whole_before_and_behind_its_opening(directory: Path) -> None:
    assert verify_directory(directory).damages == []
    with serving(directory) as (_, client):
        client.subscribe(TOPIC, SUBSCRIPTION, ConsumerType.Shared).close()
    findings = verify_directory(directory)
    assert findings.damages == []
    assert findings.totals.entries >= 10 + 1 + 2 + len(contents.CLICKS) + 3


def test_a_subscription_goes_on_where_it_was(directory: Path) -> None:
    with serving(directory) as (cluster, client):
        consumer = client.subscribe(TOPIC, SUBSCRIPTION, ConsumerType.Shared)
        left = [v for v in (*contents.SINGLE, *contents.BATCH) if v not in contents.ACKNOWLEDGED]
        found = [consumer.receive(WAIT_MS) for _ in left]
        assert sorted(message.data() for message in found) == sorted(left)
        for message in found:
            consumer.acknowledge(message)

        def delayed() -> int:
            server = cluster.dispatcher_of(TOPIC, SUBSCRIPTION).server
            assert server is not None
            waiting: int = server.stats()["subscriptions"][SUBSCRIPTION]["msgDelayed"]
            return waiting

        wait_until(lambda: delayed() == len(contents.DELAYED))


def test_every_message_is_read_with_what_belongs_to_it(directory: Path) -> None:
    with serving(directory) as (_, client):
        reader = client.create_reader(TOPIC, MessageId.earliest)
        found = [reader.read_next(WAIT_MS) for _ in range(17)]
        assert [message.data() for message in found] == [
            *contents.SINGLE,
            *contents.BATCH,
            *contents.DELAYED,
        ]
        assert not reader.has_message_available()
        assert found[3].properties() == {"number": "3"}
        assert (found[3].partition_key(), found[3].producer_name()) == ("key", contents.PRODUCER)
        consumer = client.subscribe(contents.KEYED, SUBSCRIPTION)
        clicks = [consumer.receive(WAIT_MS) for _ in contents.CLICKS]
        assert {message.partition_key(): message.data() for message in clicks} == contents.CLICKS
        scans = client.subscribe(contents.LARGE, SUBSCRIPTION)
        assert scans.receive(WAIT_MS).data() == contents.SCAN


def test_what_was_stored_is_not_stored_again(directory: Path) -> None:
    with serving(directory) as (_, client):
        producer = client.create_producer(TOPIC, contents.PRODUCER)
        last = len(contents.SINGLE) + len(contents.BATCH) + len(contents.DELAYED) - 1
        assert producer.last_sequence_id() == last
        assert producer.send(b"again", sequence_id=last) == MessageId()
        stored = producer.send(b"new", sequence_id=last + 1)
        reader = client.create_reader(TOPIC, stored, start_message_id_inclusive=True)
        assert reader.read_next(WAIT_MS).data() == b"new"
        producer.close()


def test_policies_are_there(directory: Path) -> None:
    with serving(directory) as (cluster, _), Admin._on(cluster) as admin:
        found = admin.namespaces.policies.get(contents.NAMESPACE, contents.POLICY)
        assert found.value == {contents.POLICY: contents.LIMIT}
