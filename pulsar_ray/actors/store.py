"""The StoreActor: ties a Ray node to its data directory."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import ray

from pulsar_ray.actors.local_ray import node_address, node_memory_bytes, session_directory
from pulsar_ray.actors.owner_loop import prepare_broker_process
from pulsar_ray.config import Settings
from pulsar_ray.errors import PulsarException
from pulsar_ray.ledger.disk import SystemDisk
from pulsar_ray.managed_ledger.identity import read_identities
from pulsar_ray.managed_ledger.prepared import mark_added, mark_prepared, prepared_numbers
from pulsar_ray.managed_ledger.store_directory import StoreDirectory
from pulsar_ray.transport.names import CONTROLLER, NAMESPACE

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 5.0
CONTROLLER_DEADLINE_S = 5.0
PROBE_DEADLINE_S = 2.0


class StoreActor:
    """Holds the lock and identity of one data directory, and keeps an eye on the controller."""

    def __init__(self, data_dir: str, settings: Settings) -> None:
        prepare_broker_process()
        self._path = Path(data_dir).expanduser()
        self._settings = settings
        self._ledgers = self._path / "p"
        self._refusal: PulsarException | None = None
        self._store: StoreDirectory | None = None
        self._watcher: asyncio.Task[None] | None = None
        try:
            owner = f"{node_address()} (ray {ray.get_runtime_context().gcs_address})"
            self._store = StoreDirectory.open(
                self._path, address=owner, wait_s=5.0, cluster_id=session_directory().name
            )
        except PulsarException as error:
            logger.error("data directory %s cannot be used: %s", self._path, error)
            self._refusal = error

    def __repr__(self) -> str:
        return f"Store({self._path})"

    async def describe(self) -> dict[str, Any]:
        """Store id, node and path. Raises what is wrong with the directory."""
        if self._refusal is not None:
            raise self._refusal
        assert self._store is not None
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch_controller())
        return {
            "store_id": self._store.store_id,
            "node_id": ray.get_runtime_context().get_node_id(),
            "path": str(self._path),
            "pid": os.getpid(),
            "memory_bytes": node_memory_bytes(),
        }

    async def partitions(self) -> list[tuple[str, int, str, int]]:
        """(own name, number, topic, partition index) of every ledger directory: what the catalog is rebuilt
        from.
        """
        return await asyncio.to_thread(read_identities, self._ledgers)

    async def prepared(self) -> set[int]:
        """The numbers of those that are prepared and not part of their topics yet."""
        return await asyncio.to_thread(prepared_numbers, self._ledgers)

    async def mark_prepared(self, numbers: list[int]) -> None:
        """Of partitions that are to come; durable when this answers."""
        await asyncio.to_thread(mark_prepared, self._ledgers, numbers, SystemDisk())

    async def mark_added(self, numbers: list[int]) -> None:
        """They are like any other from now on, durably."""
        await asyncio.to_thread(mark_added, self._ledgers, numbers, SystemDisk())

    async def remove(self, number: int) -> None:
        """Delete a deleted topic's ledger directory."""
        await asyncio.to_thread(shutil.rmtree, self._ledgers / str(number), ignore_errors=True)
        await self.mark_added([number])

    async def stats(self) -> dict[str, Any]:
        """Free and total bytes of the disk."""
        usage = shutil.disk_usage(self._path)
        return {
            "path": str(self._path),
            "freeBytes": usage.free,
            "totalBytes": usage.total,
            "pid": os.getpid(),
        }

    async def probe(self) -> int:
        """Alive: the process id."""
        return os.getpid()

    async def _watch_controller(self) -> None:
        """The controller probes the stores, the stores probe the controller: a frozen one is killed, and Ray
        restarts it.
        """
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            try:
                controller = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
            except ValueError:
                continue
            if await _is_silent(controller):
                logger.warning("the controller does not answer: killing it")
                ray.kill(controller, no_restart=False)


async def _is_silent(handle: Any) -> bool:
    """True if neither a call nor a second look at the process gets an answer; a restarting actor is not
    silent.
    """
    for deadline in (CONTROLLER_DEADLINE_S, PROBE_DEADLINE_S):
        try:
            await asyncio.wait_for(handle.probe.remote(), deadline)
        except (asyncio.TimeoutError, TimeoutError):
            continue
        except ray.exceptions.RayError:
            return False
        return False
    return True
