"""The metrics of a node, exported by its StoreActor for all actors there (ADR 0057)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pulsar_ray.actors.own_reports import new_life
from pulsar_ray.broker.figures.actor_report import ActorReport, Figures
from pulsar_ray.broker.figures.node_figures import NodeFigures
from pulsar_ray.broker.figures.overview import node_overview
from pulsar_ray.broker.figures.report_socket import report_socket, serve_reports
from pulsar_ray.broker.figures.resting_note import read_resting_note, read_resting_notes
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.model.metric_catalogue import DISK_FREE_BYTES, DISK_TOTAL_BYTES
from pulsar_ray.transport.ray_metrics import RayMetrics
from pulsar_ray.transport.this_ray import node_id, session_directory, was_restarted

logger = logging.getLogger(__name__)


class NodeMetrics:
    """Collects a node's figures and exports them.

    Belongs to one store and runs on its loop; samples go to Ray on a thread.
    """

    def __init__(self, path: Path, store_id: str, settings: Settings, began_s: float) -> None:
        self._path = path
        self._period_s = settings.metrics_interval_seconds
        self._figures = NodeFigures(store_id, settings.metrics_max_topics, settings.metrics_max_subscriptions)
        self._ray = RayMetrics()
        self._life = new_life()
        self._began_s = began_s
        self._server: asyncio.AbstractServer | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        recovery_s = time.monotonic() - self._began_s
        try:
            self._server = await serve_reports(self._figures, report_socket(session_directory(), node_id()))
            notes = await asyncio.to_thread(lambda: list(read_resting_notes(self._path / "p")))
            for number, partition in notes:
                self._figures.rests(number, partition)
        except OSError as error:
            logger.warning("this node has no metrics of topics: %s", error)
        while True:
            try:
                await self._export(recovery_s)
            except Exception:
                logger.exception("exporting metrics failed")
            await asyncio.sleep(self._period_s)

    async def _export(self, recovery_s: float) -> None:
        gauges: dict[str, float] = {}
        with contextlib.suppress(OSError):  # the directory is gone, which others tell of
            disk = shutil.disk_usage(self._path)
            gauges = {DISK_FREE_BYTES.name: disk.free, DISK_TOTAL_BYTES.name: disk.total}
        self._figures.reported(
            ActorReport(
                kind="store",
                life=self._life,
                is_restarted=was_restarted(),
                recovery_s=recovery_s,
                figures=Figures(gauges=gauges),
            )
        )
        samples = self._figures.collect(SystemClock().now_ms())
        await asyncio.to_thread(self._ray.export, samples)

    async def slept(self, numbers: Iterable[int]) -> None:
        """Take over the backlogs of partitions that have fallen asleep."""
        for number in numbers:
            note = await asyncio.to_thread(read_resting_note, self._path / "p" / str(number))
            if note is not None:
                self._figures.rests(number, note)

    def overview(self, text: str, sort: str, limit: int, names: Sequence[str] | None) -> dict[str, Any]:
        """See `node_overview`."""
        return node_overview(self._figures, text, sort, limit, names, SystemClock().now_ms())

    def removed(self, number: int) -> None:
        """Forget a partition that was deleted."""
        self._figures.removed(number)
