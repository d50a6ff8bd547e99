"""Puts idle partitions and dispatchers to sleep (ADR 0032).

It wakes those that time brings something for, and signals clients whose partitions are awake again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from pulsar_ray.actors.actor_system import ActorHandle
from pulsar_ray.actors.broker_actors import BrokerActors
from pulsar_ray.actors.parked_clients import ParkedClients
from pulsar_ray.actors.stores.stores import Stores
from pulsar_ray.actors.topic_actors import TopicActors
from pulsar_ray.broker.catalog.catalog import PartitionRow
from pulsar_ray.broker.catalog.idle_actors import Departure, Group, IdleActors
from pulsar_ray.broker.catalog.parked_dispatchers import SIGNAL_MS, ParkedDispatchers
from pulsar_ray.broker.catalog.wanted_topics import WantedTopics
from pulsar_ray.broker.partition.sleeping_partition import describe_unstored
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.broker.serving.sleeper import Idle, Retired
from pulsar_ray.clock import Clock
from pulsar_ray.config import Settings
from pulsar_ray.errors import (
    BrokerPersistenceError,
    PulsarException,
    Timeout,
    TooManyActiveActors,
    UnknownError,
)
from pulsar_ray.managed_ledger.store.wake_times import WAS_AWAKE
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.actor_names import parse_dispatcher_name, partition_name, topic_of_actor
from pulsar_ray.transport.cluster import SubscriptionRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")

LEAVES_AT_ONCE = 8
DUTIES_AT_ONCE = 2
DUE_AT_ONCE = 20
RETIRE_DEADLINE_S = 10.0
IDLE_DEADLINE_S = 2.0
DUTY_DEADLINE_S = 60.0
LEFT_DEADLINE_S = 60.0
STORE_DEADLINE_S = 5.0
PUT_OFF_MS = 60_000
ROOM_DEADLINE_S = 10.0
LOOK_AGAIN_S = 0.5
LEAST_IDLE_MS = 2_000
"""An actor that was used later is in use, also if others need its place."""


class Passivation:
    """Belongs to the controller; runs on its loop.

    While a partition leaves nobody starts it: `settled` waits. Whatever dies in the middle, an actor that has
    retired has all of its state on disk, and is started when it is needed.
    """

    def __init__(
        self,
        served: TopicActors,
        actors: BrokerActors,
        stores: Stores,
        clock: Clock,
        settings: Settings,
        *,
        was_restarted: bool,
        remove_topic: Callable[[str], Awaitable[None]],
    ) -> None:
        """`was_restarted`: a controller before this one may have signalled clients.

        `remove_topic` deletes a topic that nobody has used for as long as its policies say.
        """
        self._served = served
        self._actors = actors
        self._stores = stores
        self._clock = clock
        self._idle_ms = int(settings.idle_actor_passivation_seconds * 1000)
        self._idle = IdleActors()
        self._parked_dispatchers = ParkedDispatchers(
            clock.monotonic_ms() + SIGNAL_MS if was_restarted else None
        )
        self._leaving: dict[str, asyncio.Future[Any]] = {}
        self._slots = asyncio.Semaphore(LEAVES_AT_ONCE)
        self._duty_slots = asyncio.Semaphore(DUTIES_AT_ONCE)
        self._making_room = asyncio.Lock()
        self._on_duty: set[str] = set()
        self._duties: set[asyncio.Task[None]] = set()
        self._elections: set[asyncio.Task[None]] = set()
        self.parked_clients = ParkedClients(self._is_awake, self._elect)
        self._remove_topic = remove_topic
        self._wanted = WantedTopics(clock.monotonic_ms())
        self._to_look: set[int] = set()
        """Partitions that are to look, by number, and whose stores do not know it."""
        self._notes_were_read: set[Any] = set()
        """The stores, by their handles, that have read the notes of all who sleep."""

    # --- starting ---------------------------------------------------------------------------------

    async def start(self, partitions: Sequence[str], begin: Callable[[], T]) -> T:
        """Call `begin`, which starts actors of these partitions, once none of them is leaving.

        Where there is no room the longest idle of others leave first. Raises TooManyActiveActors if all are
        in use, and what `begin` raises.
        """
        deadline = asyncio.get_running_loop().time() + ROOM_DEADLINE_S
        self._wanted.asked(partitions, self._clock.monotonic_ms())
        while True:
            await self._settled(partitions)
            try:
                return self._begun(partitions, begin)
            except TooManyActiveActors as error:
                if not self._idle_ms or asyncio.get_running_loop().time() > deadline:
                    raise
                async with self._making_room:
                    may_come = await self._make_room(error.store_id, error.lacking, partitions)
                if not may_come:
                    raise

    def _begun(self, partitions: Sequence[str], begin: Callable[[], T]) -> T:
        # On duty for nobody but time until now: from here on they are in use.
        for partition in partitions:
            if partition in self._on_duty:
                self._on_duty.discard(partition)
                self.wake_parked(partition)
        return begin()

    async def _settled(self, partitions: Sequence[str]) -> None:
        while leaving := [self._leaving[each] for each in partitions if each in self._leaving]:
            await asyncio.wait(leaving)

    # --- topics that nobody uses --------------------------------------------------------------------

    def _is_wanted(self, partition: str) -> bool:
        is_asked_for = self._wanted.is_wanted(partition, self._clock.monotonic_ms())
        return is_asked_for or self.parked_clients.count(partition) > 0

    async def remove_unused(self, topic: str) -> bool:
        """Delete a topic if its partitions say in their farewells that nobody has used it.

        While they leave, and until it is deleted, nobody starts them. False if somebody uses it, or just now
        might: those that have left sleep then.
        """
        topics = self._served.topics
        rows = topics.rows_of(TopicName.parse(topic)) if topics.is_known(TopicName.parse(topic)) else []
        if not rows or any(row.name in self._leaving or self._is_wanted(row.name) for row in rows):
            return False
        removal = asyncio.get_running_loop().create_task(self._remove_unused(topic, rows))
        for row in rows:
            self._leaving[row.name] = removal
            removal.add_done_callback(partial(self._left, row.name))
        await asyncio.wait((removal,))
        return bool(not removal.cancelled() and removal.exception() is None and removal.result())

    async def _remove_unused(self, topic: str, rows: Sequence[PartitionRow]) -> bool:
        names = {row.name for row in rows}
        try:
            self._on_duty |= names  # nobody else is to hear that they are awake
            for row in rows:
                self._served.partition(row)
                group = self._group(row.name)
                departure = Departure(row.name, group.dispatchers, group.actor, with_clients=False)
                if not await self._left_unused(departure):
                    return False
        finally:
            self._on_duty -= names
        if any(self.parked_clients.count(row.name) for row in rows):
            return False
        await self._remove_topic(topic)
        event(logger, "deleted, for nobody has used it", topic=topic)
        return True

    async def _left_unused(self, departure: Departure) -> bool:
        """Let a partition leave; returns whether it was unused."""
        for name in departure.dispatchers:
            retired = await self._retired(name, departure, 0)
            if retired is None:
                return False
            self._served.dispatcher_left(name)
        if departure.actor is None:
            return False
        retired = await self._retired(departure.actor, departure, 0)
        if retired is None:
            return False
        await self._note(departure.partition, retired)
        return retired.is_unused

    # --- leaving ----------------------------------------------------------------------------------

    def report(self, name: str, idle: Idle) -> None:
        """Take in an actor's report that nobody has used it for long."""
        if name in self._actors.handles and self._idle_ms:
            self._idle.reported(name, idle)
            self._let_go(topic_of_actor(name))

    def _let_go(self, partition: str) -> None:
        departure = self._idle.departure(self._group(partition))
        if departure is not None and partition not in self._leaving:
            self._begin_leave(departure, self._idle_ms)

    def _group(self, partition: str) -> Group:
        actor = partition_name(partition)
        dispatchers = (name for name, (of, _, _) in self._served.dispatchers.items() if of == partition)
        handles = self._actors.handles
        running = tuple(name for name in dispatchers if name in handles)
        stays = self._parked_dispatchers.are_awaited(partition, handles, self._clock.monotonic_ms())
        return Group(partition, actor if actor in handles and not stays else None, running)

    def _begin_leave(self, departure: Departure, least_idle_ms: int) -> asyncio.Task[int]:
        partition = departure.partition
        leave = asyncio.get_running_loop().create_task(self._leave(departure, least_idle_ms))
        self._leaving[partition] = leave
        leave.add_done_callback(partial(self._left, partition))
        return leave

    async def leave_now(self, partition: str, *, with_clients: bool) -> None:
        """Let the actors of a partition leave that are not used at this moment."""
        group = self._group(partition)
        if group.actor is not None and partition not in self._leaving:
            departure = Departure(partition, group.dispatchers, group.actor, with_clients)
            await asyncio.wait((self._begin_leave(departure, 0),))

    async def hold(self, partition: str) -> asyncio.Future[Any]:
        """Let nobody start a partition before the returned future is done.

        Waits for a leave that is under way.
        """
        await self._settled([partition])
        held = self._leaving[partition] = asyncio.get_running_loop().create_future()
        held.add_done_callback(partial(self._left, partition))
        return held

    def _left(self, partition: str, leave: asyncio.Future[Any]) -> None:
        del self._leaving[partition]
        if not leave.cancelled() and (error := leave.exception()) is not None:
            logger.error("a leave of %s failed", partition, exc_info=error)
        if partition_name(partition) in self._actors.handles:
            # It stays: clients whose dispatchers have left all the same attach again.
            self.wake_parked(partition)
            # Others may have reported meanwhile.
            self._let_go(partition)

    async def _leave(self, departure: Departure, least_idle_ms: int) -> int:
        """Carry a departure out; returns how many processes have ended."""
        ended = 0
        async with self._slots:
            began_ms = self._clock.monotonic_ms()
            for name in departure.dispatchers:
                retired = await self._retired(name, departure, least_idle_ms)
                if retired is not None:
                    self._served.dispatcher_left(name)
                    if retired.clients:
                        self._parked_dispatchers.left(departure.partition, name)
                    ended += 1
            if departure.actor is not None and ended == len(departure.dispatchers):
                # Messages published since a dispatcher left are for clients that are parked by now.
                unused_ms = self._clock.monotonic_ms() - began_ms + 1 if ended else 0
                retired = await self._retired(departure.actor, departure, max(least_idle_ms, unused_ms))
                if retired is not None:
                    await self._note(departure.partition, retired)
                    ended += 1
        return ended

    async def _retired(self, name: str, departure: Departure, least_idle_ms: int) -> Retired | None:
        """Let an actor retire, and end it for good; None if it stays.

        Its name is free on return.
        """
        handle = self._actors.handles.get(name)
        self._idle.forget(name)
        if handle is None:
            return None
        try:
            retired: Retired | None = await handle.call(
                "retire", least_idle_ms, departure.with_clients, within_s=RETIRE_DEADLINE_S
            )
        except Timeout:
            # Nobody knows whether it serves on. If it does not answer at all it is killed, and starts again.
            await self._actors.restart_if_silent(name)
            return None
        except PulsarException:
            # It died, and starts again by itself; or it was ended for good.
            return None
        if retired is None or self._actors.handles.get(name) is not handle:
            return None
        self._actors.kill(name)
        _, subscription, is_durable = parse_dispatcher_name(name) or ("", "", True)
        of = subscription if is_durable else "readers"
        event(logger, "has gone to sleep", topic=departure.partition, subscription=of)
        await self._actors.name_is_free(name)
        return retired

    async def _note(self, partition: str, retired: Retired) -> None:
        """Let the store keep watch for what time brings to a partition that sleeps."""
        try:
            row = self._served.topics.partition(TopicName.parse(partition))
        except PulsarException as error:
            logger.warning("the stores read again when %s is to wake: %s", partition, error)
            self._notes_were_read.clear()
            return
        store = self._stores.known.get(row.store_id) if row is not None else None
        if row is not None and store is not None:
            # The note is in the partition's directory; a store that has missed this reads it there.
            await _ask_store(store, "slept", {row.number: retired.wake_at_ms})

    async def describe_sleeping(self, row: PartitionRow) -> dict[str, Any] | None:
        """Describe a partition that does not run.

        None if it runs, or its files do not say all of it. Raises WrongNode if its store is away.
        """
        await self._settled([row.name])
        if partition_name(row.name) in self._actors.handles:
            return None
        store = self._served.store_of(row)
        if not row.has_ledger:
            return describe_unstored()
        described: dict[str, Any] | None = await _ask_store(store, "describe", row.number)
        return described

    # --- making room ------------------------------------------------------------------------------

    async def _make_room(self, store_id: str, wanted: int, wanted_by: Sequence[str]) -> bool:
        """Let others leave; False if nobody did, and nobody might in a moment."""
        names = self._actors.beside(store_id)
        partitions = {topic_of_actor(name) for name in names} - set(wanted_by)
        await self._settled(sorted(partitions))
        groups = [self._group(partition) for partition in sorted(partitions)]
        handles = {name: self._actors.handles[name] for name in names if name in self._actors.handles}
        answers = await asyncio.gather(
            *(_asked(handle, "idle", within_s=IDLE_DEADLINE_S) for handle in handles.values())
        )
        idle = {name: each for name, each in zip(handles, answers, strict=True) if each is not None}
        chosen = self._idle.to_make_room(groups, idle, LEAST_IDLE_MS, wanted)
        leaves = [
            self._begin_leave(departure, LEAST_IDLE_MS)
            for departure in chosen
            if departure.partition not in self._leaving
        ]
        if leaves:
            await asyncio.wait(leaves)
            return True
        if any(not each.clients and 0 < each.idle_ms < LEAST_IDLE_MS for each in idle.values()):
            await asyncio.sleep(LOOK_AGAIN_S)
            return True
        return False

    # --- waking -----------------------------------------------------------------------------------

    async def wake_due(self) -> None:
        """Start what time brings something for, a few at a time; to be called often."""
        await self._have_looked()
        if self._duties:
            return
        self._notes_were_read &= {store["handle"] for store in self._stores.known.values()}
        for store in list(self._stores.known.values()):
            # Since this controller or the store was started, a note may have been missed.
            again = store["handle"] not in self._notes_were_read
            # Before the answer: a note that is missed meanwhile takes it back.
            self._notes_were_read.add(store["handle"])
            due = await _ask_store(store, "due", self._clock.now_ms(), DUE_AT_ONCE, again)
            if due is None:
                # The partitions that its lost answer has named are to be named again.
                self._notes_were_read.discard(store["handle"])
                continue
            for number, wake_at_ms in due.items():
                work = self._do_duty(store, number, was_awake=wake_at_ms == WAS_AWAKE)
                duty = asyncio.get_running_loop().create_task(work)
                self._duties.add(duty)
                duty.add_done_callback(self._duties.discard)

    async def look_again(self, rows: Iterable[PartitionRow]) -> None:
        """Have sleeping partitions look what is to be done, because their policies have changed.

        Stores that are away, or do not answer, are told when they are there again.
        """
        self._to_look |= {row.number for row in rows}
        await self._have_looked()

    async def _have_looked(self) -> None:
        """Let stores wake the partitions that are to look."""
        now_ms = self._clock.now_ms()
        by_store: dict[str, dict[int, int | None]] = {}
        for number in list(self._to_look):
            row = self._served.topics.catalog.numbered(number)
            if row is None or partition_name(row.name) in self._actors.handles:
                self._to_look.discard(number)
            elif row.store_id in self._stores.known:
                by_store.setdefault(row.store_id, {})[number] = now_ms
        for store_id, times in by_store.items():
            store = self._stores.known.get(store_id)
            if store is not None and await _has_noted(store, times):
                self._to_look -= times.keys()

    async def _do_duty(self, store: dict[str, Any], number: int, *, was_awake: bool) -> None:
        """Wake a partition for what is due.

        `was_awake`: it did not go to sleep, its process died.
        """
        try:
            row = self._served.topics.catalog.numbered(number)
        except PulsarException as error:
            # The store names it once only.
            logger.warning("partition %d is not woken yet for what is due: %s", number, error)
            await self._put_off(store, number)
            return
        if row is None:
            return
        async with self._duty_slots:
            await self._settled([row.name])
            if partition_name(row.name) in self._actors.handles:
                # A partition that is awake looks by itself.
                return
            self._on_duty.add(row.name)
            try:
                handle = self._served.partition(row)
                is_unused = await handle.call("trim_now", within_s=DUTY_DEADLINE_S)
                if is_unused:
                    await self._do_last_duty(store, row)
                    return
            except PulsarException as error:
                logger.warning("%s was not woken for what is due, or not in time: %s", row.name, error)
                await self._put_off(store, number)
            await self._end_duty(row.name)
            if was_awake:
                # It may have messages that nobody has signalled its parked clients for.
                self._wake_also_late(row.name)

    async def _put_off(self, store: dict[str, Any], number: int) -> None:
        """Have the store name a partition again in a while."""
        await _ask_store(store, "slept", {number: self._clock.now_ms() + PUT_OFF_MS})

    async def _do_last_duty(self, store: dict[str, Any], row: PartitionRow) -> None:
        """Delete the topic of a partition that nobody uses, unless another partition is used."""
        self._on_duty.discard(row.name)
        if not await self.remove_unused(row.topic):
            self._on_duty.add(row.name)
            await self._end_duty(row.name)
            await self._put_off(store, row.number)

    async def _end_duty(self, partition: str) -> None:
        """Let a partition leave again after its duty, unless somebody needs it by now."""
        if partition in self._on_duty:
            self._on_duty.discard(partition)
            group = self._group(partition)
            if group.actor is not None and partition not in self._leaving:
                departure = Departure(partition, (), group.actor, with_clients=False)
                await asyncio.wait((self._begin_leave(departure, 0),))

    def has_started(self, partition: str) -> None:
        """See Sleepers."""
        if partition not in self._on_duty:
            self.wake_parked(partition)

    # --- parked clients ---------------------------------------------------------------------------

    def _is_awake(self, partition: str) -> bool:
        if partition in self._leaving or partition in self._on_duty:
            return False
        if partition_name(partition) in self._actors.handles:
            return True
        if self._parked_dispatchers.is_unsignalled(partition, self._clock.monotonic_ms()):
            return True
        if self._served.topics.partition(TopicName.parse(partition)) is not None:
            return False
        self._parked_dispatchers.forget(partition)
        return True

    def left_consumers(self, dispatcher: str) -> tuple[int, ...]:
        """See Sleepers."""
        return self.parked_clients.consumers.take_left(dispatcher)

    def wake_parked(self, partition: str) -> None:
        """See Sleepers."""
        self._parked_dispatchers.signalled(partition, self._clock.monotonic_ms())
        self.parked_clients.wake(partition)

    def _wake_also_late(self, partition: str) -> None:
        """Wake parked clients, also those that ask only in a while."""
        self._parked_dispatchers.unsignalled(partition, self._clock.monotonic_ms())
        self.wake_parked(partition)

    def subscription_gone(self, partition: str) -> None:
        """Have parked consumers attach again, those of a removed subscription to be told of that.

        One that is about to park, and asks in a moment, learns of it, too.
        """
        self._wake_also_late(partition)

    async def consumer_left(self, dispatcher: str, incarnation: int, calls_election: bool) -> None:
        """Let nobody wait for a consumer that was closed while parked.

        A dispatcher that cannot start just now, or falls asleep, is asked again: others wait for the word.
        """
        deadline = asyncio.get_running_loop().time() + LEFT_DEADLINE_S
        while asyncio.get_running_loop().time() < deadline:
            await self._settled([topic_of_actor(dispatcher)])
            handle = self._actors.handles.get(dispatcher)
            if handle is None:
                self.parked_clients.consumer_left(dispatcher, incarnation, calls_election=calls_election)
                return
            if await _has_taken(handle, "consumer_left", {"incarnation": incarnation}):
                return
            await asyncio.sleep(LOOK_AGAIN_S)

    async def client_died(self, client_id: str, number: int) -> None:
        """Let nobody wait for the consumers of a process that has died."""
        for consumer in self.parked_clients.died(client_id, number):
            await self.consumer_left(*consumer)

    def _elect(self, dispatchers: list[str]) -> None:
        for dispatcher in dispatchers:
            election = asyncio.get_running_loop().create_task(self._start_to_elect(dispatcher))
            self._elections.add(election)
            election.add_done_callback(self._elections.discard)

    async def _start_to_elect(self, dispatcher: str) -> None:
        """Start a dispatcher that is to elect an active consumer."""
        found = parse_dispatcher_name(dispatcher)
        try:
            row = self._served.topics.partition(TopicName.parse(found[0])) if found is not None else None
            if found is None or row is None:
                return
            request = SubscriptionRequest(row.name, found[1], found[2], "latest", create=False)
            await self.start([row.name], partial(self._served.dispatcher_started, row, request))
        except PulsarException as error:
            # The clients that wait ask again, and it is tried again.
            logger.warning("%s was not woken to elect its active consumer: %s", dispatcher, error)


async def _has_taken(handle: ActorHandle, method: str, arguments: dict[str, Any]) -> bool:
    """Whether an actor has carried out a control call, or never will."""
    try:
        await handle.call("call", method, arguments, within_s=STORE_DEADLINE_S)
    except (UnknownError, BrokerPersistenceError):
        return False  # nothing that it meant to say
    except PulsarException as error:
        return not error.retriable
    return True


async def _asked(
    handle: ActorHandle, method: str, *arguments: Any, within_s: float = STORE_DEADLINE_S
) -> Any:
    """Return the answer of an actor; None if it does not answer."""
    try:
        return await handle.call(method, *arguments, within_s=within_s)
    except PulsarException:
        return None


async def _has_noted(store: dict[str, Any], times: dict[int, int | None]) -> bool:
    """Whether a store has taken in when sleeping partitions are to be woken."""
    try:
        await store["handle"].call("call_part", "sleeping", "slept", times, within_s=STORE_DEADLINE_S)
    except PulsarException:
        return False
    return True


async def _ask_store(store: dict[str, Any], method: str, *arguments: Any) -> Any:
    """Return what a store says of its sleeping partitions; None if it does not answer."""
    return await _asked(store["handle"], "call_part", "sleeping", method, *arguments)
