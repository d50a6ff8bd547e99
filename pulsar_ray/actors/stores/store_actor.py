"""The StoreActor ties a Ray node to its data directory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import ray

from pulsar_ray.actors.actor_system import ActorHandle, ActorSystem
from pulsar_ray.actors.broker_process import begin_broker_process
from pulsar_ray.actors.own_bytecode import compile_later
from pulsar_ray.actors.stores.data_directory import StoreNode
from pulsar_ray.actors.stores.store_parts import OPEN_WAIT_S, StoreParts
from pulsar_ray.actors.stores.store_shipping import CONTROLLER_DEADLINE_S
from pulsar_ray.actors.watching.node_metrics import NodeMetrics
from pulsar_ray.actors.watching.silence import is_silent
from pulsar_ray.broker.catalog.founding import CatalogOrder, place_of_catalog
from pulsar_ray.broker.health.disk_level import REMEDY, DiskLevel, DiskWatch, judge_disk
from pulsar_ray.broker.health.health_socket import HealthSocket
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.errors import Moved, PulsarException, UntrustedPath
from pulsar_ray.lane.waiting import within
from pulsar_ray.transport.actor_names import CONTROLLER, store_name
from pulsar_ray.transport.this_ray import node_address, node_id, node_memory_bytes, session_directory

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 5.0
READY_DEADLINE_S = 90.0
PROBE_DEADLINE_S = 2.0
REPORT_DEADLINE_S = 3.0
NO_FIGURES = "metrics_interval_seconds is 0, so actors report nothing"


class StoreActor:
    """Holds a node's data directory, exports its metrics, and watches its disk and the controller."""

    def __init__(self, data_dir: str, settings: Settings, system: ActorSystem) -> None:
        begin_broker_process("store", settings)
        compile_later()
        ray_address = ray.get_runtime_context().gcs_address
        node = StoreNode(
            node_id=node_id(),
            host=socket.gethostname(),
            memory_bytes=node_memory_bytes(),
            owner=f"{node_address()} (ray {ray_address})",
            session=session_directory().name,
        )
        self._path = Path(data_dir).expanduser()
        self._settings = settings
        self._ray_address = ray_address
        self._system = system
        self._watcher: asyncio.Task[None] | None = None
        self._metrics: NodeMetrics | None = None
        self._began_s = time.monotonic()
        self._without_s = 0.0
        self._disk = DiskWatch(settings)
        self._probes: HealthSocket | None = None
        self._looking: asyncio.Future[ActorHandle | None] | None = None
        self._parts = StoreParts(
            self._path,
            node,
            settings,
            find_peer=lambda node_id: system.find(store_name(node_id[:8])),
            find_controller=self._find_controller,
            end_process=lambda: os._exit(71),
            metrics=lambda: self._metrics,
        )
        # Held from the beginning: this may be a restart, and nobody asks again.
        with contextlib.suppress(PulsarException):
            self._parts.directory.open(create=False, wait_s=OPEN_WAIT_S)

    def __repr__(self) -> str:
        return repr(self._parts.directory)

    async def call_part(self, part: str, method: str, *arguments: Any) -> Any:
        """See StoreParts.call_part."""
        return await self._parts.call_part(part, method, *arguments)

    async def describe(self, make: bool = False) -> dict[str, Any]:
        """See StoreParts.describe; the node is watched from now on."""
        described = await self._parts.describe(make)
        await self._begin()
        return described

    async def probe(self) -> int:
        """See StoreParts.probe; a process that was started again is probed, and described no more."""
        pid = await self._parts.probe()
        await self._begin()
        return pid

    async def stats(self) -> dict[str, Any]:
        """See StoreParts.stats."""
        return await self._parts.stats()

    async def remove(self, number: int) -> None:
        """See StoreParts.remove."""
        await self._parts.remove(number)

    async def _begin(self) -> None:
        """Export the node's metrics, ship and watch from now on, if there is a store."""
        store = self._parts.directory.store
        if self._metrics is None and store is not None and self._settings.metrics_interval_seconds:
            status = self._parts.shipping.status
            self._metrics = NodeMetrics(self._path, store.store_id, self._settings, self._began_s, status)
        self._parts.shipping.begin()
        await self._begin_watching()

    def _find_controller(self) -> ActorHandle | None:
        return self._system.find(CONTROLLER)

    # --- looking after it -------------------------------------------------------------------------

    async def health(self) -> dict[str, Any]:
        """See StoreParts.health; with what is wrong with the metrics."""
        return {
            **await self._parts.health(),
            "metricsProblem": "" if self._metrics is None else self._metrics.problem,
        }

    async def overview(self, text: str, sort: str, limit: int, names: Sequence[str] | None) -> dict[str, Any]:
        """Return the topics of this node as `node_overview`, and the state of its disk."""
        usage = await asyncio.to_thread(shutil.disk_usage, self._path)
        state = judge_disk(usage.free, usage.total, self._settings)
        disk: dict[str, Any] = {
            "freeBytes": usage.free,
            "totalBytes": usage.total,
            "diskState": state.level.value,
        }
        if (remote := await self._parts.shipping.status()) is not None:
            disk["remoteLagSeconds"] = remote.get("lagSeconds")
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

    async def _begin_watching(self) -> None:
        """Look after controller and disk from now on, and answer probes."""
        if self._watcher is None:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())
        if self._probes is None and self._parts.directory.store is not None:
            self._probes = HealthSocket(self._path, self._report)
            try:
                await self._probes.begin()
            except (OSError, UntrustedPath) as error:
                logger.warning("probes have to join Ray: no socket can be made in %s: %s", self._path, error)

    async def _report(self) -> dict[str, Any]:
        """The controller's report with Ray's address, or why there is none."""
        try:
            report = await within(self._ask_controller(), REPORT_DEADLINE_S)
        except asyncio.TimeoutError:
            silent = f"the controller does not answer in {REPORT_DEADLINE_S:g} s"
        except Moved:
            silent = "no controller runs"
        except PulsarException as error:
            silent = error.text
        else:
            return {"address": self._ray_address, "report": report}
        store = self._parts.directory.store
        place = place_of_catalog(store.identity) if store is not None else ""
        return {"address": self._ray_address, "silent": f"{silent}; {place}" if place else silent}

    async def _ask_controller(self) -> dict[str, Any]:
        # Without its head Ray looks for minutes, and the next asker waits for the same look.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(asyncio.to_thread(self._find_controller))
        controller = await asyncio.shield(self._looking)
        if controller is None:
            raise Moved("no controller runs")
        report: dict[str, Any] = await controller.call("health")
        return report

    async def _watch(self) -> None:
        """Watch the disk, and kill a frozen controller, which starts again."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            try:
                await self._watch_disk()
                await self._watch_controller()
            except Exception:
                logger.exception("looking after this node failed")

    async def _watch_controller(self) -> None:
        controller = await asyncio.to_thread(self._find_controller)
        if controller is None:
            await self._without_controller()
            return
        self._without_s = 0.0
        if not await is_silent(controller, CONTROLLER_DEADLINE_S, PROBE_DEADLINE_S):
            return
        logger.warning("the controller does not answer: killing it")
        await asyncio.to_thread(controller.crash)

    async def _without_controller(self) -> None:
        """Begin a controller here once there has been none for long (ADR 0143).

        Its node is gone: Ray starts it again everywhere else. Of several stores one is first.
        """
        self._without_s += WATCH_INTERVAL_S
        journal, store = self._parts.shipping.journal, self._parts.directory.store
        after_s = self._settings.node_loss_seconds
        if store is None or journal is None or not journal.is_serving or not after_s:
            return
        if self._without_s < after_s:
            return
        self._without_s = 0.0
        identity = store.identity
        event(
            logger,
            "no controller runs for %d s: one begins here, with what is decided in %s",
            after_s,
            self._settings.remote_url,
            level=logging.WARNING,
        )
        order = CatalogOrder(
            node_id(), "recover", identity.cluster_id, str(uuid.uuid4()), identity.is_of_ray_cluster
        )
        begin = self._system.begin_controller
        controller = await asyncio.to_thread(begin, str(self._path), self._settings, order)
        await controller.call("ready", within_s=READY_DEADLINE_S)

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
