"""Running actors are told their policies until they have confirmed what holds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.actors import policy_delivery
from pulsar_ray.actors.actor_system import ActorKind
from pulsar_ray.actors.broker_actors import BrokerActors
from pulsar_ray.actors.policy_delivery import PolicyDelivery
from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.config import Settings
from pulsar_ray.errors import BrokerPersistenceError, NotConnected
from pulsar_ray.model.policies import PolicyUpdate
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.local_actors import LocalActors
from pulsar_ray.transport.actor_names import dispatcher_name, partition_name

TOPIC = "persistent://public/default/t"
OTHER = "persistent://public/default/u"
NAMESPACE = "public/default"


class Actor:
    """An actor as far as policies are concerned."""

    def __init__(self) -> None:
        self.updates: list[PolicyUpdate] = []
        self.is_dead = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def apply_policies(self, update: PolicyUpdate) -> None:
        await self.may_answer.wait()
        if self.is_dead:
            raise NotConnected("it restarts")
        self.updates.append(update)


class Cluster:
    """A topic with two partitions and a dispatcher, and one without; everything runs."""

    def __init__(self, directory: Path) -> None:
        catalog = Catalog.make(directory / "meta.sqlite", "cluster", "first")[0]
        settings = Settings(data_dir=str(directory))
        self.topics = TopicRegistry(catalog, settings)
        self.topics.create(TopicName.parse(TOPIC), 2, lambda: ["s"])
        self.topics.create(TopicName.parse(OTHER), 0, lambda: ["s"])
        system = LocalActors(lambda *_: Actor())
        self.actors = BrokerActors(settings, system)
        first = f"{TOPIC}-partition-0"
        names = [partition_name(first), partition_name(f"{TOPIC}-partition-1"), partition_name(OTHER)]
        names.append(dispatcher_name(first, "s", True))
        store = {"store_id": "s", "node_id": "n", "memory_bytes": 0}
        self.handles: dict[str, Actor] = {
            name: self.actors.create(ActorKind.PARTITION, name, store).raw for name in names
        }
        self.delivery = PolicyDelivery(self.topics, self.actors)
        self._loop = asyncio.new_event_loop()

    def run(self, call: Coroutine[Any, Any, None]) -> None:
        self._loop.run_until_complete(call)

    def limit(self, subject: str, most: int, version: int) -> None:
        self.topics.catalog.policies.put(subject, {"max_producers": {"max_producers": most}}, version)

    def told(self) -> list[int]:
        """How often each actor was told."""
        return [len(handle.updates) for handle in self.handles.values()]

    def last(self) -> list[Any]:
        """The limit that each actor was told last."""
        updates = [handle.updates[-1:] for handle in self.handles.values()]
        return [update[0].overrides.get("max_producers_per_topic") if update else None for update in updates]

    def close(self) -> None:
        self._loop.close()
        self.topics.catalog.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def test_a_change_reaches_the_actors_that_it_concerns_and_no_others(cluster: Cluster) -> None:
    cluster.run(cluster.delivery.repeat())
    assert cluster.told() == [1, 1, 1, 1], "after a start nobody is known to have confirmed anything"
    cluster.limit(TOPIC, 5, 100)
    cluster.run(cluster.delivery.changed(TOPIC))
    assert cluster.told() == [2, 2, 1, 2]
    cluster.limit(NAMESPACE, 7, 101)
    cluster.run(cluster.delivery.changed(NAMESPACE))
    assert cluster.last() == [5, 5, 7, 5]
    cluster.run(cluster.delivery.repeat())
    assert cluster.told() == [3, 3, 2, 3], "all have confirmed it"


def test_an_actor_that_missed_a_change_is_told_again_until_it_confirms(cluster: Cluster) -> None:
    cluster.run(cluster.delivery.repeat())
    lost = cluster.handles[partition_name(OTHER)]
    lost.is_dead = True
    cluster.limit(NAMESPACE, 7, 100)
    cluster.run(cluster.delivery.changed(NAMESPACE))
    cluster.run(cluster.delivery.repeat())
    assert cluster.last() == [7, 7, None, 7]
    lost.is_dead = False
    cluster.run(cluster.delivery.repeat())
    cluster.run(cluster.delivery.repeat())
    assert cluster.last() == [7, 7, 7, 7]
    assert cluster.told() == [2, 2, 2, 2]


def test_a_change_waits_for_no_actor_of_another_topic(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.run(cluster.delivery.repeat())
    frozen = cluster.handles[partition_name(OTHER)]
    frozen.may_answer.clear()
    cluster.limit(OTHER, 5, 100)
    monkeypatch.setattr(policy_delivery, "AT_ONCE_S", 0.001)
    cluster.run(cluster.delivery.changed(OTHER))
    monkeypatch.setattr(policy_delivery, "AT_ONCE_S", 1000.0)
    cluster.limit(TOPIC, 7, 101)
    cluster.run(asyncio.wait_for(cluster.delivery.changed(TOPIC), 2))
    assert cluster.last() == [7, 7, None, 7]
    frozen.may_answer.set()
    cluster.run(cluster.delivery.changed(OTHER))
    assert cluster.last() == [7, 7, 5, 7]


def test_nobody_is_forgotten_while_the_catalog_cannot_be_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> None:
        raise BrokerPersistenceError("the disk of the catalog fails")

    cluster.run(cluster.delivery.repeat())
    cluster.limit(NAMESPACE, 7, 100)
    with monkeypatch.context() as broken:
        broken.setattr(cluster.topics, "partition", unreadable)
        with pytest.raises(BrokerPersistenceError):
            cluster.run(cluster.delivery.repeat())
    with monkeypatch.context() as broken:
        read, reads = cluster.topics.policies.update_for, iter(range(100))
        # Each actor's policies are read for the look, and once more in its own call.
        broken.setattr(
            cluster.topics.policies,
            "update_for",
            lambda topic: read(topic) if next(reads) < 2 else unreadable(),
        )
        cluster.run(cluster.delivery.repeat())
    assert cluster.told() == [1, 1, 1, 1]
    cluster.run(cluster.delivery.repeat())
    assert cluster.last() == [7, 7, 7, 7]


def test_an_actor_that_was_created_with_its_policies_is_not_told_them(cluster: Cluster) -> None:
    for name in cluster.handles:
        update = cluster.delivery.update_for(OTHER if name == OTHER else TOPIC)
        cluster.delivery.created(name, update)
    cluster.run(cluster.delivery.repeat())
    assert cluster.told() == [0, 0, 0, 0]


def test_actors_that_were_created_while_a_log_was_unknown_are_told_when_it_is_read(cluster: Cluster) -> None:
    unknown = cluster.topics.catalog.change_logs.unknown
    unknown.add("persistent://pulsar/system/__change_events")
    cluster.run(cluster.delivery.repeat())
    assert not any(handle.updates[0].is_complete for handle in cluster.handles.values())
    unknown.clear()
    cluster.topics.catalog.policies.touch(NAMESPACE, 200)
    cluster.run(cluster.delivery.repeat())
    assert all(handle.updates[-1].is_complete for handle in cluster.handles.values())
