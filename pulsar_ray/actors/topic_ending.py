"""Deleting topics with what runs of them, what lies in stores, and their policies."""

from __future__ import annotations

from collections.abc import Callable

from pulsar_ray.actors.topic_actors import TopicActors
from pulsar_ray.broker.catalog.catalog import PartitionRow
from pulsar_ray.broker.catalog.change_logs import ChangeLogs
from pulsar_ray.errors import NotAllowedError
from pulsar_ray.model.topic_name import TopicName


class TopicEnding:
    """Belongs to the controller. `parked` counts clients whose consumers wait for a sleeping partition."""

    def __init__(self, served: TopicActors, logs: ChangeLogs, parked: Callable[[str], int]) -> None:
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

    async def remove(self, rows: list[PartitionRow]) -> None:
        """See TopicActors.remove."""
        await self._served.remove(rows)
