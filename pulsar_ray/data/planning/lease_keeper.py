"""Keep the ranges of a process leased for as long as somebody holds them."""

from __future__ import annotations

import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable

from pulsar_ray.data.planning.range_leases import RENEW_EVERY_S, HandedOn, RangeLeases
from pulsar_ray.transport.ray_cluster import RayCluster

_log = logging.getLogger(__name__)


class RenewalTimes:
    """When leases are renewed. Takes the time, in seconds, and renews nothing itself."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._due_s: dict[RangeLeases, float] = {}

    def __len__(self) -> int:
        return len(self._due_s)

    def add(self, leases: RangeLeases, now_s: float, first_after_s: float | None = None) -> None:
        """Renew these from now on, the first time after `first_after_s` (None: as later on)."""
        self._due_s[leases] = now_s + (self._every_s if first_after_s is None else first_after_s)

    def remove(self, leases: RangeLeases) -> None:
        """Renew these no more; nothing for others."""
        self._due_s.pop(leases, None)

    def wait_s(self, now_s: float) -> float:
        """The seconds until some are due."""
        return max(min(self._due_s.values(), default=now_s + self._every_s) - now_s, 0.0)

    def take_due(self, now_s: float) -> list[RangeLeases]:
        """Those to be renewed now, which are due again after the whole time."""
        due = [leases for leases, due_s in self._due_s.items() if due_s <= now_s]
        for leases in due:
            self.add(leases, now_s)
        return due


class LeaseKeeper:
    """Renews leases four times before they would end.

    The thread runs while there are any.
    """

    def __init__(self, renew_every_s: float = RENEW_EVERY_S) -> None:
        self._lock = threading.Lock()
        self._kept = RenewalTimes(renew_every_s)
        self._thread: threading.Thread | None = None
        # Its put may be called by the garbage collector in any thread, inside of anything.
        self._ended: queue.SimpleQueue[tuple[RangeLeases, bool] | None] = queue.SimpleQueue()

    def keep(self, leases: RangeLeases, first_after_s: float | None = None) -> None:
        """Renew these from now on, the first time after `first_after_s` (None: as later on)."""
        with self._lock:
            self._kept.add(leases, time.monotonic(), first_after_s)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pulsar-ray-leases", daemon=True)
                self._thread.start()
            else:
                self._ended.put(None)  # it may wait for longer

    def leave(self, leases: RangeLeases) -> None:
        """Let these go soon, as `RangeLeases.let_go` does; safe in a finalizer."""
        self._ended.put((leases, False))

    def release(self, leases: RangeLeases) -> None:
        """Give these back soon, also if there are copies of them."""
        self._ended.put((leases, True))

    def _run(self) -> None:
        while True:
            with self._lock:
                wait_s = self._kept.wait_s(time.monotonic())
            try:
                ended = self._ended.get(timeout=wait_s)
            except queue.Empty:
                with self._lock:
                    due = self._kept.take_due(time.monotonic())
                for leases in due:
                    _try(lambda each=leases: each.renew(_now_ms()))  # type: ignore[misc]
                continue
            if ended is None:
                continue
            leases, is_released = ended
            _try(leases.release if is_released else lambda each=leases: each.let_go(_now_ms()))  # type: ignore[misc]
            with self._lock:
                self._kept.remove(leases)
                if not self._kept:
                    self._thread = None
                    return


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _try(step: Callable[[], None]) -> None:
    """Make a step for one holder.

    Its error is not to end the leases of all others.
    """
    try:
        step()
    except Exception as error:  # noqa: BLE001 - of a Ray that was shut down, for one
        _log.warning("leases end by themselves, after %s: %s", type(error).__name__, error)


LEASE_KEEPER = LeaseKeeper()
"""The keeper of this process."""


COPY_LEASES_AFTER_S = 60.0
"""How long a copy lives before it takes leases.

Copies of tasks mostly end before, and call nobody.
"""


class RangeHold:
    """Leases of this process that are kept until the last reference to this goes.

    Pickled, it is a hold of its own where it arrives, one in each process. It takes leases after
    COPY_LEASES_AFTER_S, until when those of the process that it comes from last.
    """

    def __init__(self, leases: RangeLeases) -> None:
        self._leases = leases
        self._ending = weakref.finalize(self, LEASE_KEEPER.leave, leases)
        # A process that ends gives nothing back: its leases end by themselves.
        self._ending.atexit = False
        with _lock:
            _here[leases.key] = self

    def give_back(self) -> None:
        """Give the leases of this process back now, once."""
        if self._ending.detach() is not None:
            LEASE_KEEPER.release(self._leases)

    def __reduce__(self) -> tuple[object, tuple[HandedOn]]:
        return _arrived, (self._leases.hand_on(),)


_lock = threading.RLock()
_here: weakref.WeakValueDictionary[str, RangeHold] = weakref.WeakValueDictionary()
"""The holds of this process, by the keys of their leases."""


def _arrived(handed: HandedOn) -> RangeHold:
    with _lock:
        hold = _here.get(handed.key)
        if hold is None:
            leases = RangeLeases(RayCluster(), handed)
            LEASE_KEEPER.keep(leases, COPY_LEASES_AFTER_S)
            hold = RangeHold(leases)
        return hold
