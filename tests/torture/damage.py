"""Damage to a round's files behind its end: a flipped bit or a cut file is named, and nothing is misread."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pulsar_ray import Client
from pulsar_ray.config import Settings
from pulsar_ray.data.planning.broker_planner import BrokerPlanner
from pulsar_ray.data.reading.rows import message_batches
from pulsar_ray.data.reading.segments import stored_rows
from pulsar_ray.errors import PulsarException
from pulsar_ray.maintenance.damage import Damage, Kind
from pulsar_ray.maintenance.repair import repair_directory
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.managed_ledger.store.store_identity import CATALOG_FILE
from pulsar_ray.testing.stub_cluster import StubCluster
from pulsar_ray.transport.cluster import Cluster
from tests.faults.history.operations import Stored, digest_of, payload, source_of
from tests.faults.journal import Id, id_of
from tests.torture.leftovers import Given, Subscriber, given_to, partition_index
from tests.torture.reads import COLUMNS

FLIPPED, CUT = "flipped bit at rest", "cut file at rest"
HARMS_IN_A_ROUND = 4
SCRATCH = "damaged"
SEGMENT, CURSOR, TRACKER, CATALOG, MANIFEST, OTHER = (
    *("segment", "cursor", "delayed index", "catalog", "manifest"),
    "file besides",
)
WEIGHTS = {SEGMENT: 8, CURSOR: 5, TRACKER: 4, CATALOG: 2, MANIFEST: 3, OTHER: 1}
LATE, LATE_MESSAGES, DELAYED_EACH, DELAY_MS = "late", 12, 4, 200


def part_of(file: Path) -> str:
    """The part of a data directory that a file is of, by its path in that."""
    if file.name.startswith(CATALOG_FILE):
        return CATALOG
    if file.suffix == ".seg":
        return SEGMENT
    if "s" in file.parts:
        return TRACKER if "delayed" in file.parts else CURSOR
    return MANIFEST if file.name.startswith("manifest") else OTHER


@dataclass
class Whole:
    """What an undamaged directory has: the log of each partition, and what each subscription gives."""

    logs: dict[str, dict[Id, tuple[str, int, int]]]
    given: dict[Subscriber, Given]


def suffer_damage(
    data: Path, logs: Mapping[str, list[Stored]], subscribers: Sequence[Subscriber], seed: int
) -> tuple[Counter[str], list[str]]:
    """Harm copies of a data directory; returns the harms by kind, and what was wrong behind them.

    `logs` are the messages of each partition; some more are sent first that nobody acknowledges, also delayed
    ones. Verification has to name what is lost. Behind a start on the damage all else is read and given;
    nothing else, nothing changed, and nothing acknowledged but where a cursor is named. Behind a repair
    everything is there that was not named as lost.
    """
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    whole = Whole(
        {
            partition: {message.place: (message.producer, message.number, message.digest) for message in log}
            for partition, log in logs.items()
        },
        {},
    )
    _send_late(data, whole)
    copy = data.with_name(SCRATCH)
    _copy(data, copy)
    found = _given(copy, subscribers)
    whole.given = {each: given for each, given in found.items() if given is not None}
    refused = [each for each, given in found.items() if given is None]
    wrong += [f"undamaged, and {each} gives nothing" for each in refused]
    for _ in range(HARMS_IN_A_ROUND):
        _copy(data, copy)
        kind, file = _harm(copy, rng)
        counts[kind] += 1
        wrong += [f"{kind}, {file.relative_to(copy)}: {each}" for each in _look(copy, whole, kind)]
    shutil.rmtree(copy)
    return counts, wrong


def _keeping(data: Path) -> Settings:
    return Settings(
        data_dir=str(data),
        default_retention_time_in_minutes=-1,
        default_retention_size_in_mb=-1,
        # A damaged cursor may not know that its consumers closed.
        reattach_grace_seconds=0.2,
    )


def _copy(data: Path, copy: Path) -> None:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(data, copy)


def _send_late(data: Path, whole: Whole) -> None:
    """Leave messages behind that every subscription still has to give."""
    cluster = StubCluster(data, _keeping(data))
    client = Client._on(cast("Cluster", cluster), transport="socket")
    for partition, log in whole.logs.items():
        producer = client.create_producer(partition, f"{LATE}-{partition}")
        for number in range(LATE_MESSAGES):
            value = payload(LATE, number, 100)
            due_ms = time.time_ns() // 1_000_000 + DELAY_MS if number % DELAYED_EACH == 0 else None
            place = producer.send(value, deliver_at=due_ms, sequence_id=number)
            _, *where = id_of(place)
            at = cast("Id", (partition_index(partition), *where))
            log[at] = (LATE, number, digest_of(value))
    client.shutdown()
    cluster.close()


def _harm(directory: Path, rng: random.Random) -> tuple[str, Path]:
    """Flip a bit of a random file, or cut it."""
    parts: dict[str, list[Path]] = {}
    for file in sorted([*directory.glob("p/**/*"), *directory.glob(f"{CATALOG_FILE}*")]):
        if file.is_file() and file.stat().st_size:
            parts.setdefault(part_of(file.relative_to(directory)), []).append(file)
    (part,) = rng.choices(list(parts), [WEIGHTS[part] for part in parts])
    file = rng.choice(parts[part])
    if rng.random() < 0.6:
        flip(file, rng)
        return f"{FLIPPED} of a {part}", file
    cut(file, rng)
    return f"{CUT} of a {part}", file


def flip(file: Path, rng: random.Random) -> None:
    """Flip one bit of a file."""
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def cut(file: Path, rng: random.Random) -> None:
    """Cut a file at a random place."""
    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])


def harms() -> set[str]:
    """Every kind of harm, as a summary counts it."""
    return {f"{how} of a {part}" for how in (FLIPPED, CUT) for part in WEIGHTS}


def _look(directory: Path, whole: Whole, harm: str) -> list[str]:
    damages = verify_directory(directory).damages
    wrong = _compare(directory, whole, damages, harm, is_repaired=False)
    repair_directory(directory, 1, is_dry_run=False, cuts_damaged=True)
    left = verify_directory(directory).damages
    wrong += [f"left behind its repair: {damage}" for damage in left]
    if any(damage.kind is Kind.CATALOG for damage in damages):
        # It is made anew out of the stores when the broker starts, if the operator says so.
        return wrong
    behind = _compare(directory, whole, damages, harm, is_repaired=True)
    return wrong + [f"behind its repair {each}" for each in behind]


def _compare(
    directory: Path, whole: Whole, damages: Sequence[Damage], harm: str, *, is_repaired: bool
) -> list[str]:
    """What is read or given wrongly, or missing although it may not."""
    try:
        cluster = StubCluster(directory, _keeping(directory))
    except PulsarException as error:
        is_named = any(damage.kind in (Kind.CATALOG, Kind.STORE) for damage in damages)
        return [] if is_named else [f"the broker does not start, and nothing is named: {error}"]

    def may_miss(partition: str, place: Id) -> bool:
        if is_repaired:
            return any(_names(damage, partition, place) for damage in damages)
        return any(damage.topic in ("", partition) for damage in damages)

    def may_repeat(subscriber: Subscriber) -> bool:
        # A log of acknowledgments that ends early looks like one whose last write did not get through.
        return harm == f"{CUT} of a {CURSOR}" or any(
            damage.topic in ("", subscriber.partition)
            and damage.subscription in ("", subscriber.subscription)
            and damage.kind is not Kind.ENTRIES
            for damage in damages
        )

    wrong = []
    try:
        for partition, log in whole.logs.items():
            found = _read(cluster, partition)
            wrong += _differences(partition, found, log)
            silent = [place for place in log if place not in found and not may_miss(partition, place)]
            if silent:
                wrong.append(f"{len(silent)} messages of {partition} are missing: {silent[:5]}")

        def silent_of(subscriber: Subscriber, given: Given) -> list[Id]:
            before = whole.given[subscriber]
            return [p for p in before if p not in given and not may_miss(subscriber.partition, p)]

        found_of = given_to(cluster, list(whole.given), lambda each, given: not silent_of(each, given))
        for subscriber, given in found_of.items():
            log, before = whole.logs[subscriber.partition], whole.given[subscriber]
            name = f"{subscriber.partition} {subscriber.subscription}"
            wrong += _differences(name, given or {}, log)
            silent = silent_of(subscriber, given or {})
            if silent:
                wrong.append(f"{len(silent)} messages are not given by {name}: {silent[:5]}")
            again = (given or {}).keys() - before.keys()
            if again and not may_repeat(subscriber):
                wrong.append(f"{len(again)} acknowledged messages come again by {name}: {sorted(again)[:5]}")
    finally:
        cluster.close()
    return wrong


def _differences(where: str, found: Given, log: Given) -> list[str]:
    return [
        f"{place} of {where} is {value}, not {log.get(place)}"
        for place, value in found.items()
        if log.get(place) != value
    ]


def _names(damage: Damage, partition: str, place: Id) -> bool:
    if damage.topic != partition or damage.kind is not Kind.ENTRIES:
        return False
    # A message in chunks is where its last one is, and lost with any.
    is_chunk = partition.endswith("/chunks")
    _, ledger, entry, _ = place
    first, last = damage.first_entry_id, damage.last_entry_id
    return is_chunk or (damage.ledger_id == ledger and first <= entry <= last)


def _given(directory: Path, subscribers: Sequence[Subscriber]) -> dict[Subscriber, Given | None]:
    cluster = StubCluster(directory, _keeping(directory))
    try:
        return given_to(cluster, subscribers, lambda _, given: _late_in(given) == LATE_MESSAGES)
    finally:
        cluster.close()


def _late_in(given: Given) -> int:
    return sum(producer == LATE for producer, *_ in given.values())


def _read(cluster: StubCluster, partition: str) -> dict[Id, tuple[str, int, int]]:
    """Everything of a partition up to the first damage."""
    found: dict[Id, tuple[str, int, int]] = {}
    with (
        suppress(PulsarException),
        BrokerPlanner.on(cast("Cluster", cluster)).plan([partition], "earliest", "latest") as plan,
    ):
        for each in plan.ranges:
            for batch in message_batches(stored_rows(each), 0, block_bytes=1, columns=COLUMNS):
                for row in batch.to_pylist():
                    data = row["value"]
                    place = (each.partition, row["ledger_id"], row["entry_id"], row["batch_index"])
                    found[place] = (*source_of(data), digest_of(data))
    return found
