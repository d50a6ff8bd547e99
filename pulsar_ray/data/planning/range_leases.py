"""The leases that keep a planned range: granted by partitions, renewed, given back."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from pulsar_ray.errors import PulsarException
from pulsar_ray.transport.cluster import Cluster

LEASE_MS = 3_600_000
RENEW_EVERY_S = LEASE_MS / 4 / 1000
CALL_TIMEOUT_S = 60.0
RELEASE_TIMEOUT_S = 20.0


class _Lease(NamedTuple):
    topic: str
    """The partition's full name.

    A partition that sleeps has no actor, and a new one when it wakes.
    """
    first: list[int]
    last: list[int]
    address: str = ""
    lease_id: int | None = None
    """None while only another process has leased this range."""


class HandedOn(NamedTuple):
    """Ranges as another process is told of them, for a copy of their leases."""

    key: str
    """The same for all copies of the same leases."""
    ranges: tuple[tuple[str, list[int], list[int]], ...]
    """Partition, first position, and the one behind the last."""


class RangeLeases:
    """Leases on ranges of partitions, each of LEASE_MS. Thread-safe.

    Each process that needs a range has leases of its own on it. A process that is killed gives nothing back:
    its leases end by themselves.
    """

    def __init__(self, cluster: Cluster, copied: HandedOn | None = None) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        # Of a copy the first renewal takes them.
        self._leases = [_Lease(*each) for each in copied.ranges] if copied else []
        self._is_released = False
        self._is_handed_on = False
        self.key = copied.key if copied else uuid.uuid4().hex

    def add(self, topic: str, address: str, planned: dict[str, Any]) -> None:
        """Take the lease of a partition's answer to `plan_range`."""
        with self._lock:
            lease = _Lease(topic, planned["first"], planned["end"], address, planned["lease_id"])
            self._leases = [*self._leases, lease]

    def hand_on(self) -> HandedOn:
        """Begin a copy in another process.

        It has LEASE_MS from the end of these on to take leases of its own.
        """
        self._is_handed_on = True
        # Without the lock, which a renewal holds for as long as partitions need to answer.
        leases: Sequence[_Lease] = self._leases
        return HandedOn(self.key, tuple((lease.topic, lease.first, lease.last) for lease in leases))

    def renew(self, now_ms: int) -> None:
        """Have all of them last LEASE_MS from now on.

        One that fails is tried again at the next call.
        """
        with self._lock:
            if not self._is_released:
                self._leases = [self._renewed(lease, now_ms) for lease in self._leases]

    def _renewed(self, lease: _Lease, now_ms: int) -> _Lease:
        arguments = {"first": lease.first, "last": lease.last, "expires_ms": now_ms + LEASE_MS}
        try:
            # This wakes a partition that has gone to sleep, which nobody else may need for days.
            route, *others = self._cluster.resolve(lease.topic, create=False, timeout_s=CALL_TIMEOUT_S)
            if others or route.topic != lease.topic:  # deleted, and made anew with other partitions
                return lease
            granted = self._cluster.call_again(
                route.address, "call", "grant_lease", arguments, timeout_s=CALL_TIMEOUT_S
            )
        except PulsarException:
            return lease
        self._give_back(lease)
        return lease._replace(address=route.address, lease_id=granted["lease_id"])

    def let_go(self, now_ms: int) -> None:
        """End these with the last user in this process.

        Without copies they are given back. With copies, which may be on their way for a while, they end by
        themselves LEASE_MS from now.
        """
        if self._is_handed_on:
            self.renew(now_ms)
            with self._lock:
                self._leases = []
        self.release()

    def release(self) -> None:
        """Give all of them back, once. One that cannot be given back ends by itself."""
        with self._lock:
            self._is_released = True
            leases, self._leases = self._leases, []
        for lease in leases:
            self._give_back(lease)

    def _give_back(self, lease: _Lease) -> None:
        if lease.lease_id is None:
            return
        with contextlib.suppress(PulsarException):
            self._cluster.call(
                lease.address,
                "call",
                "release_lease",
                {"lease_id": lease.lease_id},
                timeout_s=RELEASE_TIMEOUT_S,
            )
