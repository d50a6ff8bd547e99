"""Ends clients in forked children: every handle raises a typed error, and nothing hangs.

Of the parent's threads only the forking one lives on in the child, so a lock that another one held stays
locked there for ever, and what was prefetched belongs to the parent.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from pulsar_ray.errors import ForkedClient


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
