"""The metrics of a node, exported by its StoreActor for all actors there (ADR 0057)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pulsar_ray.actors.watching.own_reports import new_life
from pulsar_ray.broker.figures.actor_report import ActorReport
from pulsar_ray.broker.figures.node_figures import NodeFigures
from pulsar_ray.broker.figures.overview import node_overview
from pulsar_ray.broker.figures.remote_figures import remote_figures
from pulsar_ray.broker.figures.report_socket import report_socket, serve_reports
from pulsar_ray.broker.figures.resting_note import read_resting_note, read_resting_notes
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.errors import UntrustedPath
from pulsar_ray.lane.address import user_directory
from pulsar_ray.lane.waiting import within
from pulsar_ray.model.metric_catalogue import DISK_FREE_BYTES, DISK_TOTAL_BYTES
from pulsar_ray.transport.ray_metrics import RayMetrics
from pulsar_ray.transport.this_ray import (
    metrics_port,
    node_address,
    node_id,
    was_restarted,
)

logger = logging.getLogger(__name__)

FIRST_LOOK_S = 5.0
LOOK_INTERVAL_S = 60.0
ENDPOINT_DEADLINE_S = 2.0


class NodeMetrics:
    """Collects a node's figures and exports them.

    Belongs to one store and runs on its loop; samples go to Ray on a thread.
    """

    def __init__(
        self,
        path: Path,
        store_id: str,
        settings: Settings,
        began_s: float,
        remote: Callable[[], Awaitable[Mapping[str, Any] | None]],
    ) -> None:
        self._path = path
        self._remote = remote
        self._lag_bound_s = settings.remote_lag_seconds
        self._period_s = settings.metrics_interval_seconds
        self._figures = NodeFigures(store_id, settings.metrics_max_topics, settings.metrics_max_subscriptions)
        self._ray = RayMetrics()
        self._life = new_life()
        self._began_s = began_s
        self._server: asyncio.AbstractServer | None = None
        self.problem = ""
        """Why nobody can read the metrics of this node, as far as it is known."""
        self._next_look_s = time.monotonic() + FIRST_LOOK_S
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        recovery_s = time.monotonic() - self._began_s
        try:
            self._server = await serve_reports(self._figures, report_socket(user_directory(), node_id()))
            notes = await asyncio.to_thread(lambda: list(read_resting_notes(self._path / "p")))
            for number, partition in notes:
                self._figures.rests(number, partition)
        except (OSError, UntrustedPath) as error:
            logger.warning("this node has no metrics of topics: %s", error)
        while True:
            try:
                await self._export(recovery_s)
                await self._look_at_endpoint()
            except Exception:
                logger.exception("exporting metrics failed")
            await asyncio.sleep(self._period_s)

    async def _look_at_endpoint(self) -> None:
        """Look once a minute whether somebody could read what is exported, and log if not."""
        if time.monotonic() < self._next_look_s:
            return
        self._next_look_s = time.monotonic() + LOOK_INTERVAL_S
        port = await asyncio.to_thread(metrics_port)
        if not port:
            event(logger, "nobody can read the metrics of this node: its Ray was started without metrics")
            self._next_look_s = math.inf
            return
        before, self.problem = self.problem, await _problem_of(port)
        if self.problem:
            logger.warning("nobody can read the metrics of this node: %s", self.problem)
        elif before:
            event(logger, "the metrics of this node can be read again")

    async def _export(self, recovery_s: float) -> None:
        figures = remote_figures(await self._remote(), self._lag_bound_s)
        with contextlib.suppress(OSError):  # the directory is gone, which others tell of
            disk = shutil.disk_usage(self._path)
            figures.gauges.update({DISK_FREE_BYTES.name: disk.free, DISK_TOTAL_BYTES.name: disk.total})
        self._figures.reported(
            ActorReport(
                kind="store",
                life=self._life,
                is_restarted=was_restarted(),
                recovery_s=recovery_s,
                figures=figures,
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


async def _problem_of(port: int) -> str:
    """Say why the endpoint of this node takes no connection; empty if it does."""
    reason = f"no answer within {ENDPOINT_DEADLINE_S:g} s"
    try:
        _, writer = await within(asyncio.open_connection(node_address(), port), ENDPOINT_DEADLINE_S)
        writer.close()
    except OSError as error:
        reason = error.strerror or str(error)
    except asyncio.TimeoutError:
        pass
    else:
        return ""
    return f"its endpoint, port {port}, does not answer: {reason}"
