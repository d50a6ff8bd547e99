"""An event that one thread waits for.

It is far cheaper than `threading.Event` when nobody has to block for it.
"""

from __future__ import annotations

import threading


class Completion:
    """Set once, waited for by at most one thread at a time."""

    # Of the class: one is made for each message that is sent and waited for, without any constructor.
    _is_set = False
    _waiter: threading.Lock | None = None

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._is_set

    def set(self) -> None:
        """Let the waiting thread go on; repeating it is harmless."""
        self._is_set = True
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is set, at most `timeout` seconds; whether it is set."""
        waiter = threading.Lock()
        waiter.acquire()
        self._waiter = waiter
        # `set` looks at the waiter after it has set: one of the two always sees the other.
        if not self._is_set:
            waiter.acquire(timeout=-1 if timeout is None else timeout)
        return self._is_set
