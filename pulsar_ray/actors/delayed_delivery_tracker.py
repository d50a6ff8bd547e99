"""The DelayedDeliveryTracker actor serves by a DelayedTracker."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from threading import Lock
from typing import Any

from pulsar_ray.actors.broker_process import begin_broker_process, say_serving
from pulsar_ray.actors.watching.own_reports import OwnReports
from pulsar_ray.broker.figures.actor_report import ActorReport
from pulsar_ray.broker.subscription.delayed.delayed_tracker import DelayedTracker
from pulsar_ray.broker.subscription.delayed.tracker_messages import FollowAnswer, FollowRequest
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.errors import PulsarException
from pulsar_ray.managed_ledger.store.store_directory import hold_cluster_lock
from pulsar_ray.model.policies import PolicyUpdate

logger = logging.getLogger(__name__)


class DelayedDeliveryTracker:
    """Keeps the delayed messages of one subscription on one partition, until they are due.

    It is made when the first one shows up, and ended when the last one has left. It may be killed at any
    moment.
    """

    def __init__(self, partition: str, subscription: str, settings: Settings) -> None:
        self._began_s = time.monotonic()
        begin_broker_process("tracker", settings, topic=partition, subscription=subscription)
        self._settings = settings
        self._reports = OwnReports()
        self._is_serving = False
        self._label = f"{partition} ~> {subscription}"
        self._tracker = DelayedTracker(SystemClock())
        # Ray runs the calls of its two groups in two threads.
        self._lock = Lock()
        self._refusal: PulsarException | None = None
        try:
            self._cluster_lock = hold_cluster_lock(Path(settings.data_dir))
        except PulsarException as error:
            self._refusal = error
            logger.error("cannot serve: %s", error)

    def __repr__(self) -> str:
        return self._label

    async def follow(self, request: FollowRequest) -> FollowAnswer:
        """See DelayedTracker.follow."""
        if self._refusal is not None:
            raise self._refusal.again()
        with self._lock:
            answer = self._tracker.follow(request)
        if not self._is_serving:
            self._is_serving = True
            self._begin_serving(answer)
        return answer

    def _begin_serving(self, first: FollowAnswer) -> None:
        """Say so, and report from now on, on the loop that all requests run on."""
        ledger_id, entry_id = first.through
        found = f"{first.entries:,} entries wait for their time, the log is read up to {ledger_id}:{entry_id}"
        say_serving(self._began_s, found)
        self._reports.begin(asyncio.get_running_loop(), self._settings, self._report)

    async def _report(self) -> ActorReport:
        return ActorReport(kind="tracker")

    async def probe(self) -> int:
        """Return the process id."""
        return os.getpid()

    async def idle(self) -> None:
        """Answer None: it leaves with its dispatcher, or when that has nothing delayed any more."""

    async def apply_policies(self, update: PolicyUpdate) -> None:
        """Do nothing: its dispatcher sends with each request whatever of them concerns it."""

    async def stats(self) -> dict[str, Any]:
        """Entries that wait, in memory and on disk; `refused` if it cannot serve."""
        if self._refusal is not None:
            return {"refused": str(self._refusal)}
        with self._lock:
            return {**self._tracker.stats(), "pid": os.getpid()}

    async def shutdown(self) -> None:
        """Do nothing: what is not durable is read from the log again."""
