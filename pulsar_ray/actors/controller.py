"""The Controller actor: names to actors, placement, and silent actors.

It is not on the data path.

It is the only creator of broker actors. Clients cache its answers and keep working while it restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pulsar_ray.actors.actor_system import ActorSystem, OwnActor
from pulsar_ray.actors.broker_actors import BrokerActors
from pulsar_ray.actors.catalog_opening import CatalogOpening
from pulsar_ray.actors.control_plane import ControlPlane
from pulsar_ray.actors.part_calls import PartCalls, check_part_call
from pulsar_ray.actors.stores.store_actors import StoreActors
from pulsar_ray.actors.stores.stores import Stores
from pulsar_ray.actors.topic_actors import look_up_again
from pulsar_ray.broker.catalog.catalog import Catalog, PartitionRow
from pulsar_ray.broker.catalog.founding import CatalogOrder
from pulsar_ray.broker.catalog.membership import Membership
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.broker.serving.sleeper import Idle
from pulsar_ray.config import Settings
from pulsar_ray.errors import ServiceUnitNotReady
from pulsar_ray.model.policies import PolicyUpdate
from pulsar_ray.model.topic_name import TopicName, system_change_log
from pulsar_ray.security.authentication import Credentials
from pulsar_ray.security.authorization import Grants, Resource, Right
from pulsar_ray.security.entrance import Entrance
from pulsar_ray.transport.actor_names import topic_of_actor
from pulsar_ray.transport.cluster import RouteFields, SubscriptionRequest

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 5.0
CATCH_UP_S = 20.0

CONTROLLER_CALLS: PartCalls = {
    "administration": (
        "tenants", "tenant", "create_tenant", "update_tenant", "delete_tenant",
        "namespaces", "create_namespace", "delete_namespace", "abandon_change_logs",
        "policies", "set_policy", "remove_policy",
        "permissions", "grants", "grant_permission", "revoke_permission",
        "grant_subscription_permission", "revoke_subscription_permission",
    ),
    "schemas": (
        "register", "read_with", "copy", "get", "versions", "in_short", "upload", "delete", "test",
    ),
    "moves": ("move", "drain", "undrain", "balance", "describe"),
    "lost_stores": ("lost_with", "forget", "remote", "kept_by", "follow_owner"),
}  # fmt: skip
"""Parts of the ControlPlane by their names there."""


class Controller:
    """Resolves topics, starts partitions and dispatchers beside their data, restarts what is frozen."""

    def __init__(
        self,
        data_dir: str,
        settings: Settings,
        order: CatalogOrder,
        system: ActorSystem,
        make_own: Callable[[], OwnActor],
    ) -> None:
        own = self._own = make_own()
        own.begin("controller", settings)
        self._data_dir = Path(data_dir).expanduser()
        self._settings = settings
        self._order = order
        self._entrance = Entrance(settings)
        self._system = system
        self._store_actors = StoreActors(str(self._data_dir), settings, system)
        self._actors = BrokerActors(settings, system)
        self._plane: ControlPlane | None = None
        self._probing: dict[str, asyncio.Task[bool]] = {}
        self._start: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        if own.was_restarted:
            # Somebody has to look for what is due, although nobody may ask for anything for long.
            own.call("ready")

    def __repr__(self) -> str:
        return "Controller"

    # --- starting ---------------------------------------------------------------------------------

    async def ready(self) -> dict[str, Any]:
        """Wait until the broker serves. Raises what is wrong with the data directory, typed."""
        plane = await self.serving()
        membership, stores = plane.membership, plane.stores
        return {
            "pid": os.getpid(),
            "data_dir": str(self._data_dir),
            "cluster_id": membership.catalog.identity.cluster_id,
            "catalog_host": membership.catalog_host,
            "stores": sorted(stores.present),
            "expected_stores": membership.catalog.expected_stores,
            "refused_stores": list(stores.refused.values()),
            "away_stores": membership.away(stores.present),
            "unknown_partitions": [each for found in stores.unknown.values() for each in found],
            "settings": self._settings.described(),
        }

    async def _open(self) -> None:
        began_s = time.monotonic()
        own = await self._store_actors.describe(self._own.node_id, make=self._order.kind != "open")
        must_end = partial(self._must_end, asyncio.get_running_loop())
        opening = CatalogOpening(
            self._data_dir, self._order, self._store_actors, self._system, self._settings, must_end
        )
        catalog = await opening.open(own)
        try:
            plane = await self._brought_up(catalog, own, partial(must_end, is_deposed=True))
        except BaseException:
            # The next try takes this one's place, which must not take it back once the object store answers.
            self._plane = None
            catalog.close()
            raise
        membership, stores = plane.membership, plane.stores
        away = sum(store["partitions"] for store in membership.away(stores.known))
        event(
            logger,
            "serves, %s, within %.2f s: cluster %s, %d topics, %d stores, %d partitions away, catalog on %s",
            "after its process ended" if self._own.was_restarted else f"catalog {self._order.kind}",
            time.monotonic() - began_s,
            catalog.identity.cluster_id,
            catalog.count_topics(),
            len(stores.known),
            away,
            membership.catalog_host,
        )
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch(plane))
            self._own.report(self._settings, plane.report)

    async def _brought_up(
        self, catalog: Catalog, own: dict[str, Any], end_deposed: Callable[[str], None]
    ) -> ControlPlane:
        """Take the stores in, and catch up with what was changed meanwhile."""
        is_founding = self._order.kind == "found" and not own["identity"].cluster_id
        membership = Membership(
            catalog,
            catalog_store_id=own["store_id"],
            catalog_host=own["host"],
            takes_old=self._order.kind == "rebuild",
            is_of_ray_cluster=self._order.is_of_ray_cluster,
            takes_empty=is_founding or self._settings.allow_new_stores,
            has_change_logs=catalog.change_logs.is_known(system_change_log().full),
        )
        stores = Stores(self._store_actors, membership, self._settings, self._system)
        await stores.find()
        membership.takes_empty = self._settings.allow_new_stores
        if own["store_id"] not in stores.known:
            refusal = stores.refused.get(self._own.node_id, {}).get("reason", "it did not answer")
            raise ServiceUnitNotReady(f"the store beside the catalog is not there: {refusal}")
        plane = self._plane = ControlPlane(
            membership,
            stores,
            self._actors,
            self._settings,
            was_restarted=self._own.was_restarted,
            end_deposed=end_deposed,
        )
        # Before anybody is served: a change may have been made that this catalog does not know.
        await plane.caught_up(CATCH_UP_S)
        return plane

    def _must_end(self, loop: asyncio.AbstractEventLoop, reason: str, is_deposed: bool) -> None:
        """End this controller, which decides no more; may be called from any thread."""
        event(logger, "ends: %s", reason, level=logging.WARNING)
        with contextlib.suppress(RuntimeError):  # a closed loop: the controller has ended meanwhile
            loop.call_soon_threadsafe(partial(self._own.end, for_good=is_deposed))

    async def _watch(self, plane: ControlPlane) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            await plane.look()

    async def serving(self) -> ControlPlane:
        """Return the control plane, once the catalog is open. Raises why it cannot be."""
        if self._start is None or (self._start.done() and self._start.exception() is not None):
            self._start = asyncio.get_running_loop().create_task(self._open())
        await asyncio.shield(self._start)
        assert self._plane is not None
        return self._plane

    # --- topics -----------------------------------------------------------------------------------

    async def resolve(self, topic: str, create: bool, was_open: bool = False) -> list[RouteFields]:
        """The fields of a PartitionRoute for each partition; creates the topic if it may.

        For a client that had it open, see `TopicRegistry.begin_again`.

        The actors of those whose store is there are started, the others are marked as away.
        """
        plane = await self.serving()
        topics, name = plane.topics, TopicName.parse(topic)

        async def look_up() -> list[RouteFields]:
            if was_open:
                topics.begin_again(name)
            if create and not topics.is_known(name):
                await plane.stores.reserve_numbers(max(topics.auto_partitions(name), 1))
            rows = topics.resolve(name, create=create, stores=plane.stores.for_new_partitions)
            return await self._started(plane, rows)

        return await look_up_again(look_up)

    async def partitions(self, topic: str) -> list[RouteFields]:
        """Answer as `resolve` for a topic that is there, and start nobody. Raises TopicNotFound."""
        plane = await self.serving()
        return plane.topic_actors.routes(
            plane.topics.resolve(TopicName.parse(topic), create=False, stores=list)
        )

    async def _started(self, plane: ControlPlane, rows: list[PartitionRow]) -> list[RouteFields]:
        # Nothing is stored in what may never have been.
        await plane.catalog.settled(*(row.name for row in rows))
        start = partial(plane.topic_actors.started, rows)
        return await plane.passivation.start([row.name for row in rows], start)

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic; 0 partitions is an unpartitioned one. Raises NotAllowedError if it exists."""
        plane = await self.serving()
        topics = plane.topics
        # Of an earlier call that was told to try again nobody can say yet whether there is such a topic.
        await topics.catalog.settled()
        await plane.stores.reserve_numbers(max(partitions, 1))
        topics.create(TopicName.parse(topic), partitions, plane.stores.for_new_partitions)
        await topics.catalog.settled()

    async def prepare_partitions(self, topic: str, partitions: int) -> list[RouteFields]:
        """Prepare growth, the first step: start new partitions that nobody else knows.

        Returns what `resolve` answers.

        May be repeated. Raises TopicNotFound, NotAllowedError unless a partitioned topic would grow.
        """
        plane = await self.serving()
        name, stores = TopicName.parse(topic), plane.stores
        await stores.reserve_numbers(max(partitions, 1))
        rows = plane.topics.prepare_partitions(name, partitions, stores.for_new_partitions)
        await plane.catalog.settled()
        await plane.topic_actors.mark("mark_prepared", rows)
        return await self._started(plane, rows)

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """The second step: the topic has so many partitions, durably. May be repeated."""
        plane = await self.serving()
        topics, name = plane.topics, TopicName.parse(topic)
        # First: a catalog that was rebuilt just now would otherwise lack what somebody has published to.
        await plane.topic_actors.mark("mark_added", topics.prepared_partitions(name, partitions))
        topics.add_partitions(name, partitions)
        await topics.catalog.settled()

    async def list_topics(self, namespace: str, include_system: bool = False) -> list[tuple[str, int]]:
        """(full name, partitions or 0), the broker's own topics only if asked for.

        Raises TopicNotFound if the namespace does not exist.
        """
        topics = (await self.serving()).topics
        return topics.topics(namespace, include_system=include_system)

    async def partition_count(self, topic: str) -> int:
        """How many partitions a topic has, 0 for one without. Raises TopicNotFound."""
        return (await self.serving()).topics.count(TopicName.parse(topic))

    async def delete_topic(self, topic: str, force: bool) -> None:
        """Delete a topic with its data and policies.

        Raises NotAllowedError while producers or consumers are connected and for a system topic, WrongNode
        while a partition's node is missing, unless forced; what lies on such a node stays there.
        """
        plane = await self.serving()
        await plane.ending.delete_topic(topic, force)

    async def unload_topic(self, topic: str) -> None:
        """Have the actors of a topic that run start anew from the disk.

        Raises TopicNotFound, and WrongNode, with nothing done, if a partition is away.
        """
        plane = await self.serving()
        rows = plane.topics.resolve(TopicName.parse(topic), create=False, stores=list)
        for row in rows:
            plane.topic_actors.store_of(row)
        for row in rows:
            await plane.topic_actors.restart(row)
            event(logger, "unloaded: its processes start anew from the disk", topic=row.name)

    # --- parts of the control plane ---------------------------------------------------------------

    async def call_part(self, part: str, method: str, *arguments: Any) -> Any:
        """Call a method of a part of the control plane, one of CONTROLLER_CALLS."""
        check_part_call(CONTROLLER_CALLS, "controller", part, method)
        plane = await self.serving()
        answer = getattr(getattr(plane, part), method)(*arguments)
        return await answer if inspect.isawaitable(answer) else answer

    async def authorize(self, authorization: str, right: str, subject: str, subscription: str) -> None:
        """Check the credentials of a client on Ray, and the right that it needs.

        Raises AuthenticationError and AuthorizationError, and what is wrong with the settings for both.
        """
        authentication = await asyncio.to_thread(lambda: self._entrance.authentication)
        role = authentication.who(Credentials.of_program(authorization), time.time()).role
        if not self._entrance.is_open_to(role, Right(right)):
            administration = (await self.serving()).administration
            grants = Grants.of(await administration.grants(subject))
            self._entrance.check(role, Right(right), Resource(subject, subscription), grants)

    async def policies_for(self, topic: str) -> PolicyUpdate:
        """The policies of a partition's topic, for its actors after a restart. Raises TopicNotFound."""
        plane = await self.serving()
        return plane.topics.policies.update_for(plane.topics.row_of(topic).topic)

    async def was_made(self, partition: str) -> bool:
        """Whether a partition's directory was made. Raises TopicNotFound."""
        return (await self.serving()).topics.row_of(partition).has_ledger

    async def made(self, partition: str) -> None:
        """Remember that a partition's directory is made, durably. Raises TopicNotFound."""
        plane = await self.serving()
        name, catalog = plane.topics.row_of(partition).name, plane.catalog
        catalog.opened(name)
        await catalog.settled(name)

    async def heartbeats(self) -> list[tuple[str, str, str]]:
        """Return (store id, host, heartbeat topic) of every store that is there; makes missing topics."""
        plane = await self.serving()
        topics = plane.topics
        stores = list(plane.stores.known.items())
        await plane.stores.reserve_numbers(len(stores))
        found = [(store_id, store["host"], topics.heartbeat(store_id).full) for store_id, store in stores]
        await topics.catalog.settled(*(topic for _, _, topic in found))
        return found

    async def nodes(self) -> list[dict[str, Any]]:
        """Describe every node that has, had or could have a store, as `Stores.nodes`."""
        return await (await self.serving()).nodes()

    async def catalog_store(self) -> str:
        """Return the id of the store beside this controller."""
        return (await self.serving()).membership.catalog_store_id

    async def expect_stores(self, count: int) -> None:
        """Keep durably how many stores the cluster is to have; 0 if nobody says."""
        catalog = (await self.serving()).catalog
        catalog.expect_stores(count)
        await catalog.settled()

    # --- subscriptions ----------------------------------------------------------------------------

    async def dispatcher(
        self,
        topic: str,
        subscription: str,
        durable: bool,
        initial: str,
        properties: dict[str, str],
        create: bool,
        was_open: bool = False,
    ) -> str:
        """The actor name of a partition's dispatcher, started if it does not run.

        `topic` is a partition's own name.
        """
        plane = await self.serving()
        if was_open:
            plane.topics.begin_again(TopicName.parse(topic))
        row = plane.topics.row_of(topic)
        request = SubscriptionRequest(
            row.name, subscription, durable, initial, properties, create, was_open=was_open
        )
        # One that was lost with its store is there again with the partition that is begun anew.
        await plane.lost_stores.give_inheritance(row.name)
        start = partial(plane.topic_actors.dispatcher_started, row, request)
        return await plane.passivation.start([row.name], start)

    async def handle(self, name: str) -> Any:
        """Return a running actor's handle, None if none of this name runs; starts nobody."""
        found = (await self.serving()).actors.handles.get(name)
        return found.raw if found is not None else None

    async def dispatcher_gone(self, name: str, was_deleted: bool = False) -> None:
        """End a dispatcher whose subscription was removed; its name is free when this returns.

        `was_deleted`: somebody wanted that, and it was not lost or refused.

        One that serves stays: the subscription was created anew meanwhile.
        """
        # A controller that was restarted knows nobody before.
        plane = await self.serving()
        if await self._actors.serves(name):
            return
        plane.topic_actors.dispatcher_left(name)
        if was_deleted:
            plane.topics.subscription_ended(TopicName.parse(topic_of_actor(name)), name)
        self._actors.kill(name)
        plane.passivation.subscription_gone(topic_of_actor(name))
        await self._actors.name_is_free(name)

    async def delayed_tracker(self, topic: str, subscription: str) -> str:
        """The actor name of the tracker of a subscription's delayed messages, started if none runs.

        `topic` is a partition's own name.
        """
        plane = await self.serving()
        row = plane.topics.row_of(topic)
        start = partial(plane.topic_actors.tracker_started, row, subscription)
        return await plane.passivation.start([row.name], start)

    async def end_tracker(self, name: str) -> None:
        """End a tracker that has nothing to do; its name is free when this returns."""
        (await self.serving()).topic_actors.end_tracker(name)
        await self._actors.name_is_free(name)

    async def compactor(self, topic: str) -> str:
        """The actor name of what compacts a partition, started if none runs."""
        plane = await self.serving()
        row = plane.topics.row_of(topic)
        return await plane.passivation.start([row.name], partial(plane.topic_actors.compactor_started, row))

    async def end_compactor(self, name: str) -> None:
        """End what has compacted a partition; its name is free when this returns."""
        await self.end_tracker(name)

    # --- sleeping actors --------------------------------------------------------------------------

    async def report_idle(self, name: str, idle: Idle) -> None:
        """Take in an actor's report that nobody has used it for a while."""
        plane = await self.serving()
        plane.passivation.report(name, idle)

    async def report_unused(self, partition: str) -> None:
        """Take in that nobody has used a partition for as long as its policies say."""
        plane = await self.serving()
        row = plane.topics.row_of(partition)
        await plane.passivation.remove_unused(row.topic)

    async def describe_sleeping(self, topic: str) -> dict[str, Any] | None:
        """Describe a partition that does not run, as its stats would; None if it runs.

        `topic` is the partition's own name. Raises TopicNotFound, WrongNode.
        """
        plane = await self.serving()
        return await plane.passivation.describe_sleeping(plane.topics.row_of(topic))

    async def await_wake(
        self, client_id: str, parked: dict[str, list[tuple[int, bool]]], timeout_s: float
    ) -> list[str]:
        """See ParkedClients.await_wake.

        A call of every client process with parked consumers stays here, beside all others.
        """
        plane = self._plane_beside()
        waiting = plane.passivation.parked_clients.await_wake(client_id, parked, timeout_s)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(waiting, plane.loop))

    async def stay(self, client_id: str, number: int) -> None:
        """Answer when the client is gone; its process owns this call, for `watch_client`."""
        plane = self._plane_beside()
        staying = plane.passivation.parked_clients.stay(client_id, number)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(staying, plane.loop))

    async def watch_client(self, client_id: str, number: int, life: list[Any]) -> None:
        """Let the parked consumers of a client leave once it is gone.

        That is when its process dies, or needs it no more. It owns `life`, its `stay` call of that number.
        """
        if await self._own.owner_died(life[0]):
            plane = self._plane_beside()
            died = plane.passivation.client_died(client_id, number)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(died, plane.loop))

    def _plane_beside(self) -> ControlPlane:
        """Return the control plane for calls that stay, which have a loop of their own."""
        if self._plane is None:
            # This is a new process that nobody has asked for anything yet.
            raise ServiceUnitNotReady("the controller is starting")
        return self._plane

    async def consumer_left(self, dispatcher: str, incarnation: int, calls_election: bool) -> None:
        """Let nobody wait for a consumer that was closed while parked.

        May be repeated.
        """
        plane = await self.serving()
        await plane.passivation.consumer_left(dispatcher, incarnation, calls_election)

    # --- silent and dead actors -------------------------------------------------------------------

    async def probe(self, name: str | None = None) -> bool:
        """Look after the named actor; without a name: alive.

        True if the actor had to be killed (Ray restarts it).
        """
        if name is None:
            return False
        if name not in self._probing:
            self._probing[name] = asyncio.get_running_loop().create_task(self._actors.restart_if_silent(name))
            self._probing[name].add_done_callback(lambda _: self._probing.pop(name, None))
        return await asyncio.shield(self._probing[name])

    async def is_silent(self, name: str) -> bool:
        """Whether the process of an actor stands still; nothing is done about it."""
        return await self._actors.is_silent(name)

    # --- stopping, stats --------------------------------------------------------------------------

    async def stats(self) -> dict[str, Any]:
        """Describe every running actor by name, and the stores, as `ControlPlane.stats`."""
        return await (await self.serving()).stats()

    async def health(self) -> dict[str, Any]:
        """Describe what does not work, as a HealthReport; wakes nobody, and answers within two seconds."""
        return await (await self.serving()).health()

    async def overview(self, text: str, sort: str, limit: int, names: list[str] | None) -> dict[str, Any]:
        """Return the first topics by a sorting, sums, and the stores; see Admin.overview."""
        plane = await self.serving()
        return await plane.overview.describe(text, sort, limit, names)

    async def shutdown(self) -> None:
        """Let every actor write what is pending, then end them.

        The controller itself is killed by the caller.
        """
        event(logger, "stops: the broker is told to end")
        if self._watcher is not None:
            self._watcher.cancel()
        if self._plane is not None:
            await self._plane.close()
        self._store_actors.end_all()
