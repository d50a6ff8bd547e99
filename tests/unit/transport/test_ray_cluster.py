"""How a client finds actors where its Ray remembers one that is dead for good."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.exceptions as ray_errors

from pulsar_ray.errors import BrokerGone, Moved, PulsarException
from pulsar_ray.transport import ray_cluster
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


class RayOfThisProcess:
    """Which Ray the process is on; its functions start one where it is on none."""

    def __init__(self) -> None:
        self.job = "here 01000000"
        self.started = 0

    def shutdown(self) -> None:
        self.job = ""

    def use(self) -> None:
        self.started += not self.job


@pytest.fixture
def this_ray(monkeypatch: pytest.MonkeyPatch) -> RayOfThisProcess:
    found = RayOfThisProcess()

    def get_actor(name: str, namespace: str) -> Any:
        found.use()
        return actor(name.encode(), stats=lambda: {"pid": 1})

    def get(reference: Any, timeout: float) -> Any:
        found.use()
        if found.job == "left while it waits":
            found.shutdown()
            raise ray_errors.GetTimeoutError
        return reference()

    monkeypatch.setattr(ray, "get_actor", get_actor)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray_cluster, "is_driver", lambda: True)
    monkeypatch.setattr(ray_cluster, "ray_job", lambda: found.job)
    return found


@pytest.mark.parametrize("job", ["", "elsewhere 02000000"])
def test_no_thread_of_an_open_client_starts_a_ray_once_its_program_has_left(
    this_ray: RayOfThisProcess, job: str
) -> None:
    cluster, told = RayCluster(), list[PulsarException]()
    cluster.when_gone(told.append)
    assert cluster.stats(NAME) == {"pid": 1}
    this_ray.job = job
    for name in (NAME, "never asked before"):
        with pytest.raises(BrokerGone, match="has left the Ray of this client: make a new Client"):
            cluster.stats(name)
    assert (this_ray.started, len(told)) == (0, 1)


def test_a_call_that_waits_while_the_program_leaves_starts_no_ray(this_ray: RayOfThisProcess) -> None:
    this_ray.job = "left while it waits"
    cluster = RayCluster()
    call = cluster._calls.made(lambda: None)
    call.reference.future = lambda: None
    with pytest.raises(BrokerGone):
        cluster.exchange_result(call, 3600)
    assert this_ray.started == 0
