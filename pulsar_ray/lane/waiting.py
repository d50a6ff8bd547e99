"""Lets threads and event loops wait for a broker, where they may."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from pulsar_ray.errors import NotAllowedError

# A program's callbacks run where packets are read: a callback that waited there for a packet would wait for
# itself, and everything else that is read there with it.


class _Here(threading.local):
    """The mark of one thread."""

    # Of the class, so that a thread that never marked itself has one.
    runs_callbacks = False


HERE = _Here()
"""The mark itself, for what runs once a message; all else asks `may_wait` or `ensure_may_wait`."""


def may_wait() -> bool:
    """Whether the calling thread may wait for the broker."""
    return not HERE.runs_callbacks


def ensure_may_wait(call: str) -> None:
    """Raise NotAllowedError if `call` would wait in a thread that must not."""
    if HERE.runs_callbacks:
        raise NotAllowedError(
            f"{call} in a callback of the client would wait for itself, and stop all other handles: call it "
            "on a thread of your own; send_async(), receive_async() and acknowledging without receipts are "
            "allowed here"
        )


@contextmanager
def running_callbacks() -> Iterator[None]:
    """Enclose code of the program's that must not wait."""
    before, HERE.runs_callbacks = HERE.runs_callbacks, True
    try:
        yield
    finally:
        HERE.runs_callbacks = before


# It is far cheaper than `threading.Event` when nobody has to block for it.


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


T = TypeVar("T")


async def within(awaited: Awaitable[T], seconds: float | None) -> T:
    """Await it for at most so long; None is for ever.

    Raises asyncio.TimeoutError; it is cancelled then.

    A cancellation of the caller always gets through, although the result may be there in the same turn of the
    loop: `asyncio.wait_for` returned that result instead before Python 3.12. The result is then dropped, so
    what must not be lost (a message) has to be taken by the caller behind the wait.
    """
    future = asyncio.ensure_future(awaited)
    # Where the caller gave up, what comes of it is no news.
    future.add_done_callback(retrieved)
    try:
        await asyncio.wait((future,), timeout=seconds)
        if future.done():
            return future.result()
    finally:
        future.cancel()
    raise asyncio.TimeoutError


def retrieved(future: asyncio.Future[Any]) -> None:
    """Mark a future's error as taken.

    Nobody may be left to take it, and the loop would report it as forgotten.
    """
    if not future.cancelled():
        future.exception()
