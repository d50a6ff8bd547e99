"""Notices a subscription that stands still although it has messages and somebody to take them."""

from __future__ import annotations

from typing import Any, NamedTuple

from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.inspect.why_blocked import why_blocked


class Progress(NamedTuple):
    """Changes whenever something moves: deliveries, reading, acknowledgments, seeks."""

    granted: int
    consumers: int
    read_position: tuple[int, int]
    version: int


class Watchdog:
    """Looked at once in a while; the same dispatcher each time.

    Standing still means: undelivered messages, a connected consumer with permits, and no progress for
    `after_ms` (0: it never watches). Each standstill is reported once.
    """

    def __init__(self, after_ms: int) -> None:
        self._after_ms = after_ms
        self._progress: Progress | None = None
        self._since_ms = 0
        self.reason = ""
        """Why it stands still; empty while it does not."""

    def look(self, dispatcher: Dispatcher, now_ms: int) -> str | None:
        """Returns what to warn of, if a standstill was noticed just now."""
        progress = _progress_of(dispatcher)
        if progress != self._progress or not _could_move(dispatcher):
            self._progress, self._since_ms, self.reason = progress, now_ms, ""
            return None
        if self.reason or not self._after_ms or now_ms - self._since_ms < self._after_ms:
            return None
        self.reason = why_blocked(dispatcher, now_ms)["reason"]
        return self.reason

    def stuck_for_ms(self, now_ms: int) -> int:
        """How long it has been standing still, 0 if it does not."""
        return now_ms - self._since_ms if self.reason else 0

    def stats(self, now_ms: int) -> dict[str, Any]:
        """`stuckForMs` and `stuckReason`: 0 and empty while nothing is wrong."""
        return {"stuckForMs": self.stuck_for_ms(now_ms), "stuckReason": self.reason}


def _progress_of(dispatcher: Dispatcher) -> Progress:
    consumers = dispatcher.consumers.values()
    return Progress(
        sum(consumer.next_number for consumer in consumers),
        hash(frozenset(dispatcher.consumers)),
        dispatcher.intake.read_position,
        dispatcher.cursor.version,
    )


def _could_move(dispatcher: Dispatcher) -> bool:
    has_work = dispatcher.blocks.waiting_messages > 0 or dispatcher.has_unread
    return has_work and any(consumer.permits > 0 for consumer in dispatcher.consumers.values())
