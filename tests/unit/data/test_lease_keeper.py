"""One thread for the leases of a process."""

from __future__ import annotations

from typing import cast

from pulsar_ray.data.planning.lease_keeper import LeaseKeeper
from pulsar_ray.data.planning.range_leases import RangeLeases
from pulsar_ray.testing.waiting import wait_until


class StubLeases:
    """Leases of a broker that is there, or of one that is gone."""

    def __init__(self, *, is_gone: bool = False) -> None:
        self.is_gone = is_gone
        self.renewals = 0
        self.releases = 0

    def renew(self, now_ms: int) -> None:
        self.renewals += 1
        self._fail()

    def release(self) -> None:
        self.releases += 1
        self._fail()

    def _fail(self) -> None:
        if self.is_gone:
            raise RuntimeError("Ray has not been started yet")


def as_leases(stub: StubLeases) -> RangeLeases:
    return cast(RangeLeases, stub)


def test_leases_whose_broker_is_gone_do_not_end_the_renewal_of_others() -> None:
    keeper = LeaseKeeper(renew_every_s=0.01)
    gone, kept = StubLeases(is_gone=True), StubLeases()
    keeper.keep(as_leases(gone))
    keeper.keep(as_leases(kept))
    wait_until(lambda: gone.renewals and kept.renewals, what="renewals")
    for _ in range(2):
        keeper.leave(as_leases(gone))
    wait_until(lambda: gone.releases == 2, what="the end of the lost ones")
    before = kept.renewals
    wait_until(lambda: kept.renewals > before, what="more renewals")
    keeper.leave(as_leases(kept))
    wait_until(lambda: kept.releases == 1, what="the end of the others")
