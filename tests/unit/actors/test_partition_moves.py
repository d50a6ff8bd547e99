"""Moves under every fault at every call: nothing confirmed is lost, and nobody serves twice.

The stores' directories, the logs in them and the catalog are real; processes and calls are imitated here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pulsar_ray.actors.actor_system import ActorHandle
from pulsar_ray.actors.stores import move_carrier
from pulsar_ray.actors.stores.data_directory import StoreNode
from pulsar_ray.actors.stores.partition_moves import PartitionMoves
from pulsar_ray.actors.stores.store_parts import StoreParts
from pulsar_ray.broker.catalog.catalog import Catalog, PartitionRow
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.errors import (
    BrokerPersistenceError,
    DiskSpaceLow,
    Moved,
    NotAllowedError,
    NotConnected,
    PulsarException,
    Timeout,
)
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.local_actors import LocalActors
from pulsar_ray.transport.actor_names import partition_name
from tests.stored_blocks import IDENTITY, abandon, append, settings
from tests.unit.managed_ledger.log.test_log_recovery import entries

T = IDENTITY.topic
NUMBER = IDENTITY.number
SOURCE, TARGET = "a", "b"
FAULTS = ("before", "behind", "late", "twice", "controller")


def store_in(world: World, name: str) -> StoreParts:
    """A store whose peers are found in the world."""

    def peer(node_id: str) -> ActorHandle | None:
        return world.known[node_id]["handle"] if node_id in world.known else None

    return StoreParts(
        world.path / name,
        StoreNode(name, f"host {name}", 0, "", ""),
        Settings(),
        find_peer=peer,
        find_controller=lambda: None,
        end_process=lambda: None,
    )


class Handle:
    """An ActorHandle of a store, which fails as the world wants."""

    def __init__(self, world: World, store: StoreParts) -> None:
        self._world = world
        self._store = store

    async def call(self, method: str, *arguments: Any, within_s: float | None = None) -> Any:
        return await self._world.called(self._store, method, arguments)


async def carried_out(store: StoreParts, method: str, arguments: tuple[Any, ...]) -> Any:
    """Call a store, or one of its parts by "part.method"."""
    part, _, of_part = method.rpartition(".")
    return await (store.call_part(part, of_part, *arguments) if part else getattr(store, method)(*arguments))


class Process:
    """The actor of a partition: its log is open as long as it runs."""

    def __init__(self, directory: Path) -> None:
        self.log = ManagedLedger.open(directory, IDENTITY, settings(), 0)

    async def call(self, method: str, *arguments: Any, within_s: float | None = None) -> Any:
        if method == "call":
            assert arguments[0] == "slow_down"
            return
        assert method == "shutdown"
        self.log.close()

    def publish(self, seq: int) -> None:
        append(self.log, seq)


class World:
    """Stands for Stores, TopicActors, BrokerActors and Passivation at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.catalog, _ = Catalog.make(
            path / "meta.sqlite", "c", "g", restored=[PartitionRow(T, NUMBER, T, -1, SOURCE, True)]
        )
        self.topics = self
        self.system = LocalActors(lambda *_: None)
        self.known: dict[str, dict[str, Any]] = {
            name: {"handle": Handle(self, store_in(self, name)), "node_id": name, "host": name}
            for name in (SOURCE, TARGET)
        }
        self.present = self.known
        for name in self.known:
            (path / name / "p").mkdir(parents=True)
        self.handles: dict[str, Process] = {}
        self.dispatchers: dict[str, tuple[str, str, bool]] = {}
        self.held: dict[str, asyncio.Future[Any]] = {}
        self.confirmed: list[int] = []
        self.calls: list[str] = []
        self.fails_at = -1
        self.fault = ""
        self.late: list[Any] = []
        self.dies = asyncio.Event()
        self.emptying: set[str] = set()
        self.going: set[str] = set()
        self.gentle: list[bool] = []
        """Of each pull, whether it was to be gentle."""

    # --- calls ------------------------------------------------------------------------------------

    async def called(self, store: StoreParts, method: str, arguments: tuple[Any, ...]) -> Any:
        if method == "call_part":
            method, arguments = ".".join(arguments[:2]), arguments[2:]
        self.calls.append(method)
        if method == "copies.pull":
            self.gentle.append(arguments[-1])
        if len(self.calls) - 1 != self.fails_at:
            return await carried_out(store, method, arguments)
        if self.fault == "before":
            raise NotConnected(f"{method}: the actor restarts")
        if self.fault == "late":
            self.late.append((store, method, arguments))
            raise Timeout(f"{method} is not answered")
        answer = await carried_out(store, method, arguments)
        if self.fault == "twice":
            return await carried_out(store, method, arguments)
        if self.fault == "controller":
            self.dies.set()
            await asyncio.get_running_loop().create_future()
        if self.fault == "behind":
            raise Timeout(f"{method} is not answered")
        return answer

    async def deliver_late(self) -> None:
        """Carry out what was taken for lost."""
        while self.late:
            store, method, arguments = self.late.pop()
            try:
                await carried_out(store, method, arguments)
            except PulsarException:
                continue

    # --- TopicActors ------------------------------------------------------------------------------

    def store_of(self, row: PartitionRow) -> dict[str, Any]:
        return self.known[row.store_id]

    def partition(self, row: PartitionRow) -> Process:
        """Start it where the catalog says; nobody else runs."""
        name = partition_name(row.name)
        if self.catalog.numbered(row.number) is None:
            raise Moved("it was deleted")
        if name not in self.handles:
            self.handles[name] = Process(self.path / row.store_id / "p" / str(row.number))
        return self.handles[name]

    def end(self, row: PartitionRow) -> None:
        process = self.handles.pop(partition_name(row.name), None)
        if process is not None and not process.log._files.owner.is_fenced:
            abandon(process.log)

    # --- BrokerActors, Passivation, Stores --------------------------------------------------------

    async def name_is_free(self, name: str) -> None:
        pass

    async def hold(self, partition: str) -> asyncio.Future[Any]:
        assert partition not in self.held
        held = self.held[partition] = asyncio.get_running_loop().create_future()
        held.add_done_callback(lambda _: self.held.pop(partition))
        return held

    def for_new_partitions(self) -> list[str]:
        return [each for each in self.known if each not in self.emptying]

    def is_draining(self, store: dict[str, Any]) -> bool:
        return store["node_id"] in self.going

    # --- what tests do ----------------------------------------------------------------------------

    @property
    def row(self) -> PartitionRow:
        found = self.catalog.numbered(NUMBER)
        assert found is not None
        return found

    def publish(self, count: int = 3) -> None:
        for _ in range(count):
            seq = len(self.confirmed)
            self.partition(self.row).publish(seq)
            self.confirmed.append(seq)

    def moves(self) -> PartitionMoves:
        """A controller's moves, which knows of no earlier ones."""
        any_world = cast("Any", self)

        async def follow_nobody(store_id: str, numbers: Iterable[int]) -> None:
            """There is no object store."""

        return PartitionMoves(any_world, any_world, any_world, any_world, SystemClock(), follow_nobody)

    async def ended(self, moves: PartitionMoves) -> dict[str, Any]:
        """Wait for the end of all moves, or of the controller."""
        dies = asyncio.ensure_future(self.dies.wait())
        tasks = list(moves._tasks)
        await asyncio.wait([dies, asyncio.ensure_future(asyncio.wait(tasks))], return_when="FIRST_COMPLETED")
        if self.dies.is_set():
            self.dies.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for held in list(self.held.values()):
                held.cancel()
            await asyncio.sleep(0)
            return {}
        dies.cancel()
        return moves.describe()[-1]

    def check(self) -> None:
        """Check that one store alone serves everything that was confirmed."""
        assert not self.held
        assert [seq for _, seq in entries(self.partition(self.row).log)] == self.confirmed
        other = TARGET if self.row.store_id == SOURCE else SOURCE
        assert not (self.path / other / "p" / str(NUMBER)).exists()
        assert list((self.path / other / "p").iterdir()) == []

    def close(self) -> None:
        for process in self.handles.values():
            abandon(process.log)
        self.catalog.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(move_carrier, "AGAIN_S", 0.0)
    monkeypatch.setattr(move_carrier, "KEEP_SOURCE_S", 0.0)
    made = World(tmp_path)
    made.publish()
    yield made
    made.close()


def calls_of_a_move(path: Path) -> list[str]:
    """The calls of stores that one move makes."""

    async def run() -> list[str]:
        world = World(path)
        world.publish()
        moves = world.moves()
        moves.begin(world.row, TARGET)
        await world.ended(moves)
        world.check()
        world.close()
        return list(world.calls)

    return asyncio.run(run())


def test_it_moves_with_all_it_has(world: World) -> None:
    async def run() -> None:
        moves = world.moves()
        move_id = moves.begin(world.row, TARGET)
        assert moves.begin(world.row, TARGET) == move_id  # asked twice
        told = await world.ended(moves)
        assert (told["state"], told["moveId"], told["isOver"]) == ("moved", move_id, True)
        assert world.row.store_id == TARGET
        assert moves.begin(world.row, TARGET) == ""
        world.publish()
        world.check()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("runs", "goes", "gentle"),
    [
        pytest.param(True, False, [True, False], id="published to, until the switch"),
        pytest.param(True, True, [False, False], id="its node goes soon"),
        pytest.param(False, False, [False, False], id="asleep"),
    ],
)
def test_copying_is_gentle_while_somebody_publishes(
    world: World, runs: bool, goes: bool, gentle: list[bool]
) -> None:
    async def run() -> None:
        if goes:
            world.going.add(SOURCE)
        if not runs:
            world.end(world.row)
        moves = world.moves()
        moves.begin(world.row, TARGET)
        assert (await world.ended(moves))["state"] == "moved"
        assert world.gentle == gentle
        world.check()

    asyncio.run(run())


def test_copying_hurries_where_publishing_goes_on_half_as_fast(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr(move_carrier, "SLICE_BYTES", 100)
        world.publish(20)
        called = world.called

        async def publishes(store: StoreParts, method: str, arguments: tuple[Any, ...]) -> Any:
            if arguments[:2] == ("copies", "pull") and len(world.gentle) < 3:
                world.publish()
            return await called(store, method, arguments)

        monkeypatch.setattr(world, "called", publishes)
        moves = world.moves()
        moves.begin(world.row, TARGET)
        assert (await world.ended(moves))["state"] == "moved"
        assert world.gentle[0]
        assert not any(world.gentle[1:])
        assert len(world.gentle) > 3
        world.check()

    asyncio.run(run())


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_at_every_call(tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_carrier, "AGAIN_S", 0.0)
    monkeypatch.setattr(move_carrier, "KEEP_SOURCE_S", 0.0)
    (tmp_path / "all").mkdir()
    calls = calls_of_a_move(tmp_path / "all")
    assert {"copies.begin", "copies.pull", "copies.fence", "copies.install", "copies.clear"} <= set(calls)

    async def run(world: World, at: int) -> None:
        world.publish()
        world.fault, world.fails_at = fault, at
        moves = world.moves()
        moves.begin(world.row, TARGET)
        await world.ended(moves)
        world.fails_at = -1
        if fault == "controller":
            # Its successor knows nothing of the move; clients have the partition started.
            world.partition(world.row)
        world.publish()
        assert [seq for _, seq in entries(world.partition(world.row).log)] == world.confirmed
        await world.deliver_late()
        moves = world.moves()
        await moves.look_through()
        world.publish()
        world.check()
        # Whatever was left, it can be moved now.
        target = TARGET if world.row.store_id == SOURCE else SOURCE
        moves.begin(world.row, target)
        assert (await world.ended(moves))["state"] == "moved"
        await world.deliver_late()
        world.publish()
        await world.moves().look_through()
        world.check()
        world.close()

    for at in range(len(calls)):
        (tmp_path / str(at)).mkdir()
        asyncio.run(run(World(tmp_path / str(at)), at))


def test_a_target_without_room_refuses_before_anybody_waits(world: World) -> None:
    async def run() -> None:
        store = world.known[TARGET]["handle"]._store

        async def refuse(*_: Any) -> None:
            raise DiskSpaceLow("no room")

        store.copies.begin = refuse
        moves = world.moves()
        moves.begin(world.row, TARGET)
        told = await world.ended(moves)
        assert (told["state"], told["reason"]) == ("broken off", "no room")
        assert "copies.fence" not in world.calls
        world.check()

    asyncio.run(run())


def test_a_full_disk_is_found_by_the_store(tmp_path: Path) -> None:
    async def run() -> None:
        with pytest.raises(DiskSpaceLow, match="host b"):
            await store_in(World(tmp_path), "b").call_part("copies", "begin", NUMBER, "m", 1 << 60)

    asyncio.run(run())


def test_a_topic_that_is_deleted_meanwhile_is_nowhere(world: World) -> None:
    async def run(at: str) -> None:
        moves = world.moves()
        moves.begin(world.row, TARGET)
        store = world.known[SOURCE if at == "fence" else TARGET]["handle"]._store
        real = getattr(store.copies, at)

        async def delete_first(*arguments: Any) -> Any:
            (row,) = world.catalog.delete(T)
            world.end(row)
            await world.known[row.store_id]["handle"]._store.remove(row.number)
            return await real(*arguments)

        setattr(store.copies, at, delete_first)
        await world.ended(moves)
        await world.moves().look_through()
        assert world.catalog.numbered(NUMBER) is None
        for name in world.known:
            assert not (world.path / name / "p" / str(NUMBER)).exists()
        assert not world.held

    asyncio.run(run("install"))


def test_one_that_moves_elsewhere_already_is_refused(world: World) -> None:
    async def run() -> None:
        moves = world.moves()
        moves.begin(world.row, TARGET)
        with pytest.raises(NotAllowedError, match="moving to store b already"):
            moves.begin(world.row, "c")
        await world.ended(moves)
        with pytest.raises(NotAllowedError, match="no store c"):
            moves.begin(world.row, "c")
        world.emptying = {SOURCE}
        with pytest.raises(NotAllowedError, match="to become empty"):
            moves.begin(world.row, SOURCE)

    asyncio.run(run())


@pytest.mark.parametrize("gone", [SOURCE, TARGET])
def test_a_node_that_dies_in_the_middle(world: World, gone: str) -> None:
    async def run() -> None:
        store = world.known[TARGET]["handle"]._store.copies
        real = store.pull

        async def die_first(*arguments: Any) -> Any:
            del world.known[gone]
            raise NotConnected(f"the node of {gone} is gone")

        store.pull = die_first
        kept = dict(world.known)
        moves = world.moves()
        moves.begin(world.row, TARGET)
        told = await world.ended(moves)
        assert told["state"] == "broken off"
        assert world.row.store_id == SOURCE
        world.known, store.pull = kept, real
        await world.moves().look_through()
        world.check()

    asyncio.run(run())


def test_a_catalog_that_does_not_answer_is_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [1, 2, 3]
    real = world.catalog.move_partition

    def fail(*arguments: Any) -> bool:
        if failures:
            failures.pop()
            raise BrokerPersistenceError("its disk is full")
        return real(*arguments)

    async def run() -> None:
        monkeypatch.setattr(world.catalog, "move_partition", fail)
        moves = world.moves()
        moves.begin(world.row, TARGET)
        assert (await world.ended(moves))["state"] == "moved"
        world.check()

    asyncio.run(run())


def test_somebody_who_opens_it_behind_the_fence_breaks_the_move_off(world: World) -> None:
    async def run() -> None:
        store = world.known[TARGET]["handle"]._store.copies
        real = store.install

        async def open_first(*arguments: Any) -> Any:
            await real(*arguments)
            abandon(Process(world.path / SOURCE / "p" / str(NUMBER)).log)

        store.install = open_first
        moves = world.moves()
        moves.begin(world.row, TARGET)
        assert "opened it at the source" in (await world.ended(moves))["reason"]
        world.check()

    asyncio.run(run())


def test_one_that_sleeps_moves_as_files_and_is_not_started(world: World) -> None:
    async def run() -> None:
        world.partition(world.row).log.close()
        world.handles.clear()
        moves = world.moves()
        moves.begin(world.row, TARGET)
        assert (await world.ended(moves))["state"] == "moved"
        assert not world.handles
        world.check()

    asyncio.run(run())


def test_one_that_was_never_opened_moves_as_a_row(world: World) -> None:
    async def run() -> None:
        (row,) = world.catalog.create(TopicName.parse("new"), 0, [SOURCE])
        moves = world.moves()
        moves.begin(row, TARGET)
        assert (await world.ended(moves))["state"] == "moved"
        found = world.catalog.numbered(row.number)
        assert found is not None
        assert (found.store_id, found.has_ledger) == (TARGET, False)

    asyncio.run(run())
