"""Ends what a user opened: once, by any thread and any means."""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pulsar_ray.errors import AlreadyClosed, ForkedClient
from pulsar_ray.lane.waiting import ensure_may_wait

# Of the parent's threads only the forking one lives on in the child, so a lock that another one held stays
# locked there for ever, and what was prefetched belongs to the parent.


class Forkable(Protocol):
    """Something with locks or messages of a client."""

    def forked(self, error: ForkedClient) -> None:
        """Take new locks and drop what is the parent's: this is the child.

        Each later call raises `error`.
        """


_live: weakref.WeakSet[Forkable] = weakref.WeakSet()


def notify_of_forks(handle: Forkable) -> None:
    """Call the handle's `forked` in forked children, as long as it lives."""
    _live.add(handle)


def _after_fork() -> None:
    for handle in list(_live):
        handle.forked(ForkedClient())
    _live.clear()


os.register_at_fork(after_in_child=_after_fork)


class Ending:
    """Ends a client, producer, consumer, ... once. Thread-safe.

    Errors call it `what`. If it was left by other means than `close` (unsubscribing, a shutdown) it may be
    closed once more in silence, so that a `finally` around it needs to know nothing of that.
    """

    def __init__(self, what: str, *, warns: bool = True) -> None:
        self.what = what
        self.name = ""
        """The topic, for warnings."""
        self.warns = warns
        """Whether it is a fault of the program's to forget the handle.

        A handle that was passed to a task ends with the task, and one that another handle opened with that.
        """
        self._on_forgotten: Callable[[Any], None] | None = None
        self.is_over = False
        self._may_close_in_silence = False
        self._lock = threading.Lock()
        self._done = threading.Event()
        notify_of_forks(self)

    def forked(self, _error: ForkedClient) -> None:
        """Take a new lock in a forked child, where another thread's stays locked."""
        self._lock = threading.Lock()
        self._on_forgotten = None
        self._done.set()

    def check(self) -> None:
        """Raise AlreadyClosed if it is over."""
        if self.is_over:
            raise AlreadyClosed(f"the {self.what} is closed")

    def close(self, end: Callable[[], None]) -> None:
        """Call `end` the first time; raises AlreadyClosed later.

        It does not for the first time behind `leave`. Raises NotAllowedError, with nothing done, in a thread
        that must not wait.
        """
        ensure_may_wait(f"close() of the {self.what}")
        with self._lock:
            is_first, is_silent = not self.is_over, self._may_close_in_silence
            self.is_over, self._may_close_in_silence = True, False
        if is_first:
            self._run(end)
        elif not is_silent:
            raise AlreadyClosed(f"the {self.what} is closed already")

    def leave(self, end: Callable[[], None] = lambda: None) -> None:
        """End by other means: call `end` unless it is over."""
        with self._lock:
            is_first = not self.is_over
            self.is_over = True
            self._may_close_in_silence |= is_first
        if is_first:
            self._run(end)

    def when_forgotten(self, close: Callable[[Any], None]) -> None:
        """Call `close(handle)` once the program lets go of the handle without ending it.

        It may be called anywhere, under any lock, and hands the work on.
        """
        self._on_forgotten = close

    def forgotten(self, handle: object) -> None:
        """Have a handle closed that is garbage, unless it is over; its finalizer calls this.

        It blocks for nothing. Warns as of an unclosed file: with a ResourceWarning, which Python ignores
        unless told otherwise.
        """
        close, self._on_forgotten = self._on_forgotten, None
        if close is None or self.is_over or sys.is_finalizing():
            return
        close(handle)
        if self.warns:
            of = f" of {self.name}" if self.name else ""
            warnings.warn(
                f'unclosed {self.what}{of}: it is closed now; call close(), or use "with"',
                ResourceWarning,
                stacklevel=3,
                source=handle,
            )

    def _run(self, end: Callable[[], None]) -> None:
        try:
            end()
        finally:
            self._done.set()

    def has_come(self, timeout_s: float) -> bool:
        """Whether it is over.

        The `end` that another thread runs just now is waited for so long.
        """
        if self.is_over:
            self._done.wait(timeout_s)
        return self.is_over


class Closing(Protocol):
    """A partition's side of a producer or consumer."""

    def close(self, deadline: float) -> None:
        """Send what is left to send, and close."""


def close_each(partitions: Iterable[Closing], deadline: float) -> Exception | None:
    """Close all of them, whatever happens to one; returns the first error."""
    first_error: Exception | None = None
    for partition in partitions:
        try:
            partition.close(deadline)
        except Exception as error:  # noqa: BLE001 - the others are to be closed all the same
            first_error = first_error or error
    return first_error
