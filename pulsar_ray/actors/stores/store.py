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
from pulsar_ray.actors.stores.held_store import OPEN_WAIT_S, StoreNode
from pulsar_ray.actors.stores.moving_store import MovingStore
from pulsar_ray.actors.watching.node_metrics import NodeMetrics
from pulsar_ray.actors.watching.silence import is_silent
from pulsar_ray.broker.catalog.founding import CatalogOrder, place_of_catalog
from pulsar_ray.broker.health.disk_level import REMEDY, DiskLevel, DiskWatch, judge_disk
from pulsar_ray.broker.health.health_socket import HealthSocket
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import OFF, Settings
from pulsar_ray.errors import Moved, PulsarException, UntrustedPath
from pulsar_ray.journal.store_journal import StoreJournal
from pulsar_ray.lane.waiting import within
from pulsar_ray.transport.actor_names import CONTROLLER, store_name
from pulsar_ray.transport.this_ray import node_address, node_id, node_memory_bytes, session_directory

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 5.0
JOIN_POLL_S = 0.05
CONTROLLER_DEADLINE_S = 5.0
READY_DEADLINE_S = 90.0
UNSEALED_LOOK_S = 60.0
PROBE_DEADLINE_S = 2.0
REPORT_DEADLINE_S = 3.0
NO_FIGURES = "metrics_interval_seconds is 0, so actors report nothing"


class StoreActor(MovingStore):
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
        super().__init__(Path(data_dir).expanduser(), node, settings)
        self._ray_address = ray_address
        self._system = system
        self._watcher: asyncio.Task[None] | None = None
        self._metrics: NodeMetrics | None = None
        self._began_s = time.monotonic()
        self._without_s = 0.0
        self._journal_task: asyncio.Task[None] | None = None
        self._journal_problem = ""
        self._disk = DiskWatch(settings)
        self._probes: HealthSocket | None = None
        self._looking: asyncio.Future[ActorHandle | None] | None = None
        # Held from the beginning: this may be a restart, and nobody asks again.
        with contextlib.suppress(PulsarException):
            self._open(create=False, wait_s=OPEN_WAIT_S)

    async def describe(self) -> dict[str, Any]:
        """See HeldStore.describe; the node is watched from now on."""
        described = await super().describe()
        self._begin_metrics()
        self._begin_journal()
        await self._begin_watching()
        return described

    def _begin_journal(self) -> None:
        """Ship from now on, if there is an object store, which may come up later."""
        if self._settings.remote_url != OFF and self._store is not None and self._journal_task is None:
            self._journal_task = asyncio.get_running_loop().create_task(self._keep_journal())

    async def _keep_journal(self) -> None:
        assert self._store is not None
        url, store_id = self._settings.remote_url, self._store.store_id
        while self._journal is None:
            if not (cluster_id := self._store.identity.cluster_id):  # it is about to be taken in
                await asyncio.sleep(JOIN_POLL_S)
                continue
            try:
                least_free = self._settings.low_water_mark_bytes(shutil.disk_usage(self._path).total)
                self._journal = await asyncio.to_thread(
                    StoreJournal,
                    self._path,
                    store_id,
                    url,
                    cluster_id,
                    self._settings.offload_cache_bytes,
                    least_free,
                )
            except (PulsarException, OSError) as error:
                if str(error) != self._journal_problem:
                    self._journal_problem = str(error)
                    logger.error("nothing is shipped to %s: %s", url, error)
                await asyncio.sleep(WATCH_INTERVAL_S)
        self._journal_problem = ""
        event(logger, "ships what is stored to %s, in life %d", url, self._journal.status()["life"])
        await self._go_on_when_ended(self._journal)

    async def _go_on_when_ended(self, journal: StoreJournal) -> None:
        """Become a new store, in a new process, once others have taken this one over."""
        assert self._store is not None
        problem = ""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            if not journal.is_ended:
                continue
            try:
                if await self._became_new(journal):
                    os._exit(71)
            except (PulsarException, OSError) as error:
                if str(error) != problem:
                    problem = str(error)
                    logger.warning("%s does not become a new store yet: %s", self._path, problem)

    async def _became_new(self, journal: StoreJournal) -> bool:
        assert self._store is not None
        owners = await asyncio.to_thread(journal.owners_if_sealed)
        identity = self._store.identity
        if owners is None:
            # A copy, or one that lacks what was shipped: a person decides.
            await asyncio.sleep(UNSEALED_LOOK_S)
            return False
        controller = await asyncio.to_thread(self._system.find, CONTROLLER)
        if controller is None:
            return False
        if identity.store_id == await controller.call("catalog_store", within_s=CONTROLLER_DEADLINE_S):
            return False  # it leaves soon
        kept = await controller.call("kept_by", identity.store_id, within_s=CONTROLLER_DEADLINE_S)
        return await asyncio.to_thread(self._put_aside, owners, kept)

    async def remote(self) -> dict[str, Any] | None:
        """See HeldStore.remote; until the journal runs, why it does not."""
        if self._journal is None and self._settings.remote_url != OFF:
            return {"url": self._settings.remote_url, "isReady": False, "problem": self._journal_problem}
        return await super().remote()

    def _begin_metrics(self) -> None:
        """Export the node's metrics from now on, if there is a store."""
        if self._metrics is None and self._store is not None and self._settings.metrics_interval_seconds:
            self._metrics = NodeMetrics(
                self._path, self._store.store_id, self._settings, self._began_s, self.remote
            )

    async def remove(self, number: int) -> None:
        """See HeldStore.remove."""
        await super().remove(number)
        if self._metrics is not None:
            self._metrics.removed(number)

    async def moved_away(self, number: int) -> None:
        """See MovingStore.moved_away."""
        await super().moved_away(number)
        if self._metrics is not None:
            self._metrics.removed(number)

    def _peer(self, node_id: str) -> ActorHandle | None:
        return self._system.find(store_name(node_id[:8]))

    async def slept(self, times: dict[int, int | None]) -> None:
        """See HeldStore.slept; the metrics know these partitions as sleeping ones."""
        await super().slept(times)
        if self._metrics is not None:
            await self._metrics.slept(times)

    # --- looking after it -------------------------------------------------------------------------

    async def health(self) -> dict[str, Any]:
        """See HeldStore.health; with what is wrong with the metrics."""
        return {
            **await super().health(),
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
        if (remote := await self.remote()) is not None:
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

    async def probe(self) -> int:
        """See HeldStore.probe; a process that was started again is probed, and described no more."""
        pid = await super().probe()
        self._begin_metrics()
        self._begin_journal()
        await self._begin_watching()
        return pid

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
        place = place_of_catalog(self._store.identity) if self._store is not None else ""
        return {"address": self._ray_address, "silent": f"{silent}; {place}" if place else silent}

    async def _ask_controller(self) -> dict[str, Any]:
        # Without its head Ray looks for minutes, and the next asker waits for the same look.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(asyncio.to_thread(self._system.find, CONTROLLER))
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
        controller = await asyncio.to_thread(self._system.find, CONTROLLER)
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
        journal, store, after_s = self._journal, self._store, self._settings.node_loss_seconds
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
