"""The one thread per client process that reads connections nobody waits on, and runs timers."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ClassVar, Protocol

from pulsar_ray.lane.waiting import HERE

logger = logging.getLogger(__name__)


LONGEST_SLEEP_S = 3600.0
"""epoll refuses more than 2**31 ms, and users choose some of the timers."""


class Inherited(Protocol):
    """Has a socket that forked children inherit."""

    def abandon(self) -> None:
        """Close the raw descriptor in a forked child, and nothing else.

        The parent still uses the socket.
        """


class IoOwner(Inherited, Protocol):
    """A connection as the I/O thread sees it."""

    def on_events(self, mask: int) -> None:
        """Handle a ready descriptor; called on the I/O thread and must not block."""


class TimerHandle:
    """A pending `call_later`."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Do not call, unless it is being called already."""
        self.callback = None


class IoThread:
    """Epoll, timers and calls on a daemon thread; `IoThread.get()` is the process's own.

    Exceptions of callbacks are logged and stop nothing. In a forked child the parent's instance is dead,
    everything that was registered with it abandoned, and `get()` makes a new one.
    """

    _instance: ClassVar[IoThread | None] = None
    _instance_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self.epoll = select.epoll()
        """Watches the descriptors that are registered; `modify` of it may be called from any thread."""
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.epoll.register(self._wakeup, select.EPOLLIN)
        self._registered: dict[int, IoOwner] = {}
        self._owners: set[Inherited] = set()
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, TimerHandle]] = []
        self._timer_numbers = itertools.count()
        self._is_sleeping = False
        self._thread = threading.Thread(target=self._run, name="pulsar-ray-io", daemon=True)
        self._thread.start()
        self.ident = self._thread.ident

    @classmethod
    def get(cls) -> IoThread:
        """The process's I/O thread, started by the first call."""
        instance = cls._instance
        if instance is None:
            with cls._instance_lock:
                instance = cls._instance
                if instance is None:
                    instance = cls._instance = cls()
        return instance

    @property
    def is_current(self) -> bool:
        """True on the I/O thread itself."""
        return threading.get_ident() == self.ident

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run on the I/O thread after what it does now;

        from any thread, in the order of the calls of one thread.
        """
        self._soon.append(callback)
        # The thread says that it will sleep before it looks at the queue a last time, so no call is
        # overlooked.
        if self._is_sleeping:
            self._is_sleeping = False
            os.eventfd_write(self._wakeup, 1)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        """Run on the I/O thread in `delay_s` seconds or a little later; from any thread."""
        handle = TimerHandle(callback)
        entry = (time.monotonic() + delay_s, next(self._timer_numbers), handle)
        self.call_soon(partial(heapq.heappush, self._timers, entry))
        return handle

    def own(self, owner: Inherited) -> None:
        """Have a fork in this process abandon `owner` in the child, from now on."""
        self._owners.add(owner)

    def disown(self, owner: Inherited) -> None:
        """The owner's descriptor is closed."""
        self._owners.discard(owner)

    def register(self, fd: int, owner: IoOwner, mask: int) -> None:
        """Report events of `fd` to the owner; from any thread."""
        self._registered[fd] = owner
        self.epoll.register(fd, mask)

    def unregister(self, fd: int) -> None:
        """Report nothing more; before the descriptor is closed, since its number will be used again."""
        if self._registered.pop(fd, None) is not None:
            self.epoll.unregister(fd)

    def _run(self) -> None:
        HERE.runs_callbacks = True
        while True:
            self._is_sleeping = True
            timers = self._timers
            while timers and timers[0][2].callback is None:
                heapq.heappop(timers)
            delay_s = -1.0
            if self._soon:
                delay_s = 0.0
            elif timers:
                delay_s = min(max(0.0, timers[0][0] - time.monotonic()), LONGEST_SLEEP_S)
            events = self.epoll.poll(delay_s)
            self._is_sleeping = False
            for fd, mask in events:
                if fd == self._wakeup:
                    os.eventfd_read(fd)
                    continue
                owner = self._registered.get(fd)
                if owner is not None:
                    _run_logged(owner.on_events, mask)
            for _ in range(len(self._soon)):
                _run_logged(self._soon.popleft())
            now_s = time.monotonic() if timers else 0.0
            while timers and timers[0][0] <= now_s:
                callback = heapq.heappop(timers)[2].callback
                if callback is not None:
                    _run_logged(callback)

    def abandon(self) -> None:
        """Close the raw descriptors in a forked child, and do nothing else."""
        for owner in list(self._owners):
            owner.abandon()
        self.epoll.close()
        os.close(self._wakeup)

    @classmethod
    def forget_parents_instance(cls) -> None:
        """Forget the parent's instance in a forked child, where only the forking thread lives on."""
        instance, cls._instance = cls._instance, None
        cls._instance_lock = threading.Lock()
        if instance is not None:
            instance.abandon()


def _run_logged(callback: Callable[..., None], *arguments: int) -> None:
    try:
        callback(*arguments)
    except Exception:
        logger.exception("a callback on the I/O thread failed")


os.register_at_fork(after_in_child=IoThread.forget_parents_instance)


# They run on the process's I/O thread, or on an event loop.


class Timers(Protocol):
    """Runs callbacks in one place, from any thread; `IoThread` is one, `LoopTimers` the other."""

    @property
    def is_current(self) -> bool:
        """Whether the caller runs there itself."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run after what runs there now."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> object:
        """Run in `delay_s` seconds or a little later."""


class LoopTimers:
    """Timers of an event loop; once that is closed nothing runs any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @property
    def is_current(self) -> bool:
        """True on the thread that runs the loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run in the loop's next turn."""
        with suppress(RuntimeError):  # the loop is closed
            if self.is_current:
                self._loop.call_soon(callback)
            else:
                self._loop.call_soon_threadsafe(callback)

    def run(self, callback: Callable[[], None]) -> None:
        """Run at once if this is the loop's thread, otherwise soon."""
        if self.is_current:
            callback()
        else:
            self.call_soon(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Run in `delay_s` seconds or a little later."""
        if self.is_current:
            self._loop.call_later(delay_s, callback)
        else:
            self.call_soon(partial(self.call_later, delay_s, callback))


# Threads of the application read the connection too, beside the I/O thread.

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

    def apply(self, *, looks_away: bool = False) -> None:
        """Watch for what is wanted now; with `looks_away` for nothing to read, whichever thread reads."""
        # Chosen under the lock: a caller that leaves meanwhile may have set the other one already, and a slow
        # thread would take that back.
        with self._lock:
            mask = _AWAY if looks_away or self.caller_reads else select.EPOLLIN
            if self.wants_write:
                mask |= select.EPOLLOUT
            if mask != self._told and not self._has_ended:
                self._told, self.is_armed = mask, bool(mask & select.EPOLLIN)
                self._io.epoll.modify(self._fd, mask)

    def look_away(self) -> None:
        """Watch for nothing to read until `apply`, whichever thread reads.

        Where the one report of a hang-up has come there is nothing left to look away from.
        """
        if self._told:
            self.apply(looks_away=True)
