"""Producers, consumers and readers that were pickled into another process connect there at their first use.

Not while they are unpickled: Ray holds a lock while it unpickles a task's arguments, and the thread that
connects needs it for the answers of the broker's actors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Opening:
    """What is left to do, done once by whoever needs it first; tried again at the next use if it fails."""

    def __init__(self, open_now: Callable[[], object]) -> None:
        self._open_now = open_now
        self._lock = threading.RLock()
        self._is_done = False

    def run(self) -> None:
        """Open unless that was done. Raises what opening raises."""
        with self._lock:
            if not self._is_done:
                self._open_now()
                self._is_done = True


class OpenedLater:
    """Base of what can be unpickled. An object that is open has all its attributes and never comes here."""

    def open_later(self, open_now: Callable[[], object], **known: Any) -> Opening:
        """Set the `known` attributes; the first look at another one calls `open_now`, which sets all."""
        opening = Opening(open_now)
        self.__dict__.update(known, _opening=opening)
        return opening

    def __getattr__(self, name: str) -> Any:
        opening = self.__dict__.get("_opening")
        if isinstance(opening, Opening) and not name.startswith("__"):
            opening.run()
        if name not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.__dict__[name]
