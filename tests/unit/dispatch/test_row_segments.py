"""Waiting rows against a dictionary of rows."""

from __future__ import annotations

import random

import pytest

from pulsar_ray.dispatch import row_segments
from pulsar_ray.dispatch.row_segments import Segment
from pulsar_ray.model import row_sets


def rows_in(rows: int) -> set[int]:
    return set(row_sets.numbers_of(rows).tolist())


@pytest.mark.parametrize("seed", range(30))
def test_segments_agree_with_a_dictionary_of_rows(seed: int) -> None:
    rng = random.Random(seed)
    segments: list[Segment] = []
    naive: dict[int, int] = {}
    for _ in range(200):
        start = rng.randrange(40)
        rows = row_sets.of_ranges(((start, start + rng.randint(1, 5)), (start + 7, start + 9)))
        step = rng.choice(["insert", "remove", "take"])
        if step == "insert":
            absent = rows & ~row_segments.rows_of(segments)
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
        assert {row: count for rows, count in segments for row in rows_in(rows)} == naive
        assert all(row_segments.count_of(segments, row) == count for row, count in naive.items())
        assert row_segments.size(segments) == len(naive)
        assert rows_in(row_segments.rows_of(segments)) == naive.keys()
        assert all(rows for rows, _ in segments)
        assert len({count for _, count in segments}) == len(segments)


@pytest.mark.parametrize("seed", range(10))
def test_in_order_nothing_overtakes_a_row_with_another_count(seed: int) -> None:
    rng = random.Random(seed)
    naive = {row: rng.randrange(3) for row in rng.sample(range(300), 120)}
    segments: list[Segment] = []
    for row, count in naive.items():
        row_segments.insert(segments, 1 << row, count)
    out = [(row, count) for rows, count in row_segments.in_order(segments) for row in sorted(rows_in(rows))]
    assert out == sorted(naive.items())
    assert not segments
