"""Telling those who wait for messages that something arrived, or that nothing will any more."""

from __future__ import annotations

import threading
from collections.abc import Callable


class ArrivalSignal:
    """Wakes threads that sleep and calls listeners. `lock` guards it, and what is waited for.

    While nobody waits, telling costs nothing but a look.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._told = threading.Condition(lock)
        self._sleeping = 0
        self._listeners: list[Callable[[], None]] = []

    def forked(self, lock: threading.Lock) -> None:
        """In a forked child: the threads that sleep are the parent's."""
        self._told = threading.Condition(lock)
        self._sleeping = 0

    def tell(self) -> None:
        """Called with the lock held."""
        if self._sleeping:
            self._told.notify_all()
        for listener in self._listeners:
            listener()

    def wait_for(self, has_come: Callable[[], bool], timeout: float | None) -> bool:
        """Sleep until `has_come`, which is asked with the lock held. False if it has not in time."""
        with self._told:
            self._sleeping += 1
            try:
                return self._told.wait_for(has_come, timeout)
            finally:
                self._sleeping -= 1

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Called with the lock held, as `listener` is each time something is told."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Called with the lock held."""
        self._listeners.remove(listener)
