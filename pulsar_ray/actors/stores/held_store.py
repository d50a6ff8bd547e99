"""Holds the data directory of one node, with all of its partitions.

Nothing here knows of Ray. Methods run on the actor's loop; what touches the disk runs in threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulsar_ray.broker.partition.sleeping_partition import describe_sleeping
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.clock import SystemClock
from pulsar_ray.errors import PulsarException, ServiceUnitNotReady, WrongNode
from pulsar_ray.journal.ended_store import place_aside, put_aside
from pulsar_ray.journal.objects import CatalogEntry
from pulsar_ray.journal.remote_state import problem_of, remark_of
from pulsar_ray.journal.store_files import remove_partition
from pulsar_ray.journal.store_journal import StoreJournal
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
from pulsar_ray.managed_ledger.store.wake_times import WakeTimes, read_wake_times

logger = logging.getLogger(__name__)

OPEN_WAIT_S = 5.0


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


class HeldStore:
    """Holds the lock and identity of one data directory.

    A directory without a store is left alone until one is made there.
    """

    def __init__(self, path: Path, node: StoreNode) -> None:
        self._path = path
        self._node = node
        self._ledgers = path / "p"
        self._store: StoreDirectory | None = None
        self._wake_times = WakeTimes()
        self._knows_notes = False
        self._journal: StoreJournal | None = None

    def __repr__(self) -> str:
        return f"Store({self._path})"

    def _open(self, *, create: bool, wait_s: float) -> None:
        """Hold the directory if it is a store, or may become one.

        Raises what is wrong with it.
        """
        if self._store is not None or not (create or (self._path / STORE_FILE).exists()):
            return
        self._store = StoreDirectory.open(
            self._path, address=self._node.owner, wait_s=wait_s, session=self._node.session, create=create
        )
        event(logger, "holds store %s in %s", self._store.store_id, self._path)

    async def describe(self) -> dict[str, Any]:
        """Node, host, path, and the store's `identity`: None if there is none.

        Looks again each time. Raises what is wrong with the directory.
        """
        await asyncio.to_thread(self._look)
        return {
            "identity": self._store.identity if self._store is not None else None,
            "store_id": self._store.store_id if self._store is not None else "",
            "has_partitions": await asyncio.to_thread(has_partitions, self._path),
            "node_id": self._node.node_id,
            "host": self._node.host,
            "path": str(self._path),
            "pid": os.getpid(),
            "memory_bytes": self._node.memory_bytes,
        }

    def _look(self) -> None:
        if self._store is not None:
            self._check()
            return
        self._open(create=False, wait_s=0.0)
        if self._path.is_dir():
            check_foreign(self._path)

    async def make(self) -> dict[str, Any]:
        """Make an empty directory a store, of no cluster yet; describe it."""
        await asyncio.to_thread(self._open, create=True, wait_s=OPEN_WAIT_S)
        return await self.describe()

    async def record(self, identity: StoreIdentity) -> None:
        """Record what the store knows of its cluster from now on, durably."""
        assert self._store is not None
        await asyncio.to_thread(self._store.change, identity)

    async def probe(self) -> int:
        """Alive: the process id. Raises what is wrong with the directory by now."""
        if self._store is None:
            raise WrongNode(f"{self._path} holds no store that could be opened")
        await asyncio.to_thread(self._check)
        return os.getpid()

    def _check(self) -> None:
        assert self._store is not None
        self._store.check_present()
        if self._journal is not None:
            self._journal.check()

    async def remote(self) -> dict[str, Any] | None:
        """Return the state of the journal, see StoreJournal.status; None without an object store."""
        return None if self._journal is None else self._journal.status()

    async def health(self) -> dict[str, Any]:
        """Return the room on the disk, the time, and how shipping goes.

        Raises the reason if something is wrong with the directory by now.
        """
        await self.probe()
        usage = await asyncio.to_thread(shutil.disk_usage, self._path)
        remote = await self.remote() or {}
        return {
            "freeBytes": usage.free,
            "totalBytes": usage.total,
            "remoteProblem": problem_of(remote),
            "remoteRemark": remark_of(remote),
            "remoteLagSeconds": remote.get("lagSeconds", 0.0),
            "nowMs": SystemClock().now_ms(),
            "metricsProblem": "",
        }

    async def owned_by(self, store_id: str) -> list[str]:
        """See StoreJournal.owned_by. Raises ServiceUnitNotReady without a journal that runs."""
        return await asyncio.to_thread(self._running_journal().owned_by, store_id)

    async def owners_of(self, partitions: list[str]) -> dict[str, str]:
        """See StoreJournal.owners_of. Raises ServiceUnitNotReady without a journal that runs."""
        return await asyncio.to_thread(self._running_journal().owners_of, partitions)

    async def seal(self, store_id: str) -> list[str]:
        """See StoreJournal.seal. Raises ServiceUnitNotReady without a journal that runs."""
        return await asyncio.to_thread(self._running_journal().seal, store_id)

    async def adopt(self, partitions: list[str]) -> list[str]:
        """See StoreJournal.adopt. Raises ServiceUnitNotReady without a journal that runs."""
        return await asyncio.to_thread(self._running_journal().adopt, partitions)

    def _put_aside(self, owners: Mapping[str, CatalogEntry], kept: Collection[int]) -> bool:
        """Make an ended store a new one, see `put_aside`; False while others work in it."""
        assert self._store is not None
        before = self._store.identity
        if not self._store.hold_alone():
            return False
        left = put_aside(self._path, before, owners, kept)
        self._store.change(successor(before, has_partitions=bool(left)))
        event(
            logger,
            "store %s was taken over: %s is store %s now, with %d partitions, the rest is in %s",
            before.store_id,
            self._path,
            self._store.store_id,
            len(left),
            place_aside(self._path, before.store_id),
        )
        return True

    def _running_journal(self) -> StoreJournal:
        if self._journal is None:
            raise ServiceUnitNotReady(f"the store in {self._path} has no journal in an object store yet")
        return self._journal

    async def stats(self) -> dict[str, Any]:
        """The disk in bytes, and how far it is shipped, if it is."""
        usage = await asyncio.to_thread(shutil.disk_usage, self._path)
        remote = await self.remote() or {}
        return {
            "path": str(self._path),
            "freeBytes": usage.free,
            "totalBytes": usage.total,
            "pid": os.getpid(),
            "remoteLagSeconds": remote.get("lagSeconds"),
            "remoteWaitingBytes": remote.get("waitingBytes"),
        }

    # --- partitions -------------------------------------------------------------------------------

    async def partitions(self) -> list[PartitionDirectory]:
        """Every partition directory: what a catalog is made anew from."""
        return await asyncio.to_thread(read_identities, self._ledgers)

    async def unknown(self, known: set[int]) -> list[PartitionDirectory]:
        """The partition directories with other numbers than these."""

        def read() -> list[PartitionDirectory]:
            numbers = set(partition_numbers(self._ledgers)) - known
            return read_identities(self._ledgers, numbers)

        return await asyncio.to_thread(read)

    async def prepared(self) -> set[int]:
        """The numbers of those that are prepared and not part of their topics yet."""
        return await asyncio.to_thread(prepared_numbers, self._ledgers)

    async def mark_prepared(self, numbers: list[int]) -> None:
        """Mark partitions that are to come; durable when this answers."""
        await asyncio.to_thread(mark_prepared, self._ledgers, numbers, SystemDisk())

    async def mark_added(self, numbers: list[int]) -> None:
        """Take the marks of partitions back: they are like any other from now on, durably."""
        await asyncio.to_thread(mark_added, self._ledgers, numbers, SystemDisk())

    async def remove(self, number: int) -> None:
        """Delete a deleted topic's ledger directory."""
        journal = self._journal
        if journal is None or not await asyncio.to_thread(journal.drop, number):
            await asyncio.to_thread(remove_partition, self._ledgers / str(number))
        await self.mark_added([number])
        await self.slept({number: None})

    # --- sleeping partitions ----------------------------------------------------------------------

    async def slept(self, times: dict[int, int | None]) -> None:
        """Keep the times in ms at which sleeping partitions are to be woken.

        They come by the partitions' numbers; None takes a time back. They are gone with this process, the
        notes in the partitions' directories are not.
        """
        self._wake_times.slept(times)

    async def due(self, now_ms: int, most: int, again: bool) -> dict[int, int]:
        """Take up to `most` partitions that are to be woken by now, each once.

        They come with their times. With `again` the notes are read anew, as they are the first time.
        """
        if again or not self._knows_notes:
            self._wake_times.learn(await asyncio.to_thread(read_wake_times, self._ledgers))
            self._knows_notes = True
        return self._wake_times.take_due(now_ms, most)

    async def describe_sleeping(self, number: int) -> dict[str, Any] | None:
        """Describe a partition by its files; None if it has to run for that."""
        try:
            return await asyncio.to_thread(describe_sleeping, self._ledgers / str(number))
        except (OSError, PulsarException) as error:
            logger.debug("partition %d is not described from its files: %s", number, error)
            return None
