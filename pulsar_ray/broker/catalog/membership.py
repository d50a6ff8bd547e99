"""Which stores belong to the broker's cluster, and what they record of it (ADR 0026).

Decides; whoever asks talks to the stores.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.errors import BrokerPersistenceError
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity
from pulsar_ray.model.topic_name import heartbeat, system_change_log


@dataclass(slots=True)
class Membership:
    """The cluster as its catalog has it.

    `takes_old`: stores of version 0.1 are taken in on somebody's word.

    `takes_empty`: empty directories are made stores, of nodes that never had one.
    """

    catalog: Catalog
    catalog_store_id: str
    catalog_host: str
    takes_old: bool
    takes_empty: bool
    reserved_below: int = 0
    """Numbers below stand in every store that is there; none is granted before (ADR 0026)."""
    is_of_ray_cluster: bool = False
    """Whether stores are to record that a Ray uses them which `ray start` began."""
    has_change_logs: bool = False
    """Whether stores are to record that there are change logs (ADR 0031)."""

    def refusal(self, described: dict[str, Any]) -> str:
        """Return why a node's store is not taken in; "" if it is.

        `described` is the StoreActor's description.
        """
        identity: StoreIdentity | None = described["identity"]
        path, host = described["path"], described["host"]
        if identity is None:
            return self._refusal_of_nothing(path, host)
        cluster_id, generations = self.catalog.identity
        if not identity.cluster_id:
            is_known = identity.store_id in (self.catalog_store_id, *self._store_ids())
            if is_known or self.takes_old or not described["has_partitions"]:
                return ""
            return (
                f"{path} holds partitions of version 0.1 that this catalog does not know: take them in with "
                "`pulsar-ray stop` and `pulsar-ray start --rebuild-catalog`"
            )
        if identity.cluster_id != cluster_id:
            return (
                f"{path} is a store of cluster {identity.cluster_id}, this is {cluster_id}: mount the disk "
                "that belongs here, or use another data_dir"
            )
        if not set(identity.generations) <= set(generations):
            return (
                f"{path} was used with another catalog of this cluster, on {identity.catalog_host} (store "
                f"{identity.catalog_store_id}), which this one does not know: bring that up instead, or "
                "unite them with `pulsar-ray stop` and `pulsar-ray start --rebuild-catalog`"
            )
        return ""

    def _refusal_of_nothing(self, path: str, host: str) -> str:
        had = [store_id for store_id, (where, _) in self.catalog.stores().items() if where == host]
        if had:
            return (
                f"{path} is empty, but this node had store {had[0]}: mount its disk, or if that is lost for "
                f"good, run `pulsar-ray init-store {shlex.quote(path)} --replace` there"
            )
        if self.takes_empty:
            return ""
        return f"{path} holds no store: run `pulsar-ray init-store {shlex.quote(path)}` there to use its disk"

    def is_expected(self, host: str) -> bool:
        """Whether a node without a store lacks one that was there."""
        return any(where == host for where, _ in self.catalog.stores().values())

    def _store_ids(self) -> Collection[str]:
        return {*self.catalog.stores(), *self.catalog.partitions_per_store()}

    def recorded(self, identity: StoreIdentity, below: int = 0) -> StoreIdentity:
        """Return the identity that a store records when taken in or when numbers are reserved."""
        cluster_id, generations = self.catalog.identity
        return dataclasses.replace(
            identity,
            cluster_id=cluster_id,
            generations=generations,
            catalog_store_id=self.catalog_store_id,
            catalog_host=self.catalog_host,
            numbers_below=max(below, self.reserved_below, self.catalog.last_number + 1),
            has_change_logs=identity.has_change_logs or self.has_change_logs,
            is_of_ray_cluster=identity.is_of_ray_cluster or self.is_of_ray_cluster,
        )

    def take_in(self, described: dict[str, Any]) -> None:
        """Take in a store that has recorded its identity: its numbers are not granted again."""
        identity: StoreIdentity = described["identity"]
        self.catalog.skip_numbers(identity.numbers_below)
        self.catalog.remember_store(identity.store_id, described["host"], described["path"])
        if identity.has_change_logs:
            # Of a catalog that was made anew without this store: policies may lie where nobody has looked.
            self.catalog.change_logs.expect(system_change_log().full)

    def take_in_successor(self, identity: StoreIdentity, numbers: Collection[int]) -> None:
        """Give a store what it has of the one that it was before.

        It may be repeated.
        """
        former, catalog = identity.succeeds, self.catalog
        here = catalog.numbers_in(former) & set(numbers)
        catalog.move_partitions(dict.fromkeys(here, identity.store_id))
        own = heartbeat(former).full
        if former in catalog.stores() and not set(catalog.names_in(former, -1)) - {own}:
            catalog.forget_store(former, [], {})

    def away(self, present: Collection[str]) -> list[dict[str, Any]]:
        """The stores that hold partitions and are on no node, with their last places."""
        known = self.catalog.stores()
        return [
            {
                "store_id": store_id,
                "host": known.get(store_id, ("", ""))[0] or "an unknown host",
                "path": known.get(store_id, ("", ""))[1],
                "partitions": count,
            }
            for store_id, count in sorted(self.catalog.partitions_per_store().items())
            if store_id not in present
        ]

    def observe(self, present: Collection[str], now_ms: int) -> None:
        """Keep which stores are on a node, and since when the others are not.

        A note that a full disk does not take is made at a later look: nobody waits for it.
        """
        absent = self.catalog.absences()
        with suppress(BrokerPersistenceError):
            for store_id in self.catalog.stores():
                if store_id not in present and store_id not in absent:
                    self.catalog.note_absence(store_id, now_ms)
                elif store_id in present and store_id in absent:
                    self.catalog.note_presence(store_id)

    def nodes(
        self,
        present: Mapping[str, Mapping[str, Any]],
        refused: Collection[Mapping[str, Any]],
        draining: Collection[str],
    ) -> list[dict[str, Any]]:
        """Describe every node that has, had or could have a store, sorted by host.

        `present` are the stores that are there by their ids, `refused` the nodes that have none, and
        `draining` the ids of nodes that Ray drains.
        """
        counts, since = self.catalog.partitions_per_store(), self.catalog.absences()
        found = [
            _node(
                store["host"],
                store["node_id"],
                store_id,
                store["path"],
                "draining" if store["node_id"] in draining else "serving",
                partitions=counts.get(store_id, 0),
            )
            for store_id, store in present.items()
        ]
        without = {node["host"]: node for node in refused}
        for store_id, (host, path) in self.catalog.stores().items():
            if store_id in present:
                continue
            node = without.pop(host, None)
            found.append(
                _node(
                    host,
                    node["node_id"] if node is not None else "",
                    store_id,
                    path,
                    "away" if node is None else "lost",
                    partitions=counts.get(store_id, 0),
                    since_ms=since.get(store_id, 0),
                    reason="" if node is None else str(node["reason"]),
                )
            )
        for node in without.values():
            state = "lost" if node["is_lost"] else "without store"
            found.append(
                _node(node["host"], node["node_id"], "", node["path"], state, reason=str(node["reason"]))
            )
        return sorted(found, key=lambda node: (node["host"], node["storeId"]))


def _node(
    host: str,
    node_id: str,
    store_id: str,
    path: str,
    state: str,
    *,
    partitions: int = 0,
    since_ms: int = 0,
    reason: str = "",
) -> dict[str, Any]:
    return {
        "host": host,
        "nodeId": node_id,
        "storeId": store_id,
        "path": path,
        "state": state,
        "partitions": partitions,
        "sinceMs": since_ms,
        "reason": reason,
    }
