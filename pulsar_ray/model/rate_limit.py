"""A limit of messages and bytes a second: two token buckets. Pure."""

from __future__ import annotations

PORTION_MS = 50
"""Clients that wait are let on for what this time brings: few times a second."""
NO_LIMIT = 1 << 31


class RateLimit:
    """Lets a second's worth pass at once, then as much as time brings.

    0 is no limit. More than is left may be taken, for a block is not cut: the debt is paid before anything
    else passes.
    """

    __slots__ = ("_at_ms", "_bytes", "_messages", "bytes_per_s", "messages_per_s")

    def __init__(self, messages_per_s: int, bytes_per_s: int) -> None:
        self.messages_per_s = messages_per_s
        self.bytes_per_s = bytes_per_s
        # In thousandths: a millisecond brings as many as a second brings messages.
        self._messages = 1000 * messages_per_s
        self._bytes = 1000 * bytes_per_s
        self._at_ms = 0

    @classmethod
    def of(cls, messages_per_s: int, bytes_per_s: int) -> RateLimit | None:
        """Make a limit; None if nothing is limited."""
        return cls(messages_per_s, bytes_per_s) if messages_per_s or bytes_per_s else None

    def is_of(self, messages_per_s: int, bytes_per_s: int) -> bool:
        """Whether these are its rates."""
        return (self.messages_per_s, self.bytes_per_s) == (messages_per_s, bytes_per_s)

    def take(self, messages: int, size: int, now_ms: int) -> None:
        """Let pass so many messages of `size` bytes together, whatever is left."""
        self._refill(now_ms)
        self._messages -= 1000 * messages
        self._bytes -= 1000 * size

    def messages_left(self, now_ms: int) -> int:
        """How many messages may pass now; 0 as well while no bytes may."""
        self._refill(now_ms)
        if self.bytes_per_s and self._bytes < 1000:
            return 0
        return max(0, self._messages // 1000) if self.messages_per_s else NO_LIMIT

    def wait_ms(self, now_ms: int) -> int:
        """How long nothing may pass; 0 if something may now."""
        self._refill(now_ms)
        return max(_wait_ms(self._messages, self.messages_per_s), _wait_ms(self._bytes, self.bytes_per_s))

    def _refill(self, now_ms: int) -> None:
        elapsed_ms = now_ms - self._at_ms
        if elapsed_ms > 0:
            self._at_ms = now_ms
            per_s = self.messages_per_s
            self._messages = min(1000 * per_s, self._messages + per_s * elapsed_ms)
            per_s = self.bytes_per_s
            self._bytes = min(1000 * per_s, self._bytes + per_s * elapsed_ms)


def _wait_ms(left: int, per_s: int) -> int:
    """Return how long a bucket with so many thousandths left needs for a portion."""
    if not per_s or left >= 1000:
        return 0
    return -((left - max(1000, per_s * PORTION_MS)) // per_s)
