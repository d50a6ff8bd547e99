"""How many partition and dispatcher actors a node may have, and which of them are dead for good."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from pulsar_ray.actors import broker_actors
from pulsar_ray.actors.broker_actors import BrokerActors
from pulsar_ray.config import Settings
from pulsar_ray.errors import NotAllowedError, TooManyActiveActors

GIB = 1 << 30
MIB = 1 << 20


def store(number: int, memory_bytes: int = 24 * GIB) -> dict[str, Any]:
    return {"store_id": f"store-{number}", "node_id": f"node-{number}-id", "memory_bytes": memory_bytes}


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Handles that were killed; a handle is (name, node)."""
    gone: list[Any] = []
    monkeypatch.setattr(broker_actors, "create", lambda _cls, name, node_id, *_: (name, node_id))
    monkeypatch.setattr(ray, "kill", gone.append)
    return gone


@pytest.mark.usefixtures("killed")
def test_each_node_has_a_limit_of_its_own() -> None:
    actors = BrokerActors(Settings(max_active_actors=2))
    actors.create(object, "a", store(1))
    actors.create(object, "b", store(1))
    with pytest.raises(
        TooManyActiveActors, match="2 partitions and subscriptions are active on node node-1-i"
    ):
        actors.create(object, "c", store(1))
    assert issubclass(TooManyActiveActors, NotAllowedError)
    assert actors.create(object, "c", store(2)) == ("c", "node-2-id")
    assert sorted(actors.handles) == ["a", "b", "c"]


def test_whoever_ends_makes_room(killed: list[Any]) -> None:
    actors = BrokerActors(Settings(max_active_actors=2))
    actors.create(object, "a", store(1))
    with pytest.raises(TooManyActiveActors, match="2 more would pass its max_active_actors of 2"):
        actors.check_room(store(1), 2)
    actors.kill("a")
    actors.kill("a")
    assert killed == [("a", "node-1-id")]
    actors.check_room(store(1), 2)


@pytest.mark.usefixtures("killed")
@pytest.mark.parametrize(("setting", "memory_bytes", "limit"), [(-1, 800 * MIB, 10), (-1, 0, 8), (3, GIB, 3)])
def test_memory_decides_unless_the_setting_does(setting: int, memory_bytes: int, limit: int) -> None:
    actors = BrokerActors(Settings(max_active_actors=setting))
    for number in range(limit):
        actors.create(object, str(number), store(1, memory_bytes))
    with pytest.raises(TooManyActiveActors):
        actors.create(object, "one more", store(1, memory_bytes))


@pytest.mark.usefixtures("killed")
def test_without_a_limit_there_is_none() -> None:
    actors = BrokerActors(Settings(max_active_actors=0))
    actors.check_room(store(1), 1_000_000)


@pytest.mark.usefixtures("killed")
def test_those_that_have_no_name_any_more_are_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = BrokerActors(Settings(max_active_actors=2))
    for name in ("a", "b"):
        actors.create(object, name, store(1))
    monkeypatch.setattr(broker_actors, "running_names", lambda: ["b", "another"])
    assert actors.forget_dead() == ["a"]
    assert list(actors.handles) == ["b"]
    assert actors.forget_dead() == []
    actors.create(object, "a", store(1))
