"""What epoll watches one connection for, as threads come and go."""

from __future__ import annotations

import select
from collections.abc import Callable
from types import TracebackType
from typing import Any

from pulsar_ray.lane.io_thread import IoInterest


class Io:
    """An I/O thread that remembers what is watched for."""

    def __init__(self) -> None:
        self.mask = 0
        self.epoll = self

    def register(self, fd: int, owner: object, mask: int) -> None:
        self.mask = mask

    def modify(self, fd: int, mask: int) -> None:
        self.mask = mask


class LockOfASlowThread:
    """A lock before which a thread stands still while others do something."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._meanwhile: Callable[[], None] | None = meanwhile

    def __enter__(self) -> None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Let go."""


def test_a_slow_thread_does_not_look_away_behind_a_caller_that_has_left() -> None:
    io: Any = Io()
    owner: Any = None
    interest = IoInterest(io, 7)
    interest.start(owner)
    interest.caller_reads = True
    interest.apply()
    assert io.mask != select.EPOLLIN

    def caller_leaves() -> None:
        interest.caller_reads = False
        interest.apply()

    interest._lock = LockOfASlowThread(caller_leaves)  # type: ignore[assignment]
    interest.apply()  # by a thread that sends while the caller reads
    assert interest.is_armed
    assert io.mask == select.EPOLLIN
