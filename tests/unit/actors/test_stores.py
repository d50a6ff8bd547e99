"""Stores come with their nodes and go with them; one that Ray will not restart is looked for again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.exceptions

from pulsar_ray.actors import stores as stores_module
from pulsar_ray.actors.stores import Stores
from pulsar_ray.config import Settings


class Handle:
    """A StoreActor's, as far as `Stores` calls it."""

    def __init__(self, store_id: str, node_id: str) -> None:
        self._described = {"store_id": store_id, "node_id": node_id}
        self.error: Exception | None = None
        self.describe = SimpleNamespace(remote=self._describe)
        self.probe = SimpleNamespace(remote=self._probe)

    async def _describe(self) -> dict[str, Any]:
        return self._described

    async def _probe(self) -> int:
        if self.error is not None:
            raise self.error
        return 1


class Nodes:
    """The cluster: which nodes there are, and whose data directory each has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stores = {"head": "store-1", "worker": "store-2"}
        self.handles: dict[str, Handle] = {}
        monkeypatch.setattr(stores_module, "alive_nodes", lambda: list(self.stores))
        monkeypatch.setattr(stores_module, "create", lambda _cls, _name, node_id, *_: self._created(node_id))
        context = SimpleNamespace(get_node_id=lambda: "head")
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)

    def _created(self, node_id: str) -> Handle:
        self.handles[node_id] = Handle(self.stores[node_id], node_id)
        return self.handles[node_id]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    return Nodes(monkeypatch)


def test_a_node_that_comes_back_under_another_id_brings_its_store_along(nodes: Nodes) -> None:
    stores = Stores("data", Settings())
    asyncio.run(stores.find())
    assert {key: store["node_id"] for key, store in stores.known.items()} == {
        "store-1": "head",
        "store-2": "worker",
    }
    del nodes.stores["worker"]
    asyncio.run(stores.find())
    assert list(stores.known) == ["store-1"]
    nodes.stores["worker again"] = "store-2"
    asyncio.run(stores.find())
    assert stores.known["store-2"]["node_id"] == "worker again"


def test_a_store_that_is_dead_for_good_is_created_anew(nodes: Nodes) -> None:
    stores = Stores("data", Settings())
    asyncio.run(stores.find())
    dead = nodes.handles["worker"]
    dead.error = ray.exceptions.ActorDiedError()
    nodes.handles["head"].error = ray.exceptions.ActorUnavailableError("restarting", b"0" * 16)
    asyncio.run(stores.probe())
    assert list(stores.known) == ["store-1"], "one that restarts stays"
    asyncio.run(stores.find())
    assert stores.known["store-2"]["handle"] is nodes.handles["worker"] is not dead
