"""One thread of a process renews its leases, and gives back those of garbage."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from pulsar_ray.data.planning.range_leases import RENEW_EVERY_S, RangeLeases

_log = logging.getLogger(__name__)


class LeaseKeeper:
    """Renews leases four times before they would end.

    The thread runs while there are any.
    """

    def __init__(self, renew_every_s: float = RENEW_EVERY_S) -> None:
        self._renew_every_s = renew_every_s
        self._lock = threading.Lock()
        self._kept: list[RangeLeases] = []
        self._thread: threading.Thread | None = None
        # Its put may be called by the garbage collector in any thread, inside of anything.
        self._left: queue.SimpleQueue[RangeLeases] = queue.SimpleQueue()

    def keep(self, leases: RangeLeases) -> None:
        """Renew these from now on."""
        with self._lock:
            self._kept.append(leases)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pulsar-ray-leases", daemon=True)
                self._thread.start()

    def leave(self, leases: RangeLeases) -> None:
        """Renew these no more, and give them back soon; safe in a finalizer."""
        self._left.put(leases)

    def _run(self) -> None:
        next_renewal_s = time.monotonic() + self._renew_every_s
        while True:
            wait_s = max(next_renewal_s - time.monotonic(), 0.0)
            try:
                left = self._left.get(timeout=wait_s)
            except queue.Empty:
                next_renewal_s += self._renew_every_s
                for leases in self._all():
                    _try(lambda each=leases: each.renew(time.time_ns() // 1_000_000))  # type: ignore[misc]
                continue
            _try(left.release)
            with self._lock:
                self._kept = [each for each in self._kept if each is not left]
                if not self._kept:
                    self._thread = None
                    return

    def _all(self) -> list[RangeLeases]:
        with self._lock:
            return list(self._kept)


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
