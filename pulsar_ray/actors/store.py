"""The StoreActor: ties a Ray node to its data directory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import ray

from pulsar_ray.actors.broker_process import begin_broker_process
from pulsar_ray.actors.own_bytecode import compile_later
from pulsar_ray.actors.watching.node_metrics import NodeMetrics
from pulsar_ray.actors.watching.silence import is_silent
from pulsar_ray.broker.catalog.founding import place_of_catalog
from pulsar_ray.broker.health.disk_level import REMEDY, DiskLevel, DiskWatch, judge_disk
from pulsar_ray.broker.health.health_socket import HealthSocket
from pulsar_ray.broker.partition.sleeping_partition import describe_sleeping
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.errors import Moved, PulsarException, UntrustedPath, WrongNode
from pulsar_ray.lane.await_within import within
from pulsar_ray.ledger.disk import SystemDisk
from pulsar_ray.managed_ledger.log.partition_directories import (
    PartitionDirectory,
    partition_numbers,
    read_identities,
)
from pulsar_ray.managed_ledger.store.store_directory import StoreDirectory, check_foreign
from pulsar_ray.managed_ledger.store.store_identity import STORE_FILE, StoreIdentity, has_partitions
from pulsar_ray.managed_ledger.store.unfinished_growth import mark_added, mark_prepared, prepared_numbers
from pulsar_ray.managed_ledger.store.wake_times import WakeTimes, read_wake_times
from pulsar_ray.transport.actor_names import CONTROLLER, NAMESPACE
from pulsar_ray.transport.ray_errors import translated
from pulsar_ray.transport.this_ray import node_address, node_memory_bytes, session_directory

logger = logging.getLogger(__name__)

OPEN_WAIT_S = 5.0
WATCH_INTERVAL_S = 5.0
CONTROLLER_DEADLINE_S = 5.0
PROBE_DEADLINE_S = 2.0
REPORT_DEADLINE_S = 3.0
NO_FIGURES = "metrics_interval_seconds is 0, so actors report nothing"


class StoreActor:
    """Holds the lock and identity of one data directory, and watches the controller.

    A directory without a store is left alone until the controller has one made there.
    """

    def __init__(self, data_dir: str, settings: Settings) -> None:
        begin_broker_process("store", settings)
        compile_later()
        self._path = Path(data_dir).expanduser()
        self._settings = settings
        self._ledgers = self._path / "p"
        self._store: StoreDirectory | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._wake_times = WakeTimes()
        self._knows_notes = False
        self._metrics: NodeMetrics | None = None
        self._began_s = time.monotonic()
        self._disk = DiskWatch(settings)
        self._probes: HealthSocket | None = None
        self._looking: asyncio.Future[Any] | None = None
        # Held from the beginning: this may be a restart, and nobody asks again.
        with contextlib.suppress(PulsarException):
            self._open(create=False, wait_s=OPEN_WAIT_S)

    def __repr__(self) -> str:
        return f"Store({self._path})"

    def _open(self, *, create: bool, wait_s: float) -> None:
        """Hold the directory if it is a store, or may become one.

        Raises what is wrong with it.
        """
        if self._store is not None or not (create or (self._path / STORE_FILE).exists()):
            return
        owner = f"{node_address()} (ray {ray.get_runtime_context().gcs_address})"
        self._store = StoreDirectory.open(
            self._path, address=owner, wait_s=wait_s, session=session_directory().name, create=create
        )
        event(logger, "holds store %s in %s", self._store.store_id, self._path)

    async def describe(self) -> dict[str, Any]:
        """Node, host, path, and the store's `identity`: None if there is none.

        Looks again each time. Raises what is wrong with the directory.
        """
        await asyncio.to_thread(self._look)
        self._begin_metrics()
        await self._begin_watching()
        return {
            "identity": self._store.identity if self._store is not None else None,
            "store_id": self._store.store_id if self._store is not None else "",
            "has_partitions": await asyncio.to_thread(has_partitions, self._path),
            "node_id": ray.get_runtime_context().get_node_id(),
            "host": socket.gethostname(),
            "path": str(self._path),
            "pid": os.getpid(),
            "memory_bytes": node_memory_bytes(),
        }

    def _begin_metrics(self) -> None:
        """Export the node's metrics from now on, if there is a store."""
        if self._metrics is None and self._store is not None and self._settings.metrics_interval_seconds:
            self._metrics = NodeMetrics(self._path, self._store.store_id, self._settings, self._began_s)

    def _look(self) -> None:
        if self._store is not None:
            self._store.check_present()
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
        """Of partitions that are to come; durable when this answers."""
        await asyncio.to_thread(mark_prepared, self._ledgers, numbers, SystemDisk())

    async def mark_added(self, numbers: list[int]) -> None:
        """They are like any other from now on, durably."""
        await asyncio.to_thread(mark_added, self._ledgers, numbers, SystemDisk())

    async def remove(self, number: int) -> None:
        """Delete a deleted topic's ledger directory."""
        await asyncio.to_thread(shutil.rmtree, self._ledgers / str(number), ignore_errors=True)
        await self.mark_added([number])
        await self.slept({number: None})
        if self._metrics is not None:
            self._metrics.removed(number)

    # --- sleeping partitions ----------------------------------------------------------------------

    async def slept(self, times: dict[int, int | None]) -> None:
        """Keep the times in ms at which sleeping partitions are to be woken.

        They come by the partitions' numbers; None takes a time back. They are gone with this process, the
        notes in the partitions' directories are not.
        """
        self._wake_times.slept(times)
        if self._metrics is not None:
            await self._metrics.slept(times)

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

    # --- looking after it -------------------------------------------------------------------------

    async def stats(self) -> dict[str, Any]:
        """Free and total bytes of the disk."""
        usage = shutil.disk_usage(self._path)
        return {
            "path": str(self._path),
            "freeBytes": usage.free,
            "totalBytes": usage.total,
            "pid": os.getpid(),
        }

    async def health(self) -> dict[str, Any]:
        """Room on the disk, the time, and what is wrong with the metrics.

        Raises the reason if something is wrong with the directory by now.
        """
        await self.probe()
        usage = await asyncio.to_thread(shutil.disk_usage, self._path)
        return {
            "freeBytes": usage.free,
            "totalBytes": usage.total,
            "nowMs": SystemClock().now_ms(),
            "metricsProblem": "" if self._metrics is None else self._metrics.problem,
        }

    async def overview(self, text: str, sort: str, limit: int, names: Sequence[str] | None) -> dict[str, Any]:
        """Return the topics of this node as `node_overview`, and the state of its disk."""
        usage = await asyncio.to_thread(shutil.disk_usage, self._path)
        state = judge_disk(usage.free, usage.total, self._settings)
        disk = {"freeBytes": usage.free, "totalBytes": usage.total, "diskState": state.level.value}
        if self._metrics is None:
            off = not self._settings.metrics_interval_seconds
            return {**disk, "error": NO_FIGURES if off else "its store is starting"}
        return {**disk, **self._metrics.overview(text, sort, limit, names)}

    async def usage(self) -> dict[str, Any]:
        """Return how busy the node is.

        CPU in percent since the last call, memory and disk in bytes.
        """
        memory, disk = psutil.virtual_memory(), shutil.disk_usage(self._path)
        return {
            "timestamp": SystemClock().now_ms(),
            "cpuPercent": psutil.cpu_percent(),
            "memoryUsedBytes": memory.total - memory.available,
            "memoryTotalBytes": memory.total,
            "diskUsedBytes": disk.total - disk.free,
            "diskTotalBytes": disk.total,
        }

    async def probe(self) -> int:
        """Alive: the process id. Raises what is wrong with the directory by now."""
        if self._store is None:
            raise WrongNode(f"{self._path} holds no store that could be opened")
        # After a restart nobody asks for anything else.
        self._begin_metrics()
        await asyncio.to_thread(self._store.check_present)
        # A process that Ray has started again is probed, and described no more.
        await self._begin_watching()
        return os.getpid()

    async def _begin_watching(self) -> None:
        """Look after controller and disk from now on, and answer probes."""
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())
        if self._probes is None and self._store is not None:
            self._probes = HealthSocket(self._path, self._report)
            try:
                await self._probes.begin()
            except (OSError, UntrustedPath) as error:
                logger.warning("probes have to join Ray: no socket can be made in %s: %s", self._path, error)

    async def _report(self) -> dict[str, Any]:
        """The controller's report with Ray's address, or why there is none."""
        address = ray.get_runtime_context().gcs_address
        try:
            with translated("the controller"):
                report = await within(self._ask_controller(), REPORT_DEADLINE_S)
        except asyncio.TimeoutError:
            silent = f"the controller does not answer in {REPORT_DEADLINE_S:g} s"
        except Moved:
            silent = "no controller runs"
        except PulsarException as error:
            silent = error.text
        else:
            return {"address": address, "report": report}
        place = place_of_catalog(self._store.identity) if self._store is not None else ""
        return {"address": address, "silent": f"{silent}; {place}" if place else silent}

    async def _ask_controller(self) -> dict[str, Any]:
        # Without its head Ray looks for minutes, and the next asker waits for the same look.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(asyncio.to_thread(ray.get_actor, CONTROLLER, NAMESPACE))
        controller = await asyncio.shield(self._looking)
        report: dict[str, Any] = await controller.health.remote()
        return report

    async def _watch(self) -> None:
        """Watch the disk, and kill a frozen controller, which Ray restarts."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            await self._watch_disk()
            try:
                controller = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
            except ValueError:
                continue
            if await is_silent(controller, CONTROLLER_DEADLINE_S, PROBE_DEADLINE_S):
                logger.warning("the controller does not answer: killing it")
                ray.kill(controller, no_restart=False)

    async def _watch_disk(self) -> None:
        """Log when the disk gets full, and when it has room again."""
        try:
            usage = await asyncio.to_thread(shutil.disk_usage, self._path)
        except OSError as error:
            logger.warning("the disk of %s does not tell its size: %s", self._path, error)
            return
        changed = self._disk.look(usage.free, usage.total)
        if changed is None:
            return
        if changed.level is DiskLevel.OK:
            event(logger, "the disk of %s has room again: %s bytes free", self._path, f"{usage.free:,}")
        else:
            level = logging.ERROR if changed.level is DiskLevel.LOW else logging.WARNING
            event(logger, "%s: %s: %s", self._path, changed.reason, REMEDY, level=level)
