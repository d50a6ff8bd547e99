"""A range that stays for as long as somebody holds it, in whichever processes."""

from __future__ import annotations

import threading
import weakref

from pulsar_ray.data.planning.lease_keeper import LEASE_KEEPER
from pulsar_ray.data.planning.range_leases import HandedOn, RangeLeases
from pulsar_ray.transport.ray_cluster import RayCluster

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
