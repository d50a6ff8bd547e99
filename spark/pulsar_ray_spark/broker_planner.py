"""Plans ranges with this Ray cluster's broker: partitions resolve bounds and lease the files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from pulsar_ray.errors import PulsarException
from pulsar_ray.launch.connect import connect
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.position import Position
from pulsar_ray.transport.cluster import PartitionRoute
from pulsar_ray.transport.ray_cluster import RayCluster
from pulsar_ray_spark.plan import (
    AtMessages,
    AtSubscription,
    AtTime,
    Bound,
    RangePlan,
    ReadRange,
    SegmentSlice,
)

SLICE_BYTES = 32 * 1024 * 1024
LEASE_MS = 3_600_000
CALL_TIMEOUT_S = 60.0


class BrokerPlanner:
    """The planner `read` uses when none is given. Connects as `Client(service_url)` does."""

    def __init__(self, service_url: str = "auto", *, data_dir: str | None = None) -> None:
        self._connected = connect(service_url, data_dir=data_dir, config_file=None, settings={})

    @property
    def _cluster(self) -> RayCluster:
        return cast(RayCluster, self._connected.cluster)

    @contextmanager
    def plan(self, topics: Sequence[str], start: Bound, end: Bound) -> Iterator[RangePlan]:
        """Resolve bounds to files, and hold the files until the context is left.

        A lease that cannot be given back expires by itself.

        itself.
        """
        leases: list[tuple[str, int]] = []
        ranges: list[ReadRange] = []
        try:
            for topic in topics:
                for route in self._cluster.resolve(topic, create=False, timeout_s=CALL_TIMEOUT_S):
                    planned = self._plan_partition(route, start, end)
                    leases.append((route.address, planned["lease_id"]))
                    ranges.extend(_ranges(route, planned, start, end))
            yield RangePlan(tuple(ranges))
        finally:
            for address, lease_id in leases:
                with contextlib.suppress(PulsarException):
                    self._cluster.call(address, "call", "release_lease", {"lease_id": lease_id})

    def _plan_partition(self, route: PartitionRoute, start: Bound, end: Bound) -> dict[str, Any]:
        arguments = {
            "start": _target(start, route.partition),
            "end": _target(end, route.partition),
            "slice_bytes": SLICE_BYTES,
            "lease_ms": LEASE_MS,
        }
        planned: dict[str, Any] = self._cluster.call_again(
            route.address, "call", "plan_range", arguments, timeout_s=CALL_TIMEOUT_S
        )
        return planned


def _target(bound: Bound, partition: int) -> Any:
    if isinstance(bound, AtTime):
        return bound.time_ms
    if isinstance(bound, AtSubscription):
        return {"subscription": bound.name}
    if isinstance(bound, AtMessages):
        message_id = bound.of_partition(partition)
        return [message_id.ledger_id(), message_id.entry_id()]
    return bound


def _batch_index(bound: Bound, partition: int, position: Position) -> int:
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
    first_row = _batch_index(start, route.partition, first)
    end_row = _batch_index(end, route.partition, stop)
    return [
        ReadRange(
            planned["node_id"],
            route.topic,
            route.partition,
            tuple(SegmentSlice(*piece) for piece in group),
            first,
            stop,
            first_row,
            end_row,
        )
        for group in planned["groups"]
    ]
