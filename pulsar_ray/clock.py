"""Time as the code that needs it sees it."""

from __future__ import annotations

import time
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
