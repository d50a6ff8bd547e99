"""A catalog whose disk fails under SQLite keeps what it confirmed, and nothing of what it refused."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.broker.catalog.catalog_file import CatalogFile
from pulsar_ray.errors import BrokerPersistenceError
from pulsar_ray.model.topic_name import TopicName
from tests.torture.catalog_disk import CATALOG_FAULTS, CatalogDisk

TOPICS = 60


def made(path: Path) -> Catalog:
    catalog, _ = Catalog.make(path, "cluster", "generation")
    return catalog


@pytest.mark.parametrize("fault", CATALOG_FAULTS)
def test_what_was_confirmed_is_there_and_what_was_refused_is_not(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "meta.sqlite"
    catalog = made(path)
    disk = CatalogDisk(path)
    rng = random.Random(1)
    confirmed, refused = set(), set()
    named: list[bool] = []
    for number in range(TOPICS):
        topic = TopicName.parse(f"topic-{number}")
        fails = rng.random() < 0.5
        if fails:
            assert disk.fail(fault)
        try:
            catalog.create(topic, 2, ["s1"])
            confirmed.add(topic.full)
        except BrokerPersistenceError as error:
            refused.add(topic.full)
            named.append(str(path) in str(error))
        disk.heal()
    assert confirmed
    assert refused
    assert all(named), "each error names the file"
    catalog.close()
    again = Catalog(path)
    assert {name for name, _ in again.topics_of("public/default")} == confirmed
    assert again._db.execute("PRAGMA integrity_check") == [("ok",)]
    for name in refused:
        again.create(TopicName.parse(name), 2, ["s1"])
    again.close()


@pytest.mark.parametrize("fault", CATALOG_FAULTS)
def test_nothing_is_confirmed_while_the_disk_fails(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "meta.sqlite"
    made(path).close()
    file = CatalogFile.open(path)
    disk = CatalogDisk(path)
    file.execute("INSERT INTO namespace VALUES ('a')")
    assert disk.fail(fault)
    for _ in range(3):
        with pytest.raises(BrokerPersistenceError), file.transaction():
            file.execute("INSERT INTO namespace VALUES ('b')")
    disk.heal()
    assert ("b",) not in file.execute("SELECT name FROM namespace")
    assert ("a",) in file.execute("SELECT name FROM namespace")
    file.close()
