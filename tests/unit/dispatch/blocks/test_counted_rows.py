"""Waiting rows against a dictionary of rows."""

from __future__ import annotations

import random

import pytest

from pulsar_ray.dispatch.blocks import counted_rows
from pulsar_ray.dispatch.blocks.counted_rows import CountedRows
from pulsar_ray.model import row_sets


def rows_in(rows: int) -> set[int]:
    return set(row_sets.numbers_of(rows).tolist())


@pytest.mark.parametrize("seed", range(30))
def test_segments_agree_with_a_dictionary_of_rows(seed: int) -> None:
    rng = random.Random(seed)
    parts: list[CountedRows] = []
    naive: dict[int, int] = {}
    for _ in range(200):
        start = rng.randrange(40)
        rows = row_sets.of_ranges(((start, start + rng.randint(1, 5)), (start + 7, start + 9)))
        step = rng.choice(["insert", "remove", "take"])
        if step == "insert":
            absent = rows & ~counted_rows.rows_of(parts)
            count = rng.randrange(3)
            counted_rows.insert(parts, absent, count)
            naive.update(dict.fromkeys(rows_in(absent), count))
        elif step == "remove":
            gone = counted_rows.remove(parts, rows)
            assert gone == len(rows_in(rows) & naive.keys())
            naive = {row: c for row, c in naive.items() if row not in rows_in(rows)}
        elif parts:
            limit = rng.randint(1, 12)
            taken, count = counted_rows.take(parts, limit)
            first = sorted(naive)
            expected = []
            for row in first[:limit]:
                if naive[row] != naive[first[0]]:
                    break
                expected.append(row)
            assert (sorted(rows_in(taken)), count) == (expected, naive[first[0]])
            for row in expected:
                del naive[row]
        assert {row: count for rows, count in parts for row in rows_in(rows)} == naive
        assert all(counted_rows.count_of(parts, row) == count for row, count in naive.items())
        assert counted_rows.size(parts) == len(naive)
        assert rows_in(counted_rows.rows_of(parts)) == naive.keys()
        assert all(rows for rows, _ in parts)
        assert len({count for _, count in parts}) == len(parts)


@pytest.mark.parametrize("seed", range(10))
def test_in_order_nothing_overtakes_a_row_with_another_count(seed: int) -> None:
    rng = random.Random(seed)
    naive = {row: rng.randrange(3) for row in rng.sample(range(300), 120)}
    parts: list[CountedRows] = []
    for row, count in naive.items():
        counted_rows.insert(parts, 1 << row, count)
    out = [(row, count) for rows, count in counted_rows.in_order(parts) for row in sorted(rows_in(rows))]
    assert out == sorted(naive.items())
    assert not parts
