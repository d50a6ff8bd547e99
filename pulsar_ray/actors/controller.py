"""The Controller actor: names to actors, placement, and silent actors.

It is not on the data path.

It is the only creator of broker actors. Clients cache what it tells them and keep working while it restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from pathlib import Path
from random import Random
from typing import Any

import ray

from pulsar_ray.actors.broker_actors import BrokerActors
from pulsar_ray.actors.stores import Stores
from pulsar_ray.actors.subscription_dispatcher import SubscriptionDispatcher
from pulsar_ray.actors.topic_partition import TopicPartition
from pulsar_ray.broker.catalog.catalog import Catalog, PartitionRow
from pulsar_ray.broker.catalog.founding import CatalogOrder, check_is_ours, check_may_make, new_range
from pulsar_ray.broker.catalog.membership import Membership
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.broker.serving.owner_loop import prepare_broker_process
from pulsar_ray.config import Settings
from pulsar_ray.errors import (
    CatalogMissing,
    NotAllowedError,
    PulsarException,
    ServiceUnitNotReady,
    TopicNotFound,
    WrongNode,
)
from pulsar_ray.lane.await_within import within
from pulsar_ray.managed_ledger.log.partition_directories import TopicIdentity
from pulsar_ray.managed_ledger.store.store_identity import CATALOG_FILE, StoreIdentity
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.actor_names import (
    dispatcher_name,
    parse_dispatcher_name,
    parse_partition_name,
    partition_name,
)
from pulsar_ray.transport.cluster import SubscriptionRequest
from pulsar_ray.transport.ray_errors import translated
from pulsar_ray.transport.this_ray import alive_nodes, running_names

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 5.0
CALL_DEADLINE_S = 30.0
STATS_DEADLINE_S = 3.0
NAME_POLL_S = 0.02


class Controller:
    """Resolves topics, starts partitions and dispatchers beside their data, restarts what is frozen."""

    def __init__(self, data_dir: str, settings: Settings, order: CatalogOrder) -> None:
        prepare_broker_process()
        self._data_dir = Path(data_dir).expanduser()
        self._settings = settings
        self._order = order
        self._topics: TopicRegistry | None = None
        self._stores = Stores(str(self._data_dir), settings)
        self._actors = BrokerActors(settings)
        self._dispatchers: dict[str, tuple[str, str, bool]] = {}
        self._probing: dict[str, asyncio.Task[bool]] = {}
        self._start: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return "Controller"

    # --- starting ---------------------------------------------------------------------------------

    async def ready(self) -> dict[str, Any]:
        """Wait until the broker serves. Raises what is wrong with the data directory, typed."""
        if self._start is None or (self._start.done() and self._start.exception() is not None):
            self._start = asyncio.get_running_loop().create_task(self._open())
        await asyncio.shield(self._start)
        membership = self._stores.membership
        assert membership is not None
        return {
            "pid": os.getpid(),
            "data_dir": str(self._data_dir),
            "cluster_id": membership.catalog.identity.cluster_id,
            "catalog_host": membership.catalog_host,
            "stores": sorted(self._stores.known),
            "refused_stores": list(self._stores.refused.values()),
            "away_stores": membership.away(self._stores.known),
            "unknown_partitions": [each for found in self._stores.unknown.values() for each in found],
            "settings": dataclasses.asdict(self._settings),
        }

    async def _open(self) -> None:
        here = ray.get_runtime_context().get_node_id()
        own = await self._stores.describe(here, make=self._order.kind != "open")
        catalog = await self._the_catalog(own)
        is_founding = self._order.kind == "found" and not own["identity"].cluster_id
        membership = self._stores.membership = Membership(
            catalog,
            catalog_store_id=own["store_id"],
            catalog_host=own["host"],
            takes_old=self._order.kind == "rebuild",
            takes_empty=is_founding or self._settings.allow_new_stores,
        )
        await self._stores.find()
        membership.takes_empty = self._settings.allow_new_stores
        if own["store_id"] not in self._stores.known:
            refusal = self._stores.refused.get(here, {}).get("reason", "it did not answer")
            raise ServiceUnitNotReady(f"the store beside the catalog is not there: {refusal}")
        topics = self._topics = TopicRegistry(catalog, self._settings)
        self._find_running(topics)
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _the_catalog(self, own: dict[str, Any]) -> Catalog:
        """Open the catalog that is here, or make it as ordered.

        It is made once, so that one that was lost since is not made empty.

        Raises CatalogMissing, CatalogConflict, what is wrong with its file.
        """
        order, path = self._order, self._data_dir / CATALOG_FILE
        identity: StoreIdentity | None = own["identity"]
        if identity is None:
            raise CatalogMissing(f"{self._data_dir} holds no store any more: mount its disk")
        if not path.exists():
            check_may_make(order, identity, own["has_partitions"], path)
            if order.kind == "found":
                return Catalog.make(path, order.cluster_id, order.generation)[0]
            return await self._rebuilt(None, path)
        catalog = Catalog(path)
        check_is_ours(order, identity, catalog.identity, path)
        if not catalog.identity.cluster_id:
            catalog.adopt(order.cluster_id, order.generation)
        elif order.kind == "rebuild" and order.generation not in catalog.identity.generations:
            await self._rebuilt(catalog, path)
        return catalog

    async def _rebuilt(self, catalog: Catalog | None, path: Path) -> Catalog:
        """Make a catalog from the stores that are there; no number is granted again."""
        order = self._order
        rows: list[PartitionRow] = []
        prepared: set[int] = set()
        ancestors: dict[str, None] = {}
        seen: list[int] = []
        for node_id in alive_nodes():
            try:
                store = await self._stores.describe(node_id)
            except PulsarException as error:
                logger.warning("node %s adds nothing to the catalog: %s", node_id[:8], error)
                continue
            identity: StoreIdentity | None = store["identity"]
            if identity is None or identity.cluster_id not in ("", order.cluster_id):
                continue
            with translated("reading the partition directories"):
                found = await store["handle"].partitions.remote()
                prepared |= await store["handle"].prepared.remote()
            ancestors |= dict.fromkeys(identity.generations)
            seen += [identity.numbers_below, *(directory.number for directory in found)]
            rows += [
                PartitionRow(
                    each.name, each.number, each.topic, each.partition_index, identity.store_id, True
                )
                for each in found
                if each.cluster_id in ("", order.cluster_id)
            ]
        # Of two with one name that which was made later, if a catalog was made anew between them.
        rows.sort(key=lambda row: -row.number)
        if catalog is None:
            first = new_range(seen, Random())
            made, left_out = Catalog.make(
                path, order.cluster_id, order.generation, first, ancestors, rows, prepared
            )
        else:
            made, left_out = catalog, catalog.restore(rows, prepared)
            first = new_range([*seen, *catalog.first_numbers()], Random())
            made.begin_generation(order.cluster_id, order.generation, first, ancestors)
        logger.warning("made the catalog anew: %d partitions, %d left out", len(rows), len(left_out))
        return made

    def _find_running(self, topics: TopicRegistry) -> None:
        """After a restart of this actor: the partitions and dispatchers that run already."""
        for name in running_names():
            found = parse_dispatcher_name(name)
            if found is not None:
                self._dispatchers[name] = found
            elif "://" not in name:
                continue
            topic = TopicName.parse(found[0] if found else parse_partition_name(name))
            if found is None and not topic.is_persistent and topics.catalog.partition(topic.full) is None:
                topics.unstored.add(topic.full)
            row = topics.partition(topic)
            # A partition that lies in no store runs beside the first one.
            store_id = (row.store_id if row else "") or next(iter(self._stores.known), "")
            self._actors.found(name, store_id)

    async def _serving(self) -> TopicRegistry:
        await self.ready()
        assert self._topics is not None
        return self._topics

    # --- topics -----------------------------------------------------------------------------------

    async def resolve(self, topic: str, create: bool) -> list[tuple[str, int, str, str]]:
        """The fields of a PartitionRoute for each partition; creates the topic if it may.

        The actors of those whose store is there are started, the others are marked as away.
        """
        topics = await self._serving()
        name = TopicName.parse(topic)
        if create and not topics.is_known(name):
            await self._stores.reserve_numbers(self._settings.default_num_partitions)
        rows = topics.resolve(name, create=create, stores=self._stores.for_new_partitions)
        return self._started(topics.catalog, rows)

    def _started(self, catalog: Catalog, rows: list[PartitionRow]) -> list[tuple[str, int, str, str]]:
        """Start those that do not run and are not away. Raises TooManyActiveActors before the first."""
        self._stores.look_for_draining()
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
                self._partition_handle(catalog, row)
        return [
            (row.name, row.partition_index, partition_name(row.name), away.get(row.name, "")) for row in rows
        ]

    def _partition_handle(self, catalog: Catalog, row: PartitionRow) -> Any:
        name = partition_name(row.name)
        if name in self._actors.handles:
            return self._actors.handles[name]
        store = self._store_to_start_beside(row)
        directory = str(Path(store["path"]) / "p" / str(row.number))
        identity = TopicIdentity(row.number, row.name, row.partition_index, catalog.identity.cluster_id)
        args = (directory, identity, store["store_id"], self._settings, row.has_ledger)
        handle = self._actors.create(TopicPartition, name, store, *args)
        if TopicName.parse(row.name).is_persistent:
            catalog.opened(row.name)
        return handle

    def _store_of(self, row: PartitionRow) -> dict[str, Any]:
        store = self._stores.known.get(row.store_id)
        if store is None and not TopicName.parse(row.name).is_persistent:
            # Nothing of it lies in a store: any node will do.
            stores = self._stores.known.values()
            store = next((store for store in stores if not self._stores.is_draining(store)), None)
        if store is None:
            raise WrongNode(f"{row.name} {self._where(row)}")
        return store

    def _store_to_start_beside(self, row: PartitionRow) -> dict[str, Any]:
        """As `_store_of`. Raises WrongNode as well if Ray, draining its node, would start nothing there."""
        store = self._store_of(row)
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
        membership = self._stores.membership
        host, path = membership.catalog.stores().get(row.store_id, ("", "")) if membership else ("", "")
        place = f", last seen on {host} in {path}" if host else ""
        return (
            f"lives in store {row.store_id}, which no running node holds{place}: start its node again, or "
            "give the broker its data directory"
        )

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic; 0 partitions is an unpartitioned one. Raises NotAllowedError if it exists."""
        topics = await self._serving()
        await self._stores.reserve_numbers(max(partitions, 1))
        topics.create(TopicName.parse(topic), partitions, self._stores.for_new_partitions)

    async def prepare_partitions(self, topic: str, partitions: int) -> list[tuple[str, int, str, str]]:
        """Prepare growth, the first step: start new partitions that nobody else knows.

        Returns what `resolve` answers.

        May be repeated. Raises TopicNotFound, NotAllowedError unless a partitioned topic would grow.
        """
        topics = await self._serving()
        await self._stores.reserve_numbers(max(partitions, 1))
        rows = topics.prepare_partitions(TopicName.parse(topic), partitions, self._stores.for_new_partitions)
        await self._mark("mark_prepared", rows)
        return self._started(topics.catalog, rows)

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """The second step: the topic has so many partitions, durably. May be repeated."""
        topics = await self._serving()
        name = TopicName.parse(topic)
        # First: a catalog that was rebuilt just now would otherwise lack what somebody has published to.
        await self._mark("mark_added", topics.prepared_partitions(name, partitions))
        topics.add_partitions(name, partitions)

    async def _mark(self, method: str, rows: list[PartitionRow]) -> None:
        for row in rows:
            if TopicName.parse(row.name).is_persistent:
                with translated("growing a topic"):
                    await getattr(self._store_of(row)["handle"], method).remote([row.number])

    async def list_topics(self, namespace: str) -> list[tuple[str, int]]:
        """(full name, partitions or 0). Raises TopicNotFound if the namespace does not exist."""
        return (await self._serving()).topics(namespace)

    async def delete_topic(self, topic: str, force: bool) -> None:
        """Delete a topic with its data.

        Raises NotAllowedError while producers or consumers are connected, WrongNode while a partition's node
        is missing, unless forced; what lies on such a node stays there.
        """
        topics = await self._serving()
        name = TopicName.parse(topic)
        rows = topics.rows_of(name)
        if not force:
            connected = sum([await self._connected(row) for row in rows])
            if connected:
                raise NotAllowedError(
                    f"Topic has {connected} connected producers/consumers: close them, or force"
                )
            for row in rows:
                self._store_of(row)
        topics.forget(name)
        for row in rows:
            for address, (partition, _, _) in list(self._dispatchers.items()):
                if partition == row.name:
                    self._actors.kill(address)
                    del self._dispatchers[address]
            self._actors.kill(partition_name(row.name))
            if name.is_persistent and row.store_id in self._stores.known:
                await self._stores.known[row.store_id]["handle"].remove.remote(row.number)

    async def _connected(self, row: PartitionRow) -> int:
        total = 0
        addresses = [partition_name(row.name)] + [a for a, d in self._dispatchers.items() if d[0] == row.name]
        for address in addresses:
            handle = self._actors.handles.get(address)
            if handle is not None:
                # Nobody is connected to one that is dead for good.
                with contextlib.suppress(
                    ray.exceptions.ActorDiedError, ray.exceptions.ActorUnschedulableError
                ):
                    stats = await within(handle.stats.remote(), CALL_DEADLINE_S)
                    total += len(stats.get("producers", ())) + len(stats.get("consumers", ()))
        return total

    # --- subscriptions ----------------------------------------------------------------------------

    async def dispatcher(
        self,
        topic: str,
        subscription: str,
        durable: bool,
        initial: str,
        properties: dict[str, str],
        create: bool,
    ) -> str:
        """The actor name of a partition's dispatcher, started if it does not run.

        `topic` is a partition's own name.
        """
        topics = await self._serving()
        row = topics.partition(TopicName.parse(topic))
        if row is None:
            raise TopicNotFound(f"the topic {topic} does not exist")
        request = SubscriptionRequest(row.name, subscription, durable, initial, properties, create)
        return self._dispatcher_started(topics, row, request)

    def _dispatcher_started(
        self, topics: TopicRegistry, row: PartitionRow, request: SubscriptionRequest
    ) -> str:
        name = dispatcher_name(row.name, request.subscription, request.durable)
        self._partition_handle(topics.catalog, row)
        if name not in self._actors.handles:
            allowed = self._settings.allow_auto_subscription_creation
            may_create = allowed or not TopicName.parse(row.name).is_persistent
            request = dataclasses.replace(request, create=request.create and may_create)
            store = self._store_to_start_beside(row)
            self._actors.create(SubscriptionDispatcher, name, store, request, self._settings)
            self._dispatchers[name] = (row.name, request.subscription, request.durable)
        return name

    async def dispatcher_gone(self, name: str) -> None:
        """The dispatcher's subscription was removed; the actor leaves, and its name is free when this
        returns.

        One that serves stays: the subscription was created anew meanwhile.
        """
        if await self._actors.serves(name):
            return
        self._dispatchers.pop(name, None)
        self._actors.kill(name)
        deadline = asyncio.get_running_loop().time() + CALL_DEADLINE_S
        while name in running_names() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(NAME_POLL_S)

    # --- whoever is silent ------------------------------------------------------------------------

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

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            try:
                await self._stores.find()
                await self._stores.probe()
                self._replace_dead()
            except Exception:
                logger.exception("looking for stores failed")

    def _replace_dead(self) -> None:
        """Create actors anew, beside their data, that Ray will not restart.

        Their data may be on a node that came back under another id.
        """
        assert self._topics is not None
        self._stores.look_for_draining()
        for name in self._actors.forget_dead():
            logger.warning("%s is dead for good: creating it anew", name)
            try:
                self._start_anew(self._topics, name)
            except PulsarException as error:
                # A client that needs it asks for it, and gets the error.
                logger.warning("%s cannot be created now: %s", name, error)

    def _start_anew(self, topics: TopicRegistry, name: str) -> None:
        partition, subscription, durable = self._dispatchers.get(
            name, (parse_partition_name(name), "", False)
        )
        row = topics.partition(TopicName.parse(partition))
        if row is None:
            return
        if name not in self._dispatchers:
            self._partition_handle(topics.catalog, row)
            return
        # As after a restart: a subscription that was removed meanwhile must not come back.
        create = not (durable and TopicName.parse(partition).is_persistent)
        request = SubscriptionRequest(partition, subscription, durable, "latest", {}, create)
        self._dispatcher_started(topics, row, request)

    # --- stopping, stats --------------------------------------------------------------------------

    async def stats(self) -> dict[str, Any]:
        """Describe every running actor by name, and the stores, those away included.

        An actor that does not answer soon has an `error` instead: all are asked at the same time.
        """
        topics = await self._serving()
        stores = dict(self._stores.known)
        handles = dict(self._actors.handles)
        asked = [*(store["handle"] for store in stores.values()), *handles.values()]
        answers = await asyncio.gather(*map(_stats_or_error, asked))
        of_stores = [
            {"storeId": store_id, "path": store["path"], **answer}
            for (store_id, store), answer in zip(stores.items(), answers, strict=False)
        ]
        for store_id, partitions in topics.catalog.partitions_per_store().items():
            if store_id and store_id not in stores:
                host, path = topics.catalog.stores().get(store_id, ("an unknown host", ""))
                away = f"away, last seen on {host}, with {partitions} partitions"
                of_stores.append({"storeId": store_id, "path": path, "away": True, "error": away})
        return {"stores": of_stores, **dict(zip(handles, answers[len(stores) :], strict=True))}

    async def shutdown(self) -> None:
        """Let every actor write what is pending, then end them.

        The controller itself is killed by the caller.
        """
        if self._watcher is not None:
            self._watcher.cancel()
        handles = list(self._actors.handles.items())
        # Dispatchers first: their last acknowledgments move holds at the partitions.
        for is_dispatcher in (True, False):
            await asyncio.gather(
                *(_stopped(name, h) for name, h in handles if (name in self._dispatchers) == is_dispatcher)
            )
        for name, _ in handles:
            self._actors.kill(name)
        if self._topics is not None:
            self._topics.catalog.close()
        self._stores.end()


async def _stats_or_error(handle: Any) -> dict[str, Any]:
    try:
        stats: dict[str, Any] = await within(handle.stats.remote(), STATS_DEADLINE_S)
    except (ray.exceptions.RayError, asyncio.TimeoutError) as error:
        return {"error": f"does not answer ({type(error).__name__})"}
    return stats


async def _stopped(name: str, handle: Any) -> None:
    """It has written what was pending."""
    try:
        await within(handle.shutdown.remote(), CALL_DEADLINE_S)
    except (ray.exceptions.RayError, asyncio.TimeoutError) as error:
        logger.warning("%s did not stop by itself: %s", name, error)
