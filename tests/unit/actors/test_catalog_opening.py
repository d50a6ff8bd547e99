"""A catalog that is made anew knows from the stores whether there are change logs to be read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.actors.actor_system import ActorKind
from pulsar_ray.actors.catalog_opening import CatalogOpening
from pulsar_ray.actors.stores.store_actors import StoreActors
from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.broker.catalog.founding import CatalogOrder
from pulsar_ray.config import Settings
from pulsar_ray.managed_ledger.log.partition_directories import PartitionDirectory
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity
from pulsar_ray.model.topic_name import system_change_log
from pulsar_ray.testing.local_actors import LocalActors

SYSTEM = system_change_log().full


class Store:
    """A StoreActor as far as a rebuild asks it."""

    def __init__(self, directories: list[PartitionDirectory]) -> None:
        self._directories = directories

    async def call_part(self, part: str, method: str) -> Any:
        assert part == "directory"
        return await getattr(self, method)()

    async def partitions(self) -> list[PartitionDirectory]:
        return self._directories

    async def prepared(self) -> set[int]:
        return set()


def rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stores: dict[str, tuple[bool, list[str]]]
) -> Catalog:
    """Make a catalog from stores that record whether there are logs, with partitions of these names."""
    described: dict[str, dict[str, Any]] = {}
    for number, (name, (has_change_logs, topics)) in enumerate(stores.items(), 1):
        identity = StoreIdentity(name, cluster_id="c", generations=("g1",), has_change_logs=has_change_logs)
        directories = [
            PartitionDirectory(topic, 10 * number + index, topic, -1, "c")
            for index, topic in enumerate(topics)
        ]
        described[name] = {
            "identity": identity,
            "handle": LocalActors(lambda *_, made=directories: Store(made)).create(
                ActorKind.STORE, name, name
            ),
            "has_partitions": True,
            "store_id": name,
        }

    async def describe(node_id: str, *, make: bool = False) -> dict[str, Any]:
        return described[node_id]

    system = LocalActors(lambda *_: None)
    system.nodes = {name: f"host of {name}" for name in stores}
    opening = StoreActors("data", Settings(), system)
    monkeypatch.setattr(opening, "describe", describe)
    order = CatalogOrder("head", "rebuild", "c", "g2")
    own = described[next(iter(stores))]
    return asyncio.run(opened(tmp_path, order, opening, system).open(own))


def opened(path: Path, order: CatalogOrder, stores: StoreActors, system: LocalActors) -> CatalogOpening:
    return CatalogOpening(path, order, stores, system, Settings(), lambda reason, is_deposed: None)


def test_one_store_that_knows_of_logs_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = rebuilt(tmp_path, monkeypatch, {"a": (False, []), "b": (True, [])})
    assert catalog.change_logs.dirty() == [SYSTEM]
    catalog.close()


def test_logs_that_lie_in_a_store_are_read_in_any_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = rebuilt(tmp_path, monkeypatch, {"a": (False, [SYSTEM, "persistent://public/default/t"])})
    assert catalog.change_logs.dirty() == [SYSTEM]
    catalog.close()


def test_without_any_there_is_nothing_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = rebuilt(tmp_path, monkeypatch, {"a": (False, ["persistent://public/default/t"])})
    assert catalog.change_logs.dirty() == []
    catalog.close()
