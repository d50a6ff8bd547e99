"""The settings that a partition heeds, worked out in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pulsar_ray.config import Settings


@dataclass(slots=True)
class PartitionPolicies:
    """The settings of one partition's topic, as they hold now.

    All parts of a partition read this one object, which changes with the topic's policies, on the owner loop.
    The log has its own: `LedgerPolicies`.
    """

    max_message_size: int
    max_frame_bytes: int
    max_delivery_delay_ms: int
    """Messages to be delivered later than that are refused; 0: none is."""
    max_block_rows: int
    max_block_bytes: int
    max_producers_per_topic: int
    max_consumers_per_topic: int
    max_subscriptions_per_topic: int
    max_properties_bytes: int
    max_properties_bytes_per_actor: int
    publish_rate_messages: int
    publish_rate_bytes: int
    message_ttl_ms: int
    """The broker acknowledges older messages; 0: none."""
    backlog_limit_bytes: int
    """Of the largest backlog; -1: none."""
    backlog_limit_ms: int
    """Of the age of its oldest message; below 0: none."""
    backlog_policy: str
    subscription_expiration_minutes: int
    """Subscriptions that nobody has used for so long are deleted; 0: none."""
    inactive_delete_mode: str
    """Which topics are deleted that nobody uses; empty: none is."""
    inactive_delete_ms: int
    """For how long nobody must have used them."""
    needs_schema: bool
    """Producers without a schema are refused: the topic has one."""
    retention_ms: int
    """For how long consumed messages are kept; below 0: for ever."""
    deduplication_enabled: bool
    deduplication_timeout_ms: int
    """After so long away a producer's sequence ids are forgotten."""
    deduplication_max_producers: int
    trim_interval_s: float
    low_water_mark_bytes: Callable[[int], int]
    """Free bytes below which nothing is published, for a disk of so many bytes."""

    @property
    def message_limits(self) -> tuple[int, int]:
        """The limits that producers heed, too: size and delay of a message."""
        return self.max_message_size, self.max_delivery_delay_ms

    @classmethod
    def of(cls, settings: Settings) -> PartitionPolicies:
        """Make them from the settings of the topic."""
        return cls(**_values(settings))

    def take(self, settings: Settings) -> None:
        """Let other settings hold from now on."""
        for name, value in _values(settings).items():
            setattr(self, name, value)


def _values(settings: Settings) -> dict[str, Any]:
    return {
        "max_message_size": settings.max_message_size,
        "max_frame_bytes": settings.netty_max_frame_size_bytes,
        "max_delivery_delay_ms": settings.delayed_delivery_max_delay_in_millis,
        "max_block_rows": settings.max_block_rows,
        "max_block_bytes": settings.max_block_bytes,
        "max_producers_per_topic": settings.max_producers_per_topic,
        "max_consumers_per_topic": settings.max_consumers_per_topic,
        "max_subscriptions_per_topic": settings.max_subscriptions_per_topic,
        "max_properties_bytes": settings.max_properties_bytes,
        "max_properties_bytes_per_actor": settings.max_properties_bytes_per_actor,
        "publish_rate_messages": settings.max_publish_rate_per_topic_in_messages,
        "publish_rate_bytes": settings.max_publish_rate_per_topic_in_bytes,
        "message_ttl_ms": settings.ttl_duration_default_in_seconds * 1000,
        "backlog_limit_bytes": settings.backlog_quota_default_limit_bytes,
        "backlog_limit_ms": settings.backlog_quota_default_limit_second * 1000,
        "backlog_policy": settings.backlog_quota_default_retention_policy,
        "subscription_expiration_minutes": settings.subscription_expiration_time_minutes,
        "inactive_delete_mode": settings.broker_delete_inactive_topics_mode
        if settings.broker_delete_inactive_topics_enabled
        else "",
        "inactive_delete_ms": settings.broker_delete_inactive_topics_max_inactive_duration_seconds * 1000,
        "needs_schema": settings.is_schema_validation_enforced,
        "retention_ms": settings.default_retention_time_in_minutes * 60_000,
        "deduplication_enabled": settings.broker_deduplication_enabled,
        "deduplication_timeout_ms": settings.broker_deduplication_producer_inactivity_timeout_minutes
        * 60_000,
        "deduplication_max_producers": settings.broker_deduplication_max_number_of_producers,
        "trim_interval_s": settings.retention_check_interval_in_seconds,
        "low_water_mark_bytes": settings.low_water_mark_bytes,
    }
