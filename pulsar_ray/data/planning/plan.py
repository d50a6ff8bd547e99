"""The request of a `read`, and its ranges of segment files.

A lease holds the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, Protocol

from pulsar_ray.dispatch.blocks.chunk_limits import LOOK_BACK_SEGMENTS
from pulsar_ray.errors import DataLost, InvalidConfiguration
from pulsar_ray.managed_ledger.compaction.stored_blocks import SourceSegment
from pulsar_ray.managed_ledger.log.manifest.manifest import LEDGER_COUNTER_BITS
from pulsar_ray.model.message_id import LATEST, MessageId, Position

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
    Literal["earliest", "latest"]
    | MessageId
    | list[MessageId]
    | datetime
    | timedelta
    | AtTime
    | AtSubscription
)


def as_bound(value: object, now_ms: int) -> Bound:
    """Normalise a bound; raises InvalidConfiguration for anything that is none."""
    if isinstance(value, AtTime | AtSubscription):
        return value
    if isinstance(value, timedelta):
        return _before_now(value, now_ms)
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
        "datetime with a time zone, a timedelta before now, AtTime(ms) or AtSubscription(name)"
    )


def _before_now(value: timedelta, now_ms: int) -> AtTime:
    if value < timedelta(0):
        raise InvalidConfiguration(
            f"{value!r} lies ahead: a timedelta says how long ago a range begins or ends, as "
            "timedelta(minutes=10)"
        )
    return AtTime(now_ms - value // timedelta(milliseconds=1))


def _at_datetime(value: datetime) -> AtTime:
    if value.tzinfo is None:
        raise InvalidConfiguration(
            f"{value!r} has no time zone: add one, as datetime(..., tzinfo=timezone.utc)"
        )
    return AtTime((value - _EPOCH) // timedelta(milliseconds=1))


Topics = Sequence[str] | re.Pattern[str]


def as_topics(value: str | Topics) -> Topics:
    """Normalise what is to be read.

    Raises InvalidConfiguration for no topic at all, InvalidTopicName for a pattern that no topics have.
    """
    if isinstance(value, re.Pattern):
        from pulsar_ray.client.consumer.topic_pattern import TopicPattern  # noqa: PLC0415 - readers have none

        TopicPattern(value)
        return value
    names = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    if not names:
        raise InvalidConfiguration("no topic to read: give a name, a list of names or a compiled pattern")
    for name in names:
        if not isinstance(name, str):
            raise InvalidConfiguration(f"{name!r} is no topic: give names, or one compiled pattern alone")
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class SegmentSlice:
    """Frames of a segment file: from `offset`, where one starts, to `end_offset`, where one ends."""

    path: str
    ledger_id: int
    segment_index: int
    offset: int
    end_offset: int

    @property
    def key(self) -> tuple[int, int]:
        """Which segment the frames are in, in the order of the log."""
        return self.ledger_id, self.segment_index


@dataclass(frozen=True)
class ReadRange:
    """A piece of one partition for one task, on the node of its disk.

    Messages from `first` on and before `end`; batch indexes cut within a batch, 0 takes it whole or not at
    all. The segments may hold more than that, and are in the order of the log. A message in chunks is where
    its last chunk is; those before it may lie in the segments `before`, the nearest of the log.
    """

    node_id: str
    topic: str
    partition: int
    segments: tuple[SegmentSlice, ...]
    first: Position
    end: Position
    first_batch_index: int = 0
    end_batch_index: int = 0
    before: tuple[SegmentSlice, ...] = ()
    wanted: bytes = b""
    """Says of each row of all frames whether it is read; b"": all are.

    A bit each, packed and compressed by zlib.
    """


@dataclass(frozen=True)
class TableSource:
    """A partition of which the latest message of each key is to be read.

    Its files are on the node `node_id`. `segments` are those that were compacted, up to the entry
    `behind`, and those of the log up to the `horizon`.
    """

    node_id: str
    topic: str
    partition: int
    segments: tuple[SourceSegment, ...]
    behind: Position
    horizon: Position
    retains_null_key: bool
    max_key_bytes: int


def segments_before(
    log: Sequence[SegmentSlice], segments: Sequence[SegmentSlice]
) -> tuple[SegmentSlice, ...]:
    """The segments before these where a message may begin that ends in them."""
    earlier = [each for each in log if each.key < segments[0].key]
    return tuple(earlier[-LOOK_BACK_SEGMENTS:])


@dataclass(frozen=True)
class RangePlan:
    """The ranges in the order of the log, and what is trimmed of them."""

    ranges: tuple[ReadRange, ...]
    lost: tuple[LostRange, ...] = ()


class RangePlanner(Protocol):
    """Finds what to read."""

    def plan(self, topics: Topics, start: Bound, end: Bound) -> AbstractContextManager[RangePlan]:
        """Resolve topics to partitions and bounds to positions, `start` inclusive, `end` exclusive.

        A pattern stands for the topics that match it now, of which there may be none. "latest" is the durable
        end at this moment. Ranges should hold some tens of MiB each: one is one task. Until the context is
        left nothing of them is trimmed. Raises the client's errors (TopicNotFound, ...).
        """


_NAMED = 5


@dataclass(frozen=True)
class LostRange:
    """Messages of a partition that were asked for and are gone, from `first` to `last`.

    With `is_replaced` they were those of a topic of this name that was deleted.
    """

    topic: str
    first: Position
    last: Position
    is_replaced: bool = False

    def __str__(self) -> str:
        replaced = " (the topic was deleted, and made anew since)" if self.is_replaced else ""
        return (
            f"{self.topic} from {self.first.ledger_id}:{self.first.entry_id} "
            f"to {self.last.ledger_id}:{self.last.entry_id}{replaced}"
        )


def number_of(place: Position) -> int | None:
    """The number of a place's partition; None if the place says none."""
    return None if place.ledger_id < 0 or place == LATEST else place.ledger_id >> LEDGER_COUNTER_BITS


def beginning_of(number: int) -> Position:
    """The place before all that the partition of this number ever stores."""
    return Position(number << LEDGER_COUNTER_BITS, 0)


def lost_of(topic: str, asked: Position, end: Position, trimmed: Position, number: int) -> LostRange | None:
    """Return the part of a range that is gone, None if there is none.

    The range ends before `end`. `number` is that of the partition which now has the name: places in another
    one are of a topic that was deleted. A range that asks for no message by its place, but for "earliest",
    loses nothing.
    """
    of_others = [place for place in (asked, end) if number_of(place) not in (None, number)]
    if of_others:
        return LostRange(topic, asked, of_others[-1], is_replaced=True)
    if asked.ledger_id < 0 or asked > trimmed or asked >= end:
        return None
    return LostRange(topic, asked, min(trimmed, end))


def check_nothing_lost(lost: Sequence[LostRange]) -> None:
    """Raise DataLost if anything is, naming topics and positions."""
    if not lost:
        return
    named = "; ".join(map(str, lost[:_NAMED]))
    more = f"; and of {len(lost) - _NAMED} more partitions" if len(lost) > _NAMED else ""
    raise DataLost(
        f"messages that were asked for are gone: {named}{more}. Give fail_on_data_loss=False to read what "
        "is left, or keep messages longer (retention, or a subscription that has not acknowledged them)"
    )
