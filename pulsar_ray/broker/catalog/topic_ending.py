"""Deleting topics with what runs of them, what lies in stores, and their policies."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from pulsar_ray.broker.catalog.catalog import PartitionRow
from pulsar_ray.broker.catalog.change_logs import ChangeLogs
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.errors import NotAllowedError
from pulsar_ray.model.topic_name import TopicName

logger = logging.getLogger(__name__)


class ServedTopics(Protocol):
    """Topics with what runs of them, as far as deleting concerns it."""

    topics: TopicRegistry

    async def connected(self, row: PartitionRow) -> int:
        """Count the producers and consumers that are connected to a partition."""

    def store_of(self, row: PartitionRow) -> Any:
        """Return a partition's store. Raises WrongNode while no running node holds it."""

    async def remove(self, rows: list[PartitionRow]) -> None:
        """End partitions that the catalog has forgotten, and delete what their stores have of them."""


class TopicEnding:
    """Belongs to the controller. `parked` counts clients whose consumers wait for a sleeping partition."""

    def __init__(self, served: ServedTopics, logs: ChangeLogs, parked: Callable[[str], int]) -> None:
        self._served = served
        self._logs = logs
        self._parked = parked

    async def delete_topic(self, topic: str, force: bool) -> None:
        """See Controller.delete_topic."""
        served = self._served
        topics, name = served.topics, TopicName.parse(topic)
        rows = topics.rows_of(name)
        if not force:
            connected = sum([await served.connected(row) for row in rows])
            connected += sum(self._parked(row.name) for row in rows)
            if connected:
                raise NotAllowedError(
                    f"Topic has {connected} connected producers/consumers: close them, or force"
                )
            for row in rows:
                served.store_of(row)
        await self._logs.forget_topic(name, force=force)
        topics.forget(name)
        # Once more, for a policy that was set meanwhile.
        await self._logs.forget_topic(name, force=True)
        await served.remove(rows)
        event(
            logger, "deleted%s, with %d partitions", " by force" if force else "", len(rows), topic=name.full
        )

    async def remove(self, rows: list[PartitionRow]) -> None:
        """See ServedTopics.remove."""
        await self._served.remove(rows)
