"""Plans ranges with this Ray cluster's broker: partitions resolve bounds and lease the files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pulsar_ray.client.consumer.topic_pattern import TopicPattern
from pulsar_ray.data.planning.lease_keeper import LEASE_KEEPER
from pulsar_ray.data.planning.plan import (
    AtMessages,
    AtSubscription,
    AtTime,
    Bound,
    LostRange,
    RangePlan,
    ReadRange,
    SegmentSlice,
    TableSource,
    Topics,
    lost_of,
    segments_before,
)
from pulsar_ray.data.planning.range_leases import CALL_TIMEOUT_S, LEASE_MS, RangeLeases
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.launch.connect import connect
from pulsar_ray.managed_ledger.compaction.stored_blocks import SourceSegment
from pulsar_ray.model.message_id import EARLIEST, LATEST, MessageId, Position
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.cluster import Cluster, PartitionRoute

SLICE_BYTES = 32 * 1024 * 1024


class BrokerPlanner:
    """The planner `read` uses when none is given. Connects as `Client(service_url)` does."""

    def __init__(self, service_url: str = "auto", *, data_dir: str | None = None) -> None:
        self._cluster = connect(service_url, data_dir=data_dir, config_file=None, settings={}).cluster

    @classmethod
    def on(cls, cluster: Cluster) -> BrokerPlanner:
        """A planner on a cluster that is connected already."""
        planner = cls.__new__(cls)
        planner._cluster = cluster  # noqa: SLF001 - its own
        return planner

    @contextmanager
    def plan(self, topics: Topics, start: Bound, end: Bound) -> Iterator[RangePlan]:
        """Resolve bounds to files, and hold the files until the context is left.

        A lease that cannot be given back expires by itself.
        """
        plan, leases = self.held_plan(topics, start, end)
        try:
            yield plan
        finally:
            leases.release()
            LEASE_KEEPER.leave(leases)

    def held_plan(self, topics: Topics, start: Bound, end: Bound) -> tuple[RangePlan, RangeLeases]:
        """Resolve bounds to files that are held for longer than a context.

        They are until `LEASE_KEEPER` is told that nobody needs them.
        """
        leases = RangeLeases(self._cluster)
        ranges: list[ReadRange] = []
        lost: list[LostRange] = []
        try:
            for route in self._partitions(topics):
                planned = self._plan_partition(route, start, end)
                leases.add(route.topic, route.address, planned)
                ranges.extend(_ranges(route, planned, start, end))
                lost.extend(_lost(route, planned, start, end))
        except BaseException:
            leases.release()
            raise
        LEASE_KEEPER.keep(leases)
        return RangePlan(tuple(ranges), tuple(lost)), leases

    @contextmanager
    def tables(self, topics: Topics) -> Iterator[list[TableSource]]:
        """Find what has the latest message of each key.

        It is held until the context is left.
        """
        tables, leases = self.held_tables(topics)
        try:
            yield tables
        finally:
            leases.release()
            LEASE_KEEPER.leave(leases)

    def held_tables(self, topics: Topics) -> tuple[list[TableSource], RangeLeases]:
        """Find what has the latest message of each key.

        It is held as `held_plan` holds a range. Raises InvalidConfiguration for a topic that stores nothing.
        """
        leases = RangeLeases(self._cluster)
        tables: list[TableSource] = []
        try:
            for name in self._names(topics):
                if not TopicName.parse(name).is_persistent:
                    raise InvalidConfiguration(
                        f"read_compacted=True: {name} is not persistent: nothing of it is stored"
                    )
            for route in self._partitions(topics):
                planned: dict[str, Any] = self._cluster.call_again(
                    route.address, "call", "plan_table", {"lease_ms": LEASE_MS}, timeout_s=CALL_TIMEOUT_S
                )
                leases.add(route.topic, route.address, planned)
                tables.append(
                    TableSource(
                        planned.get("node_id", ""),
                        route.topic,
                        route.partition,
                        tuple(SourceSegment(*each) for each in planned["segments"]),
                        Position(*planned["behind"]),
                        Position(*planned["horizon"]),
                        planned["retains_null_key"],
                        planned["max_key_bytes"],
                    )
                )
        except BaseException:
            leases.release()
            raise
        LEASE_KEEPER.keep(leases)
        return tables, leases

    def _partitions(self, topics: Topics) -> Iterator[PartitionRoute]:
        """Return each partition once.

        Also where a topic is given by both its names, or beside a partition of it.
        """
        found: set[str] = set()
        for topic in self._names(topics):
            for route in self._cluster.resolve(topic, create=False, timeout_s=CALL_TIMEOUT_S):
                if route.topic not in found:
                    found.add(route.topic)
                    yield route

    def _names(self, topics: Topics) -> Sequence[str]:
        if not isinstance(topics, re.Pattern):
            return topics
        pattern = TopicPattern(topics)
        known = self._cluster.topics(pattern.namespace, CALL_TIMEOUT_S)
        return [name for name, _ in known if pattern.matches(name)]

    def _plan_partition(self, route: PartitionRoute, start: Bound, end: Bound) -> dict[str, Any]:
        arguments = {
            "start": target_of(start, route.partition),
            "end": _end_target(end, route.partition),
            "slice_bytes": SLICE_BYTES,
            "lease_ms": LEASE_MS,
        }
        planned: dict[str, Any] = self._cluster.call_again(
            route.address, "call", "plan_range", arguments, timeout_s=CALL_TIMEOUT_S
        )
        return planned


def target_of(bound: Bound, partition: int) -> Any:
    """A bound as `plan_range` of a partition takes it."""
    if isinstance(bound, AtTime):
        return bound.time_ms
    if isinstance(bound, AtSubscription):
        return {"subscription": bound.name}
    if isinstance(bound, AtMessages):
        message_id = bound.of_partition(partition)
        return [message_id.ledger_id(), message_id.entry_id()]
    return bound


def _lost(route: PartitionRoute, planned: dict[str, Any], start: Bound, end: Bound) -> list[LostRange]:
    asked, stop = _position(start, route.partition, EARLIEST), _position(end, route.partition, LATEST)
    lost = lost_of(route.topic, asked, stop, Position(*planned["trimmed"]), planned["number"])
    return [] if lost is None else [lost]


def _position(bound: Bound, partition: int, otherwise: Position) -> Position:
    if not isinstance(bound, AtMessages):
        return otherwise
    message_id = bound.of_partition(partition)
    return Position(message_id.ledger_id(), message_id.entry_id())


def _end_target(end: Bound, partition: int) -> Any:
    """The entry behind the range: a batch that is cut has to be in it."""
    target = target_of(end, partition)
    if isinstance(end, AtMessages) and end.of_partition(partition).batch_index() > 0:
        return [target[0], target[1] + 1]
    return target


def batch_index_of(bound: Bound, partition: int, position: Position) -> int:
    """The row within the entry at `position` where the bound lies.

    It is 0 unless the bound is inside that very batch.
    """
    if not isinstance(bound, AtMessages):
        return 0
    message_id: MessageId = bound.of_partition(partition)
    if (message_id.ledger_id(), message_id.entry_id()) != tuple(position):
        return 0
    return max(0, message_id.batch_index())


def _ranges(route: PartitionRoute, planned: dict[str, Any], start: Bound, end: Bound) -> list[ReadRange]:
    first, stop = Position(*planned["first"]), Position(*planned["end"])
    first_row = batch_index_of(start, route.partition, first)
    cut = Position(stop.ledger_id, stop.entry_id - 1)
    end_row = batch_index_of(end, route.partition, cut)
    if end_row:
        stop = cut
    log = [SegmentSlice(*piece) for piece in planned["log"]]
    groups = [tuple(SegmentSlice(*piece) for piece in group) for group in planned["groups"]]
    return [
        ReadRange(
            planned.get("node_id", ""),
            route.topic,
            route.partition,
            group,
            first,
            stop,
            first_row,
            end_row,
            segments_before(log, group),
        )
        for group in groups
    ]
