"""Closing an endpoint while its connection comes and goes."""

from __future__ import annotations

import threading


class Leaving:
    """Whether the last request to close reached the actor behind the last request to open.

    A close may be answered just when another attachment opens the endpoint again, which then would stay,
    with nobody left to close it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opens = 0
        self._opens_before_close = -1
        self._has_left = False

    def may_open(self) -> bool:
        """Ask before each request to open; False once it has left."""
        with self._lock:
            if not self._has_left:
                self._opens += 1
            return not self._has_left

    def closing(self) -> None:
        """A request to close is about to be sent."""
        self._opens_before_close = self._opens

    def has_left(self) -> bool:
        """False before a request to close is answered, and if it must be sent again."""
        with self._lock:
            self._has_left = self._opens_before_close == self._opens
            return self._has_left
