"""One round on several nodes in this process.

It is as other rounds are, with nodes and the object store among the faults.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from pulsar_ray.journal.storage.file_store import FileStore
from pulsar_ray.maintenance.remote_verify import verify_remote
from pulsar_ray.maintenance.verify import verify_directory
from tests.torture.nodes.broker import NodesBroker
from tests.torture.nodes.plan import faults_beside, plan_of
from tests.torture.round import (
    MEAN_PAUSE_MS,
    SETTINGS,
    RoundResult,
    carry_out,
    judge_history,
    new_history,
)
from tests.torture.scenes import Scene


def run_nodes_round(
    directory: Path, seed: int, seconds: float, scenes: Sequence[Scene], kinds: Collection[str] = ()
) -> RoundResult:
    """Run scenes under the plan of a seed, and judge them; receipts wait for the object store."""
    result = RoundResult()
    history, journal = new_history(directory)
    duration_ms = int(seconds * 1000)
    plan = plan_of(seed, duration_ms, kinds)
    broker = NodesBroker(directory / "data", journal, seed, plan, **SETTINGS, remote_durability="sync")
    with broker.installed():
        beside = faults_beside(seed, duration_ms, MEAN_PAUSE_MS, kinds)
        runs = carry_out(broker, history, journal, scenes, seed, beside, seconds, result)
    judge_history(history, broker, runs, result)
    for place in broker.directories:
        result.violations += [f"verify {place.name}: {each}" for each in verify_directory(place).damages]
    found = verify_remote(FileStore(broker.place), is_deep=True)
    result.violations += [f"remote verify: {fault}" for fault in found.faults]
    return result
