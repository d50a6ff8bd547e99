"""One thread for the leases of a process."""

from __future__ import annotations

from typing import cast

from pulsar_ray.data.planning.lease_keeper import LeaseKeeper, RenewalTimes
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

    def let_go(self, now_ms: int) -> None:
        self.release()

    def release(self) -> None:
        self.releases += 1
        self._fail()

    def _fail(self) -> None:
        if self.is_gone:
            raise RuntimeError("Ray has not been started yet")


def as_leases(stub: StubLeases) -> RangeLeases:
    return cast("RangeLeases", stub)


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


def test_leases_that_come_late_are_renewed_before_the_others() -> None:
    keeper = LeaseKeeper(renew_every_s=3600)
    kept, late = StubLeases(), StubLeases()
    keeper.keep(as_leases(kept))
    keeper.keep(as_leases(late), first_after_s=0.01)
    wait_until(lambda: late.renewals, what="the first renewal")
    assert not kept.renewals
    for leases in (late, kept):
        keeper.leave(as_leases(leases))
    wait_until(lambda: late.releases and kept.releases, what="the end of both")


def test_each_holder_has_renewals_of_its_own() -> None:
    times = RenewalTimes(every_s=900)
    first, copy = as_leases(StubLeases()), as_leases(StubLeases())
    times.add(first, now_s=0)
    times.add(copy, now_s=100, first_after_s=60)
    assert times.wait_s(100) == 60
    assert times.take_due(159) == []
    assert times.take_due(160) == [copy]
    assert times.wait_s(160) == 740
    assert times.take_due(900) == [first]
    assert times.take_due(1060) == [copy]
    times.remove(first)
    times.remove(first)
    assert times.take_due(10_000) == [copy]
    assert len(times) == 1
