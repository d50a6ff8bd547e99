"""Short rounds of the torture: `make torture` runs longer ones over more seeds."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.faults.verdict import keep
from tests.torture.round import run_round
from tests.torture.scenes import SCENES

SECONDS = 4.0
GROUPS = (
    ("keyed", "letters", "non-persistent"),
    ("sought", "fenced", "waiting", "retries"),
    ("every-type", "deduplicated", "expiring"),
    ("delayed", "chunks"),
    ("sleepy", "administered"),
    ("compacted",),
)


def test_every_scene_is_in_a_group() -> None:
    assert sorted(name for group in GROUPS for name in group) == sorted(scene.name for scene in SCENES)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "names",
    [*GROUPS[:3], *(pytest.param(names, marks=pytest.mark.long) for names in GROUPS[3:])],
    ids="+".join,
)
def test_promises_are_kept_under_random_faults(tmp_path: Path, names: tuple[str, ...]) -> None:
    seed = int(os.environ.get("TORTURE_SEED") or secrets.randbelow(1 << 31))
    print(f"TORTURE_SEED={seed}")
    result = run_round(tmp_path, seed, SECONDS, [scene for scene in SCENES if scene.name in names])
    print(f"{sum(result.operations.values())} operations, {sum(result.faults.values())} faults")
    keep(not result.violations, "\n".join(result.violations))
    assert result.operations["Stored"]
    assert result.faults
