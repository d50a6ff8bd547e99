"""The stores of the cluster as the controller knows them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from pulsar_ray.actors.actor_system import ActorHandle, ActorSystem
from pulsar_ray.actors.stores.store_actors import StoreActors
from pulsar_ray.actors.stores.storeless_nodes import StorelessNodes
from pulsar_ray.broker.catalog.membership import Membership
from pulsar_ray.broker.catalog.node_losses import Room
from pulsar_ray.broker.health.disk_level import DiskLevel, judge_disk
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.errors import NotConnected, PulsarException, ServiceUnitNotReady, StoreSealed, Timeout
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity

logger = logging.getLogger(__name__)

PROBE_DEADLINE_S = 7.0
NUMBERS_AHEAD = 64
"""Topics that are created together share one durable write in every store."""
RECORD_DEADLINE_S = 7.0
DISK_DEADLINE_S = 2.0
ROOM_DEADLINE_S = 5.0
FIND_WAIT_S = 20.0
THERE, SILENT, SEALED, GONE = "there", "silent", "sealed", "gone"


class Stores:
    """`known` maps a store's id to its description with its `handle`.

    `refused` has what is wrong with the others, by node: host, path and reason; `is_lost` says that something
    is missing which was there, and not only that a node has no store. `unknown` are partition directories
    that the catalog lacks, by store.
    """

    def __init__(
        self, actors: StoreActors, membership: Membership, settings: Settings, system: ActorSystem
    ) -> None:
        self.membership = membership
        self._actors = actors
        self._system = system
        self._settings = settings
        self._draining: set[str] = set()
        self.known: dict[str, dict[str, Any]] = {}
        self.resting: dict[str, dict[str, Any]] = {}
        """Empty stores without an actor, by node: Ray may take their nodes (ADR 0146)."""
        self.refused: dict[str, dict[str, Any]] = {}
        self.unknown: dict[str, list[dict[str, Any]]] = {}
        self.silent: set[str] = set()
        """Of the known ones, these did not answer when they were last probed."""
        self.sealed: set[str] = set()
        """Stores that others have ended; whoever ends their actors takes them out."""
        self._recording = asyncio.Lock()
        self._finding: dict[str, asyncio.Task[None]] = {}
        self._storeless = StorelessNodes()

    def look_for_draining(self) -> None:
        """Ask Ray which nodes it drains."""
        draining = self._system.draining()
        for store in self.known.values():
            if store["node_id"] in draining - self._draining:
                event(
                    logger,
                    "Ray drains %s: nothing more is started there",
                    store["host"],
                    level=logging.WARNING,
                )
        self._draining = draining

    def is_draining(self, store: dict[str, Any]) -> bool:
        """Whether Ray starts nothing more on a store's node, as of the last look."""
        return store["node_id"] in self._draining

    def drained(self) -> set[str]:
        """Return the ids of stores that Ray or somebody wants to become empty."""
        wanted = self.membership.catalog.drained_stores()
        by_ray = {store_id for store_id, store in self.known.items() if self.is_draining(store)}
        return (wanted & self.present.keys()) | by_ray

    @property
    def present(self) -> dict[str, dict[str, Any]]:
        """The stores that are there by their ids, also those that rest."""
        return {**self.known, **{store["store_id"]: store for store in self.resting.values()}}

    async def let_rest(self, store_id: str) -> None:
        """End the actor of a store that is empty and stays so.

        Its node is idle to Ray then. It is taken in again once nobody wants it empty any more.
        """
        store = self.known.pop(store_id)
        self.silent.discard(store_id)
        self._actors.forget(store["node_id"])
        self.resting[store["node_id"]] = {
            name: store[name] for name in ("store_id", "host", "path", "node_id")
        }
        await asyncio.to_thread(store["handle"].kill)
        event(logger, "store %s on %s is empty and rests: its node may go", store_id, store["host"])

    def _wake_resting(self, hosts: Mapping[str, str]) -> None:
        """Have stores found again that are not drained any more.

        Those are forgotten whose nodes have left.
        """
        wanted = self.membership.catalog.drained_stores()
        for node_id, store in list(self.resting.items()):
            if node_id not in hosts:
                self._say_gone(store, "its node has left the cluster")
            if node_id not in hosts or store["store_id"] not in wanted:
                del self.resting[node_id]

    def for_new_partitions(self) -> list[str]:
        """Return the ids of stores that take new partitions, none on nodes that are drained.

        Raises ServiceUnitNotReady if there is none.
        """
        self.look_for_draining()
        drained = self.drained()
        found = [store_id for store_id in self.known if store_id not in drained]
        if not found:
            raise ServiceUnitNotReady(
                "every node that has a store is drained, by Ray or by `pulsar-ray nodes drain`: none takes "
                "a new partition: add a node, or take one back with `pulsar-ray nodes undrain`"
            )
        return found

    async def find(self) -> None:
        """Take in all live nodes' stores that belong here; `refused` describes the others.

        Those of nodes that are gone are forgotten: a node that comes back has another id. One that takes long
        to start is taken in later.
        """
        hosts = self._system.hosts()
        self._actors.keep(hosts)
        for node_id in self.refused.keys() - hosts.keys():
            del self.refused[node_id]
        for store_id, store in list(self.known.items()):
            if store["node_id"] not in hosts:
                del self.known[store_id]
                self._say_gone(store, "its node has left the cluster")
        self._wake_resting(hosts)
        self.look_for_draining()
        # A store's actor would not be started on a node that Ray drains.
        missing = set(hosts) - {store["node_id"] for store in self.present.values()} - self._draining
        self._storeless.keep(missing)
        if len(self.present) >= self.membership.catalog.expected_stores:
            missing -= self._storeless.left_alone(asyncio.get_running_loop().time())
        for node_id in missing - set(self._finding):
            task = asyncio.get_running_loop().create_task(self._find_on(node_id, hosts[node_id]))
            self._finding[node_id] = task
            task.add_done_callback(partial(self._found, node_id))
        if self._finding:
            await asyncio.wait(list(self._finding.values()), timeout=FIND_WAIT_S)
        # Behind the search: at its start a controller knows no store yet, and would note all as absent.
        self.membership.observe(self.present, SystemClock().now_ms())

    def _found(self, node_id: str, _: asyncio.Task[None]) -> None:
        self._finding.pop(node_id, None)

    async def _find_on(self, node_id: str, host: str) -> None:
        membership = self.membership
        is_lost = True
        try:
            described = await self._actors.describe(node_id)
            reason = membership.refusal(described)
            if not reason:
                await self._take_in(membership, described)
                self.refused.pop(node_id, None)
                return
            is_lost = described["identity"] is not None or membership.is_expected(host)
        except PulsarException as error:
            reason = str(error)
            if isinstance(error, StoreSealed):
                places = membership.catalog.stores().items()
                self.sealed |= {each for each, place in places if place == (host, self._actors.data_dir)}
        if node_id not in self._system.hosts():
            return
        if self.refused.get(node_id, {}).get("reason") != reason:
            logger.warning("no store on %s (node %s): %s", host, node_id[:8], reason)
        self.refused[node_id] = {
            "node_id": node_id,
            "host": host,
            "path": self._actors.data_dir,
            "reason": reason,
            "is_lost": is_lost,
        }
        if not is_lost:
            self._storeless.found(node_id, asyncio.get_running_loop().time())
            await self._actors.end(node_id)

    async def _take_in(self, membership: Membership, described: dict[str, Any]) -> None:
        if described["identity"] is None:
            described = await self._actors.describe(described["node_id"], make=True)
        membership.take_in(described)
        async with self._recording:
            await self._record(membership, described)
            if described["identity"].succeeds:
                numbers = membership.catalog.numbers_in(described["store_id"])
                here = await described["handle"].call("call_part", "directory", "unknown", numbers)
                membership.take_in_successor(described["identity"], [each.number for each in here])
            self.known[described["store_id"]] = described
        event(
            logger,
            "store %s on %s (%s) is taken in, with %d partitions",
            described["store_id"],
            described["host"],
            described["path"],
            len(membership.catalog.numbers_in(described["store_id"])),
        )
        await self._compare(membership, described)

    def _say_gone(self, store: dict[str, Any], reason: str) -> None:
        membership = self.membership
        event(
            logger,
            "store %s on %s (%s) is gone with %d partitions: %s",
            store["store_id"],
            store["host"],
            store["path"],
            len(membership.catalog.numbers_in(store["store_id"])),
            reason,
            level=logging.WARNING,
        )

    async def _record(self, membership: Membership, store: dict[str, Any], below: int = 0) -> None:
        identity: StoreIdentity = membership.recorded(store["identity"], below)
        try:
            record = "directory", "record", identity
            await store["handle"].call("call_part", *record, within_s=RECORD_DEADLINE_S)
        except Timeout:
            raise Timeout(f"the store on {store['host']} does not write its store.json") from None
        store["identity"] = identity

    async def _compare(self, membership: Membership, store: dict[str, Any]) -> None:
        """Tell what lies in a store apart from what the catalog knows of it."""
        store_id = store["store_id"]
        numbers = membership.catalog.numbers_in(store_id)
        found = await store["handle"].call("call_part", "directory", "unknown", numbers)
        self.unknown[store_id] = [
            {
                "topic": directory.name,
                "number": directory.number,
                "store_id": store_id,
                "host": store["host"],
                "directory": f"{store['path']}/p/{directory.number}",
                "name_is_taken": membership.catalog.is_taken(directory.name, directory.topic),
            }
            for directory in found
        ]
        for unknown in self.unknown[store_id]:
            logger.warning(
                "%s on %s holds %s, which the catalog does not know: nothing of it is served",
                unknown["directory"],
                unknown["host"],
                unknown["topic"],
            )

    async def reserve_numbers(self, count: int) -> None:
        """Reserve so many partition numbers in every store before they are granted, and some ahead.

        So none is granted again by a catalog that is put back from a copy. Numbers that were reserved and not
        granted are left out once the controller begins anew.
        """
        membership = self.membership

        def needed() -> int:
            return membership.catalog.last_number + count + 1

        while needed() > membership.reserved_below:
            async with self._recording:
                if (below := needed()) > membership.reserved_below:
                    await self._reserve(membership, below + NUMBERS_AHEAD)

    async def record_change_logs(self) -> None:
        """Record in every store, before the first is appended to, that there are change logs."""
        membership = self.membership
        async with self._recording:
            if not membership.has_change_logs:
                membership.has_change_logs = True
                try:
                    await self._reserve(membership, membership.reserved_below)
                except BaseException:
                    membership.has_change_logs = False
                    raise

    async def _reserve(self, membership: Membership, below: int) -> None:
        stores = list(self.known.values())
        results = await asyncio.gather(
            *(self._record(membership, store, below) for store in stores), return_exceptions=True
        )
        for store, result in zip(stores, results, strict=True):
            if isinstance(result, BaseException):
                if store["store_id"] == membership.catalog_store_id:
                    raise result
                logger.warning("store %s did not record new numbers: %s", store["store_id"], result)
        membership.reserved_below = max(membership.reserved_below, below)

    async def probe(self) -> None:
        """Restart silent stores; forget dead ones and those that lost their directory."""
        stores = list(self.known.items())
        answers = await asyncio.gather(*(_probe(store) for _, store in stores))
        self.silent = {
            store_id for (store_id, _), answer in zip(stores, answers, strict=True) if answer == SILENT
        }
        for (store_id, _), answer in zip(stores, answers, strict=True):
            if answer == SEALED:
                self.sealed.add(store_id)
            if answer in (GONE, SEALED):
                self.give_up(store_id, "see the line before")

    def give_up(self, store_id: str, reason: str) -> None:
        """Forget that a store is there, until it is found again."""
        store = self.known.pop(store_id, None)
        self.silent.discard(store_id)
        if store is not None:
            self._actors.forget(store["node_id"])
            self._say_gone(store, reason)

    def absent(self) -> list[str]:
        """Return the ids of stores with partitions that do not answer."""
        away = self.membership.away(self.present.keys() - self.silent)
        return [store["store_id"] for store in away if store["store_id"]]

    async def nodes(self) -> list[dict[str, Any]]:
        """Describe the nodes as `Membership.nodes`, with the disks of those whose stores answer."""
        membership = self.membership
        known = dict(self.known)
        disks = dict(zip(known, await asyncio.gather(*map(_disk, known.values())), strict=True))
        self._storeless.look_again()  # somebody may have made a store just now, and wants to see it
        present = {**self.present, **known}
        membership.observe(present, SystemClock().now_ms())
        return [
            {**node, **disks.get(node["storeId"], {})}
            for node in membership.nodes(present, list(self.refused.values()), self._draining)
        ]

    async def rooms(self, handles: Mapping[str, ActorHandle]) -> dict[str, Room]:
        """Return what stores have already, and whether their disks have room."""
        counts = self.membership.catalog.partitions_per_store()
        disks = {}
        for store_id, handle in handles.items():
            told = await handle.call("stats", within_s=ROOM_DEADLINE_S)
            level = judge_disk(told["freeBytes"], told["totalBytes"], self._settings).level
            disks[store_id] = (int(told["freeBytes"]), level)
        levels = {level for _, level in disks.values()} - {DiskLevel.LOW}
        wanted = DiskLevel.OK if DiskLevel.OK in levels else DiskLevel.WARNING
        return {
            store_id: Room(counts.get(store_id, 0), free, has_room=level is wanted)
            for store_id, (free, level) in disks.items()
        }


_TOLD_OF_NODES = ("freeBytes", "totalBytes", "remoteLagSeconds", "remoteWaitingBytes")


async def _disk(store: dict[str, Any]) -> dict[str, Any]:
    try:
        told = await store["handle"].call("stats", within_s=DISK_DEADLINE_S)
    except Timeout:
        return {"state": "silent", "reason": f"does not answer within {DISK_DEADLINE_S:g} s"}
    except PulsarException as error:
        return {"state": "silent", "reason": error.text}
    return {name: told[name] for name in _TOLD_OF_NODES}


async def _probe(store: dict[str, Any]) -> str:
    """Return THERE, SILENT, SEALED, or GONE if its directory is not the store's any more."""
    try:
        await store["handle"].call("probe", within_s=PROBE_DEADLINE_S)
    except Timeout:
        if store["handle"].is_running():
            logger.warning("store %s does not answer: killing it", store["store_id"])
            await asyncio.to_thread(store["handle"].crash)
        return SILENT
    except NotConnected:
        logger.warning("store %s is not reachable", store["store_id"])
        return SILENT
    except PulsarException as error:
        logger.warning("store %s is lost: %s", store["store_id"], error)
        return SEALED if isinstance(error, StoreSealed) else GONE
    return THERE
