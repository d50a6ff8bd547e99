"""A round on a real Ray, of which raylet, GCS or everything is killed in the middle."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.faults.verdict import keep
from tests.torture.real.plan import DEADLY, KILL_GCS, KILL_NODE, KILL_RAYLET, seed_with
from tests.torture.real.round import run_real_round, scenes_of

SECONDS = float(os.environ.get("TORTURE_SECONDS", "30"))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("deadly", "scenes"),
    [
        (KILL_RAYLET, ["sleepy", "administered"]),
        (KILL_GCS, ["sought", "fenced"]),
        (KILL_NODE, ["retries", "expiring", "waiting"]),
        (KILL_RAYLET, []),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_promises_are_kept_where_a_cluster_dies_and_is_started_again(
    tmp_path: Path, deadly: str, scenes: list[str]
) -> None:
    seed = seed_with(deadly, int(os.environ.get("TORTURE_SEED") or secrets.randbelow(1 << 31)))
    print(f"TORTURE_SEED={seed}")
    result = run_real_round(tmp_path, seed, SECONDS, scenes_of(seed, scenes))
    print(result.operations, result.faults, result.errors)
    keep(not result.violations, "\n".join(result.violations))
    assert [result.faults[kind] for kind in DEADLY] == [kind == deadly for kind in DEADLY]
    assert result.operations["Stored"]
    assert result.operations["ReadEnded"]
