from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pulsar_ray.actors.catalog import Catalog
from pulsar_ray.errors import BrokerPersistenceError, CorruptData
from pulsar_ray.model.topic_name import TopicName


@contextmanager
def full_disk(catalog: Catalog) -> Iterator[None]:
    """No page can be added to the file while this lasts."""
    (usual,) = catalog._db.execute("PRAGMA max_page_count")[0]
    catalog._db.execute("PRAGMA max_page_count=1")
    try:
        yield
    finally:
        catalog._db.execute(f"PRAGMA max_page_count={usual}")


def topic(number: int) -> TopicName:
    return TopicName.parse(f"{'t' * 200}-{number}")


def create_all(catalog: Catalog, tried: list[TopicName]) -> None:
    for number in range(1000):
        tried.append(topic(number))
        catalog.create(tried[-1], 8, ["store"])


def test_a_topic_that_a_full_disk_refused_is_created_once_there_is_room(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "meta.sqlite")
    created: list[TopicName] = []
    with (
        full_disk(catalog),
        pytest.raises(BrokerPersistenceError, match=r"meta.sqlite cannot be used \(database or disk is full"),
    ):
        create_all(catalog, created)
    assert catalog.partitions(created[-1].full) == []
    assert len(catalog.create(created[-1], 8, ["store"])) == 8
    catalog.close()


def test_a_deletion_that_a_full_disk_refused_leaves_the_topic_and_the_catalog_usable(tmp_path: Path) -> None:
    path = tmp_path / "meta.sqlite"
    catalog = Catalog(path)
    catalog.create(topic(1), 2, ["store"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    log = path.with_name("meta.sqlite-wal")
    # As a full disk does: the log beside the file grows no more.
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, hard))
    try:
        with pytest.raises(BrokerPersistenceError, match=r"meta.sqlite cannot be used"):
            catalog.delete(topic(1).full)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(catalog.partitions(topic(1).full)) == 2
    catalog.delete(topic(1).full)
    assert catalog.partition_count(topic(1).full) is None
    catalog.close()


def test_a_file_of_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "meta.sqlite"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(CorruptData, match=r"meta\.sqlite"):
        Catalog(path)
