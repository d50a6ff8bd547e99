"""Plans hold every kind of fault, and their summary names each."""

from __future__ import annotations

from tests.torture.plan import LEASE_S, LONG_STOP, STOP, WEIGHTS, counted_kinds, name_of, plan_of
from tests.torture.real import plan as real
from tests.torture.round import MEAN_PAUSE_MS

SEEDS = range(60)
ROUND_MS = 12_000
SOURCES = ("SIGKILL", "SIGSTOP", "sleep", "cut", "lost", "silent", "disk full", "EIO", "read-only", "clock")


def test_rounds_have_every_kind_at_every_actor() -> None:
    found = {
        name_of(fault.kind, fault.actor) for seed in SEEDS for fault in plan_of(seed, ROUND_MS, MEAN_PAUSE_MS)
    }
    assert found == counted_kinds()
    assert all(any(source in kind for kind in found) for source in SOURCES)


def test_kinds_can_be_left_out_without_moving_the_others() -> None:
    whole = plan_of(7, ROUND_MS, MEAN_PAUSE_MS)
    kinds = set(WEIGHTS) - {LONG_STOP, STOP}
    assert plan_of(7, ROUND_MS, MEAN_PAUSE_MS, kinds) == [each for each in whole if each.kind in kinds]


def test_some_stops_outlast_every_lease_and_the_others_none() -> None:
    stops = [f for seed in SEEDS for f in plan_of(seed, ROUND_MS, MEAN_PAUSE_MS) if "SIGSTOP" in f.kind]
    longer = {fault.kind for fault in stops if fault.duration_ms > LEASE_S * 1000}
    shorter = {fault.kind for fault in stops if fault.duration_ms < LEASE_S * 1000}
    assert (longer, shorter) == ({LONG_STOP}, {STOP})


def test_rounds_on_ray_have_every_kind_and_one_that_ends_the_cluster() -> None:
    plans = [real.plan_of(seed, 40_000) for seed in SEEDS]
    assert {strike.kind for plan in plans for strike in plan} == set(real.KINDS)
    assert all(sum(strike.kind in real.DEADLY for strike in plan) == 1 for plan in plans)
    for deadly in real.DEADLY:
        seed = real.seed_with(deadly, 100)
        assert [each.kind for each in real.plan_of(seed, 40_000) if each.kind in real.DEADLY] == [deadly]
    stops = [strike for plan in plans for strike in plan if "SIGSTOP" in strike.kind]
    assert any(strike.duration_ms > LEASE_S * 1000 for strike in stops)


def test_a_seed_gives_its_plan_again() -> None:
    assert plan_of(3, ROUND_MS, MEAN_PAUSE_MS) == plan_of(3, ROUND_MS, MEAN_PAUSE_MS)
    assert real.plan_of(3, 40_000) == real.plan_of(3, 40_000)
