"""Time in which this process ran.

A client must not be punished for what a frozen actor missed.
"""

from __future__ import annotations

from pulsar_ray.clock import Clock

LONGEST_GAP_MS = 2_000
"""Between two looks at it, of which every actor's tick makes one a second."""


class RunningClock:
    """A Clock whose monotonic time stands still while the process does.

    A longer gap counts as this long.

    So no lease or grace period runs out before its owner has had time to read what arrived meanwhile.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ms = clock.monotonic_ms()
        self._missed_ms = 0
        self.now_ms = clock.now_ms
        """The wall clock goes on."""

    def monotonic_ms(self) -> int:
        """Return a time that never goes back, and may be later in truth."""
        now_ms = self._clock.monotonic_ms()
        gap_ms, self._last_ms = now_ms - self._last_ms, now_ms
        if gap_ms > LONGEST_GAP_MS:
            self._missed_ms += gap_ms - LONGEST_GAP_MS
        return now_ms - self._missed_ms
