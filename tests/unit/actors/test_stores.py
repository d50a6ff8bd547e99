"""Stores come with their nodes and go with them, are taken in or refused, and looked for again."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_ray.actors.stores.resting_stores import REST_AFTER_S, RestingStores
from pulsar_ray.actors.stores.store_actors import StoreActors
from pulsar_ray.actors.stores.stores import NUMBERS_AHEAD, Stores
from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.broker.catalog.membership import Membership
from pulsar_ray.config import Settings
from pulsar_ray.errors import (
    NetworkFileSystem,
    NotConnected,
    PulsarException,
    ServiceUnitNotReady,
    StoreSealed,
    WrongNode,
)
from pulsar_ray.managed_ledger.log.partition_directories import PartitionDirectory
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity, successor
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.local_actors import LocalActor, LocalActors
from pulsar_ray.transport.actor_names import store_name


class Store:
    """A StoreActor as far as `Stores` calls it."""

    def __init__(self, node_id: str, disk: Disk) -> None:
        self._node_id = node_id
        self._disk = disk
        self.error: Exception | None = None

    async def describe(self, make: bool = False) -> dict[str, Any]:
        if make:
            self._disk.identity = StoreIdentity(f"made on {self._node_id}")
        if self._disk.problem is not None:
            raise self._disk.problem
        identity = self._disk.identity
        return {
            "identity": identity,
            "store_id": identity.store_id if identity else "",
            "has_partitions": bool(self._disk.directories),
            "node_id": self._node_id,
            "host": f"host of {self._node_id}",
            "path": "data",
        }

    async def call_part(self, part: str, method: str, *arguments: Any) -> Any:
        assert part == "directory"
        return await getattr(self, method)(*arguments)

    async def record(self, identity: StoreIdentity) -> None:
        await asyncio.sleep(0)
        self._disk.identity = identity
        self._disk.records += 1

    async def unknown(self, known: set[int]) -> list[PartitionDirectory]:
        return [found for found in self._disk.directories if found.number not in known]

    async def stats(self) -> dict[str, Any]:
        return dict.fromkeys(("freeBytes", "totalBytes", "remoteLagSeconds", "remoteWaitingBytes"), 0)

    async def probe(self) -> int:
        if self.error is not None:
            raise self.error
        return 1


@dataclasses.dataclass
class Disk:
    """What lies in a node's data directory."""

    identity: StoreIdentity | None
    directories: list[PartitionDirectory] = dataclasses.field(default_factory=list)
    problem: PulsarException | None = None
    records: int = 0


class Nodes(LocalActors):
    """The cluster: which nodes there are, and whose data directory each has."""

    def __init__(self) -> None:
        super().__init__(lambda _cls, _name, node_id, _: Store(str(node_id), self.disks[str(node_id)]))
        self.disks = {"head": Disk(StoreIdentity("store-1")), "worker": Disk(StoreIdentity("store-2"))}

    def hosts(self) -> dict[str, str]:
        return {node_id: f"host of {node_id}" for node_id in self.disks}

    def on(self, node_id: str) -> LocalActor:
        """The actor of a node's store."""
        return self.actors[store_name(node_id[:8])]


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def membership(tmp_path: Path) -> Membership:
    catalog, _ = Catalog.make(tmp_path / "meta.sqlite", "cluster", "first")
    return Membership(catalog, "store-1", "host of head", takes_old=False, takes_empty=False)


def run(*steps: Any) -> None:
    async def all_of_them() -> None:
        for step in steps:
            outcome = step()
            if outcome is not None:
                await outcome

    asyncio.run(all_of_them())


def new_stores(nodes: Nodes, membership: Membership) -> Stores:
    return Stores(StoreActors("data", Settings(), nodes), membership, Settings(), nodes)


def test_a_node_that_comes_back_under_another_id_brings_its_store_along(
    nodes: Nodes, membership: Membership
) -> None:
    stores = new_stores(nodes, membership)
    asyncio.run(stores.find())
    assert {key: store["node_id"] for key, store in stores.known.items()} == {
        "store-1": "head",
        "store-2": "worker",
    }
    disk = nodes.disks.pop("worker")
    asyncio.run(stores.find())
    assert list(stores.known) == ["store-1"]
    nodes.disks["worker again"] = disk
    asyncio.run(stores.find())
    assert stores.known["store-2"]["node_id"] == "worker again"


def test_a_store_that_is_dead_for_good_is_created_anew(nodes: Nodes, membership: Membership) -> None:
    stores = new_stores(nodes, membership)
    asyncio.run(stores.find())
    dead = nodes.on("worker")
    dead.kill()
    nodes.on("head").failure = NotConnected("it restarts")
    asyncio.run(stores.probe())
    assert list(stores.known) == ["store-1"], "one that restarts stays"
    asyncio.run(stores.find())
    assert stores.known["store-2"]["handle"] is nodes.on("worker") is not dead


def test_one_that_does_not_answer_is_known_and_absent(nodes: Nodes, membership: Membership) -> None:
    membership.catalog.create(TopicName.parse("public/default/t"), 2, ["store-1", "store-2"])
    stores = new_stores(nodes, membership)
    asyncio.run(stores.find())
    assert stores.absent() == []
    nodes.on("worker").failure = NotConnected("its node hangs")
    asyncio.run(stores.probe())
    assert "store-2" in stores.known
    assert stores.absent() == ["store-2"]
    nodes.on("worker").failure = None
    asyncio.run(stores.probe())
    assert stores.absent() == []


def test_an_ended_store_is_known_and_gives_its_partitions_to_the_one_it_becomes(
    nodes: Nodes, membership: Membership
) -> None:
    topic = TopicName.parse("public/default/t")
    membership.catalog.create(topic, 2, ["store-2"])
    one, two = membership.catalog.partitions(topic.full)
    stores = new_stores(nodes, membership)
    asyncio.run(stores.find())
    disk = nodes.disks["worker"]
    disk.problem = StoreSealed("data: others have taken the store over")
    nodes.on("worker").failure = disk.problem
    asyncio.run(stores.probe())
    assert stores.sealed == {"store-2"}
    asyncio.run(stores.find())
    assert "taken the store over" in stores.refused["worker"]["reason"]
    membership.catalog.move_partitions({two.number: "store-1"})
    assert disk.identity is not None
    disk.identity = successor(disk.identity, has_partitions=True)
    disk.directories = [PartitionDirectory(one.name, one.number, topic.full, 0, "cluster")]
    disk.problem = nodes.on("worker").failure = None
    asyncio.run(stores.find())
    rows = membership.catalog.partitions(topic.full)
    assert [row.store_id for row in rows] == [disk.identity.store_id, "store-1"]
    assert disk.identity.store_id in stores.known
    assert set(membership.catalog.stores()) == {"store-1", disk.identity.store_id}


def test_a_refused_store_is_taken_in_once_it_is_mended(
    nodes: Nodes, membership: Membership, caplog: pytest.LogCaptureFixture
) -> None:
    stores = new_stores(nodes, membership)
    worker = nodes.disks["worker"]
    worker.problem = NetworkFileSystem("data is on NFS")
    run(stores.find, stores.find)
    (refused,) = stores.refused.values()
    assert (refused["host"], refused["is_lost"]) == ("host of worker", True)
    assert "data is on NFS" in refused["reason"]
    assert caplog.text.count("data is on NFS") == 1, "said once, not at every look"
    worker.problem = None
    run(stores.find)
    assert stores.refused == {}
    assert sorted(stores.known) == ["store-1", "store-2"]


def test_refused_stores_are_ended_too(nodes: Nodes, membership: Membership) -> None:
    actors = StoreActors("data", Settings(), nodes)
    stores = Stores(actors, membership, Settings(), nodes)
    nodes.disks["worker"].identity = StoreIdentity("store-2", cluster_id="other")
    asyncio.run(stores.find())
    assert list(stores.known) == ["store-1"]
    assert nodes.disks["worker"].identity.cluster_id == "other", "it is left as it is"
    actors.end_all()
    assert nodes.actors == {}


def test_a_store_whose_disk_is_unmounted_is_refused_until_it_is_back(
    nodes: Nodes, membership: Membership
) -> None:
    stores = new_stores(nodes, membership)
    asyncio.run(stores.find())
    worker = nodes.disks["worker"]
    was = worker.identity
    nodes.on("worker").raw.error = WrongNode("data should be store-2 but holds no store")
    worker.identity = None
    run(stores.probe, stores.find)
    assert list(stores.known) == ["store-1"]
    assert "this node had store store-2: mount its disk" in stores.refused["worker"]["reason"]
    assert worker.identity is None, "nothing empty is made in its place"
    worker.identity = was
    asyncio.run(stores.find())
    assert sorted(stores.known) == ["store-1", "store-2"]


def test_an_empty_directory_of_a_new_node_is_left_alone_unless_it_may_be_taken(
    nodes: Nodes, membership: Membership
) -> None:
    stores = new_stores(nodes, membership)
    nodes.disks["new"] = Disk(None)
    asyncio.run(stores.find())
    assert nodes.disks["new"].identity is None
    assert stores.refused["new"]["is_lost"] is False
    membership.takes_empty = True
    asyncio.run(stores.nodes())
    asyncio.run(stores.find())
    assert "made on new" in stores.known


def test_a_node_without_a_store_keeps_no_actor_and_is_looked_at_again_when_somebody_asks(
    nodes: Nodes, membership: Membership
) -> None:
    stores = new_stores(nodes, membership)
    nodes.disks["new"] = Disk(None)
    asyncio.run(stores.find())
    assert store_name("new") not in nodes.names()
    nodes.disks["new"].identity = StoreIdentity("store-3")
    asyncio.run(stores.find())
    assert sorted(stores.known) == ["store-1", "store-2"]
    described = asyncio.run(stores.nodes())
    assert {node["host"]: node["state"] for node in described}["host of new"] == "without store"
    asyncio.run(stores.find())
    assert sorted(stores.known) == ["store-1", "store-2", "store-3"]
    assert store_name("new") in nodes.names()


def test_what_a_store_knows_and_the_catalog_lacks_is_reported(nodes: Nodes, membership: Membership) -> None:
    topic = "persistent://public/default/t"
    stores = new_stores(nodes, membership)
    nodes.disks["worker"].directories = [PartitionDirectory(topic, 7, topic, -1, "cluster")]
    # Of version 0.1: the catalog beside the other store does not know it.
    asyncio.run(stores.find())
    assert "--rebuild-catalog" in stores.refused["worker"]["reason"]
    membership.takes_old = True
    asyncio.run(stores.find())
    ((unknown,),) = [found for found in stores.unknown.values() if found]
    assert (unknown["topic"], unknown["number"], unknown["name_is_taken"]) == (topic, 7, False)
    assert unknown["directory"] == "data/p/7"


def test_numbers_stand_in_every_store_before_they_are_granted(nodes: Nodes, membership: Membership) -> None:
    stores = new_stores(nodes, membership)
    run(stores.find, lambda: stores.reserve_numbers(5))
    assert [disk.identity.numbers_below for disk in nodes.disks.values() if disk.identity] == [
        6 + NUMBERS_AHEAD,
        6 + NUMBERS_AHEAD,
    ]
    assert membership.catalog.last_number == 0


def test_topics_that_are_created_together_share_a_reservation(nodes: Nodes, membership: Membership) -> None:
    stores = new_stores(nodes, membership)

    async def create() -> None:
        await stores.reserve_numbers(1)
        membership.catalog.skip_numbers(membership.catalog.last_number + 2)
        assert membership.catalog.last_number < membership.reserved_below

    async def together() -> list[int]:
        await stores.find()
        taken_in = [disk.records for disk in nodes.disks.values()]
        await asyncio.gather(*(create() for _ in range(2 * NUMBERS_AHEAD)))
        return taken_in

    taken_in = asyncio.run(together())
    assert membership.catalog.last_number == 2 * NUMBERS_AHEAD
    assert [disk.records for disk in nodes.disks.values()] == [records + 2 for records in taken_in]


def test_stores_on_nodes_that_ray_drains_take_no_new_partitions(nodes: Nodes, membership: Membership) -> None:
    stores = new_stores(nodes, membership)
    asyncio.run(stores.find())
    assert sorted(stores.for_new_partitions()) == ["store-1", "store-2"]
    nodes.drained = {"worker"}
    assert stores.for_new_partitions() == ["store-1"]
    assert stores.is_draining(stores.known["store-2"])
    nodes.drained = {"head", "worker"}
    with pytest.raises(ServiceUnitNotReady, match="is drained, by Ray"):
        stores.for_new_partitions()


def test_a_store_that_rests_is_there_without_an_actor_until_it_is_not_drained_any_more(
    nodes: Nodes, membership: Membership
) -> None:
    stores = new_stores(nodes, membership)
    asyncio.run(stores.find())
    catalog = membership.catalog
    catalog.expect_stores(2)
    catalog.drain_store("store-2")
    worker = nodes.on("worker")
    run(lambda: stores.let_rest("store-2"), stores.find, stores.probe)
    assert not worker.is_running()
    assert (list(stores.known), sorted(stores.present)) == (["store-1"], ["store-1", "store-2"])
    assert (stores.drained(), stores.absent(), catalog.absences()) == ({"store-2"}, [], {})
    assert [each["state"] for each in asyncio.run(stores.nodes())] == ["serving", "serving"]
    catalog.drain_store("store-2", is_wanted=False)
    asyncio.run(stores.find())
    assert (sorted(stores.known), stores.resting) == (["store-1", "store-2"], {})


def test_the_node_of_a_store_that_rests_may_go_and_come_back(nodes: Nodes, membership: Membership) -> None:
    stores = new_stores(nodes, membership)
    asyncio.run(stores.find())
    membership.catalog.drain_store("store-2")
    run(lambda: stores.let_rest("store-2"))
    disk = nodes.disks.pop("worker")
    asyncio.run(stores.find())
    assert list(stores.present) == ["store-1"]
    assert list(membership.catalog.absences()) == ["store-2"]
    nodes.disks["worker again"] = disk
    asyncio.run(stores.find())
    assert (stores.known["store-2"]["node_id"], membership.catalog.absences()) == ("worker again", {})


def test_stores_rest_that_are_drained_and_have_been_empty_for_a_while(
    nodes: Nodes, membership: Membership
) -> None:
    stores = new_stores(nodes, membership)
    asyncio.run(stores.find())
    beside: list[str] = []
    actors: Any = SimpleNamespace(beside=lambda _: beside)
    resting = RestingStores(stores, actors)
    both = ["store-1", "store-2"]

    def rests(now_s: float, ready: list[str]) -> list[str]:
        asyncio.run(resting.look(ready, now_s))
        return [store["store_id"] for store in stores.resting.values()]

    assert rests(0, both) == []
    for store_id in both:
        membership.catalog.drain_store(store_id)
    assert rests(10, both) == []
    assert rests(10 + REST_AFTER_S, []) == []
    assert rests(20 + REST_AFTER_S, both) == []
    beside.append("an actor")
    assert rests(20 + 2 * REST_AFTER_S, both) == []
    beside.clear()
    assert rests(30 + 2 * REST_AFTER_S, both) == []
    # That of the catalog never does.
    assert rests(30 + 3 * REST_AFTER_S, both) == ["store-2"]


def test_every_store_records_that_there_are_change_logs_before_the_first_one(
    nodes: Nodes, membership: Membership
) -> None:
    stores = new_stores(nodes, membership)
    asyncio.run(stores.find())
    asyncio.run(stores.record_change_logs())
    assert all(disk.identity is not None and disk.identity.has_change_logs for disk in nodes.disks.values())
    nodes.disks["late"] = Disk(StoreIdentity("store-3"))
    asyncio.run(stores.find())
    assert nodes.disks["late"].identity is not None
    assert nodes.disks["late"].identity.has_change_logs, "one that is taken in later learns of them too"
