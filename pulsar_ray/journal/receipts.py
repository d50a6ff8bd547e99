"""Receipts wait for the prefix (`sync`), or for the lag bound (`async`)."""

from __future__ import annotations

from collections import deque
from typing import Any


class Receipts:
    """Receipts that wait for the shipping of what they confirm.

    A turn counts the appends that were queued, in order: what is shipped is all up to a turn.
    """

    def __init__(self, lag_bound_seconds: float) -> None:
        self.lag_bound_seconds = lag_bound_seconds
        self._sync: deque[tuple[int, Any]] = deque()
        self._async: deque[tuple[int, Any]] = deque()
        self._unshipped: deque[tuple[float, int]] = deque()

    @property
    def waits_for_sync(self) -> bool:
        """Whether somebody waits for the shipping itself."""
        return bool(self._sync)

    def is_waiting(self, now: float) -> bool:
        """Return whether receipts wait longer than shipping takes when all is well."""
        return (bool(self._async) and self.is_behind(now)) or bool(self._sync)

    def ask(self, turn: int, receipt: Any, durability: str) -> None:
        """Let a receipt wait; `off` needs none of this."""
        (self._sync if durability == "sync" else self._async).append((turn, receipt))

    def relax(self) -> None:
        """Let receipts that wait for the shipping itself wait for the bound alone."""
        self._async = deque(sorted((*self._async, *self._sync), key=lambda each: each[0]))
        self._sync.clear()

    def is_behind(self, now: float) -> bool:
        """Whether the oldest confirmed append that is not shipped is older than the bound."""
        return bool(self._unshipped) and now - self._unshipped[0][0] > self.lag_bound_seconds

    def release(self, now: float, shipped: int) -> list[Any]:
        """Return the receipts that may be given now."""
        given = []
        while self._unshipped and self._unshipped[0][1] <= shipped:
            self._unshipped.popleft()
        while self._sync and self._sync[0][0] <= shipped:
            given.append(self._sync.popleft()[1])
        while self._async and (self._async[0][0] <= shipped or not self.is_behind(now)):
            turn, receipt = self._async.popleft()
            if turn > shipped:
                self._unshipped.append((now, turn))
            given.append(receipt)
        return given
