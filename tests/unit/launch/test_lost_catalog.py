"""What is said of a broker whose controller does not answer, by what its stores know."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from pulsar_ray.errors import CatalogMissing, NotConnected, PulsarException, Timeout
from pulsar_ray.launch import lost_catalog
from pulsar_ray.launch.lost_catalog import asked_controller
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity

AWAY = StoreIdentity("s1", cluster_id="x", catalog_store_id="s2", catalog_host="node2")


class Store:
    """A handle whose only call is answered with what the store would describe."""

    def __init__(self, identity: StoreIdentity | Exception | None) -> None:
        self._identity = identity
        self.describe = self

    def remote(self) -> Store:
        return self

    def answer(self) -> dict[str, Any]:
        if isinstance(self._identity, Exception):
            raise self._identity
        return {"identity": self._identity}


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> dict[str, Store]:
    """The named actors of Ray, none at first."""
    running: dict[str, Store] = {}

    def get_actor(name: str, namespace: str) -> Store:
        assert namespace == "pulsar_ray"
        if name not in running:
            raise ValueError(f"Failed to look up actor with name {name!r}")
        return running[name]

    monkeypatch.setattr(lost_catalog, "running_names", lambda: list(running))
    monkeypatch.setattr(ray, "get_actor", get_actor)
    monkeypatch.setattr(ray, "wait", lambda asked, timeout: (asked[:1], asked[1:]))
    monkeypatch.setattr(ray, "get", lambda asked: asked.answer())
    return running


def refusing(error: PulsarException) -> Any:
    def ask() -> None:
        raise error

    return ask


def test_nothing_of_a_broker_is_none(actors: dict[str, Store]) -> None:
    assert asked_controller(lambda: None) is None
    actors["pulsar_ray-store-1"] = Store(None)  # of a directory without a store
    actors["pulsar_ray-store-2"] = Store(ray.exceptions.ActorDiedError())
    assert asked_controller(lambda: None) is None
    assert asked_controller(lambda: {"pid": 1}) == {"pid": 1}


def test_stores_without_a_controller_name_the_node_of_the_catalog(actors: dict[str, Store]) -> None:
    actors["pulsar_ray-store-1"] = Store(ray.exceptions.ActorDiedError())
    actors["pulsar_ray-store-2"] = Store(AWAY)
    with pytest.raises(CatalogMissing, match=r"without its controller.* on node2 \(store s2\).*--rebuild"):
        asked_controller(lambda: None)
    actors["pulsar_ray-controller"] = Store(None)  # it has come up meanwhile
    assert asked_controller(lambda: None) is None


@pytest.mark.parametrize("kind", [NotConnected, Timeout])
def test_a_silent_controller_is_named_with_the_node_of_the_catalog(
    actors: dict[str, Store], kind: type[PulsarException]
) -> None:
    with pytest.raises(kind) as caught:
        asked_controller(refusing(kind("no answer")))
    assert caught.value.text == "no answer"
    actors["pulsar_ray-controller"] = Store(None)
    actors["pulsar_ray-store-1"] = Store(AWAY)
    with pytest.raises(kind, match="no answer; the catalog of topics is on node2"):
        asked_controller(refusing(kind("no answer")))
