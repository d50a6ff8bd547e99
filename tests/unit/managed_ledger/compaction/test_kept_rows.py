"""Rows that a compaction keeps: asked for from the front on, whether they lie in memory or in a file."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from pulsar_ray.managed_ledger.compaction import kept_rows
from pulsar_ray.managed_ledger.compaction.kept_rows import KeptRows


@pytest.mark.parametrize("in_memory", [0, 7, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_all_rows_come_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: int, seed: int
) -> None:
    monkeypatch.setattr(kept_rows, "_IN_MEMORY_ROWS", in_memory)
    monkeypatch.setattr(kept_rows, "_READ_ROWS", 3)
    chance = random.Random(seed)
    numbers = sorted(chance.sample(range(200), 60))
    kept = KeptRows(tmp_path)
    for part in range(3):
        kept.add(np.array(numbers[part::3], np.int64))
    assert kept.count == len(numbers)
    ends = [*sorted(chance.choices(range(201), k=10)), 200]
    kept.rewind()
    found = [kept.below(end).tolist() for end in ends]
    begins = [0, *ends[:-1]]
    for some, begin, end in zip(found, begins, ends, strict=True):
        assert some == [number for number in numbers if begin <= number < end]
    kept.close()


def test_nothing_kept_is_nothing(tmp_path: Path) -> None:
    kept = KeptRows(tmp_path)
    assert kept.below(5).tolist() == []


def test_a_file_leaves_nothing_in_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_rows, "_IN_MEMORY_ROWS", 1)
    kept = KeptRows(tmp_path)
    kept.add(np.arange(10, dtype=np.int64))
    assert list(tmp_path.iterdir()) == []
    kept.close()


def test_parts_that_follow_each_other_share_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_rows, "_IN_MEMORY_ROWS", 3)
    kept = KeptRows(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for first in range(0, 400, 4):
        kept.add(np.arange(first, first + 4, dtype=np.int64))
    assert len(os.listdir("/proc/self/fd")) == before + 1
    kept.rewind()
    assert kept.below(400).tolist() == list(range(400))
    kept.close()
