"""Waiting rows against a dictionary of rows."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from pulsar_ray.dispatch import row_segments
from pulsar_ray.dispatch.row_segments import Segment
from pulsar_ray.model import row_ranges


def rows_in(ranges: tuple[tuple[int, int], ...]) -> set[int]:
    return {row for start, end in ranges for row in range(start, end)}


@pytest.mark.parametrize("seed", range(30))
def test_segments_agree_with_a_dictionary_of_rows(seed: int) -> None:
    rng = random.Random(seed)
    segments: list[Segment] = []
    naive: dict[int, int] = {}
    for _ in range(200):
        start = rng.randrange(40)
        rows = row_ranges.union((), [(start, start + rng.randint(1, 5)), (start + 7, start + 9)])
        step = rng.choice(["insert", "remove", "take"])
        if step == "insert":
            absent = row_ranges.subtract(rows, row_segments.rows_of(segments))
            count = rng.randrange(3)
            row_segments.insert(segments, absent, count)
            naive.update(dict.fromkeys(rows_in(absent), count))
        elif step == "remove":
            gone = row_segments.remove(segments, rows)
            assert gone == len(rows_in(rows) & naive.keys())
            naive = {row: c for row, c in naive.items() if row not in rows_in(rows)}
        elif segments:
            limit = rng.randint(1, 12)
            taken, count = row_segments.take(segments, limit)
            first = sorted(naive)
            expected = []
            for row in first[:limit]:
                if naive[row] != naive[first[0]]:
                    break
                expected.append(row)
            assert (sorted(rows_in(taken)), count) == (expected, naive[first[0]])
            for row in expected:
                del naive[row]
        assert {row: c for a, b, c in segments for row in range(a, b)} == naive
        assert row_segments.size(segments) == len(naive)
        assert segments == sorted(segments)
        assert all(a[1] < b[0] or a[2] != b[2] for a, b in pairwise(segments))


@pytest.mark.parametrize("seed", range(30))
def test_taking_one_range_out_of_many(seed: int) -> None:
    rng = random.Random(seed)
    rows = row_ranges.union((), [(a, a + rng.randint(1, 4)) for a in rng.sample(range(60), 12)])
    for _ in range(50):
        start = rng.randrange(65)
        end = start + rng.randint(1, 9)
        left, gone = row_segments.without(rows, start, end)
        assert left == row_ranges.subtract(rows, ((start, end),))
        assert gone == row_ranges.count(rows) - row_ranges.count(left)
