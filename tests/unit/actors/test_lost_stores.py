"""What becomes of a lost store's partitions, with stores that answer as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pulsar_ray.actors.stores.lost_stores import LostStores
from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.broker.catalog.node_losses import Room
from pulsar_ray.config import Settings
from pulsar_ray.errors import BrokerPersistenceError, JournalDamaged
from pulsar_ray.model.topic_name import TopicName

GIB = 1 << 30
REMOTE = Settings(remote_url="file:///bucket", node_loss_seconds=10)


class Store:
    """The handle of a store that ships, and adopts what is not damaged."""

    def __init__(self, owners: dict[str, str], store_id: str) -> None:
        self._owners, self._store_id = owners, store_id
        self.damaged: set[str] = set()
        self.asked: list[str] = []
        self.hole = ""

    async def call(self, method: str, *arguments: Any, within_s: float | None = None) -> Any:
        assert method == "call_part"
        method, arguments = arguments[1], arguments[2:]
        self.asked.append(method)
        if method == "status":
            return {"isReady": True, "problem": ""}
        if method == "owners_of":
            return {each: self._owners[each] for each in arguments[0] if each in self._owners}
        if method == "seal" and self.hole:
            raise JournalDamaged(self.hole)
        if method == "adopt":
            for each in set(arguments[0]) - self.damaged:
                self._owners[each] = self._store_id
            if damaged := self.damaged & set(arguments[0]):
                raise JournalDamaged(f"segments/{damaged} is not there")
        return None


class World:
    """A catalog with partitions in store `lost`, and store `here`, which ships."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.removed: list[str] = []
        self.left = 0
        catalog.create(TopicName.parse("t"), 4, ["lost"])
        for row in catalog.partitions(TopicName.parse("t").full):
            catalog.opened(row.name)
        catalog.remember_store("lost", "host", "/data")
        self.numbers = [str(row.number) for row in catalog.partitions(TopicName.parse("t").full)]
        self.here = Store(dict.fromkeys(self.numbers, "lost"), "here")
        self.membership = self
        self.catalog_store_id = "here"
        self.known = self.present = {"here": {"handle": self.here, "host": "h"}}
        self.for_new_partitions = lambda: ["here"]
        self.topics = self
        self.gone: list[str] = []
        self.sealed: set[str] = set()
        self.ended: list[str] = []
        self.is_unreadable = False
        # One object stands for all that the class under test talks to.
        any_world = cast("Any", self)
        self.losses = LostStores(any_world, any_world, any_world, any_world, REMOTE, leave=self._leave)

    def _leave(self) -> None:
        self.left += 1

    def absent(self) -> list[str]:
        return self.gone

    def end_beside(self, store_id: str) -> None:
        self.ended.append(store_id)
        if self.is_unreadable:
            raise BrokerPersistenceError("the catalog cannot be read")

    async def rooms(self, handles: dict[str, Any]) -> dict[str, Room]:
        return {store_id: Room(0, GIB, has_room=True) for store_id in handles}

    def end(self, row: Any) -> None:
        """Nothing runs here."""

    def give_up(self, store_id: str, reason: str) -> None:
        """Nobody has it."""

    async def remove(self, rows: list[Any]) -> None:
        self.removed += [row.name for row in rows]

    async def reserve_numbers(self, count: int) -> None:
        """There are enough."""

    def forget_store(self, store_id: str, stores: Any, subscriptions: Any) -> Any:
        return self.catalog.forget_store(store_id, stores(), subscriptions)

    def move_unopened(self, store_id: str, stores: Any) -> Any:
        return self.catalog.move_unopened(store_id, stores())

    def places(self) -> dict[str, str]:
        return {
            str(row.number): row.store_id for row in self.catalog.all_partitions(TopicName.parse("t").full)
        }


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    catalog = Catalog.make(tmp_path / "meta.sqlite", "c", "g")[0]
    yield World(catalog)
    catalog.close()


async def looked(world: World, seconds: int) -> None:
    for now in range(0, seconds, 5):
        world.losses.look(float(now))
        await asyncio.sleep(0)
        if world.losses._taking is not None:
            await world.losses._taking


def test_a_store_that_is_away_for_long_is_taken_over_and_asked_once(world: World) -> None:
    world.gone = ["lost"]
    asyncio.run(looked(world, 20))
    assert set(world.places().values()) == {"here"}
    assert world.here.asked.count("status") == 1
    assert "lost" not in world.catalog.stores()
    assert world.left == 0


def test_the_actors_of_a_store_that_others_ended_are_ended_although_the_catalog_fails(world: World) -> None:
    world.sealed = {"sealed"}
    world.is_unreadable = True
    with pytest.raises(BrokerPersistenceError):
        world.losses.look(0.0)
    world.is_unreadable = False
    world.losses.look(5.0)
    world.losses.look(10.0)
    assert world.ended == ["sealed", "sealed"]


def test_a_partition_whose_objects_are_damaged_waits_until_somebody_accepts_its_loss(world: World) -> None:
    world.here.damaged = {world.numbers[0]}
    world.gone = ["lost"]
    asyncio.run(looked(world, 20))
    assert world.places() == {**dict.fromkeys(world.numbers, "here"), world.numbers[0]: "lost"}
    assert "is not there" in world.losses.describe("lost")
    names = asyncio.run(world.losses.forget("lost", {}))
    assert names == [TopicName.parse("t-partition-0").full]
    # It begins anew, with a number of its own.
    assert world.numbers[0] not in world.places()
    assert set(world.places().values()) == {"here"}


def test_a_journal_with_a_hole_is_not_given_up_with_its_store(world: World) -> None:
    world.here.hole = "journal/lost/7 is not there"
    with pytest.raises(JournalDamaged, match="journal/lost/7"):
        asyncio.run(world.losses.forget("lost", {}))
    assert set(world.places().values()) == {"lost"}


def test_a_controller_whose_own_disk_is_gone_leaves_to_a_store_that_ships(world: World) -> None:
    world.catalog_store_id = "lost"
    world.gone = ["lost"]
    asyncio.run(looked(world, 20))
    assert world.left == 1
    assert set(world.places().values()) == {"lost"}, "the next controller takes it over"


def test_a_controller_without_another_store_that_ships_stays(world: World) -> None:
    world.catalog_store_id = "lost"
    world.gone, world.known = ["lost"], {}
    asyncio.run(looked(world, 20))
    assert world.left == 0
    assert "no other store ships" in world.losses.describe("lost")
