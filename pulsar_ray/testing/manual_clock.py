"""A clock that moves only when told to."""

from __future__ import annotations


class ManualClock:
    """A Clock for tests. `advance` moves both times, `set_now` makes the wall clock alone jump."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, duration_ms: int) -> None:
        """Let `duration_ms` pass. Raises ValueError if it is negative: monotonic time does not go back."""
        if duration_ms < 0:
            raise ValueError(
                f"time cannot advance by {duration_ms} ms: use set_now to turn the wall clock back"
            )
        self._now_ms += duration_ms
        self._monotonic_ms += duration_ms

    def set_now(self, now_ms: int) -> None:
        """Make the wall clock jump, also backwards; monotonic time stays."""
        self._now_ms = now_ms
