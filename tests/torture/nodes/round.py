"""One round on several nodes in this process.

It is as other rounds are, with nodes and the object store among the faults.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from pulsar_ray.journal.storage.file_store import FileStore
from pulsar_ray.maintenance.remote_verify import verify_remote
from pulsar_ray.maintenance.verify import verify_directory
from tests.torture.nodes import lagging
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
    _verify(broker, result)
    return result


def run_lagging_round(
    directory: Path, seed: int, seconds: float, scenes: Sequence[Scene], kinds: Collection[str] = ()
) -> RoundResult:
    """Run scenes whose receipts do not wait for the object store, and lose all nodes at last.

    An end of what was confirmed may be lost, of the time of the lag.
    """
    result = RoundResult()
    history, journal = new_history(directory)
    duration_ms = int(seconds * 1000)
    plan = lagging.lagging_plan(seed, duration_ms, kinds)
    broker = NodesBroker(directory / "data", journal, seed, plan, **{**SETTINGS, **lagging.SETTINGS})
    with broker.installed():
        wanted = [kind for kind in lagging.BESIDE if not kinds or kind in kinds]
        beside = faults_beside(seed, duration_ms, MEAN_PAUSE_MS, wanted)
        runs = carry_out(broker, history, journal, scenes, seed, beside, seconds, result)
    judge_history(history, broker, runs, result, lagging.is_kept)
    result.violations += lagging.beyond_the_lag(history)
    _verify(broker, result)
    return result


def _verify(broker: NodesBroker, result: RoundResult) -> None:
    """Look at the directories of all nodes, and at the object store."""
    for place in broker.directories:
        result.violations += [f"verify {place.name}: {each}" for each in verify_directory(place).damages]
    found = verify_remote(FileStore(broker.place), is_deep=True)
    result.violations += [f"remote verify: {fault}" for fault in found.faults]
