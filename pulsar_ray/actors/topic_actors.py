"""The partition and dispatcher actors of topics, each started beside its data."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pulsar_ray.actors.actor_system import ActorKind
from pulsar_ray.actors.broker_actors import BrokerActors
from pulsar_ray.actors.policy_delivery import PolicyDelivery
from pulsar_ray.actors.stores.stores import Stores
from pulsar_ray.broker.catalog.catalog import PartitionRow
from pulsar_ray.broker.catalog.topic_ending import users_of
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.config import Settings
from pulsar_ray.errors import Moved, PulsarException, WrongNode
from pulsar_ray.managed_ledger.log.partition_directories import TopicIdentity
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.actor_names import (
    compactor_name,
    dispatcher_name,
    parse_dispatcher_name,
    parse_partition_name,
    parse_tracker_name,
    partition_name,
    topic_of_actor,
    tracker_name,
)
from pulsar_ray.transport.cluster import RouteFields, SubscriptionRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")

CALL_DEADLINE_S = 30.0
LOOK_UPS = 10
"""How often a topic that is deleted in between is looked up."""


async def look_up_again(look_up: Callable[[], Awaitable[T]]) -> T:
    """Look a topic up, anew if it was deleted in between for being unused.

    Raises Moved if it was each time: the caller asks again.
    """
    for _ in range(LOOK_UPS - 1):
        with contextlib.suppress(Moved):
            return await look_up()
    return await look_up()


class Sleepers(Protocol):
    """Knows which partitions sleep, and which clients wait for them."""

    def has_started(self, partition: str) -> None:
        """Heed that a partition's actor is created."""

    def wake_parked(self, partition: str) -> None:
        """Wake the parked clients of a partition that is gone or begins anew."""

    def left_consumers(self, dispatcher: str) -> tuple[int, ...]:
        """Return once the consumers that a dispatcher of this name need not wait for."""
        ...


class TopicActors:
    """Belongs to the controller. `dispatchers` are (partition, subscription, durable) by actor name."""

    def __init__(
        self,
        topics: TopicRegistry,
        stores: Stores,
        actors: BrokerActors,
        settings: Settings,
        policies: PolicyDelivery,
        sleepers: Callable[[], Sleepers],
    ) -> None:
        """`sleepers` returns what is made later and told of what comes and goes."""
        self.topics = topics
        self._policies = policies
        self._stores = stores
        self._actors = actors
        self._settings = settings
        self.dispatchers: dict[str, tuple[str, str, bool]] = {}
        self.trackers: dict[str, tuple[str, str]] = {}
        """(partition, subscription) of the trackers that run, by actor name; without one what compacts it."""
        self._sleepers = sleepers

    def find_running(self) -> None:
        """After a restart of this actor: the partitions and dispatchers that run already."""
        for name in self._actors.system.names():
            found = parse_dispatcher_name(name)
            tracked = parse_tracker_name(name)
            if found is not None:
                self.dispatchers[name] = found
            elif tracked is not None:
                self.trackers[name] = tracked
            elif "://" not in name:
                continue
            topic = TopicName.parse(topic_of_actor(name))
            if (
                found is None
                and tracked is None
                and not topic.is_persistent
                and self.topics.catalog.partition(topic.full) is None
            ):
                self.topics.unstored.add(topic.full)
            row = self.topics.partition(topic)
            # A partition that lies in no store runs beside the first one.
            store_id = (row.store_id if row else "") or next(iter(self._stores.known), "")
            self._actors.found(name, store_id)

    def started(self, rows: list[PartitionRow]) -> list[RouteFields]:
        """Start those that do not run and are not away. Raises TooManyActiveActors before the first."""
        self._stores.look_for_draining()
        rows = [self._as_it_is(row) for row in rows]
        away: dict[str, str] = {}
        new: list[dict[str, Any]] = []
        for row in rows:
            try:
                if partition_name(row.name) not in self._actors.handles:
                    new.append(self._store_to_start_beside(row))
            except WrongNode as error:
                away[row.name] = error.text
        for store in new:
            self._actors.check_room(store, new.count(store))
        for row in rows:
            if row.name not in away:
                self.partition(row)
        return self._routes(rows, away)

    def routes(self, rows: list[PartitionRow]) -> list[RouteFields]:
        """Return what `started` does, and start nobody."""
        away: dict[str, str] = {}
        for row in rows:
            try:
                self.store_of(row)
            except WrongNode as error:
                away[row.name] = error.text
        return self._routes(rows, away)

    def _routes(self, rows: list[PartitionRow], away: dict[str, str]) -> list[RouteFields]:
        return [
            (
                row.name,
                row.partition_index,
                partition_name(row.name),
                away.get(row.name, ""),
                self._stores.known.get(row.store_id, {}).get("host", ""),
            )
            for row in rows
        ]

    def partition(self, row: PartitionRow) -> Any:
        """Return a partition's actor, started if it does not run.

        Raises WrongNode, TooManyActiveActors, and Moved if it was deleted since its row was read.
        """
        name = partition_name(row.name)
        if name in self._actors.handles:
            return self._actors.handles[name]
        if row.number and self.topics.catalog.numbered(row.number) is None:
            raise Moved(f"{row.name} was deleted just now: resolve it again")
        row = self._as_it_is(row)
        store = self._store_to_start_beside(row)
        directory = str(Path(store["path"]) / "p" / str(row.number))
        identity = TopicIdentity(
            row.number, row.name, row.partition_index, self.topics.catalog.identity.cluster_id
        )
        update = self._policies.update_for(row.topic)
        args = (directory, identity, store["store_id"], self._settings, row.has_ledger, update)
        handle = self._actors.create(ActorKind.PARTITION, name, store, *args)
        self._policies.created(name, update)
        self._sleepers().has_started(row.name)
        return handle

    def _as_it_is(self, row: PartitionRow) -> PartitionRow:
        """Return a row anew: the partition may have moved since it was read."""
        return (row.number and self.topics.catalog.numbered(row.number)) or row

    def store_of(self, row: PartitionRow) -> dict[str, Any]:
        """Return a partition's store. Raises WrongNode while no running node holds it."""
        row = self._as_it_is(row)
        store = self._stores.known.get(row.store_id)
        if store is None and not TopicName.parse(row.name).is_persistent:
            # Nothing of it lies in a store: any node will do.
            stores = self._stores.known.values()
            store = next((store for store in stores if not self._stores.is_draining(store)), None)
        if store is None:
            raise WrongNode(f"{row.name} {self._where(row)}")
        return store

    def _store_to_start_beside(self, row: PartitionRow) -> dict[str, Any]:
        """Return the store as `store_of`. Raises WrongNode as well while Ray drains its node."""
        store = self.store_of(row)
        if self._stores.is_draining(store):
            raise WrongNode(
                f"{row.name} lies on {store['host']}, which Ray drains, and Ray starts nothing more there: "
                "start that node again, or bring its data directory to another one"
            )
        return store

    def _where(self, row: PartitionRow) -> str:
        """Where a partition is that no running node holds, and what to do."""
        if not row.store_id:
            return (
                "was not found when the catalog was made anew: start its node and run `pulsar-ray stop` and "
                "`pulsar-ray start --rebuild-catalog`"
            )
        host, path = self.topics.catalog.stores().get(row.store_id, ("", ""))
        place = f", last seen on {host} in {path}" if host else ""
        return (
            f"lives in store {row.store_id}, which no running node holds{place}: start its node again, or "
            "give the broker its data directory"
        )

    async def mark(self, method: str, rows: list[PartitionRow]) -> None:
        """Mark partitions in their stores, durably: by `mark_prepared` or `mark_added`."""
        for row in rows:
            if TopicName.parse(row.name).is_persistent:
                await self.store_of(row)["handle"].call("call_part", "directory", method, [row.number])

    async def remove(self, rows: list[PartitionRow]) -> None:
        """End partitions that the catalog has forgotten, and delete what their stores have of them."""
        for row in rows:
            self.end(row)
            self._sleepers().wake_parked(row.name)
            if TopicName.parse(row.name).is_persistent and row.store_id in self._stores.known:
                await self._stores.known[row.store_id]["handle"].call("remove", row.number)

    def end(self, row: PartitionRow) -> None:
        """Kill a partition's actor and those of its dispatchers, for good."""
        for address, (partition, _, _) in list(self.dispatchers.items()):
            if partition == row.name:
                self._actors.kill(address)
                del self.dispatchers[address]
                self.topics.subscription_ended(TopicName.parse(row.name), address)
        for address, (partition, _) in list(self.trackers.items()):
            if partition == row.name:
                self.end_tracker(address)
        self._actors.kill(partition_name(row.name))

    def end_beside(self, store_id: str) -> None:
        """Kill all actors beside a store that serves nothing any more, for good."""
        for partition in {topic_of_actor(name) for name in self._actors.beside(store_id)}:
            row = self.topics.partition(TopicName.parse(partition))
            if row is not None:
                self.end(row)

    async def connected(self, row: PartitionRow) -> list[str]:
        """Name the producers and consumers that are connected to a partition."""
        names: list[str] = []
        addresses = [partition_name(row.name)] + [a for a, d in self.dispatchers.items() if d[0] == row.name]
        for address in addresses:
            handle = self._actors.handles.get(address)
            if handle is not None:
                try:
                    names += users_of(await handle.call("stats", within_s=CALL_DEADLINE_S))
                except Moved:
                    # Nobody is connected to one that is dead for good. One that falls asleep just now says so
                    # itself, and its clients are not known to wait yet: whoever asks has to ask again.
                    if handle.is_running():
                        raise
        return names

    async def use_of(self, topic: str) -> str:
        """Say who uses a topic, or that it has messages; "" for an idle one."""
        for row in self.topics.rows_below(topic) or self.topics.unstored.find(topic):
            if names := await self.connected(row):
                return f"the {names[0]}"
            handle = self._actors.handles.get(partition_name(row.name))
            if handle is not None and (await handle.call("stats", within_s=CALL_DEADLINE_S))["storageSize"]:
                return "messages without a schema"
        return ""

    def dispatcher_started(self, row: PartitionRow, request: SubscriptionRequest) -> str:
        """Return the actor name of a dispatcher, started if it does not run."""
        name = dispatcher_name(row.name, request.subscription, request.durable)
        self.partition(row)
        if name not in self._actors.handles:
            may_create = self.topics.may_create_subscription(
                row, name, asked=request.create, was_open=request.was_open
            )
            store = self._store_to_start_beside(row)
            self._actors.check_room(store, 1)
            request = dataclasses.replace(
                request, create=may_create, left=self._sleepers().left_consumers(name)
            )
            update = self._policies.update_for(row.topic)
            self._actors.create(ActorKind.DISPATCHER, name, store, request, self._settings, update)
            self._policies.created(name, update)
            self.dispatchers[name] = (row.name, request.subscription, request.durable)
        return name

    def tracker_started(self, row: PartitionRow, subscription: str) -> str:
        """Return the actor name of a subscription's tracker of delayed messages, started if none runs."""
        name = tracker_name(row.name, subscription)
        if name not in self._actors.handles:
            store = self._store_to_start_beside(row)
            self._actors.create(ActorKind.TRACKER, name, store, row.name, subscription, self._settings)
            self.trackers[name] = (row.name, subscription)
        return name

    def compactor_started(self, row: PartitionRow) -> str:
        """Return the actor name of what compacts a partition, started if none runs."""
        name = compactor_name(row.name)
        if name not in self._actors.handles:
            store = self._store_to_start_beside(row)
            self._actors.create(ActorKind.COMPACTOR, name, store, row.name, self._settings)
            self.trackers[name] = (row.name, "")
        return name

    def end_tracker(self, name: str) -> None:
        """End a tracker for good: whoever needs it starts another one on its files."""
        self.trackers.pop(name, None)
        self._actors.kill(name)

    async def restart(self, row: PartitionRow) -> None:
        """Have a partition that runs, and all that serve it, start anew from the disk."""
        serving = [
            name
            for name, (partition, *_) in [*self.dispatchers.items(), *self.trackers.items()]
            if partition == row.name
        ]
        await asyncio.gather(*map(self._actors.restart, (*serving, partition_name(row.name))))

    def dispatcher_left(self, name: str) -> None:
        """Forget a dispatcher that has ended, and end its tracker."""
        found = self.dispatchers.pop(name, None)
        if found is not None and found[2]:
            self.end_tracker(tracker_name(found[0], found[1]))

    def replace_dead(self) -> None:
        """Create actors anew, beside their data, that Ray will not restart.

        Their data may be on a node that came back under another id.
        """
        self._stores.look_for_draining()
        for name in self._actors.forget_dead():
            if self.trackers.pop(name, None) is not None:
                continue  # its dispatcher asks for another one
            logger.warning("%s is dead for good: creating it anew", name)
            try:
                self._start_anew(name)
            except PulsarException as error:
                # A client that needs it asks for it, and gets the error.
                logger.warning("%s cannot be created now: %s", name, error)

    def _start_anew(self, name: str) -> None:
        partition, subscription, durable = self.dispatchers.get(name, (parse_partition_name(name), "", False))
        row = self.topics.partition(TopicName.parse(partition))
        if row is None:
            return
        if name not in self.dispatchers:
            self.partition(row)
            return
        request = SubscriptionRequest(partition, subscription, durable, "latest")
        self.dispatcher_started(row, request.after_restart())
