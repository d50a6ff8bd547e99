"""How many messages a second, lately, and how many in all."""

from __future__ import annotations

from collections import deque

WINDOW_S = 60


class MessageRate:
    """The average of the last minute, kept by the second."""

    def __init__(self) -> None:
        self.total = 0
        self._seconds: deque[tuple[int, int]] = deque()
        self._recent = 0

    def record(self, messages: int, now_ms: int) -> None:
        """So many messages now. Time never goes back."""
        if not messages:
            return
        self.total += messages
        self._recent += messages
        second = now_ms // 1000
        if self._seconds and self._seconds[-1][0] == second:
            messages += self._seconds.pop()[1]
        self._seconds.append((second, messages))
        self._forget(second)

    def per_second(self, now_ms: int) -> float:
        """Messages per second over the last minute."""
        self._forget(now_ms // 1000)
        return self._recent / WINDOW_S

    def _forget(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - WINDOW_S:
            self._recent -= self._seconds.popleft()[1]
