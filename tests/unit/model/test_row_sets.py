"""Sets of rows against Python's sets."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from pulsar_ray.model import row_sets


def random_rows(rng: random.Random) -> set[int]:
    size = rng.choice([1, 5, 64, 1000, row_sets.MAX_ROWS])
    kind = rng.randrange(4)
    if kind == 0:
        start = rng.randrange(size)
        return set(range(start, rng.randint(start, size)))
    if kind == 1:
        return {row for row in range(size) if rng.random() < 0.3}
    if kind == 2:
        return set(rng.sample(range(size), min(size, 3)))
    return {row for row in range(size) if row % 97 > 2}


@pytest.mark.parametrize("seed", range(60))
def test_row_sets_agree_with_sets(seed: int) -> None:
    rng = random.Random(seed)
    expected = random_rows(rng)
    rows = sum(1 << row for row in expected)
    ordered = sorted(expected)
    assert row_sets.numbers_of(rows).tolist() == ordered
    assert row_sets.first(rows) == (ordered[0] if ordered else -1)
    assert row_sets.is_range(rows) == (not ordered or ordered[-1] - ordered[0] + 1 == len(ordered))
    ranges = row_sets.ranges_of(rows)
    assert [row for start, end in ranges for row in range(start, end)] == ordered
    assert all(a[1] < b[0] for a, b in pairwise(ranges))
    assert row_sets.of_ranges(ranges) == rows
    assert row_sets.from_wire(row_sets.to_wire(rows)) == rows
    limit = rng.choice([-1, 0, 1, 2, len(ordered) // 2, len(ordered), 10_000])
    assert row_sets.numbers_of(row_sets.lowest(rows, limit)).tolist() == ordered[: max(limit, 0)]
    flags = np.zeros(row_sets.MAX_ROWS, np.bool_)
    flags[ordered] = True
    assert row_sets.of_flags(flags) == rows


def test_packets_say_few_ranges_as_ranges_and_scattered_rows_as_bits() -> None:
    assert row_sets.to_wire(row_sets.span(3, 8000)) == ((3, 8000),)
    assert row_sets.to_wire(0) == ()
    assert row_sets.to_wire(row_sets.span(0, 5) | row_sets.span(700, 900)) == ((0, 5), (700, 900))
    every_other = row_sets.of_ranges(tuple((row, row + 1) for row in range(0, 1000, 2)))
    assert row_sets.to_wire(every_other) == b"\x55" * 125


def test_what_no_block_can_have_names_nothing() -> None:
    assert row_sets.of_ranges(((-5, 2), (8000, 2**60), (9, 3))) == row_sets.span(0, 2) | row_sets.span(
        8000, 8192
    )
