"""Holds the data directory of one node, with all of its partitions.

Nothing here knows of Ray.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.errors import WrongNode
from pulsar_ray.journal.ended_store import place_aside, put_aside
from pulsar_ray.journal.objects import CatalogEntry
from pulsar_ray.journal.store_files import remove_unfinished
from pulsar_ray.ledger.disk import SystemDisk
from pulsar_ray.managed_ledger.log.partition_directories import (
    PartitionDirectory,
    partition_numbers,
    read_identities,
)
from pulsar_ray.managed_ledger.store.store_directory import StoreDirectory, check_foreign
from pulsar_ray.managed_ledger.store.store_identity import (
    STORE_FILE,
    StoreIdentity,
    has_partitions,
    successor,
)
from pulsar_ray.managed_ledger.store.unfinished_growth import mark_added, mark_prepared, prepared_numbers

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreNode:
    """Describes the node of a store to others.

    `owner` and `session` name its Ray to those that would hold the directory.
    """

    node_id: str
    host: str
    memory_bytes: int
    owner: str
    session: str


class DataDirectory:
    """Holds the lock and identity of one data directory.

    A directory without a store is left alone until one is made there. All methods touch the disk.
    """

    def __init__(self, path: Path, node: StoreNode) -> None:
        self.path = path
        self.node = node
        self.ledgers = path / "p"
        self.store: StoreDirectory | None = None
        """None while there is no store that could be opened."""

    def __repr__(self) -> str:
        return f"Store({self.path})"

    def open(self, *, create: bool, wait_s: float) -> None:
        """Hold the directory if it is a store, or may become one.

        Raises what is wrong with it.
        """
        if self.store is not None or not (create or (self.path / STORE_FILE).exists()):
            return
        self.store = StoreDirectory.open(
            self.path, address=self.node.owner, wait_s=wait_s, session=self.node.session, create=create
        )
        remove_unfinished(self.ledgers)
        event(logger, "holds store %s in %s", self.store.store_id, self.path)

    def look(self) -> None:
        """Look again whether there is a store. Raises what is wrong with the directory."""
        if self.store is not None:
            self.check()
            return
        self.open(create=False, wait_s=0.0)
        if self.path.is_dir():
            check_foreign(self.path)

    def check(self) -> None:
        """Raise what is wrong with the directory by now."""
        if self.store is None:
            raise WrongNode(f"{self.path} holds no store that could be opened")
        self.store.check_present()

    def described(self) -> dict[str, Any]:
        """Node, host, path, and the store's `identity`: None if there is none."""
        return {
            "identity": self.store.identity if self.store is not None else None,
            "store_id": self.store.store_id if self.store is not None else "",
            "has_partitions": has_partitions(self.path),
            "node_id": self.node.node_id,
            "host": self.node.host,
            "path": str(self.path),
            "pid": os.getpid(),
            "memory_bytes": self.node.memory_bytes,
        }

    def record(self, identity: StoreIdentity) -> None:
        """Record what the store knows of its cluster from now on, durably."""
        assert self.store is not None
        self.store.change(identity)

    def put_aside(self, owners: Mapping[str, CatalogEntry], kept: Collection[int]) -> bool:
        """Make an ended store a new one, see `put_aside`; False while others work in it."""
        assert self.store is not None
        before = self.store.identity
        if not self.store.hold_alone():
            return False
        left = put_aside(self.path, before, owners, kept)
        self.store.change(successor(before, has_partitions=bool(left)))
        event(
            logger,
            "store %s was taken over: %s is store %s now, with %d partitions, the rest is in %s",
            before.store_id,
            self.path,
            self.store.store_id,
            len(left),
            place_aside(self.path, before.store_id),
        )
        return True

    # --- partitions -------------------------------------------------------------------------------

    def partitions(self) -> list[PartitionDirectory]:
        """Every partition directory: what a catalog is made anew from."""
        return read_identities(self.ledgers)

    def unknown(self, known: set[int]) -> list[PartitionDirectory]:
        """The partition directories with other numbers than these."""
        return read_identities(self.ledgers, set(partition_numbers(self.ledgers)) - known)

    def prepared(self) -> set[int]:
        """The numbers of those that are prepared and not part of their topics yet."""
        return prepared_numbers(self.ledgers)

    def mark_prepared(self, numbers: list[int]) -> None:
        """Mark partitions that are to come; durable when this returns."""
        mark_prepared(self.ledgers, numbers, SystemDisk())

    def mark_added(self, numbers: list[int]) -> None:
        """Take the marks of partitions back: they are like any other from now on, durably."""
        mark_added(self.ledgers, numbers, SystemDisk())
