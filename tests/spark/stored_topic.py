"""A planner over segment files of this node: a broker is not needed to read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import ray

from pulsar_ray.data.planning.plan import Bound, LostRange, RangePlan, ReadRange, SegmentSlice, Topics
from pulsar_ray.model.message_id import EARLIEST, LATEST, Position


@dataclass
class StoredTopics:
    """A RangePlanner over segment files of this node."""

    ranges: dict[str, list[ReadRange]] = field(default_factory=dict)
    asked: list[tuple[Topics, Bound, Bound]] = field(default_factory=list)
    lost: list[LostRange] = field(default_factory=list)
    leases: int = 0

    def add(
        self,
        topic: str,
        *segments: SegmentSlice,
        partition: int = -1,
        first: Position = EARLIEST,
        end: Position = LATEST,
        first_batch_index: int = 0,
        end_batch_index: int = 0,
    ) -> None:
        node_id = ray.get_runtime_context().get_node_id()
        self.ranges.setdefault(topic, []).append(
            ReadRange(node_id, topic, partition, segments, first, end, first_batch_index, end_batch_index)
        )

    @contextmanager
    def plan(self, topics: Topics, start: Bound, end: Bound) -> Iterator[RangePlan]:
        self.asked.append((topics, start, end))
        self.leases += 1
        try:
            if isinstance(topics, re.Pattern):
                topics = [name for name in self.ranges if topics.fullmatch(name)]
            yield RangePlan(tuple(each for topic in topics for each in self.ranges[topic]), tuple(self.lost))
        finally:
            self.leases -= 1
