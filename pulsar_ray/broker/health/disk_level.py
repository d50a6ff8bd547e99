"""How full a disk is: long before publishing stops somebody is told.

Publishing stops below the low-water mark. The warning comes at `disk_warning_percent`, or at twice the mark
if that is sooner: a small disk warns in time, a large one is not filled to its last percent in silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pulsar_ray.config import Settings

REMEDY = "free space, give the data directory a larger disk, or shorten retention and drain backlogs"


class DiskLevel(Enum):
    """The state of a store's disk."""

    OK = "ok"
    WARNING = "warning"
    LOW = "low"
    """Nothing is stored any more."""


@dataclass(frozen=True, slots=True)
class DiskState:
    """The level of a disk and, if it is not `OK`, the reason in words."""

    level: DiskLevel
    reason: str = ""


def judge_disk(free_bytes: int, total_bytes: int, settings: Settings) -> DiskState:
    """Decide the level of a disk; `free_bytes` are those that this user may still write."""
    mark = settings.low_water_mark_bytes(total_bytes)
    used = 100.0 * (1 - free_bytes / total_bytes) if total_bytes else 0.0
    has = f"the disk is {used:.1f} % full, {free_bytes:,} of {total_bytes:,} bytes are free"
    if free_bytes < mark:
        return DiskState(DiskLevel.LOW, f"{has}, below the low-water mark of {mark:,}: messages are refused")
    percent = settings.disk_warning_percent
    if percent and (used >= percent or free_bytes < 2 * mark):
        return DiskState(DiskLevel.WARNING, f"{has}; below {mark:,} messages are refused")
    return DiskState(DiskLevel.OK)


class DiskWatch:
    """Tells of a disk's level once when it changes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.state = DiskState(DiskLevel.OK)

    def look(self, free_bytes: int, total_bytes: int) -> DiskState | None:
        """Take a measurement; returns the state if its level is another one than before."""
        before, self.state = self.state, judge_disk(free_bytes, total_bytes, self._settings)
        return self.state if self.state.level is not before.level else None
