"""Short rounds on several nodes: `make torture` runs longer ones over more seeds."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.faults.verdict import keep
from tests.torture.nodes.plan import LOSE_ALL, OF_ACTORS, WEIGHTS, plan_of
from tests.torture.nodes.round import run_lagging_round, run_nodes_round
from tests.torture.plan import WEIGHTS as OF_PROCESSES
from tests.torture.scenes import scene_of

SECONDS = 6.0
ROUND_MS = 25_000


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "names", [("keyed",), pytest.param(("deduplicated", "delayed"), marks=pytest.mark.long)], ids="+".join
)
def test_promises_are_kept_while_nodes_are_lost(tmp_path: Path, names: tuple[str, ...]) -> None:
    seed = int(os.environ.get("TORTURE_SEED") or secrets.randbelow(1 << 31))
    print(f"TORTURE_SEED={seed}")
    result = run_nodes_round(tmp_path, seed, SECONDS, [scene_of(name) for name in names])
    print(f"{sum(result.operations.values())} operations, {sum(result.faults.values())} faults")
    keep(not result.violations, "\n".join(result.violations))
    assert result.operations["Stored"]
    assert result.faults


@pytest.mark.timeout(600)
def test_no_more_than_the_lag_is_lost_with_all_nodes(tmp_path: Path) -> None:
    seed = int(os.environ.get("TORTURE_SEED") or secrets.randbelow(1 << 31))
    print(f"TORTURE_SEED={seed}")
    result = run_lagging_round(tmp_path, seed, SECONDS, [scene_of("keyed")])
    keep(not result.violations, "\n".join(result.violations))
    assert result.faults[LOSE_ALL] == 1


def test_rounds_on_several_nodes_have_every_kind_of_fault() -> None:
    assert {fault.kind for seed in range(60) for fault in plan_of(seed, ROUND_MS)} == set(WEIGHTS)
    assert set(OF_ACTORS) < set(OF_PROCESSES)


def test_kinds_of_nodes_can_be_left_out_without_moving_the_others() -> None:
    whole, kinds = plan_of(7, ROUND_MS), list(WEIGHTS)[:3]
    assert plan_of(7, ROUND_MS, kinds) == [each for each in whole if each.kind in kinds]
