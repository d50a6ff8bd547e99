"""The contents of a partition's manifest: ledgers, subscriptions with their holds, leases.

The same `apply` serves recovery, which replays a log, and the running owner, which applies a record once it
is durable; so a restart arrives at the state that was there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.managed_ledger.log.manifest.manifest_records import (
    WHOLE_TOPIC,
    Compacted,
    Counters,
    Expired,
    HoldMoved,
    Lease,
    LeaseEnded,
    LedgerClosed,
    LedgersDeleted,
    ManifestRecord,
    SegmentClosed,
    SegmentOpened,
    Subscription,
    SubscriptionProperties,
    SubscriptionRemoved,
    Terminated,
    TopicEpoch,
    TopicIdentity,
    Unused,
)
from pulsar_ray.model.message_id import EARLIEST, Position

LEDGER_COUNTER_BITS = 31
NO_TOPIC_EPOCH = TopicEpoch(-1, False)
"""Of a topic that no producer has had for itself."""


@dataclass
class LedgerInfo:
    """A ledger and its segments; closed_ms is 0 while it is open."""

    ledger_id: int
    opened_ms: int
    segments: list[SegmentInfo] = field(default_factory=list)
    last_entry_id: int = -1
    size_bytes: int = 0
    closed_ms: int = 0

    @property
    def last_position(self) -> Position:
        return Position(self.ledger_id, self.last_entry_id)

    @property
    def is_open(self) -> bool:
        return self.closed_ms == 0


class Manifest:
    """The durable facts of a partition, except those in its entries."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.identity = TopicIdentity(0, "", -1)
        self.ledgers: dict[int, LedgerInfo] = {}
        self.subscriptions: dict[int, Subscription] = {}
        self.leases: dict[int, Lease] = {}
        self.deleted: set[int] = set()
        self.topic_epoch = NO_TOPIC_EPOCH
        self.terminated: Position | None = None
        """The last entry of a topic that takes no more."""
        self.unused_since_ms = 0
        """Since when nobody has used the topic; 0 if somebody does, or nobody counts."""
        self.compacted: Compacted | None = None
        """The compacted form of the log; None if nothing was compacted."""
        self.last_position = EARLIEST
        self.trimmed = EARLIEST
        """The last entry of the ledgers that were deleted."""
        self.max_publish_ms = 0
        self.last_batch_size = 0
        self.next_ledger_counter = 0
        self.next_subscription = 1
        self.next_lease = 1

    def apply(self, record: ManifestRecord) -> None:
        """Apply a durable record to the state.

        Records of entries and producers change nothing here.
        """
        if isinstance(record, SegmentOpened):
            self._open_segment(record)
        elif isinstance(record, SegmentClosed):
            self._close_segment(record)
        elif isinstance(record, LedgerClosed):
            self._close_ledger(record)
        elif isinstance(record, LedgersDeleted):
            for ledger_id in record.ledger_ids:
                if (gone := self.ledgers.pop(ledger_id, None)) is not None:
                    self.trimmed = max(self.trimmed, gone.last_position)
                self.deleted.add(ledger_id)
                self._count_ledger(ledger_id)
        elif isinstance(record, Subscription):
            self.subscriptions[record.number] = record
            self.next_subscription = max(self.next_subscription, record.number + 1)
        elif isinstance(record, SubscriptionRemoved):
            self.subscriptions.pop(record.number, None)
        elif isinstance(record, Unused) and record.number == WHOLE_TOPIC:
            self.unused_since_ms = record.since_ms
        elif isinstance(record, HoldMoved | SubscriptionProperties | Expired | Unused):
            # It may have been begun before a removal was finished, and stands behind that.
            if (known := self.subscriptions.get(record.number)) is not None:
                self.subscriptions[record.number] = _changed(known, record)
        else:
            self._apply_rest(record)

    def _apply_rest(self, record: ManifestRecord) -> None:
        if isinstance(record, Lease):
            self.leases[record.lease_id] = record
            self.next_lease = max(self.next_lease, record.lease_id + 1)
        elif isinstance(record, LeaseEnded):
            self.leases.pop(record.lease_id, None)
        elif isinstance(record, TopicIdentity):
            self.identity = record
        elif isinstance(record, TopicEpoch):
            self.topic_epoch = record
        elif isinstance(record, Terminated):
            self.terminated = Position(*record)
        elif isinstance(record, Compacted):
            self.compacted = record if record.number else None
        elif isinstance(record, Counters):
            self.next_ledger_counter = record.next_ledger_counter
            self.next_subscription = record.next_subscription
            self.next_lease = record.next_lease
            self.last_position = Position(record.last_ledger_id, record.last_entry_id)
            self.max_publish_ms = record.max_publish_ms
            self.last_batch_size = record.last_batch_size
            self.trimmed = Position(record.trimmed_ledger_id, record.trimmed_entry_id)

    def _open_segment(self, record: SegmentOpened) -> None:
        ledger_id = record.ledger_id
        if ledger_id not in self.ledgers:
            self.ledgers[ledger_id] = LedgerInfo(ledger_id, record.now_ms)
            self._count_ledger(ledger_id)
        first = record.first_entry_id
        self.ledgers[ledger_id].segments.append(
            SegmentInfo(ledger_id, record.segment_index, self.directory, first, 0, first - 1)
        )

    def _close_segment(self, record: SegmentClosed) -> None:
        ledger = self.ledgers[record.ledger_id]
        index = next(i for i, s in enumerate(ledger.segments) if s.segment_index == record.segment_index)
        ledger.segments[index] = ledger.segments[index]._replace(
            end_offset=record.end_offset, last_entry_id=record.last_entry_id
        )
        ledger.last_entry_id = max(ledger.last_entry_id, record.last_entry_id)

    def _close_ledger(self, record: LedgerClosed) -> None:
        ledger = self.ledgers[record.ledger_id]
        ledger.last_entry_id = record.last_entry_id
        ledger.size_bytes = record.size_bytes
        ledger.closed_ms = record.closed_ms
        self.last_position = max(self.last_position, ledger.last_position)

    def _count_ledger(self, ledger_id: int) -> None:
        counter = ledger_id & ((1 << LEDGER_COUNTER_BITS) - 1)
        self.next_ledger_counter = max(self.next_ledger_counter, counter + 1)

    def snapshot(self) -> Iterator[ManifestRecord]:
        """The records that rebuild this state from nothing."""
        yield self.identity
        yield Counters(
            self.next_ledger_counter,
            self.next_subscription,
            self.next_lease,
            *self.last_position,
            self.max_publish_ms,
            self.last_batch_size,
            *self.trimmed,
        )
        for ledger in self.ledgers.values():
            yield from self._ledger_snapshot(ledger)
        if self.deleted:
            yield LedgersDeleted(sorted(self.deleted))
        if self.topic_epoch != NO_TOPIC_EPOCH:
            yield self.topic_epoch
        if self.terminated is not None:
            yield Terminated(*self.terminated)
        if self.compacted is not None:
            yield self.compacted
        if self.unused_since_ms:
            yield Unused(WHOLE_TOPIC, self.unused_since_ms)
        for subscription in self.subscriptions.values():
            yield subscription
            if subscription.expired > EARLIEST:
                yield Expired(subscription.number, *subscription.expired)
            if subscription.unused_since_ms:
                yield Unused(subscription.number, subscription.unused_since_ms)
        yield from self.leases.values()

    def _ledger_snapshot(self, ledger: LedgerInfo) -> Iterator[ManifestRecord]:
        for segment in ledger.segments:
            ledger_id, index, _, first, end, last = segment
            yield SegmentOpened(ledger_id, index, first, ledger.opened_ms)
            if not ledger.is_open or segment is not ledger.segments[-1]:
                yield SegmentClosed(ledger_id, index, end, last)
        if not ledger.is_open:
            yield LedgerClosed(ledger.ledger_id, ledger.last_entry_id, ledger.size_bytes, ledger.closed_ms)


def _changed(
    known: Subscription, record: HoldMoved | SubscriptionProperties | Expired | Unused
) -> Subscription:
    """Return a subscription as it is behind a record about it."""
    match record:
        case HoldMoved(_, ledger_id, entry_id):
            return known._replace(hold_ledger_id=ledger_id, hold_entry_id=entry_id)
        case Expired(_, ledger_id, entry_id):
            return known._replace(expired_ledger_id=ledger_id, expired_entry_id=entry_id)
        case SubscriptionProperties(_, properties):
            return known._replace(properties=properties)
        case Unused(_, since_ms):
            return known._replace(unused_since_ms=since_ms)
