"""A deletion that an object store could not take yet is carried out once it has."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from pulsar_ray.broker.catalog.catalog import PartitionRow
from pulsar_ray.broker.catalog.topic_ending import TopicEnding
from pulsar_ray.errors import Moved, PulsarException, RemoteStoreUnavailable
from pulsar_ray.model.topic_name import TopicName

T = "persistent://public/default/t"


class World:
    """Stands for the topics, what is served of them, the catalog and the logs of changes at once."""

    def __init__(self, *failures: PulsarException | None) -> None:
        self.topics = self.catalog = self
        self.failures = list(failures)
        self.rows = [PartitionRow(T, 1, T, -1, "store", True)]
        self.removed: list[str] = []
        anything = cast("Any", self)
        self.ending = TopicEnding(anything, anything, lambda _: [])

    async def settled(self) -> None:
        await asyncio.sleep(0)
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure

    def rows_of(self, name: TopicName) -> list[PartitionRow]:
        return self.rows

    def forget(self, name: TopicName) -> list[PartitionRow]:
        rows, self.rows = self.rows, []
        return rows

    async def forget_topic(self, name: TopicName, *, force: bool) -> None:
        """There are no policies."""

    async def remove(self, rows: list[PartitionRow]) -> None:
        self.removed += [row.name for row in rows]


async def deleted(world: World) -> None:
    try:
        await world.ending.delete_topic(T, True)
    finally:
        while world.ending._removing:
            await asyncio.sleep(0)


def test_nothing_of_a_topic_goes_before_its_deletion_is_decided() -> None:
    world = World(RemoteStoreUnavailable("away"))
    with pytest.raises(RemoteStoreUnavailable):
        asyncio.run(deleted(world))
    assert (len(world.rows), world.removed) == (1, [])


def test_a_deletion_that_nobody_waits_for_any_more_is_carried_out_once_it_is_decided() -> None:
    away = RemoteStoreUnavailable("away")
    world = World(None, away, away, away)
    with pytest.raises(RemoteStoreUnavailable):
        asyncio.run(deleted(world))
    assert world.removed == [T]


def test_a_controller_that_decides_no_more_removes_nothing() -> None:
    world = World(None, RemoteStoreUnavailable("away"), Moved("another controller decides"))
    with pytest.raises(RemoteStoreUnavailable):
        asyncio.run(deleted(world))
    assert world.removed == []
