"""A controller that dies when it has carried out a call, before it answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray.admin.admin import Admin
from pulsar_ray.config import Settings
from pulsar_ray.errors import NotAllowedError, TopicNotFound
from pulsar_ray.testing.stub_cluster import StubCluster

Place = tuple[StubCluster, Admin]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    cluster = StubCluster(tmp_path, Settings(data_dir=str(tmp_path)))
    yield cluster, Admin._on(cluster)
    cluster.close()


def test_a_topic_is_created_once_and_that_is_no_error(place: Place) -> None:
    cluster, admin = place
    cluster.control.answers_to_lose = 1
    admin.topics.create_topic("a")
    cluster.control.answers_to_lose = 2
    admin.topics.create_partitioned_topic("b", 3)
    assert admin.topics.partitions() == {
        "persistent://public/default/a": 0,
        "persistent://public/default/b": 3,
    }


def test_a_topic_is_deleted_once_and_that_is_no_error(place: Place) -> None:
    cluster, admin = place
    admin.topics.create_topic("a")
    cluster.control.answers_to_lose = 1
    admin.topics.delete("a")
    assert admin.topics.list() == []


def test_what_was_not_carried_out_stays_an_error(place: Place) -> None:
    cluster, admin = place
    admin.topics.create_partitioned_topic("a", 2)
    for lost in (0, 1):
        cluster.control.answers_to_lose = lost
        with pytest.raises(NotAllowedError, match="already exists"):
            admin.topics.create_partitioned_topic("a", 2)
    with pytest.raises(TopicNotFound):
        admin.topics.delete("b")
