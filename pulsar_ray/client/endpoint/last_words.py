"""Tells the broker that this process ends in order, and has not crashed (ADR 0105)."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from typing import Protocol

from pulsar_ray.lane.io_thread import IoThread

LAST_WORDS_S = 2.0
"""By so much an exit is longer where the broker does not answer."""
LOOK_S = 0.002


class Leaving(Protocol):
    """A link of `transport.actor_link.ActorLink`."""

    @property
    def is_attached(self) -> bool: ...

    @property
    def has_left(self) -> bool: ...

    def leave(self) -> None: ...


class LastWords:
    """Speaks once for all links of a process, when its interpreter ends; `atexit` calls it.

    So do the ends that Ray gives its workers in order, and SIGTERM where Ray, or the program, turns it into
    an exit. Nothing durable depends on it.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._known: set[weakref.ref[Iterable[Leaving]]] = set()

    def know(self, links: Iterable[Leaving]) -> None:
        """Speak for these links too, for as long as somebody else refers to them."""
        if self._pid != os.getpid():
            # Called behind what the cluster has registered before: the tunnel needs Ray for its last word.
            self._pid, self._known = os.getpid(), set()
            atexit.register(self.speak)
        # Sets change at once, and a finalizer may come between: no lock.
        self._known.add(weakref.ref(links, self._known.discard))

    def speak(self) -> None:
        """Leave all actors that a link is attached to.

        Behind it the links are of no use. No callback of the application is called. A forked child is silent:
        its links are the parent's.
        """
        if self._pid != os.getpid():
            return
        known, self._known = self._known, set()
        attached = [link for one in list(known) for link in one() or () if link.is_attached]
        if not attached:
            return
        deadline = time.monotonic() + LAST_WORDS_S
        # There nothing blocks: this thread may wait no longer than so.
        spoken = threading.Event()
        IoThread.get().call_soon(lambda: _leave(attached, spoken))
        spoken.wait(LAST_WORDS_S)
        while not all(link.has_left for link in attached) and time.monotonic() < deadline:
            time.sleep(LOOK_S)


def _leave(links: Iterable[Leaving], spoken: threading.Event) -> None:
    try:
        for link in links:
            link.leave()
    finally:
        spoken.set()


def exit_on_sigterm() -> None:
    """Have SIGTERM end this program by SystemExit, if it would end without a word.

    Ray does so in every program that joins it in the main thread.
    """
    if threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _frame: object) -> None:
    sys.exit(number)


LAST_WORDS = LastWords()
