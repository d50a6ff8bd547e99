"""Calls back once the earliest of the times that were asked for has come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from pulsar_ray.client.acks.partition_acks import UnansweredRequests


class DeadlineTimer:
    """Has deadlines looked at that `lock` guards, where the first of them may change.

    A timer that was set for a later time stays: the look that it brings finds nothing, or what is due then.
    """

    def __init__(
        self, requests: UnansweredRequests, lock: threading.Lock, look: Callable[[], object]
    ) -> None:
        self._requests = requests
        self._lock = lock
        self._look = look
        self._set_ms: list[int] = []
        """The times of the timers that run, each earlier than the one before it."""

    @property
    def is_set(self) -> bool:
        """Whether a look will come."""
        return bool(self._set_ms)

    def set(self, at_ms: int, now_ms: int) -> None:
        """Look at a time, unless that is done before. Called with the lock held."""
        if not self._set_ms or at_ms < self._set_ms[-1]:
            self._set_ms.append(at_ms)
            delay_s = max(0, at_ms - now_ms) / 1000
            self._requests.link.timers.call_later(delay_s, partial(self._run, at_ms))

    def _run(self, at_ms: int) -> None:
        with self._lock:
            self._set_ms.remove(at_ms)
        self._look()
