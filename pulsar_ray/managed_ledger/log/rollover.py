"""When a ledger is full. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_ray.config import Settings

_MS_PER_MINUTE = 60_000


@dataclass(frozen=True)
class RolloverPolicy:
    """Pulsar's rule: (entries, size, or maximum time reached) and the minimum time has passed."""

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

    def is_full(self, entries: int, size_bytes: int, age_ms: int) -> bool:
        """Whether the next entry goes to a new ledger. An empty ledger is never full.

        Below 0, because the clock was set back, an age means nothing: then size alone counts.
        """
        if not entries or 0 <= age_ms < self.min_ms:
            return False
        return entries >= self.max_entries or size_bytes >= self.max_bytes or age_ms >= self.max_ms
