"""Random damage to random files: a repair leaves everything whole, and every sound block where it was."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pulsar_ray.maintenance.repair import repair_directory
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.model.message_id import Position
from tests.stored_blocks import append
from tests.stored_directory import MESSAGES, make_directory
from tests.unit.maintenance.test_cut import sound_entries

NOW_MS = 5000
KEPT = {"store.json", "store.lock", "cluster.lock", "owner.lock"}


def damage(rng: random.Random, path: Path) -> str:
    content = bytearray(path.read_bytes())
    kind = rng.choice(("flip", "flip", "flip", "cut", "zeros", "lose"))
    if kind == "lose" or not content:
        path.unlink()
        return f"{path.name} is gone"
    at = rng.randrange(len(content))
    if kind == "flip":
        content[at] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del content[at:]
    else:
        content[at : at + 600] = bytes(len(content[at : at + 600]))
    path.write_bytes(content)
    return f"{path.name}: {kind} at {at}"


@pytest.mark.parametrize(
    "seed", [*range(25), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(25, 100))]
)
def test_whatever_is_damaged_is_repaired(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    topics = make_directory(tmp_path, is_closed=rng.random() < 0.5)
    before = {topic.name: sound_entries(topic.segment) for topic in topics}
    files = sorted(p for p in tmp_path.rglob("*") if p.is_file() and p.name not in KEPT)
    segments = {topic.segment for topic in topics}
    hit = rng.sample(files, rng.randint(1, 5))
    print("seed", seed, [damage(rng, path) for path in hit])
    report = repair_directory(tmp_path, NOW_MS, is_dry_run=False, cuts_damaged=True)
    assert report.left.damages == []
    for topic in topics:
        log = topic.open()
        assert log.corruptions == []
        append(log, MESSAGES, incarnation=9)
        log.close()
        if topic.segment.exists():
            found = sound_entries(topic.segment)
            assert found.items() <= before[topic.name].items()
        if topic.segment not in segments & set(hit):
            assert sound_entries(topic.segment) == before[topic.name]
            assert log.last_position >= Position(topic.ledger_id + 1, 0)
    assert verify_directory(tmp_path).damages == []
    assert repair_directory(tmp_path, NOW_MS, is_dry_run=False, cuts_damaged=True).repairs == []
