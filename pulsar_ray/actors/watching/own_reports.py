"""An actor's reports of its figures to its node's store."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Awaitable, Callable

from pulsar_ray.broker.figures.actor_report import ActorReport
from pulsar_ray.broker.figures.report_socket import FigureReporter, report_socket
from pulsar_ray.config import Settings
from pulsar_ray.lane.address import user_directory
from pulsar_ray.transport.this_ray import node_id, was_restarted


def new_life() -> int:
    """Return a number that tells this process from all others."""
    return int.from_bytes(os.urandom(6), "little")


class OwnReports:
    """Sends the reports of one actor.

    Made when the actor begins to start, so that they say how long that took.
    """

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._life = new_life()
        self._reporter: FigureReporter | None = None

    def begin(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: Settings,
        report: Callable[[], Awaitable[ActorReport]],
    ) -> None:
        """Report once a period from now on, on this loop; the actor serves."""
        own = {
            "life": self._life,
            "is_restarted": was_restarted(),
            "recovery_s": time.monotonic() - self._began_s,
        }

        async def gather() -> ActorReport:
            return dataclasses.replace(await report(), **own)  # type: ignore[arg-type]

        period_s = settings.metrics_interval_seconds
        if period_s:
            socket = report_socket(user_directory(), node_id())
            self._reporter = FigureReporter(loop, socket, period_s, gather)
