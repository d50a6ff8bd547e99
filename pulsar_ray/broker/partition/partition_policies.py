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
    max_block_rows: int
    max_block_bytes: int
    max_producers_per_topic: int
    max_consumers_per_topic: int
    max_subscriptions_per_topic: int
    publish_rate_messages: int
    publish_rate_bytes: int
    trim_interval_s: float
    low_water_mark_bytes: Callable[[int], int]
    """Free bytes below which nothing is published, for a disk of so many bytes."""

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
        "max_block_rows": settings.max_block_rows,
        "max_block_bytes": settings.max_block_bytes,
        "max_producers_per_topic": settings.max_producers_per_topic,
        "max_consumers_per_topic": settings.max_consumers_per_topic,
        "max_subscriptions_per_topic": settings.max_subscriptions_per_topic,
        "publish_rate_messages": settings.max_publish_rate_per_topic_in_messages,
        "publish_rate_bytes": settings.max_publish_rate_per_topic_in_bytes,
        "trim_interval_s": settings.retention_check_interval_in_seconds,
        "low_water_mark_bytes": settings.low_water_mark_bytes,
    }
