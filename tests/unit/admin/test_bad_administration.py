"""Calls about tenants, namespaces and policies that must be refused, and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pulsar_ray.admin.admin import Admin
from pulsar_ray.config import Settings
from pulsar_ray.errors import (
    InvalidConfiguration,
    InvalidTopicName,
    NotAllowedError,
    PulsarException,
    TopicNotFound,
)
from pulsar_ray.testing.stub_cluster import StubCluster


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Admin]:
    cluster = StubCluster(tmp_path, Settings(data_dir=str(tmp_path)))
    yield Admin._on(cluster)
    cluster.close()


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda a: a.tenants.get("publik"), TopicNotFound, "public"),
        (lambda a: a.tenants.delete("public", True), NotAllowedError, "stays"),
        (lambda a: a.tenants.create("a/b"), PulsarException, "a/b"),
        (lambda a: a.tenants.create(".."), PulsarException, r"\.\."),
        (lambda a: a.namespaces.create("nobody/x"), TopicNotFound, "nobody"),
        (lambda a: a.namespaces.create("public/../x"), PulsarException, "x"),
        (lambda a: a.namespaces.create("public"), InvalidTopicName, "tenant/namespace"),
        (lambda a: a.namespaces.list("nobody"), TopicNotFound, "nobody"),
        (lambda a: a.namespaces.delete("public/default", True), NotAllowedError, "stays"),
        (lambda a: a.namespaces.delete("public/defaults"), TopicNotFound, "public/default"),
        (lambda a: a.namespaces.policies.get("public/defaults", "retention"), TopicNotFound, "default"),
        (lambda a: a.namespaces.policies.list("public"), InvalidTopicName, "tenant/namespace"),
        (lambda a: a.topics.policies.get("missing", "retention"), TopicNotFound, "missing"),
        (lambda a: a.topics.policies.set("missing", "max_consumers", 1), TopicNotFound, "missing"),
        (lambda a: a.topics.policies.get("t", "retentoin"), InvalidConfiguration, "retention"),
        (lambda a: a.topics.policies.set("t", "max_consumers", -1), InvalidConfiguration, "at least 0"),
        (lambda a: a.topics.policies.set("t", "retention", 5), InvalidConfiguration, "by name"),
        (
            lambda a: a.topics.policies.set("t", "max_producers", 5, max_producers=6),
            InvalidConfiguration,
            "given twice",
        ),
        (
            lambda a: a.topics.policies.set("t", "retention", retention_time_in_minutes=5),
            InvalidConfiguration,
            "keeps nothing",
        ),
        (
            lambda a: a.topics.policies.set("t", "max_topics_per_namespace", 1),
            InvalidConfiguration,
            "a namespace",
        ),
        (lambda a: a.topics.list("public/defaults"), TopicNotFound, "default"),
        (lambda a: a.topics.create_topic("nobody/ns/t"), TopicNotFound, "nobody"),
    ],
)
def test_bad_calls_name_the_value_and_the_remedy(
    admin: Admin, call: Callable[[Admin], object], error: type[PulsarException], says: str
) -> None:
    admin.topics.create_topic("t")
    with pytest.raises(error, match=says):
        call(admin)
    assert admin.tenants.list() == ["public", "pulsar"]
    assert {s for p in admin.topics.policies.list("t").values() for s in p.sources.values()} == {"broker"}
