"""The records of a partition's manifest (ADR 0003).

There is one class for each type; fields are only ever appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pulsar_ray.errors import UnsupportedFormatVersion
from pulsar_ray.ledger.record_log import Record
from pulsar_ray.model.message_id import Position


class TopicIdentity(NamedTuple):
    """`number` is the cluster-wide topic-partition number, with which every ledger id begins.

    `topic` is the partition's own name; `partition` is -1 for a topic without partitions. `cluster_id` is
    that of the cluster whose catalog granted the number (ADR 0026), "" in what version 0.1 wrote.
    """

    number: int
    topic: str
    partition: int
    cluster_id: str = ""


class Counters(NamedTuple):
    """Numbers that must never go back, even when all they were taken from is trimmed.

    The last two are the last entry that was trimmed, -1 for none and in what version 0.1 wrote.
    """

    next_ledger_counter: int
    next_subscription: int
    next_lease: int
    last_ledger_id: int
    last_entry_id: int
    max_publish_ms: int
    last_batch_size: int
    trimmed_ledger_id: int = -1
    trimmed_entry_id: int = -1


class SegmentOpened(NamedTuple):
    """A segment file is there and durable; index 0 begins a ledger."""

    ledger_id: int
    segment_index: int
    first_entry_id: int
    now_ms: int


class SegmentClosed(NamedTuple):
    """The segment ends there; what follows in the file was promised to nobody."""

    ledger_id: int
    segment_index: int
    end_offset: int
    last_entry_id: int


class LedgerClosed(NamedTuple):
    """The ledger takes no more entries."""

    ledger_id: int
    last_entry_id: int
    size_bytes: int
    closed_ms: int


class LedgersDeleted(NamedTuple):
    """These ledgers are gone.

    Their files, and only recorded ones, may be unlinked from now on.
    """

    ledger_ids: list[int]


class Subscription(NamedTuple):
    """A subscription and its hold.

    The hold is the position up to which the subscription needs nothing any more: its own, or the one up to
    which the broker has acknowledged for it, should that lie behind. The latter is (-1, -1) for none; it is
    stored as a record `Expired` of its own, which a build that does not know it refuses.
    """

    number: int
    name: str
    is_durable: bool
    hold_ledger_id: int
    hold_entry_id: int
    properties: dict[str, str]
    expired_ledger_id: int = -1
    expired_entry_id: int = -1
    unused_since_ms: int = 0
    """Since when nobody has used it; stored as a record `Unused` of its own.

    0 if somebody does, or nobody counts.
    """

    @property
    def hold(self) -> Position:
        return max(self.reported, self.expired)

    @property
    def reported(self) -> Position:
        """The position that its dispatcher has reported last."""
        return Position(self.hold_ledger_id, self.hold_entry_id)

    @property
    def expired(self) -> Position:
        """The position up to which the broker has acknowledged for the subscription."""
        return Position(self.expired_ledger_id, self.expired_entry_id)


class HoldMoved(NamedTuple):
    number: int
    ledger_id: int
    entry_id: int


class SubscriptionRemoved(NamedTuple):
    number: int


class SubscriptionProperties(NamedTuple):
    """Replaces the properties of a subscription."""

    number: int
    properties: dict[str, str]


class Lease(NamedTuple):
    """A hold on a range of ledgers with an expiry, for readers without a subscription."""

    lease_id: int
    first_ledger_id: int
    last_ledger_id: int
    expires_ms: int


class LeaseEnded(NamedTuple):
    lease_id: int


class IncarnationRecord(NamedTuple):
    """A producer incarnation and its latest blocks, in arrays of 64-bit numbers, little-endian.

    With a `last_seq` of -1 it says only how long the incarnation has been idle.
    """

    incarnation: int
    last_seq: int
    first_seqs: bytes
    ledger_ids: bytes
    entry_ids: bytes
    idle_ms: int = 0


class Checkpoint(NamedTuple):
    """Everything before a place in the open ledger, which recovery need not scan.

    It is not synced by itself.
    """

    ledger_id: int
    segment_index: int
    end_offset: int
    next_entry_id: int
    max_publish_ms: int
    points: list[tuple[int, int, int, int, int]]
    last_seqs: dict[int, int]
    retired: list[int]
    blocks: Sequence[tuple[int, int, bytes, bytes, bytes]] = ()
    """An IncarnationRecord for each of `last_seqs`, with the blocks since the checkpoint before.

    Without the idle time: who wrote was not idle.
    """

    @property
    def written(self) -> list[IncarnationRecord]:
        """The incarnations that wrote since the checkpoint before, each with its blocks since then."""
        blocks = {fields[0]: fields for fields in self.blocks}
        return [
            IncarnationRecord(*blocks.get(incarnation, (incarnation, last_seq, b"", b"", b"")))
            for incarnation, last_seq in self.last_seqs.items()
        ]


class DeduplicationSwitched(NamedTuple):
    """Deduplication is on, for what is stored behind that position, or off."""

    is_on: bool
    ledger_id: int
    entry_id: int

    @property
    def position(self) -> Position:
        return Position(self.ledger_id, self.entry_id)


class SequenceIds(NamedTuple):
    """Producers as (name, highest sequence id stored, last used in ms)."""

    producers: Sequence[tuple[str, int, int]]


class SequenceIdsForgotten(NamedTuple):
    """Deduplication forgets producers whose names begin so, with their blocks up to there."""

    prefix: str
    ledger_id: int
    entry_id: int

    @property
    def position(self) -> Position:
        return Position(self.ledger_id, self.entry_id)


class Expired(NamedTuple):
    """The broker has acknowledged up to there for a subscription; a seek takes that back."""

    number: int
    ledger_id: int
    entry_id: int

    @property
    def position(self) -> Position:
        return Position(self.ledger_id, self.entry_id)


class TopicEpoch(NamedTuple):
    """How often a producer has taken the topic for itself, and whether one has it.

    The epoch is -1 for never.
    """

    epoch: int
    is_held: bool


class Terminated(NamedTuple):
    """The topic takes no more entries behind this one, (-1, -1) if it had none."""

    ledger_id: int
    entry_id: int


WHOLE_TOPIC = 0
"""Stands for the topic where a subscription's number would; no subscription has it."""


class Unused(NamedTuple):
    """Nobody has used a subscription, or the whole topic, since a time; 0: somebody does."""

    number: int
    since_ms: int


class Compacted(NamedTuple):
    """Segments hold the newest message of each key up to a horizon (ADR 0128).

    Each is (ledger id, last entry read of it, first and last entry kept, end offset, entries kept). `last` is
    the id of the last message kept: ledger, entry, batch index, batch size. Number 0: no more compacted.
    """

    number: int
    horizon_ledger_id: int
    horizon_entry_id: int
    segments: Sequence[tuple[int, int, int, int, int, int]]
    last: tuple[int, int, int, int]
    written_bytes: int
    removed: int
    began_ms: int
    ended_ms: int

    @property
    def horizon(self) -> Position:
        """The last entry that was compacted."""
        return Position(self.horizon_ledger_id, self.horizon_entry_id)

    @property
    def first(self) -> Position | None:
        """The first entry that is kept."""
        return Position(self.segments[0][0], self.segments[0][2]) if self.segments else None


ManifestRecord = (
    TopicIdentity
    | Counters
    | SegmentOpened
    | SegmentClosed
    | LedgerClosed
    | LedgersDeleted
    | Subscription
    | HoldMoved
    | SubscriptionRemoved
    | Lease
    | LeaseEnded
    | Checkpoint
    | IncarnationRecord
    | DeduplicationSwitched
    | SequenceIds
    | SequenceIdsForgotten
    | TopicEpoch
    | SubscriptionProperties
    | Expired
    | Terminated
    | Unused
    | Compacted
)

# Numbers are what stands on disk: never change or reuse one. 0 is the record log's own.
_TYPES: dict[int, type[Any]] = {
    1: TopicIdentity,
    2: Counters,
    3: SegmentOpened,
    4: SegmentClosed,
    5: LedgerClosed,
    6: LedgersDeleted,
    7: Subscription,
    8: HoldMoved,
    9: SubscriptionRemoved,
    10: Lease,
    11: LeaseEnded,
    12: Checkpoint,
    13: IncarnationRecord,
    14: DeduplicationSwitched,
    15: SequenceIds,
    16: SequenceIdsForgotten,
    17: TopicEpoch,
    18: SubscriptionProperties,
    19: Expired,
    20: Terminated,
    21: Unused,
    22: Compacted,
}
_STORED_OF_SUBSCRIPTION = Subscription._fields.index("expired_ledger_id")
_NUMBERS = {record_type: number for number, record_type in _TYPES.items()}


def to_log(record: ManifestRecord) -> Record:
    """The record as the log takes it."""
    if isinstance(record, Subscription):
        return _NUMBERS[Subscription], record[:_STORED_OF_SUBSCRIPTION]
    return _NUMBERS[type(record)], record


def from_log(record: Record, path: str) -> ManifestRecord:
    """Back again; raises UnsupportedFormatVersion for a type of a newer build."""
    number, fields = record
    record_type = _TYPES.get(number)
    if record_type is None:
        raise UnsupportedFormatVersion(f"{path} has records of type {number}, unknown to this build")
    parsed: ManifestRecord = record_type(*fields[: len(record_type._fields)])
    return parsed
