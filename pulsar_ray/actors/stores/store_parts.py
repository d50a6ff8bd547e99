"""Ties the parts of a node's store together, and answers calls to them.

Nothing here knows of Ray. Methods run on the actor's loop; what touches the disk runs in threads.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pulsar_ray.actors.actor_system import ActorHandle
from pulsar_ray.actors.part_calls import PartCalls, check_part_call
from pulsar_ray.actors.stores.data_directory import DataDirectory, StoreNode
from pulsar_ray.actors.stores.partition_copies import PartitionCopies
from pulsar_ray.actors.stores.sleep_times import FiguresOfSleepers, SleepTimes
from pulsar_ray.actors.stores.store_shipping import StoreShipping
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.journal.remote_state import problem_of, remark_of
from pulsar_ray.journal.store_files import remove_partition

OPEN_WAIT_S = 5.0

STORE_CALLS: PartCalls = {
    "directory": ("record", "partitions", "unknown", "prepared", "mark_prepared", "mark_added"),
    "sleeping": ("slept", "due", "describe", "moved_in"),
    "shipping": ("status",),
    "journal": ("owned_by", "owners_of", "seal", "adopt", "take_back"),
    "copies": ("fence", "ship", "clear", "begin", "pull", "install"),
    "moved_files": ("listed", "is_shipped", "is_fenced_as", "read", "discard", "noted"),
}
"""The journal answers with ServiceUnitNotReady while it does not run."""


class StoreParts:
    """Holds the parts of one store.

    See StoreShipping, PartitionCopies and SleepTimes for the functions that they are given.
    """

    def __init__(
        self,
        path: Path,
        node: StoreNode,
        settings: Settings,
        *,
        find_peer: Callable[[str], ActorHandle | None],
        find_controller: Callable[[], ActorHandle | None],
        end_process: Callable[[], None],
        metrics: Callable[[], FiguresOfSleepers | None] = lambda: None,
    ) -> None:
        self.directory = DataDirectory(path, node)
        self.sleeping = SleepTimes(self.directory.ledgers, metrics)
        self.shipping = StoreShipping(self.directory, settings, find_controller, end_process)
        self.copies = PartitionCopies(self.directory, self.shipping, self.sleeping, settings, find_peer)

    async def call_part(self, part: str, method: str, *arguments: Any) -> Any:
        """Call a method of a part, one of STORE_CALLS, in a thread if it blocks."""
        check_part_call(STORE_CALLS, "store", part, method)
        called: Callable[..., Any] = getattr(self._part(part), method)
        if asyncio.iscoroutinefunction(called):
            return await called(*arguments)
        return await asyncio.to_thread(called, *arguments)

    def _part(self, name: str) -> Any:
        if name == "journal":
            return self.shipping.running()
        return {
            "directory": self.directory,
            "sleeping": self.sleeping,
            "shipping": self.shipping,
            "copies": self.copies,
            "moved_files": self.copies.files,
        }[name]

    async def describe(self, make: bool = False) -> dict[str, Any]:
        """See DataDirectory.described.

        With `make` an empty directory becomes a store, of no cluster yet.

        Looks again each time. Raises what is wrong with the directory.
        """
        if make:
            await asyncio.to_thread(self.directory.open, create=True, wait_s=OPEN_WAIT_S)
        await asyncio.to_thread(self._look)
        return await asyncio.to_thread(self.directory.described)

    def _look(self) -> None:
        self.directory.look()
        self._check_shipping()

    def _check_shipping(self) -> None:
        if self.shipping.journal is not None:
            self.shipping.journal.check()

    async def probe(self) -> int:
        """Alive: the process id. Raises what is wrong with the directory by now."""
        await asyncio.to_thread(self._check)
        return os.getpid()

    def _check(self) -> None:
        self.directory.check()
        self._check_shipping()

    async def health(self) -> dict[str, Any]:
        """Return the room on the disk, the time, and how shipping goes.

        Raises the reason if something is wrong with the directory by now.
        """
        await self.probe()
        usage = await asyncio.to_thread(shutil.disk_usage, self.directory.path)
        remote = await self.shipping.status() or {}
        return {
            "freeBytes": usage.free,
            "totalBytes": usage.total,
            "remoteProblem": problem_of(remote),
            "remoteRemark": remark_of(remote),
            "remoteLagSeconds": remote.get("lagSeconds", 0.0),
            "nowMs": SystemClock().now_ms(),
            "metricsProblem": "",
        }

    async def stats(self) -> dict[str, Any]:
        """The disk in bytes, and how far it is shipped, if it is."""
        usage = await asyncio.to_thread(shutil.disk_usage, self.directory.path)
        remote = await self.shipping.status() or {}
        return {
            "path": str(self.directory.path),
            "freeBytes": usage.free,
            "totalBytes": usage.total,
            "pid": os.getpid(),
            "remoteLagSeconds": remote.get("lagSeconds"),
            "remoteWaitingBytes": remote.get("waitingBytes"),
        }

    async def remove(self, number: int) -> None:
        """Delete a deleted topic's ledger directory."""
        journal = self.shipping.journal
        if journal is None or not await asyncio.to_thread(journal.drop, number):
            await asyncio.to_thread(remove_partition, self.directory.ledgers / str(number))
        await asyncio.to_thread(self.directory.mark_added, [number])
        await self.sleeping.forget(number)
