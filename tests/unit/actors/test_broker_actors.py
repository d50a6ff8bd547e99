"""How many partition and dispatcher actors a node may have, and which of them are dead for good."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_ray.actors.actor_system import ActorKind
from pulsar_ray.actors.broker_actors import BrokerActors
from pulsar_ray.config import Settings
from pulsar_ray.errors import NotAllowedError, TooManyActiveActors
from pulsar_ray.testing.local_actors import LocalActors

GIB = 1 << 30
MIB = 1 << 20


def store(number: int, memory_bytes: int = 24 * GIB) -> dict[str, Any]:
    return {"store_id": f"store-{number}", "node_id": f"node-{number}-id", "memory_bytes": memory_bytes}


@pytest.fixture
def system() -> LocalActors:
    return LocalActors(lambda *_: None)


def test_each_node_has_a_limit_of_its_own(system: LocalActors) -> None:
    actors = BrokerActors(Settings(max_active_actors=2), system)
    actors.create(ActorKind.PARTITION, "a", store(1))
    actors.create(ActorKind.PARTITION, "b", store(1))
    with pytest.raises(
        TooManyActiveActors, match="2 partitions and subscriptions are active on node node-1-i"
    ):
        actors.create(ActorKind.PARTITION, "c", store(1))
    assert issubclass(TooManyActiveActors, NotAllowedError)
    actors.create(ActorKind.PARTITION, "c", store(2))
    assert system.actors["c"].node_id == "node-2-id"
    assert sorted(actors.handles) == ["a", "b", "c"]


def test_whoever_ends_makes_room(system: LocalActors) -> None:
    actors = BrokerActors(Settings(max_active_actors=2), system)
    actors.create(ActorKind.PARTITION, "a", store(1))
    with pytest.raises(TooManyActiveActors, match="2 more would pass its max_active_actors of 2"):
        actors.check_room(store(1), 2)
    actors.kill("a")
    actors.kill("a")
    assert system.killed == ["a"]
    actors.check_room(store(1), 2)


@pytest.mark.parametrize(("setting", "memory_bytes", "limit"), [(-1, 800 * MIB, 10), (-1, 0, 8), (3, GIB, 3)])
def test_memory_decides_unless_the_setting_does(
    system: LocalActors, setting: int, memory_bytes: int, limit: int
) -> None:
    actors = BrokerActors(Settings(max_active_actors=setting), system)
    for number in range(limit):
        actors.create(ActorKind.PARTITION, str(number), store(1, memory_bytes))
    with pytest.raises(TooManyActiveActors):
        actors.create(ActorKind.PARTITION, "one more", store(1, memory_bytes))


def test_without_a_limit_there_is_none(system: LocalActors) -> None:
    actors = BrokerActors(Settings(max_active_actors=0), system)
    actors.check_room(store(1), 1_000_000)


def test_those_that_have_no_name_any_more_are_dead(system: LocalActors) -> None:
    actors = BrokerActors(Settings(max_active_actors=2), system)
    for name in ("a", "b"):
        actors.create(ActorKind.PARTITION, name, store(1))
    system.actors["a"].kill()
    assert actors.forget_dead() == ["a"]
    assert list(actors.handles) == ["b"]
    assert actors.forget_dead() == []
    actors.create(ActorKind.PARTITION, "a", store(1))
