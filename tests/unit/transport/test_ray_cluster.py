"""How a client finds actors where its Ray remembers one that is dead for good."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.exceptions as ray_errors

from pulsar_ray.errors import Moved
from pulsar_ray.transport.actor_names import CONTROLLER
from pulsar_ray.transport.ray_cluster import RayCluster

NAME = "persistent://public/default/t -> s"


def actor(actor_id: bytes, **methods: Callable[..., Any]) -> Any:
    """An actor's handle; references to its answers are calls that answer."""
    calls = {
        name: SimpleNamespace(remote=lambda *args, method=method: lambda: method(*args))
        for name, method in methods.items()
    }
    return SimpleNamespace(_actor_id=actor_id, **calls)


def dead(actor_id: bytes) -> Any:
    def stats() -> None:
        raise ray_errors.ActorDiedError

    return actor(actor_id, stats=stats)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The handles that this process's Ray remembers, by names."""
    remembered: dict[str, Any] = {}

    def get_actor(name: str, namespace: str) -> Any:
        if name not in remembered:
            raise ValueError(f"Failed to look up actor with name '{name}'")
        return remembered[name]

    monkeypatch.setattr(ray, "get_actor", get_actor)
    monkeypatch.setattr(ray, "get", lambda reference, timeout: reference())
    return remembered


def test_an_actor_is_found_whose_predecessor_ray_remembers(names: dict[str, Any]) -> None:
    running = {NAME: actor(b"second", stats=lambda: {"pid": 2})}
    asked: list[str] = []

    def handle(name: str) -> Any:
        asked.append(name)
        return running.get(name)

    names.update({NAME: dead(b"first"), CONTROLLER: actor(b"controller", handle=handle)})
    cluster = RayCluster()
    with pytest.raises(Moved):
        cluster.stats(NAME)
    assert cluster.stats(NAME) == {"pid": 2}
    assert cluster.stats(NAME) == {"pid": 2}
    assert asked == [NAME], "handles are kept"
    # It leaves in turn, and is not made anew yet.
    running[NAME] = None
    cluster.forget(NAME)
    for _ in range(2):
        with pytest.raises(Moved):
            cluster.stats(NAME)


def test_ray_is_believed_that_names_another_actor(names: dict[str, Any]) -> None:
    names.update({NAME: dead(b"first"), CONTROLLER: actor(b"controller")})
    cluster = RayCluster()
    with pytest.raises(Moved):
        cluster.stats(NAME)
    names[NAME] = actor(b"second", stats=lambda: {"pid": 2})
    assert cluster.stats(NAME) == {"pid": 2}
