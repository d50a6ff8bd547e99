"""The policies that a log heeds: rollover and retention."""

from __future__ import annotations

from pulsar_ray.config import Settings
from pulsar_ray.managed_ledger.log.retention import Retention
from pulsar_ray.managed_ledger.log.rollover import RolloverPolicy


class LedgerPolicies:
    """Holds for all parts of a log what its topic's settings say now."""

    def __init__(self, settings: Settings) -> None:
        self.take(settings)

    def take(self, settings: Settings) -> None:
        """Let other settings hold from the next decision on."""
        self.rollover = RolloverPolicy.from_settings(settings)
        self.retention = Retention.from_settings(settings)
        self.new_topic_ms = settings.new_topic_retention_seconds * 1000
