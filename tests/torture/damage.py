"""Damage to a round's files behind its end: a flipped bit or a cut file is named, and nothing is misread."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

from pulsar_ray.config import Settings
from pulsar_ray.data.planning.broker_planner import BrokerPlanner
from pulsar_ray.data.reading.rows import message_batches
from pulsar_ray.data.reading.segments import stored_rows
from pulsar_ray.errors import PulsarException
from pulsar_ray.maintenance.damage import Damage, Kind
from pulsar_ray.maintenance.repair import repair_directory
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.testing.stub_cluster import StubCluster
from pulsar_ray.transport.cluster import Cluster
from tests.faults.history.operations import Stored, digest_of, source_of
from tests.faults.journal import Id
from tests.torture.reads import COLUMNS

FLIPPED, CUT = "flipped bit at rest", "cut file at rest"
HARMS_IN_A_ROUND = 3
SCRATCH = "damaged"
Log = Mapping[Id, tuple[str, int, int]]
"""Of a partition: producer, number and digest by place."""


def suffer_damage(data: Path, logs: Mapping[str, list[Stored]], seed: int) -> tuple[Counter[str], list[str]]:
    """Harm copies of a data directory; returns the harms by kind, and what was wrong behind them.

    `logs` are the messages of each partition. Of one that was damaged verification has to name what is lost,
    all others have to be whole, nothing may be read that was not written, and behind a repair everything has
    to be there that was not named.
    """
    rng = random.Random(seed)
    expected = {
        partition: {message.place: (message.producer, message.number, message.digest) for message in log}
        for partition, log in logs.items()
    }
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for _ in range(HARMS_IN_A_ROUND):
        copy = data.with_name(SCRATCH)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(data, copy)
        kind, file = _harm(copy, rng)
        counts[kind] += 1
        wrong += [f"{kind}, {file.relative_to(copy)}: {each}" for each in _look(copy, expected)]
        shutil.rmtree(copy)
    return counts, wrong


def _harm(directory: Path, rng: random.Random) -> tuple[str, Path]:
    """Flip a bit of a random file of the partitions, or cut it; files of the log are drawn most often."""
    files = [path for path in sorted(directory.glob("p/**/*")) if path.is_file() and path.stat().st_size]
    segments = [path for path in files if path.suffix == ".seg"]
    file = rng.choice(segments if segments and rng.random() < 0.6 else files)
    content = bytearray(file.read_bytes())
    if rng.random() < 0.6:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
        return FLIPPED, file
    file.write_bytes(content[: rng.randrange(len(content))])
    return CUT, file


def _look(directory: Path, expected: Mapping[str, Log]) -> list[str]:
    damages = verify_directory(directory).damages

    def is_concerned(partition: str, _: Id) -> bool:
        return any(damage.topic in ("", partition) for damage in damages)

    def is_named(partition: str, place: Id) -> bool:
        return any(_names(damage, partition, place) for damage in damages)

    wrong = _compare(directory, expected, is_concerned)
    repair_directory(directory, 1, is_dry_run=False, cuts_damaged=True)
    wrong += [f"left behind its repair: {damage}" for damage in verify_directory(directory).damages]
    return wrong + [f"behind its repair {each}" for each in _compare(directory, expected, is_named)]


def _names(damage: Damage, partition: str, place: Id) -> bool:
    if damage.topic != partition or damage.kind is not Kind.ENTRIES:
        return False
    # A message in chunks is where its last one is, and lost with any.
    is_chunk = partition.endswith("/chunks")
    _, ledger, entry, _ = place
    first, last = damage.first_entry_id, damage.last_entry_id
    return is_chunk or (damage.ledger_id == ledger and first <= entry <= last)


def _compare(directory: Path, expected: Mapping[str, Log], may_miss: Callable[[str, Id], bool]) -> list[str]:
    """What is read wrongly, or missing although it may not."""
    wrong = []
    cluster = StubCluster(directory, Settings(data_dir=str(directory)))
    try:
        for partition, log in expected.items():
            found = _read(cluster, partition)
            wrong += [
                f"{place} of {partition} is {value}, not {log.get(place)}"
                for place, value in found.items()
                if log.get(place) != value
            ]
            silent = [place for place in log if place not in found and not may_miss(partition, place)]
            if silent:
                wrong.append(f"{len(silent)} messages of {partition} are missing: {silent[:5]}")
    finally:
        cluster.close()
    return wrong


def _read(cluster: StubCluster, partition: str) -> dict[Id, tuple[str, int, int]]:
    """Everything of a partition up to the first damage."""
    found: dict[Id, tuple[str, int, int]] = {}
    with (
        suppress(PulsarException),
        BrokerPlanner.on(cast(Cluster, cluster)).plan([partition], "earliest", "latest") as plan,
    ):
        for each in plan.ranges:
            for batch in message_batches(stored_rows(each), 0, block_bytes=1, columns=COLUMNS):
                for row in batch.to_pylist():
                    data = row["value"]
                    place = (each.partition, row["ledger_id"], row["entry_id"], row["batch_index"])
                    found[place] = (*source_of(data), digest_of(data))
    return found
