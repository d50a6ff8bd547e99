"""A wall clock that jumps both ways while time goes on."""

from __future__ import annotations

import threading
import time


class JumpingClock:
    """The machine's clock, set wrong by `jump`; monotonic time never jumps."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offset_ms = 0
        self._highest_ms = 0

    def now_ms(self) -> int:
        with self._lock:
            now_ms = time.time_ns() // 1_000_000 + self._offset_ms
            self._highest_ms = max(self._highest_ms, now_ms)
            return now_ms

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def highest_ms(self) -> int:
        """The latest time that anybody can have seen on it up to now."""
        self.now_ms()
        return self._highest_ms

    def jump(self, offset_ms: int) -> None:
        """Be wrong by so much from now on."""
        with self._lock:
            self._offset_ms = offset_ms
