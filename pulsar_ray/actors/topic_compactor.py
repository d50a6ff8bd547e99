"""The TopicCompactor actor runs one CompactionJob, and ends."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from pulsar_ray.actors.broker_process import begin_broker_process, say_serving
from pulsar_ray.broker.partition.compaction_job import CompactionJob
from pulsar_ray.config import Settings
from pulsar_ray.errors import PulsarException
from pulsar_ray.managed_ledger.compaction.compaction_order import CompactionOrder, JobState
from pulsar_ray.managed_ledger.store.store_directory import hold_cluster_lock
from pulsar_ray.model.policies import PolicyUpdate

logger = logging.getLogger(__name__)


class TopicCompactor:
    """Compacts one partition, and is ended behind that. It may be killed at any moment."""

    def __init__(self, partition: str, settings: Settings) -> None:
        began_s = time.monotonic()
        begin_broker_process("compactor", settings, topic=partition)
        self._label = f"compaction of {partition}"
        self._job = CompactionJob()
        self._refusal: PulsarException | None = None
        try:
            self._cluster_lock = hold_cluster_lock(Path(settings.data_dir))
        except PulsarException as error:
            self._refusal = error
            logger.error("cannot serve: %s", error)
        say_serving(began_s, "nothing is read yet")

    def __repr__(self) -> str:
        return self._label

    async def begin(self, order: CompactionOrder, is_partition_busy: bool = False) -> None:
        """See CompactionJob.begin."""
        if self._refusal is not None:
            raise self._refusal.again()
        self._job.begin(order, is_partition_busy)

    async def look(self, key: tuple[int, int], is_partition_busy: bool = False) -> JobState:
        """See CompactionJob.look."""
        return self._job.look(key, is_partition_busy)

    async def probe(self) -> int:
        """Return the process id."""
        return os.getpid()

    async def idle(self) -> None:
        """Answer None: its partition has it ended."""

    async def apply_policies(self, update: PolicyUpdate) -> None:
        """Do nothing: the order has whatever concerns it."""

    async def stats(self) -> dict[str, Any]:
        """Its process; `refused` if it cannot serve."""
        return {"pid": os.getpid()} if self._refusal is None else {"refused": str(self._refusal)}

    async def shutdown(self) -> None:
        """Do nothing: what it wrote belongs to nobody until it is named."""
