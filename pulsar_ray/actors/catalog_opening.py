"""Opening the cluster's catalog, or making it as the controller was ordered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from pulsar_ray.actors.actor_system import ActorSystem
from pulsar_ray.actors.stores.store_actors import StoreActors
from pulsar_ray.broker.catalog.catalog import Catalog, PartitionRow
from pulsar_ray.broker.catalog.decisions import Decisions
from pulsar_ray.broker.catalog.founding import CatalogOrder, check_is_ours, check_may_make, new_range
from pulsar_ray.config import OFF, Settings
from pulsar_ray.errors import CatalogMissing, PulsarException
from pulsar_ray.journal.at_once import carried_out
from pulsar_ray.journal.ownership import Ownership
from pulsar_ray.journal.storage.bucket import open_object_store
from pulsar_ray.managed_ledger.store.store_identity import CATALOG_FILE, StoreIdentity
from pulsar_ray.model.topic_name import heartbeat

logger = logging.getLogger(__name__)

SETTLED_S = 60.0


class CatalogOpening:
    """Carries out the controller's order for the catalog in its data directory.

    With an object store `decisions` are what the catalog changes; `on_end` is called as theirs.
    """

    def __init__(
        self,
        data_dir: Path,
        order: CatalogOrder,
        stores: StoreActors,
        system: ActorSystem,
        settings: Settings,
        on_end: Callable[[str, bool], None],
    ) -> None:
        self._data_dir = data_dir
        self._path = data_dir / CATALOG_FILE
        self._system = system
        self._order = order
        self._stores = stores
        self._url = settings.remote_url
        self._on_end = on_end
        self.decisions: Decisions | None = None

    async def open(self, own: dict[str, Any]) -> Catalog:
        """Open the cluster's catalog, or make it as ordered.

        It is made once, so that one that was lost since is not made empty.

        Raises CatalogMissing, CatalogConflict, what is wrong with its file, and what Decisions.begin raises.
        """
        identity: StoreIdentity | None = own["identity"]
        if identity is None:
            raise CatalogMissing(f"{self._data_dir} holds no store any more: mount its disk")
        if self._url == OFF:
            catalog = await self._opened(identity, has_partitions=own["has_partitions"])
            if self._is_to_be_rebuilt(catalog):
                await self._rebuilt(catalog, self._path)
            return catalog
        decisions = self.decisions = Decisions(self._path, self._url, open_object_store(self._url))
        decisions.on_end = self._on_end
        try:
            return await self._decided(decisions, identity, has_partitions=own["has_partitions"])
        except BaseException:
            decisions.close()
            raise

    async def _decided(
        self, decisions: Decisions, identity: StoreIdentity, *, has_partitions: bool
    ) -> Catalog:
        """Open the catalog as the object store has it, which decides its changes."""
        order = self._order
        await asyncio.to_thread(decisions.begin, identity.cluster_id or order.cluster_id)
        (await self._opened(identity, has_partitions=has_partitions)).close()
        catalog = Catalog(self._path, decisions)
        decisions.go_on()
        is_new_place = order.kind in ("recover", "rebuild")
        if is_new_place and order.generation not in catalog.identity.generations:
            await self._give_to_owners(catalog, decisions, identity.store_id)
            if order.kind == "rebuild":
                await self._rebuilt(catalog, self._path)
            else:
                catalog.succeed(order.generation)
            await decisions.settled(wait_s=SETTLED_S)
        return catalog

    async def _opened(self, identity: StoreIdentity, *, has_partitions: bool) -> Catalog:
        order, path = self._order, self._path
        if not path.exists():
            check_may_make(order, identity, has_partitions, path)
            if order.kind == "found":
                return Catalog.make(path, order.cluster_id, order.generation)[0]
            return await self._rebuilt(None, path)
        catalog = Catalog(path)
        check_is_ours(order, identity, catalog.identity, path)
        if not catalog.identity.cluster_id:
            catalog.adopt(order.cluster_id, order.generation)
        return catalog

    def _is_to_be_rebuilt(self, catalog: Catalog) -> bool:
        return self._order.kind == "rebuild" and self._order.generation not in catalog.identity.generations

    async def _give_to_owners(self, catalog: Catalog, decisions: Decisions, own: str) -> None:
        """Note which stores own partitions by now, and forget ended ones.

        Partitions that were never opened have nothing to lose, and begin here. Those that an ended store
        never shipped stay its own: the disk may come back.
        """
        owners = Ownership()
        await asyncio.to_thread(carried_out, owners.read(), decisions.store, time.sleep)
        moves = {
            int(number): entry.store
            for number, entry in owners.owners.items()
            if (row := catalog.numbered(int(number))) is not None and row.store_id != entry.store
        }
        catalog.move_partitions(moves)
        for ended in owners.sealed & catalog.stores().keys():
            catalog.move_unopened(ended, [own])
            if set(catalog.names_in(ended, -1)) <= {heartbeat(ended).full}:
                catalog.forget_store(ended, [], {})
        logger.warning("the catalog is as the object store has it: %d partitions moved", len(moves))

    async def _rebuilt(self, catalog: Catalog | None, path: Path) -> Catalog:
        """Make a catalog from the stores that are there; no number is granted again."""
        order = self._order
        found_rows: list[tuple[tuple[bool, int], PartitionRow]] = []
        prepared: set[int] = set()
        ancestors: dict[str, None] = {}
        seen: list[int] = []
        has_change_logs = False
        for node_id in self._system.hosts():
            try:
                store = await self._stores.describe(node_id)
            except PulsarException as error:
                logger.warning("node %s adds nothing to the catalog: %s", node_id[:8], error)
                continue
            identity: StoreIdentity | None = store["identity"]
            if identity is None or identity.cluster_id not in ("", order.cluster_id):
                continue
            found = await store["handle"].call("call_part", "directory", "partitions")
            prepared |= await store["handle"].call("call_part", "directory", "prepared")
            has_change_logs |= identity.has_change_logs
            ancestors |= dict.fromkeys(identity.generations)
            seen += [identity.numbers_below, *(directory.number for directory in found)]
            found_rows += [
                (
                    each.rank,
                    PartitionRow(
                        each.name, each.number, each.topic, each.partition_index, identity.store_id, True
                    ),
                )
                for each in found
                if each.cluster_id in ("", order.cluster_id)
            ]
        # Of two with one name that which was made later, if a catalog was made anew between them.
        # Of two with one number that which was served last (ADR 0141).
        found_rows.sort(key=lambda found: (found[1].number, found[0]), reverse=True)
        rows = [row for _, row in found_rows]
        if catalog is None:
            first = new_range(seen, Random())
            made, left_out = Catalog.make(
                path,
                order.cluster_id,
                order.generation,
                first,
                ancestors,
                rows,
                prepared,
                has_change_logs=has_change_logs,
            )
        else:
            left_out = catalog.restore(rows, prepared, has_change_logs=has_change_logs)
            made = catalog
            first = new_range([*seen, *catalog.first_numbers()], Random())
            made.begin_generation(order.cluster_id, order.generation, first, ancestors)
        logger.warning("made the catalog anew: %d partitions, %d left out", len(rows), len(left_out))
        return made
