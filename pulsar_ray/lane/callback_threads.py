"""Tells the threads that may wait for a broker from those that must not.

A program's callbacks run where packets are read: a callback that waited there for a packet would wait for
itself, and everything else that is read there with it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pulsar_ray.errors import NotAllowedError


class _Here(threading.local):
    """The mark of one thread."""

    # Of the class, so that a thread that never marked itself has one.
    runs_callbacks = False


_here = _Here()


def may_wait() -> bool:
    """Whether the calling thread may wait for the broker."""
    return not _here.runs_callbacks


def ensure_may_wait(call: str) -> None:
    """Raise NotAllowedError if `call` would wait in a thread that must not."""
    if _here.runs_callbacks:
        raise NotAllowedError(
            f"{call} in a callback of the client would wait for itself, and stop all other handles: call it "
            "on a thread of your own; send_async(), receive_async() and acknowledging without receipts are "
            "allowed here"
        )


def begin_callbacks() -> bool:
    """Mark the calling thread as one that must not wait; returns the mark for `end_callbacks`."""
    before = _here.runs_callbacks
    _here.runs_callbacks = True
    return before


def end_callbacks(before: bool) -> None:
    """Set the mark as it was."""
    _here.runs_callbacks = before


@contextmanager
def running_callbacks() -> Iterator[None]:
    """Enclose code of the program's that must not wait."""
    before = begin_callbacks()
    try:
        yield
    finally:
        end_callbacks(before)
