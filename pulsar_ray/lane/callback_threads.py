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
