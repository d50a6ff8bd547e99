"""The time that something is unused, as it is counted and as it is noted."""

from __future__ import annotations

from pulsar_ray.clock import Clock

_LEAST_SLACK_MS = 10_000


class UnusedTime:
    """Counts by the monotonic clock, and notes by the one on the wall (ADR 0064).

    So a jump of the clock on the wall counts only while the partition sleeps.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def since_ms(self, noted_ms: int) -> int:
        """When a noted time began, by the monotonic clock; now if none is noted."""
        now_ms = self._clock.monotonic_ms()
        return now_ms - max(0, self._clock.now_ms() - noted_ms) if noted_ms else now_ms

    def to_note_ms(self, since_ms: int) -> int:
        """How a time is noted that began then, by the monotonic clock.

        Never as 0, which stands for none.
        """
        return max(1, since_ms + self._clock.now_ms() - self._clock.monotonic_ms())


def look_again_ms(noted_ms: int, limit_ms: int) -> int:
    """When a partition that sleeps looks at a noted time again.

    That is a while after its end, so that one start serves several.
    """
    return noted_ms + limit_ms + max(_LEAST_SLACK_MS, limit_ms // 10)
