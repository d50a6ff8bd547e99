"""Opening the cluster's catalog, or making it as the controller was ordered."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random
from typing import Any

from pulsar_ray.actors.actor_system import ActorSystem
from pulsar_ray.actors.stores import Stores
from pulsar_ray.broker.catalog.catalog import Catalog, PartitionRow
from pulsar_ray.broker.catalog.founding import CatalogOrder, check_is_ours, check_may_make, new_range
from pulsar_ray.errors import CatalogMissing, PulsarException
from pulsar_ray.managed_ledger.store.store_identity import CATALOG_FILE, StoreIdentity

logger = logging.getLogger(__name__)


class CatalogOpening:
    """Carries out the controller's order for the catalog in its data directory."""

    def __init__(self, data_dir: Path, order: CatalogOrder, stores: Stores, system: ActorSystem) -> None:
        self._data_dir = data_dir
        self._system = system
        self._order = order
        self._stores = stores

    async def open(self, own: dict[str, Any]) -> Catalog:
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
            found = await store["handle"].call("partitions")
            prepared |= await store["handle"].call("prepared")
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
