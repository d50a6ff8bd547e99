"""An event that threads wait for.

It is far cheaper than `threading.Event` when nobody has to block for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress


class Completion:
    """Set once; threads that wait for it may also be woken without."""

    # Of the class: one is made for each message that is sent and waited for, without any constructor.
    _is_set = False
    _waiters: Sequence[threading.Lock] = ()

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._is_set

    def set(self) -> None:
        """Let the waiting threads go on; repeating it is harmless."""
        self._is_set = True
        if self._waiters:
            self.wake()

    def wake(self) -> None:
        """Let the waiting threads go on, although it may not be set."""
        for waiter in tuple(self._waiters):
            with suppress(RuntimeError):  # another thread has released it
                waiter.release()

    def wait(self, timeout: float | None = None, unless: Callable[[], bool] | None = None) -> bool:
        """Block until it is set or woken, at most `timeout` seconds; whether it is set.

        It does not block if `unless` is true. A thread that makes it true calls `wake` behind that.
        """
        waiter = threading.Lock()
        waiter.acquire()
        waiters: list[threading.Lock] = vars(self).setdefault("_waiters", [])
        waiters.append(waiter)
        try:
            # `set` looks at the waiters after it has set: one of the two always sees the other. So does a
            # thread that wakes.
            if not (self._is_set or (unless is not None and unless())):
                waiter.acquire(timeout=-1 if timeout is None else timeout)
        finally:
            waiters.remove(waiter)
        return self._is_set
