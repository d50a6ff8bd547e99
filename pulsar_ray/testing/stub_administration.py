"""Tenants, namespaces and policies as the controller keeps them, with logs in this process's partitions."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pulsar_ray.broker.catalog.administration import Administration
from pulsar_ray.broker.catalog.catalog import PartitionRow
from pulsar_ray.broker.catalog.change_logs import ChangeLogs
from pulsar_ray.broker.catalog.topic_ending import TopicEnding
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.model.position import Position
from pulsar_ray.model.topic_name import TopicName

T = TypeVar("T")
STORE = "stub"


class StubAdministration:
    """`call` makes a control call of a partition, `end` ends deleted ones, `changed` tells actors.

    `connected` names the producers and consumers of a partition, `parked` the consumers that wait for one
    that sleeps, `check_there` raises WrongNode for one that is away.
    """

    def __init__(
        self,
        topics: TopicRegistry,
        settings: Settings,
        call: Callable[[str, str, dict[str, Any]], Any],
        end: Callable[[list[PartitionRow]], None],
        changed: Callable[[str], None],
        connected: Callable[[str], list[str]],
        parked: Callable[[str], list[str]],
        check_there: Callable[[str], None],
    ) -> None:
        self.topics = topics
        self._call = call
        self._end = end
        self._tell = changed
        self._connected = connected
        self._check_there = check_there
        self.logs = ChangeLogs(topics.catalog, self, SystemClock().now_ms)
        self.ending = TopicEnding(self, self.logs, parked)
        self.calls = Administration(topics, self.logs, self.ending, settings, self._changed)

    async def prepare(self, log: TopicName, partitions: int) -> None:
        """See LogPartitions."""
        self.topics.create_change_log(log, partitions, lambda: [STORE])

    async def expect(self, partitions: list[str]) -> None:
        """See LogPartitions; nothing starts in advance here."""

    async def append(self, partition: str, key: str, value: str) -> Position:
        """See LogPartitions."""
        return Position(*self._call(partition, "append_message", {"key": key, "value": value}))

    async def read(self, partition: str, behind: Position) -> list[dict[str, Any]]:
        """See LogPartitions."""
        page: list[dict[str, Any]] = self._call(partition, "read_messages", {"behind": list(behind)})
        return page

    async def connected(self, row: PartitionRow) -> list[str]:
        """See ServedTopics."""
        return self._connected(row.name)

    def store_of(self, row: PartitionRow) -> str:
        """See ServedTopics."""
        self._check_there(row.name)
        return STORE

    async def remove(self, rows: list[PartitionRow]) -> None:
        """See ServedTopics."""
        self._end(rows)

    async def _changed(self, subject: str, _policy: str) -> None:
        self._tell(subject)


def finished(call: Coroutine[Any, Any, T]) -> T:
    """Run a call that waits for nothing: here, partitions are called like functions."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("the call waits for something that only an event loop would bring")
