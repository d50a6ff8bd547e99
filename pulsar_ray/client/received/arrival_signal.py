"""A signal wakes those who wait for messages when some arrive."""

from __future__ import annotations

import threading
from collections.abc import Callable


class ArrivalSignal:
    """Wakes threads that sleep and calls listeners.

    `lock` guards it, and the state that is waited for. While no thread waits, a signal costs only a look.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._arrived = threading.Condition(lock)
        self._sleeping = 0
        self._listeners: list[Callable[[], None]] = []

    def forked(self, lock: threading.Lock) -> None:
        """Take the new lock, in a forked child: the threads that sleep are the parent's."""
        self._arrived = threading.Condition(lock)
        self._sleeping = 0

    def notify(self) -> None:
        """Wake all waiters. Called with the lock held."""
        if self._sleeping:
            self._arrived.notify_all()
        for listener in self._listeners:
            listener()

    def wake(self) -> None:
        """Let the threads that sleep ask again. Called without the lock."""
        with self._arrived:
            self._arrived.notify_all()

    def wait_for(self, has_come: Callable[[], bool], timeout: float | None) -> bool:
        """Sleep until `has_come`, which is asked with the lock held.

        False if it has not come in time.
        """
        with self._arrived:
            self._sleeping += 1
            try:
                return self._arrived.wait_for(has_come, timeout)
            finally:
                self._sleeping -= 1

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` at each signal, with the lock held. Called with the lock held."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` no more. Called with the lock held."""
        self._listeners.remove(listener)
