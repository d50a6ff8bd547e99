"""Moves of partitions that are in an object store, under every fault at every call.

The journals, the directories and the logs are real; processes and calls are imitated. The object store's
catalog decides who owns a partition, and the broker's row follows it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pulsar_ray.actors.stores import move_carrier
from pulsar_ray.broker.catalog.catalog import PartitionRow
from pulsar_ray.broker.serving.shipping_link import SYNC, ShippingLink
from pulsar_ray.errors import ServiceUnitNotReady
from pulsar_ray.journal.shipped_disk import ShippedDisk
from pulsar_ray.journal.store_files import listed_files, read_term
from pulsar_ray.journal.store_journal import StoreJournal
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import partition_name
from tests.stored_blocks import IDENTITY, abandon, settings
from tests.unit.actors.test_partition_moves import FAULTS, NUMBER, SOURCE, TARGET, Process, World
from tests.unit.journal.test_store_journal import until
from tests.unit.managed_ledger.log.test_log_recovery import entries

DEADLINE_S = 60
LONG = pytest.mark.long


class ShippedProcess(Process):
    """The actor of a partition whose receipts wait for the object store."""

    def __init__(self, directory: Path) -> None:
        self.link = ShippingLink(directory.parents[1], NUMBER, "", asyncio.get_running_loop(), 30.0)
        term = read_term(directory)
        self.log = ManagedLedger.open(
            directory,
            IDENTITY,
            settings(),
            0,
            disk=ShippedDisk(directory, self.link),
            first_ledger=0 if term is None else term.first_ledger,
        )
        self.link.list_files(listed_files(directory))
        self.link.set_durability(SYNC, 30.0)

    async def call(self, method: str, *arguments: Any, within_s: float | None = None) -> Any:
        await super().call(method, *arguments, within_s=within_s)
        if method == "shutdown":
            self.link.close()


class ShippedWorld(World):
    """A world whose stores ship to one object store."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        url = (path / "bucket").as_uri()
        self.journals = {name: StoreJournal(path / name, name, url) for name in self.known}
        for name, journal in self.journals.items():
            journal.wait_ready(DEADLINE_S)
            store = self.known[name]["handle"]._store
            store.shipping.journal, store.directory.store = journal, SimpleNamespace(store_id=name)

    def partition(self, row: PartitionRow) -> Process:
        name = partition_name(row.name)
        if name not in self.handles:
            directory = self.path / row.store_id / "p" / str(row.number)
            term = read_term(directory)
            if term is None or term.is_left:
                owner = self.journals[row.store_id].take_back(row.number)
                if owner not in ("", row.store_id):
                    self.catalog.move_partitions({row.number: owner})
                    return self.partition(self.row)
            shipping = self.journals[self.row.store_id]._life.shipping
            # A process takes longer to start than its predecessor's manifest to be read.
            wait_until(lambda: shipping.is_idle, what="all is shipped")
            self.handles[name] = ShippedProcess(self.path / row.store_id / "p" / str(row.number))
        return self.handles[name]

    async def publish_confirmed(self, count: int = 3) -> None:
        """Publish, and wait for the receipts."""
        process = cast("ShippedProcess", self.partition(self.row))
        confirmed: list[int] = []
        for _ in range(count):
            seq = len(self.confirmed) + len(confirmed)
            process.publish(seq)
            process.link.when_durable(lambda seq=seq: confirmed.append(seq))  # type: ignore[misc]
            await until(lambda: len(confirmed) and confirmed[-1] == seq)  # noqa: B023 - awaited at once
        self.confirmed += confirmed

    async def check_shipped(self) -> None:
        """Check that one store alone has it, with everything, and gives receipts."""
        await self.publish_confirmed(1)
        assert not self.held
        assert [seq for _, seq in entries(self.partition(self.row).log)] == self.confirmed
        owner = self.row.store_id
        other = TARGET if owner == SOURCE else SOURCE
        assert self.journals[other].owners_of([str(NUMBER)]) == {str(NUMBER): owner}
        await asyncio.to_thread(self.journals[other].let_go, NUMBER)
        await until(lambda: not (self.path / other / "p" / str(NUMBER)).exists())

    def close(self) -> None:
        for process in self.handles.values():
            abandon(process.log)
            cast("ShippedProcess", process).link.close()
        for journal in self.journals.values():
            journal.stop()
        self.catalog.close()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_carrier, "AGAIN_S", 0.0)
    monkeypatch.setattr(move_carrier, "KEEP_SOURCE_S", 0.0)


async def moved(world: ShippedWorld, target: str) -> dict[str, Any]:
    moves = world.moves()
    moves.begin(world.row, target)
    return await world.ended(moves)


def test_it_moves_there_and_back_with_all_it_has(tmp_path: Path) -> None:
    async def run() -> None:
        world = ShippedWorld(tmp_path)
        await world.publish_confirmed()
        for place in (TARGET, SOURCE, TARGET):
            before = world.journals[world.row.store_id].status()["gets"]
            told = await moved(world, place)
            assert (told["state"], told["reason"]) == ("moved", "")
            assert world.row.store_id == place
            assert world.journals[place].status()["gets"] - before < 100
            await world.check_shipped()
        world.close()

    asyncio.run(run())


def test_one_whose_target_ships_nothing_stays(tmp_path: Path) -> None:
    async def run() -> None:
        world = ShippedWorld(tmp_path)
        await world.publish_confirmed()
        world.known[TARGET]["handle"]._store.shipping.journal = None
        told = await moved(world, TARGET)
        assert "no journal" in told["reason"]
        await world.check_shipped()
        world.close()

    asyncio.run(run())


def test_the_source_takes_back_what_left_and_nobody_took(tmp_path: Path) -> None:
    async def run() -> None:
        world = ShippedWorld(tmp_path)
        await world.publish_confirmed()
        store = world.known[TARGET]["handle"]._store.copies

        async def refuse(*_: Any) -> None:
            raise ServiceUnitNotReady("its object store is away")

        store.install = refuse
        told = await moved(world, TARGET)
        assert (told["state"], told["reason"]) == ("broken off", "its object store is away")
        assert world.row.store_id == SOURCE
        await world.check_shipped()
        del store.install
        assert (await moved(world, TARGET))["state"] == "moved"
        await world.check_shipped()
        world.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "fault", [each if each in ("late", "controller") else pytest.param(each, marks=LONG) for each in FAULTS]
)
def test_every_fault_at_every_call(tmp_path: Path, fault: str) -> None:
    async def run(world: ShippedWorld, at: int) -> bool:
        """Return whether there is such a call."""
        await world.publish_confirmed()
        world.fault, world.fails_at = fault, at
        await moved(world, TARGET)
        is_there = len(world.calls) > at
        world.fails_at = -1
        if fault == "controller":
            world.partition(world.row)
        await world.publish_confirmed()
        await world.deliver_late()
        await world.moves().look_through()
        await world.check_shipped()
        target = TARGET if world.row.store_id == SOURCE else SOURCE
        assert (await moved(world, target))["state"] == "moved"
        await world.deliver_late()
        await world.check_shipped()
        world.close()
        return is_there

    at, is_there = 0, True
    while is_there:
        (tmp_path / str(at)).mkdir()
        is_there = asyncio.run(run(ShippedWorld(tmp_path / str(at)), at))
        at += 1
    assert at > 10
