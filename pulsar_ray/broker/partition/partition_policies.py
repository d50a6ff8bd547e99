"""The settings that a partition heeds, worked out in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pulsar_ray.config import Settings


@dataclass(frozen=True, slots=True)
class PartitionPolicies:
    """The policies of one partition's topic: today those of the broker.

    Parts of a partition are given these instead of the settings, so that policies of a topic have one way in.
    """

    max_message_size: int
    max_frame_bytes: int
    max_block_rows: int
    max_block_bytes: int
    trim_interval_s: float
    low_water_mark_bytes: Callable[[int], int]
    """Free bytes below which nothing is published, for a disk of so many bytes."""

    @classmethod
    def of(cls, settings: Settings) -> PartitionPolicies:
        """Take the policies from the broker's settings."""
        return cls(
            max_message_size=settings.max_message_size,
            max_frame_bytes=settings.netty_max_frame_size_bytes,
            max_block_rows=settings.max_block_rows,
            max_block_bytes=settings.max_block_bytes,
            trim_interval_s=settings.retention_check_interval_in_seconds,
            low_water_mark_bytes=settings.low_water_mark_bytes,
        )
