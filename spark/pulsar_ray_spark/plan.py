"""The request of a `read`, and its ranges of segment files.

A lease holds the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, Protocol

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.position import Position

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class AtTime:
    """The first message published at or after this time, in ms since 1970."""

    time_ms: int


@dataclass(frozen=True)
class AtSubscription:
    """The message behind the subscription's mark-delete position: all before it are acknowledged."""

    name: str


@dataclass(frozen=True)
class AtMessages:
    """One message per partition."""

    message_ids: tuple[MessageId, ...]

    def of_partition(self, partition: int) -> MessageId:
        """The id that bounds this partition; raises InvalidConfiguration if none does."""
        for message_id in self.message_ids:
            if message_id.partition() == partition:
                return message_id
        given = ", ".join(str(message_id.partition()) for message_id in self.message_ids)
        raise InvalidConfiguration(
            f"the message ids given bound partitions {given}, not partition {partition}: give one id per "
            "partition (as Consumer.get_last_message_ids does), or read that one partition by its name"
        )


Bound = Literal["earliest", "latest"] | AtTime | AtSubscription | AtMessages
BoundArgument = (
    Literal["earliest", "latest"] | MessageId | list[MessageId] | datetime | AtTime | AtSubscription
)


def as_bound(value: object) -> Bound:
    """Normalise a bound; raises InvalidConfiguration for anything that is none."""
    if isinstance(value, AtTime | AtSubscription):
        return value
    if isinstance(value, datetime):
        return _at_datetime(value)
    if value in ("earliest", MessageId.earliest):
        return "earliest"
    if value in ("latest", MessageId.latest):
        return "latest"
    message_ids: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    if message_ids and all(isinstance(message_id, MessageId) for message_id in message_ids):
        return AtMessages(tuple(message_ids))
    raise InvalidConfiguration(
        f"{value!r} is no bound: give 'earliest', 'latest', a MessageId (or one per partition), a "
        "datetime with a time zone, AtTime(ms) or AtSubscription(name)"
    )


def _at_datetime(value: datetime) -> AtTime:
    if value.tzinfo is None:
        raise InvalidConfiguration(
            f"{value!r} has no time zone: add one, as datetime(..., tzinfo=timezone.utc)"
        )
    return AtTime((value - _EPOCH) // timedelta(milliseconds=1))


@dataclass(frozen=True)
class SegmentSlice:
    """Frames of a segment file: from `offset`, where one starts, to `end_offset`, where one ends."""

    path: str
    ledger_id: int
    segment_index: int
    offset: int
    end_offset: int


@dataclass(frozen=True)
class ReadRange:
    """A piece of one partition for one task, on the node of its disk.

    Messages from `first` on and before `end`; batch indexes cut within a batch, 0 takes it whole or not at
    all. The segments may hold more than that, and are in the order of the log.
    """

    node_id: str
    topic: str
    partition: int
    segments: tuple[SegmentSlice, ...]
    first: Position
    end: Position
    first_batch_index: int = 0
    end_batch_index: int = 0


@dataclass(frozen=True)
class RangePlan:
    """The ranges, in the order the DataFrame's partitions have."""

    ranges: tuple[ReadRange, ...]


class RangePlanner(Protocol):
    """Finds what to read."""

    def plan(self, topics: Sequence[str], start: Bound, end: Bound) -> AbstractContextManager[RangePlan]:
        """Resolve topics to partitions and bounds to positions, `start` inclusive, `end` exclusive.

        "latest" is the durable end at this moment. Ranges should hold some tens of MiB each: one is one task.
        Until the context is left nothing of them is trimmed. Raises the client's errors (TopicNotFound, ...).
        """
