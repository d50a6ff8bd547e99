"""Time as the code that needs it sees it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol


class Clock(Protocol):
    """Tells the time; logic takes the numbers, only its callers hold a clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch. May jump: for timestamps, never for durations."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment of this boot. Never goes back: for deadlines."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


def growing_pauses_s(first_s: float, longest_s: float) -> Iterator[float]:
    """Return the pauses between tries, each twice as long as the one before, without end."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, longest_s)
