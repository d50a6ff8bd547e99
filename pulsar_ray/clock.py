"""Time as the code that needs it sees it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, Protocol

_FRACTION: Final = re.compile(r"[.,]([0-9]+)")


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


def written_time(text: str, kind: Any = datetime) -> Any:
    """Return the datetime, time or date of a text in ISO 8601. Raises ValueError.

    Python 3.10 reads no letter for UTC, and fractions of three or six digits alone; Java writes as many as
    there are.
    """
    text = text[:-1] + "+00:00" if text.endswith("Z") else text
    return kind.fromisoformat(_FRACTION.sub(lambda found: f".{found[1][:6]:0<6}", text))


def growing_pauses_s(first_s: float, longest_s: float) -> Iterator[float]:
    """Return the pauses between tries, each twice as long as the one before, without end."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, longest_s)


LONGEST_GAP_MS = 2_000
"""Between two looks at a `RunningClock`, of which every actor's tick makes one a second."""


class RunningClock:
    """A Clock whose monotonic time stands still while the process does.

    A longer gap counts as this long. No lease or grace period runs out before its owner has had time to read
    what arrived meanwhile: a client must not be punished for what a frozen actor missed.
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
