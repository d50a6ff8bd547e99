"""The settings that a partition heeds, and what is worked out of them."""

from __future__ import annotations

from pulsar_ray.config import Settings


class PartitionPolicies:
    """The settings of one partition's topic, as they hold now.

    All parts of a partition read this one object, which changes with the topic's policies, on the owner loop.
    The log has its own: `LedgerPolicies`.
    """

    def __init__(self, settings: Settings) -> None:
        self.take(settings)

    def take(self, settings: Settings) -> None:
        """Let other settings hold from now on."""
        self.settings = settings
        self.message_limits = settings.max_message_size, settings.delayed_delivery_max_delay_in_millis
        """The limits that producers heed, too: size and delay of a message."""
        self.message_ttl_ms = settings.ttl_duration_default_in_seconds * 1000
        """The broker acknowledges older messages; 0: none."""
        self.backlog_limit_bytes = settings.backlog_quota_default_limit_bytes
        """Of the largest backlog; -1: none."""
        self.backlog_policy = settings.backlog_quota_default_retention_policy
        self.backlog_limit_ms = settings.backlog_quota_default_limit_second * 1000
        """Of the age of the largest backlog's oldest message; below 0: none."""
        is_deleted = settings.broker_delete_inactive_topics_enabled
        self.inactive_delete_mode = settings.broker_delete_inactive_topics_mode if is_deleted else ""
        """Which topics are deleted that nobody uses; empty: none is."""
        self.inactive_delete_ms = settings.broker_delete_inactive_topics_max_inactive_duration_seconds * 1000
        """For how long nobody must have used them."""
        self.retention_ms = settings.default_retention_time_in_minutes * 60_000
        """For how long consumed messages are kept; below 0: for ever."""
        away_minutes = settings.broker_deduplication_producer_inactivity_timeout_minutes
        self.deduplication_timeout_ms = away_minutes * 60_000
        """After so long away a producer's sequence ids are forgotten."""
