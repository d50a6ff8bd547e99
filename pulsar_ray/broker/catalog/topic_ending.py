"""Deleting topics with what runs of them, what lies in stores, and their policies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from pulsar_ray.broker.catalog.administration.change_logs import ChangeLogs
from pulsar_ray.broker.catalog.catalog import PartitionRow
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.errors import NotAllowedError, PulsarException, RemoteStoreUnavailable
from pulsar_ray.model.topic_name import TopicName

logger = logging.getLogger(__name__)

MOST_NAMED = 10


def users_of(stats: Mapping[str, Any]) -> list[str]:
    """Name the producers of a partition's stats, or the consumers of a dispatcher's."""
    if "consumers" not in stats:
        return [f"producer {name!r}" for name in stats.get("producers", ())]
    return [
        f"consumer {consumer['consumerName']!r} of {name!r}"
        for name, described in stats["subscriptions"].items()
        for consumer in described["consumers"]
    ]


class ServedTopics(Protocol):
    """Topics with what runs of them, as far as deleting concerns it."""

    topics: TopicRegistry

    async def connected(self, row: PartitionRow) -> list[str]:
        """Name the producers and consumers that are connected to a partition."""

    def store_of(self, row: PartitionRow) -> Any:
        """Return a partition's store. Raises WrongNode while no running node holds it."""

    async def remove(self, rows: list[PartitionRow]) -> None:
        """End partitions that the catalog has forgotten, and delete what their stores have of them."""


class TopicEnding:
    """Belongs to the controller. `parked` names the consumers that wait for a sleeping partition."""

    def __init__(self, served: ServedTopics, logs: ChangeLogs, parked: Callable[[str], list[str]]) -> None:
        self._served = served
        self._logs = logs
        self._parked = parked
        self._removing: set[asyncio.Task[None]] = set()

    async def delete_topic(self, topic: str, force: bool) -> None:
        """See Controller.delete_topic."""
        served = self._served
        topics, name = served.topics, TopicName.parse(topic)
        await topics.catalog.settled()  # a former attempt, too
        rows = topics.rows_of(name)
        if not force:
            connected: list[str] = []
            for row in rows:
                names = [*await served.connected(row), *self._parked(row.name)]
                connected += [f"{each} on {row.name}" for each in names]
            if connected:
                more = ", ..." if len(connected) > MOST_NAMED else ""
                raise NotAllowedError(
                    f"Topic has {len(connected)} connected producers/consumers "
                    f"({', '.join(connected[:MOST_NAMED])}{more}): close them, or force"
                )
            for row in rows:
                served.store_of(row)
        await self._logs.forget_topic(name, force=force)
        # Some may have moved meanwhile.
        rows = topics.forget(name) or rows
        # Before anything of it goes: who does not know of the deletion would miss that.
        try:
            await topics.catalog.settled()
        except RemoteStoreUnavailable:
            removing = asyncio.get_running_loop().create_task(self._remove_later(name, rows, force=force))
            self._removing.add(removing)
            removing.add_done_callback(self._removing.discard)
            raise
        await self._remove_all(name, rows, force=force)

    async def _remove_all(self, name: TopicName, rows: list[PartitionRow], *, force: bool) -> None:
        # Once more, for a policy that was set meanwhile.
        await self._logs.forget_topic(name, force=True)
        await self._served.remove(rows)
        event(
            logger, "deleted%s, with %d partitions", " by force" if force else "", len(rows), topic=name.full
        )

    async def _remove_later(self, name: TopicName, rows: list[PartitionRow], *, force: bool) -> None:
        """Remove what is deleted once that is decided, though nobody waits for it any more."""
        try:
            while True:
                with suppress(RemoteStoreUnavailable):
                    await self._served.topics.catalog.settled()
                    break
            await self._remove_all(name, rows, force=force)
        except PulsarException as error:
            logger.warning("%s is deleted, and something of it may be left: %s", name.full, error)

    async def remove(self, rows: list[PartitionRow]) -> None:
        """See ServedTopics.remove."""
        await self._served.remove(rows)
