"""The events that epoll watches one connection for.

Threads of the application read the connection too, beside the I/O thread.
"""

from __future__ import annotations

import select
import threading

from pulsar_ray.lane.io_thread import IoOwner, IoThread

# Not armed for reading, a hang-up would still be reported, again and again: once is enough.
_AWAY = select.EPOLLONESHOT | select.EPOLLRDHUP


class IoInterest:
    """The events that epoll watches for, and those that are wanted.

    From any thread.

    As long as it is armed for reading, epoll reports bytes that another thread is about to read, again and
    again.
    """

    def __init__(self, io: IoThread, fd: int) -> None:
        self._io = io
        self._fd = fd
        self._lock = threading.Lock()
        self._has_ended = False
        self._told = 0
        """0 if epoll's mask has to be set again."""
        self.caller_reads = False
        self.wants_write = False
        self.is_armed = False
        """Whether the I/O thread is notified when there is something to read."""

    def start(self, owner: IoOwner) -> None:
        """Watch for what there is to read."""
        self._told, self.is_armed = select.EPOLLIN, True
        self._io.register(self._fd, owner, select.EPOLLIN)

    def end(self) -> None:
        """Watch for nothing any more; before the descriptor is closed."""
        with self._lock:
            if not self._has_ended:
                self._has_ended = True
                self._io.unregister(self._fd)

    def reported(self, mask: int) -> None:
        """Note an event that was reported; called by the I/O thread.

        An event that is reported once only was that.
        """
        # An event that is armed for reading was armed before epoll was told otherwise: that report is still
        # to come.
        if self._told & select.EPOLLONESHOT and not mask & select.EPOLLIN:
            self._told = 0

    def apply(self) -> None:
        """Watch for what is wanted now."""
        # Chosen under the lock: a caller that leaves meanwhile may have set the other one already, and a slow
        # thread would take that back.
        with self._lock:
            self._tell(_AWAY if self.caller_reads else select.EPOLLIN)

    def look_away(self) -> None:
        """Watch for nothing to read until `apply`, whichever thread reads.

        Where the one report of a hang-up has come there is nothing left to look away from.
        """
        if self._told:
            with self._lock:
                self._tell(_AWAY)

    def _tell(self, mask: int) -> None:
        """Set what epoll watches for; called with the lock held."""
        if self.wants_write:
            mask |= select.EPOLLOUT
        if mask != self._told and not self._has_ended:
            self._told, self.is_armed = mask, bool(mask & select.EPOLLIN)
            self._io.modify(self._fd, mask)
