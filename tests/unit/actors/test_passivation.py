"""The controller's part of sleeping, with actors that are imitated in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from pulsar_ray.actors import passivation
from pulsar_ray.actors.passivation import Passivation
from pulsar_ray.broker.catalog.administration.change_logs import ChangeLogs
from pulsar_ray.broker.catalog.catalog import PartitionRow
from pulsar_ray.broker.catalog.topic_ending import ServedTopics, TopicEnding
from pulsar_ray.broker.catalog.wanted_topics import WANTED_MS
from pulsar_ray.broker.serving.sleeper import Idle, Retired
from pulsar_ray.config import Settings
from pulsar_ray.errors import (
    BrokerPersistenceError,
    Moved,
    NotAllowedError,
    NotConnected,
    ServiceUnitNotReady,
    SubscriptionNotFound,
    Timeout,
    TooManyActiveActors,
)
from pulsar_ray.managed_ledger.store.wake_times import WAS_AWAKE
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.manual_clock import ManualClock
from pulsar_ray.transport.cluster import SubscriptionRequest

T = "persistent://public/default/t"
U = "persistent://public/default/u"
UNUSED = Idle(60_000, 0, can_park=True)


class FakeHandle:
    """An ActorHandle; the method `name` of the actor is `_name` here."""

    async def call(self, method: str, *arguments: Any, within_s: float | None = None) -> Any:
        return await getattr(self, f"_{method}")(*arguments)


class FakeActor(FakeHandle):
    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self.answer: Retired | BaseException | None = Retired()
        self.idle_answer = UNUSED
        self.gate = asyncio.Event()
        self.gate.set()
        self.call_errors: list[Exception] = []

    async def _retire(self, least_idle_ms: int, with_clients: bool) -> Retired | None:
        self._world.log.append(f"retire {self.name} {least_idle_ms}")
        await self.gate.wait()
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    async def _idle(self) -> Idle:
        return self.idle_answer

    async def _call(self, method: str, arguments: dict[str, Any]) -> None:
        self._world.log.append(f"{method} {arguments} {self.name}")
        if self.call_errors:
            raise self.call_errors.pop()

    async def _trim_now(self) -> bool:
        self._world.log.append(f"trim {self.name}")
        return isinstance(self.answer, Retired) and self.answer.is_unused


class FakeStore(FakeHandle):
    def __init__(self, world: World) -> None:
        self.due_numbers: list[int] = []
        self.due_ms = 1
        self.read_again: list[bool] = []
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        """Called once while it is asked what is due."""
        self.is_silent = False
        self._world = world

    async def _call_part(self, part: str, method: str, *arguments: Any) -> Any:
        assert part == "sleeping"
        return await getattr(self, f"_{method}")(*arguments)

    async def _slept(self, times: dict[int, int | None]) -> None:
        if self.is_silent:
            raise Timeout("no answer")
        self._world.log.append(f"slept {times}")

    async def _due(self, now_ms: int, most: int, again: bool) -> dict[int, int]:
        self.read_again.append(again)
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            await meanwhile()
        due, self.due_numbers = self.due_numbers, []
        if self.is_silent:
            raise Timeout("no answer")
        return dict.fromkeys(due, self.due_ms)


class World:
    """Stands for BrokerActors, TopicActors, Stores and the catalog at once."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.handles: dict[str, FakeActor] = {}
        self.dispatchers: dict[str, tuple[str, str, bool]] = {}
        self.dispatcher_left = self.dispatchers.pop
        self.rows = {T: PartitionRow(T, 1, T, -1, "s", True), U: PartitionRow(U, 2, U, -1, "s", True)}
        self.store = FakeStore(self)
        self.known = {"s": {"handle": self.store}}
        self.topics = self
        self.catalog = self
        self.limit = 10
        self.when_started: Callable[[str], None] = lambda _: None
        self.unreadable = 0
        """How often the catalog's disk fails from now on."""
        self.left_consumers: Callable[[str], tuple[int, ...]] = lambda _: ()

    # BrokerActors
    async def name_is_free(self, name: str) -> None:
        assert name not in self.handles

    def kill(self, name: str) -> None:
        self.log.append(f"kill {name}")
        del self.handles[name]

    def beside(self, store_id: str) -> list[str]:
        return list(self.handles)

    async def restart_if_silent(self, name: str) -> bool:
        self.log.append(f"probe {name}")
        return True

    # TopicActors
    def partition(self, row: Any) -> Any:
        if not isinstance(row, PartitionRow):
            self.read()
            return self.rows.get(row.full)
        if len(self.handles) >= self.limit:
            raise TooManyActiveActors("full", "s", len(self.handles) + 1 - self.limit)
        if row.name not in self.handles:
            self.handles[row.name] = FakeActor(self, row.name)
            self.when_started(row.name)
        return self.handles[row.name]

    def dispatcher_started(self, row: PartitionRow, request: SubscriptionRequest) -> str:
        self.partition(row)
        name = f"{row.name} -> {request.subscription}"
        self.log.append(f"start {name} without {self.left_consumers(name)}")
        self.handles[name] = FakeActor(self, name)
        return name

    def is_known(self, name: TopicName) -> bool:
        return name.full in self.rows

    async def settled(self, *partitions: str) -> None:
        """There is no object store."""

    def rows_of(self, name: TopicName) -> list[PartitionRow]:
        return [self.rows[name.full]]

    async def connected(self, row: PartitionRow) -> list[str]:
        return []

    def read(self) -> None:
        if self.unreadable:
            self.unreadable -= 1
            raise BrokerPersistenceError("the catalog cannot be read")

    def numbered(self, number: int) -> PartitionRow | None:
        self.read()
        return next((row for row in self.rows.values() if row.number == number), None)

    # what tests do
    def run(self, partition: str, *subscriptions: str) -> None:
        self.partition(self.rows[partition])
        for subscription in subscriptions:
            name = f"{partition} -> {subscription}"
            self.handles[name] = FakeActor(self, name)
            self.dispatchers[name] = (partition, subscription, True)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(passivation, "LOOK_AGAIN_S", 0.001)
    return made


def controller_part(
    world: World, clock: ManualClock | None = None, *, was_restarted: bool = False
) -> Passivation:
    async def remove(topic: str) -> None:
        world.log.append(f"delete {topic}")
        await asyncio.sleep(0)
        del world.rows[topic]

    stub: Any = world
    part = Passivation(
        stub,
        stub,
        stub,
        clock or ManualClock(),
        Settings(),
        was_restarted=was_restarted,
        remove_topic=remove,
    )
    world.when_started, world.left_consumers = part.has_started, part.left_consumers
    return part


async def unused_topics(world: World) -> Passivation:
    """The controller's part, some time after the start, and what it needs to delete topics."""
    clock = ManualClock()
    part = controller_part(world, clock)
    clock.advance(WANTED_MS + 1)
    return part


async def await_wake(part: Passivation, addresses: list[str], timeout_s: float = 60) -> list[str]:
    return await part.parked_clients.await_wake("c", dict.fromkeys(addresses, ()), timeout_s)


async def idle_actors(part: Passivation, world: World) -> None:
    """Report all actors as idle, and wait for what comes of it."""
    for name in list(world.handles):
        part.report(name, world.handles[name].idle_answer)
    await quiet(part)


async def quiet(part: Passivation) -> None:
    for _ in range(50):
        await asyncio.sleep(0)
    while part._leaving or part._duties:
        await asyncio.sleep(0.001)


def test_dispatchers_leave_before_their_partition(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        world.run(T, "a", "b")
        world.handles[T].answer = Retired(wake_at_ms=77)
        await idle_actors(part, world)
        assert not world.handles
        assert not world.dispatchers
        assert [line for line in world.log if line.startswith("retire")][-1] == f"retire {T} 60000"
        assert world.log[-1] == "slept {1: 77}"

    asyncio.run(run())


def test_a_partition_stays_if_a_dispatcher_does(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        world.run(T, "a", "b")
        world.handles[f"{T} -> b"].answer = None
        await idle_actors(part, world)
        assert sorted(world.handles) == [T, f"{T} -> b"]
        assert f"retire {T} 60000" not in world.log

    asyncio.run(run())


def test_nobody_starts_what_is_leaving(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        world.run(T)
        former = world.handles[T]
        former.gate.clear()
        part.report(T, UNUSED)
        await asyncio.sleep(0)
        started = asyncio.ensure_future(part.start([T], lambda: world.partition(world.rows[T])))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not started.done()
        former.gate.set()
        assert await started is not former
        assert world.handles[T] is not former

    asyncio.run(run())


def test_two_reports_are_one_leave(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        world.run(T)
        part.report(T, UNUSED)
        part.report(T, UNUSED)
        await quiet(part)
        assert world.log.count(f"retire {T} 60000") == 1

    asyncio.run(run())


@pytest.mark.parametrize("error", [NotConnected("it restarts"), Timeout("no answer")])
def test_an_actor_that_dies_or_freezes_in_the_middle_stays_known(world: World, error: Exception) -> None:
    async def run() -> None:
        part = controller_part(world)
        world.run(T)
        world.handles[T].answer = error
        await idle_actors(part, world)
        assert T in world.handles
        assert f"kill {T}" not in world.log
        assert (f"probe {T}" in world.log) == isinstance(error, Timeout)
        # It reports again later, and leaves.
        world.handles[T].answer = Retired()
        await idle_actors(part, world)
        assert not world.handles

    asyncio.run(run())


def test_a_topic_that_is_deleted_and_made_anew_meanwhile_keeps_its_new_actor(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        world.run(T)
        former = world.handles[T]
        former.gate.clear()
        part.report(T, UNUSED)
        await asyncio.sleep(0)
        new = world.handles[T] = FakeActor(world, T)
        former.gate.set()
        await quiet(part)
        assert world.handles[T] is new

    asyncio.run(run())


def test_a_report_of_an_actor_that_is_gone_changes_nothing(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        part.report(T, UNUSED)
        await quiet(part)
        assert world.log == []

    asyncio.run(run())


def test_the_longest_idle_makes_room(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        world.limit = 1
        world.run(T)
        world.handles[T].idle_answer = Idle(3000, 0, can_park=True)
        await part.start([U], lambda: world.partition(world.rows[U]))
        assert list(world.handles) == [U]

    asyncio.run(run())


def test_nobody_makes_room_while_in_use(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        world.limit = 1
        world.run(T)
        world.handles[T].idle_answer = Idle(3000, 1, can_park=False)
        with pytest.raises(TooManyActiveActors):
            await part.start([U], lambda: world.partition(world.rows[U]))
        assert list(world.handles) == [T]

    asyncio.run(run())


def test_what_is_due_is_started_for_its_duty_and_sleeps_again(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        world.store.due_numbers = [1, 99]
        await part.wake_due()
        await quiet(part)
        assert world.log[0] == f"trim {T}"
        assert not world.handles

    asyncio.run(run())


def test_a_partition_on_duty_stays_if_somebody_needs_it(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        world.store.due_numbers = [1]
        await part.wake_due()
        while T not in world.handles:
            await asyncio.sleep(0)
        await part.start([T], lambda: world.partition(world.rows[T]))
        await quiet(part)
        assert T in world.handles

    asyncio.run(run())


def test_stores_read_their_notes_again_of_which_one_was_not_told(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        await part.wake_due()
        world.run(T)
        world.unreadable = 1
        await part.leave_now(T, with_clients=False)
        assert T not in world.handles
        assert not any(line.startswith("slept") for line in world.log)
        await part.wake_due()
        assert world.store.read_again == [True, True]

    asyncio.run(run())


def test_a_note_that_is_missed_while_a_store_reads_its_notes_is_read_again(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        world.run(T)
        world.unreadable = 1
        world.store.meanwhile = lambda: part.leave_now(T, with_clients=False)
        await part.wake_due()
        await part.wake_due()
        assert world.store.read_again == [True, True]

    asyncio.run(run())


@pytest.mark.parametrize("is_away", [True, False])
def test_partitions_whose_policies_changed_while_their_store_was_away_look_later(
    world: World, is_away: bool
) -> None:
    async def run() -> None:
        part = controller_part(world)
        world.run(U)
        if is_away:
            world.known = {}
        world.store.is_silent = True
        await part.look_again(world.rows.values())
        world.known, world.store.is_silent = {"s": {"handle": world.store}}, False
        for _ in range(2):
            await part.wake_due()
        assert world.log == [f"slept {{1: {ManualClock().now_ms()}}}"], (
            "the one that is awake looks by itself"
        )

    asyncio.run(run())


def test_a_store_whose_answer_was_lost_is_asked_for_all_that_is_due_again(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        await part.wake_due()
        world.store.is_silent = True
        await part.wake_due()
        world.store.is_silent = False
        await part.wake_due()
        await part.wake_due()
        assert world.store.read_again == [True, False, True, False]

    asyncio.run(run())


@pytest.mark.parametrize("obstacle", ["no room", "an unreadable catalog"])
def test_a_duty_that_cannot_begin_is_put_off(world: World, obstacle: str) -> None:
    async def run() -> None:
        part = controller_part(world)
        if obstacle == "no room":
            world.limit = 0
        else:
            world.unreadable = 1
        world.store.due_numbers = [1]
        await part.wake_due()
        await quiet(part)
        (line,) = world.log
        assert line.startswith("slept {1: ")

    asyncio.run(run())


def test_parked_clients_are_told_of_what_wakes(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        addresses = [f"{T} -> s", f"{U} -> s"]
        waiting = asyncio.ensure_future(await_wake(part, addresses))
        await asyncio.sleep(0)
        world.run(U)
        assert await waiting == [f"{U} -> s"]
        # Level-triggered: asked late, the answer is the same.
        assert await await_wake(part, addresses) == [f"{U} -> s"]
        assert await await_wake(part, [f"{T} -> s"], 0.001) == []
        assert not part.parked_clients._waiters

    asyncio.run(run())


def test_a_topic_that_sleeps_is_not_deleted_while_its_consumers_wait(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        ending = TopicEnding(
            cast("ServedTopics", world), cast("ChangeLogs", None), part.parked_clients.consumers.at
        )
        waiting = asyncio.ensure_future(await_wake(part, [f"{T} -> s", f"{T} -> r"]))
        await asyncio.sleep(0)
        with pytest.raises(NotAllowedError, match=f"2 connected.*a consumer of 'r' on {T}"):
            await ending.delete_topic(T, False)
        world.run(T)
        await waiting
        assert part.parked_clients.count(T) == 0

    asyncio.run(run())


def test_a_partition_on_duty_wakes_no_parked_client(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        waiting = asyncio.ensure_future(await_wake(part, [f"{T} -> s"], 0.2))
        world.store.due_numbers = [1]
        await part.wake_due()
        await quiet(part)
        assert f"trim {T}" in world.log
        assert await waiting == []

    asyncio.run(run())


def test_the_clients_of_a_partition_that_was_awake_when_it_died_are_woken_by_its_duty(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        waiting = asyncio.ensure_future(await_wake(part, [f"{T} -> s"], 5.0))
        world.store.due_numbers, world.store.due_ms = [1], WAS_AWAKE
        await part.wake_due()
        await quiet(part)
        assert await waiting == [f"{T} -> s"]
        # One that asks a moment later has missed nothing, whether it sleeps again by then or not.
        assert not world.handles
        assert await await_wake(part, [f"{T} -> s"]) == [f"{T} -> s"]
        assert await await_wake(part, [f"{U} -> s"], 0.001) == []

    asyncio.run(run())


def test_a_newer_call_of_a_client_ends_the_one_before(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        first = asyncio.ensure_future(await_wake(part, [f"{T} -> s"]))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(await_wake(part, [f"{T} -> s"]))
        assert await first == []
        world.run(T)
        assert await second == [f"{T} -> s"]

    asyncio.run(run())


def test_a_client_of_a_deleted_topic_is_not_kept_waiting(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        del world.rows[T]
        assert await await_wake(part, [f"{T} -> s"]) == [f"{T} -> s"]

    asyncio.run(run())


def test_a_woken_partition_waits_for_its_parked_consumers(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        world.run(T, "s")
        for actor in world.handles.values():
            actor.idle_answer = Idle(60_000, 1, can_park=True)
            actor.answer = Retired(clients=1)
        await idle_actors(part, world)
        assert not world.handles
        # Somebody publishes, and the consumer's process does not come.
        await part.start([T], lambda: world.partition(world.rows[T]))
        await idle_actors(part, world)
        assert list(world.handles) == [T]
        # It has come, and all are idle again.
        world.run(T, "s")
        await idle_actors(part, world)
        assert not world.handles

    asyncio.run(run())


def test_a_restarted_controller_lets_no_partition_leave_at_once(world: World) -> None:
    async def run() -> None:
        part = controller_part(world, was_restarted=True)
        world.run(T, "s")
        await idle_actors(part, world)
        assert list(world.handles) == [T]

    asyncio.run(run())


S = f"{T} -> s"


def test_a_consumer_that_is_closed_while_parked_is_not_waited_for(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        await part.consumer_left(S, 7, True)
        await quiet(part)
        assert world.log == [], "nobody else waits for it"
        world.dispatcher_started(world.rows[T], SubscriptionRequest(T, "s", True, "latest"))
        # It runs by now: it is told itself.
        await part.consumer_left(S, 8, False)
        assert world.log == [f"start {S} without (7,)", f"consumer_left {{'incarnation': 8}} {S}"]

    asyncio.run(run())


@pytest.mark.parametrize(
    "error",
    [
        ServiceUnitNotReady("its partition did not answer"),
        Moved("it has gone to sleep"),
        NotConnected("it restarts"),
    ],
)
def test_a_dispatcher_that_could_not_take_the_word_is_told_again(world: World, error: Exception) -> None:
    async def run() -> None:
        part = controller_part(world)
        world.run(T, "s")
        world.handles[S].call_errors = [error]
        await part.consumer_left(S, 7, False)
        assert world.log == [f"consumer_left {{'incarnation': 7}} {S}"] * 2

    asyncio.run(run())


def test_a_dispatcher_that_is_no_more_is_told_once(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        world.run(T, "s")
        world.handles[S].call_errors = [SubscriptionNotFound("deleted")]
        await part.consumer_left(S, 7, False)
        assert len(world.log) == 1

    asyncio.run(run())


def test_a_dispatcher_that_falls_asleep_instead_starts_without_who_left(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        world.run(T, "s")
        world.handles[S].call_errors = [Moved("it has gone to sleep")] * 100
        telling = asyncio.ensure_future(part.consumer_left(S, 7, False))
        while not world.log:
            await asyncio.sleep(0.001)
        world.handles.clear()
        await telling
        world.dispatcher_started(world.rows[T], SubscriptionRequest(T, "s", True, "latest"))
        assert world.log[-1] == f"start {S} without (7,)"

    asyncio.run(run())


def test_a_dispatcher_is_started_to_elect_the_next_active_consumer(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        clients = part.parked_clients
        active = asyncio.ensure_future(clients.await_wake("active", {S: [(7, True)]}, 60))
        stands_by = asyncio.ensure_future(clients.await_wake("stand-by", {S: [(8, False)]}, 60))
        await asyncio.sleep(0)
        await part.consumer_left(S, 7, True)
        assert await stands_by == [S]
        assert world.log == [f"start {S} without (7,)"]
        assert await active == [S]

    asyncio.run(run())


def test_consumers_of_a_process_that_dies_leave(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        clients = part.parked_clients
        life = asyncio.ensure_future(clients.stay("active", 1))
        former = asyncio.ensure_future(clients.await_wake("active", {S: [(7, True)]}, 60))
        stands_by = asyncio.ensure_future(clients.await_wake("stand-by", {S: [(8, False)]}, 60))
        active = asyncio.ensure_future(clients.await_wake("active", {S: [(7, True)]}, 60))
        await asyncio.sleep(0)
        await quiet(part)
        assert world.log == []
        await part.client_died("active", 1)
        assert await stands_by == [S]
        assert world.log == [f"start {S} without (7,)"]
        await asyncio.gather(former, active, life)
        await part.client_died("active", 1)
        assert len(world.log) == 1

    asyncio.run(run())


def test_a_process_that_dies_between_two_calls_has_left_as_well(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        clients = part.parked_clients
        life = asyncio.ensure_future(clients.stay("dying", 1))
        for _ in range(2):
            assert await clients.await_wake("dying", {S: [(7, True)]}, 0.001) == []
        stands_by = asyncio.ensure_future(clients.await_wake("stand-by", {S: [(8, False)]}, 60))
        await asyncio.sleep(0)
        await part.client_died("dying", 1)
        await life
        assert await stands_by == [S]
        assert world.log == [f"start {S} without (7,)"]

    asyncio.run(run())


def test_a_client_that_stays_again_after_a_restart_is_there_once(world: World) -> None:
    async def run() -> None:
        clients = controller_part(world).parked_clients
        first = asyncio.ensure_future(clients.stay("c", 1))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(clients.stay("c", 2))
        assert await clients.await_wake("c", {S: [(7, True)]}, 0.001) == []
        await first
        assert clients.died("c", 1) == []
        assert not second.done()
        assert clients.died("c", 2) == [(S, 7, True)]
        await second
        assert clients.died("c", 2) == []

    asyncio.run(run())


def test_a_death_is_noticed_too_late_for_the_dispatcher_that_has_started(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        life = asyncio.ensure_future(part.parked_clients.stay("c", 1))
        waiting = asyncio.ensure_future(part.parked_clients.await_wake("c", {S: [(7, False)]}, 60))
        await asyncio.sleep(0)
        world.dispatcher_started(world.rows[T], SubscriptionRequest(T, "s", True, "latest"))
        assert await waiting == [S]
        await part.client_died("c", 1)
        await life
        assert world.log[-1] == f"consumer_left {{'incarnation': 7}} {S}"
        assert len(world.log) == 2

    asyncio.run(run())


def test_an_election_that_finds_no_room_is_tried_again_with_the_next_call(world: World) -> None:
    async def run() -> None:
        part = controller_part(world)
        world.limit = 0
        waiting = asyncio.ensure_future(part.parked_clients.await_wake("c", {S: [(8, False)]}, 60))
        await asyncio.sleep(0)
        await part.consumer_left(S, 7, True)
        while part._elections:
            await asyncio.sleep(0.001)
        world.limit = 10
        again = part.parked_clients.await_wake("c", {S: [(8, False)]}, 60)
        assert await again == [S]
        assert world.log == [f"start {S} without (7,)"]
        assert await waiting == [S]

    asyncio.run(run())


def test_a_topic_is_deleted_once_its_farewell_says_that_nobody_has_used_it(world: World) -> None:
    async def run() -> None:
        part = await unused_topics(world)
        world.run(T)
        world.handles[T].answer = Retired(wake_at_ms=5, is_unused=True)
        assert await part.remove_unused(T)
        assert world.log == [f"retire {T} 0", f"kill {T}", "slept {1: 5}", f"delete {T}"]
        assert not await part.remove_unused(T), "a late report of a topic that is gone"

    asyncio.run(run())


@pytest.mark.parametrize("answer", [None, Retired(), NotConnected("it restarts")])
def test_a_topic_that_is_used_or_whose_farewell_is_lost_stays(world: World, answer: Any) -> None:
    async def run() -> None:
        part = await unused_topics(world)
        world.run(T)
        world.handles[T].answer = answer
        assert not await part.remove_unused(T)
        assert T in world.rows
        assert not part._on_duty
        assert not part._leaving

    asyncio.run(run())


def test_a_topic_whose_dispatcher_stays_is_kept(world: World) -> None:
    async def run() -> None:
        part = await unused_topics(world)
        world.run(T, "s")
        world.handles[T].answer = Retired(is_unused=True)
        world.handles[S].answer = None
        assert not await part.remove_unused(T)
        assert world.log == [f"retire {S} 0"]

    asyncio.run(run())


def test_a_topic_that_somebody_waits_for_or_asked_for_is_kept(world: World) -> None:
    async def run() -> None:
        part = await unused_topics(world)
        waiting = asyncio.ensure_future(await_wake(part, [S]))
        await asyncio.sleep(0)
        assert not await part.remove_unused(T)
        waiting.cancel()
        await asyncio.sleep(0)
        await part.start([T], lambda: world.run(T))
        world.handles[T].answer = Retired(is_unused=True)
        assert not await part.remove_unused(T)
        assert world.log == []

    asyncio.run(run())


def test_whoever_asks_while_a_topic_is_being_deleted_waits_until_it_is(world: World) -> None:
    async def run() -> None:
        part = await unused_topics(world)
        world.run(T)
        actor = world.handles[T]
        actor.answer = Retired(is_unused=True)
        actor.gate.clear()
        removing = asyncio.ensure_future(part.remove_unused(T))
        while not world.log:
            await asyncio.sleep(0)
        starting = asyncio.ensure_future(part.start([T], lambda: T in world.rows))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not starting.done()
        actor.gate.set()
        assert await removing
        assert await starting is False, "it may be created anew by now"

    asyncio.run(run())


def test_an_unused_topic_that_sleeps_is_woken_to_be_deleted(world: World) -> None:
    async def run() -> None:
        part = await unused_topics(world)
        sleeping: dict[str, FakeActor] = {}

        def started(partition: str) -> None:
            sleeping[partition] = world.handles[partition]
            world.handles[partition].answer = Retired(is_unused=True)

        world.when_started = started
        world.store.due_numbers = [1]
        await part.wake_due()
        await quiet(part)
        assert world.log[0] == f"trim {T}"
        assert world.log[-1] == f"delete {T}"
        assert not world.handles
        assert not part._on_duty

    asyncio.run(run())


def test_a_sleeping_topic_that_may_not_be_deleted_yet_is_put_off(world: World) -> None:
    async def run() -> None:
        part = await unused_topics(world)
        part._wanted.asked([T], part._clock.monotonic_ms())
        world.when_started = lambda _: setattr(world.handles[T], "answer", Retired(is_unused=True))
        world.store.due_numbers = [1]
        await part.wake_due()
        await quiet(part)
        now_ms = part._clock.now_ms()
        assert world.log[-1] == f"slept {{1: {now_ms + passivation.PUT_OFF_MS}}}"
        assert T in world.rows
        assert not world.handles

    asyncio.run(run())
