"""Change logs in memory, and an administration over them whose process can die at every step."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from pulsar_ray.broker.catalog.administration.administration import Administration
from pulsar_ray.broker.catalog.administration.change_logs import ChangeLogs
from pulsar_ray.broker.catalog.catalog import Catalog, PartitionRow
from pulsar_ray.broker.catalog.schemas.schema_registry import SchemaRegistry
from pulsar_ray.broker.catalog.topic_ending import TopicEnding
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.config import Settings
from pulsar_ray.errors import WrongNode
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.manual_clock import ManualClock

T = TypeVar("T")
STORE = "store"


def finished(call: Coroutine[Any, Any, T]) -> T:
    """Run a call that waits for nothing: here, partitions are called like functions."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("the call waits for something that only an event loop would bring")


class Died(Exception):
    """The controller's process ends here."""


class MemoryLogs:
    """The stores of a cluster: logs of messages by partition. They outlive every controller."""

    def __init__(self) -> None:
        self.messages: dict[str, list[Any]] = {}
        self.away: set[str] = set()
        self.die_before_append = False
        self.die_after_append = False
        self.page = 2

    def append(self, partition: str, value: str) -> Position:
        if self.die_before_append:
            raise Died
        if partition in self.away:
            raise WrongNode(f"{partition} is away")
        log = self.messages.setdefault(partition, [])
        log.append(value.encode())
        if self.die_after_append:
            raise Died
        return Position(7, len(log) - 1)

    def read(self, partition: str, behind: Position) -> list[dict[str, Any]]:
        if partition in self.away:
            raise WrongNode(f"{partition} is away")
        start = behind.entry_id + 1
        return [
            {
                "position": [7, start + index],
                "value": b"" if isinstance(value, str) else value,
                "problem": value if isinstance(value, str) else "",
                "place": "file at byte 0",
            }
            for index, value in enumerate(self.messages.get(partition, [])[start : start + self.page])
        ]

    def rows(self) -> list[PartitionRow]:
        """The partition directories that a new catalog is made from."""
        rows = []
        for number, name in enumerate(sorted(self.messages), 1000):
            topic = TopicName.parse(name)
            if name not in self.away:
                rows.append(
                    PartitionRow(name, number, topic.partitioned_full, topic.partition_index, STORE, True)
                )
        return rows


class Controller:
    """One life of a controller over a catalog file; its calls are made like functions."""

    def __init__(self, path: Path, logs: MemoryLogs, clock: ManualClock, **settings: Any) -> None:
        self.catalog = Catalog(path) if path.exists() else Catalog.make(path, "cluster", "first")[0]
        self.settings = Settings(data_dir=str(path.parent), **settings)
        self.topics = TopicRegistry(self.catalog, self.settings)
        self._logs = logs
        self.told: list[str] = []
        self.removed: list[str] = []
        self.gate: asyncio.Event | None = None
        """Appends wait for it."""
        self.logs = ChangeLogs(self.catalog, self, clock.now_ms)
        self.ending = TopicEnding(self, self.logs, lambda _: [])
        self.calls = Administration(self.topics, self.logs, self.ending, self.settings, self._changed)
        self.used: str = ""
        self.schemas = SchemaRegistry(
            self.topics, self.logs, self.settings, clock.now_ms, self._use_of, self._schema_changed
        )
        finished(self.logs.catch_up())

    def create(self, topic: str, partitions: int = 0) -> None:
        self.topics.create(TopicName.parse(topic), partitions, lambda: [STORE])

    def set(self, subject: str, name: str, **value: Any) -> None:
        finished(self.calls.set_policy(subject, name, value))

    def value(self, subject: str, name: str) -> tuple[dict[str, Any], dict[str, str]]:
        (found,) = finished(self.calls.policies(subject, name))
        return found.value, found.sources

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return finished(call)

    async def _changed(self, subject: str, _policy: str) -> None:
        self.told.append(subject)

    async def _use_of(self, _topic: str) -> str:
        return self.used

    async def _schema_changed(self, topic: str) -> None:
        self.told.append(topic)

    async def prepare(self, log: TopicName, partitions: int) -> None:
        before = self.catalog.all_partitions(log.full)
        self.topics.create_change_log(log, partitions, lambda: [STORE])
        for row in self.catalog.all_partitions(log.full):
            if row not in before:
                # It lies in another place than a partition of that name which was lost.
                self._logs.messages.pop(row.name, None)
                self._logs.away.discard(row.name)

    async def expect(self, partitions: list[str]) -> None:
        assert len(partitions) <= 4

    async def append(self, partition: str, key: str, value: str) -> Position:
        if self.gate is not None:
            await self.gate.wait()
        return self._logs.append(partition, value)

    async def read(self, partition: str, behind: Position) -> list[dict[str, Any]]:
        if self.catalog.partition(partition) is None:
            raise WrongNode(f"{partition} was not found")
        return self._logs.read(partition, behind)

    async def connected(self, row: PartitionRow) -> list[str]:
        return []

    def store_of(self, row: PartitionRow) -> str:
        return row.store_id

    async def remove(self, rows: list[PartitionRow]) -> None:
        for row in rows:
            self.removed.append(row.name)
            self._logs.messages.pop(row.name, None)

    def close(self) -> None:
        self.catalog.close()
