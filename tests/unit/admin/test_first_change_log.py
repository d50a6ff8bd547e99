"""A controller that dies while it makes the first log of policies leaves nothing that counts as lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.actors.stores.stores import Stores
from pulsar_ray.admin.admin import Admin
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.config import Settings
from pulsar_ray.errors import BrokerPersistenceError, PulsarException
from pulsar_ray.testing.stub_cluster import StubCluster

NAMESPACE = "public/default"
STEPS = ((Stores, "reserve_numbers"), (TopicRegistry, "create_change_log"), (Stores, "record_change_logs"))


def fail_from(patch: pytest.MonkeyPatch, owner: Any, name: str, calls_that_pass: int) -> None:
    """Let a step do nothing but raise, as on a failing disk, behind so many calls that pass."""
    step = getattr(owner, name)
    made = 0

    def failing(*arguments: Any) -> Any:
        nonlocal made
        made += 1
        if made > calls_that_pass:
            raise BrokerPersistenceError("the disk fails")
        return step(*arguments)

    patch.setattr(owner, name, failing)


@pytest.mark.parametrize("calls_that_pass", range(3))
@pytest.mark.parametrize(("owner", "name"), STEPS)
def test_policies_can_be_set_again(tmp_path: Path, owner: Any, name: str, calls_that_pass: int) -> None:
    cluster = StubCluster(tmp_path, Settings(data_dir=str(tmp_path)))
    try:
        with Admin._on(cluster) as admin:
            admin.topics.create_topic("a")
            with pytest.MonkeyPatch.context() as patch:
                fail_from(patch, owner, name, calls_that_pass)
                try:
                    admin.topics.policies.set("a", "message_ttl", 60)
                except PulsarException:
                    pass
                cluster.kill_controller()
            admin.topics.policies.set("a", "message_ttl", 61)
            assert admin.topics.policies.get("a", "message_ttl").value == {"message_ttl": 61}
    finally:
        cluster.close()
