"""One life of a non-persistent partition in this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pulsar_ray.broker.partition.non_persistent_partition import NonPersistentPartitionServer
from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.config import Settings
from pulsar_ray.testing.stub_actor import StubActor
from pulsar_ray.transport.actor_names import partition_name


class StubNonPersistentPartition(StubActor):
    """A TopicPartition of a non-persistent topic."""

    def __init__(
        self,
        topic: str,
        settings: Settings,
        lane_directory: Path,
        on_fatal: Callable[[StubActor, BaseException], None],
    ) -> None:
        self._topic = topic
        self.server: NonPersistentPartitionServer | None = None
        super().__init__(partition_name(topic), settings, lane_directory, on_fatal)

    async def _start(self) -> None:
        await self.host.start()
        self.server = NonPersistentPartitionServer(
            self._topic, self.settings, self.clock, self.owner.loop, self.host, self._fatal
        )

    async def call(self, method: str, arguments: dict[str, Any]) -> Any:
        assert self.server is not None
        return await self.server.call(method, arguments)

    async def stats(self) -> dict[str, Any]:
        assert self.server is not None
        return {**self.server.stats(), "pid": os.getpid()}

    def _disks(self) -> list[DiskThread]:
        return []

    def _let_go(self) -> None:
        """It holds nothing."""

    async def _close(self) -> None:
        await self.host.close()
