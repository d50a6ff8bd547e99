"""The policies that a log heeds: when ledgers end, and what is retained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pulsar_ray.config import Settings
from pulsar_ray.managed_ledger.log.manifest.manifest import LedgerInfo
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Lease
from pulsar_ray.model.message_id import Position


@dataclass(frozen=True)
class Retention:
    """How much, and for how long, entries are kept that every subscription has consumed.

    -1 is for ever, 0 not at all.
    """

    time_ms: int
    size_bytes: int

    @classmethod
    def from_settings(cls, settings: Settings) -> Retention:
        minutes, mbytes = settings.default_retention_time_in_minutes, settings.default_retention_size_in_mb
        return cls(
            minutes * 60_000 if minutes >= 0 else -1,
            mbytes * 1024 * 1024 if mbytes >= 0 else -1,
        )


def ledgers_to_trim(
    closed: Sequence[LedgerInfo],
    open_bytes: int,
    holds: Iterable[Position],
    leases: Iterable[Lease],
    retention: Retention,
    now_ms: int,
) -> list[LedgerInfo]:
    """The ledgers to delete, from the front on and never from the middle.

    A ledger goes when every hold is at or past its last entry, no lease that runs still covers it, and it
    is either older or beyond the size that retention keeps (so data stays only while it is within both
    limits).
    """
    hold = min(holds, default=None)
    running = [lease for lease in leases if lease.expires_ms > now_ms]
    total = open_bytes + sum(ledger.size_bytes for ledger in closed)
    going: list[LedgerInfo] = []
    for ledger in closed:
        if hold is not None and ledger.last_position > hold:
            break
        if any(lease.first_ledger_id <= ledger.ledger_id <= lease.last_ledger_id for lease in running):
            break
        total -= ledger.size_bytes
        is_expired = 0 <= retention.time_ms < now_ms - ledger.closed_ms
        is_over = 0 <= retention.size_bytes <= total
        if not is_expired and not is_over:
            break
        going.append(ledger)
    return going


def next_trim_ms(
    ledgers: Sequence[LedgerInfo],
    holds: Iterable[Position],
    leases: Iterable[Lease],
    retention: Retention,
) -> int | None:
    """Return when a log's first ledger may be deleted if nothing is added; None: never.

    All ledgers are closed, and what could go by now is gone.
    """
    hold = min(holds, default=None)
    if not ledgers or (hold is not None and ledgers[0].last_position > hold):
        return None
    first = ledgers[0]
    covering = [
        lease.expires_ms
        for lease in leases
        if lease.first_ledger_id <= first.ledger_id <= lease.last_ledger_id
    ]
    rest = sum(ledger.size_bytes for ledger in ledgers[1:])
    is_over = 0 <= retention.size_bytes <= rest
    if not is_over and retention.time_ms < 0:
        return None
    is_due_ms = 0 if is_over else first.closed_ms + retention.time_ms + 1
    return max(is_due_ms, *covering) if covering else is_due_ms


_MS_PER_MINUTE = 60_000


@dataclass(frozen=True)
class RolloverPolicy:
    """Says when a ledger ends, by Pulsar's rule: `OpenLedger.is_full`."""

    max_entries: int
    max_bytes: int
    min_ms: int
    max_ms: int
    segment_bytes: int

    @classmethod
    def from_settings(cls, settings: Settings) -> RolloverPolicy:
        return cls(
            max_entries=settings.managed_ledger_max_entries_per_ledger,
            max_bytes=settings.managed_ledger_max_size_per_ledger_mbytes * 1024 * 1024,
            min_ms=settings.managed_ledger_min_ledger_rollover_time_minutes * _MS_PER_MINUTE,
            max_ms=settings.managed_ledger_max_ledger_rollover_time_minutes * _MS_PER_MINUTE,
            segment_bytes=settings.segment_size_bytes,
        )


class LedgerPolicies:
    """Holds for all parts of a log what its topic's settings say now."""

    def __init__(self, settings: Settings) -> None:
        self.take(settings)

    def take(self, settings: Settings) -> None:
        """Let other settings hold from the next decision on."""
        self.rollover = RolloverPolicy.from_settings(settings)
        self.retention = Retention.from_settings(settings)
        self.is_compacted = settings.broker_service_compaction_threshold_in_bytes > 0
        """Whether the log is compacted by itself: what was not compacted yet is kept."""
        self.new_topic_ms = settings.new_topic_retention_seconds * 1000
