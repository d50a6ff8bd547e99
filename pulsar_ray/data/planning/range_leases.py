"""The leases that keep a planned range: granted by partitions, renewed, given back."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, NamedTuple

from pulsar_ray.errors import PulsarException
from pulsar_ray.transport.cluster import Cluster

LEASE_MS = 3_600_000
RENEW_EVERY_S = LEASE_MS / 4 / 1000
CALL_TIMEOUT_S = 60.0
RELEASE_TIMEOUT_S = 20.0


class _Lease(NamedTuple):
    address: str
    lease_id: int
    first: list[int]
    last: list[int]


class RangeLeases:
    """Leases on ranges of partitions, each of LEASE_MS. Thread-safe.

    A process that is killed gives nothing back: its leases end by themselves.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._leases: list[_Lease] = []
        self._is_released = False

    def add(self, address: str, planned: dict[str, Any]) -> None:
        """Take the lease of a partition's answer to `plan_range`."""
        with self._lock:
            self._leases.append(_Lease(address, planned["lease_id"], planned["first"], planned["end"]))

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
            granted = self._cluster.call_again(
                lease.address, "call", "grant_lease", arguments, timeout_s=CALL_TIMEOUT_S
            )
        except PulsarException:
            return lease
        self._give_back(lease)
        return lease._replace(lease_id=granted["lease_id"])

    def release(self) -> None:
        """Give all of them back, once. One that cannot be given back ends by itself."""
        with self._lock:
            self._is_released = True
            leases, self._leases = self._leases, []
        for lease in leases:
            self._give_back(lease)

    def _give_back(self, lease: _Lease) -> None:
        with contextlib.suppress(PulsarException):
            self._cluster.call(
                lease.address,
                "call",
                "release_lease",
                {"lease_id": lease.lease_id},
                timeout_s=RELEASE_TIMEOUT_S,
            )
