"""How long an actor has not been used. Pure."""

from __future__ import annotations

from collections.abc import Hashable


class Idleness:
    """Compares, at each look, what changes whenever an actor is used.

    So using an actor costs nothing for this.
    """

    def __init__(self, now_ms: int, report_ms: int) -> None:
        self._since_ms = now_ms
        self._reported_ms = now_ms
        self._report_ms = report_ms
        self._activity: Hashable | None = None

    def look(self, now_ms: int, activity: Hashable | None) -> None:
        """Take a look; `activity` is None while something is under way."""
        if activity is None or activity != self._activity:
            self._since_ms = self._reported_ms = now_ms
        self._activity = activity

    def idle_ms(self, now_ms: int) -> int:
        """Return for how long the actor has been idle, as of the last look."""
        return now_ms - self._since_ms

    def take_report(self, now_ms: int) -> bool:
        """Return whether a report is due: after each further time of `report_ms` without use."""
        if now_ms - self._reported_ms < self._report_ms:
            return False
        self._reported_ms = now_ms
        return True
