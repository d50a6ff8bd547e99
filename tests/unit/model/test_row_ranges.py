from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.model.row_ranges import (
    NO_ROWS,
    RowRanges,
    all_rows,
    contains,
    count,
    intersect,
    subtract,
    union,
)

pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)
row_ranges = pairs.map(lambda items: union(NO_ROWS, items))


def rows_of(ranges: RowRanges) -> set[int]:
    rows = {row for start, end in ranges for row in range(start, end)}
    assert count(ranges) == len(rows)
    for (_, end), (start, _) in pairwise(ranges):
        assert end < start
    assert all(start < end for start, end in ranges)
    return rows


def test_all_rows() -> None:
    assert all_rows(3) == ((0, 3),)
    assert all_rows(0) == NO_ROWS


def test_examples() -> None:
    assert subtract(((0, 5),), ((1, 2), (3, 4))) == ((0, 1), (2, 3), (4, 5))
    assert intersect(((0, 5), (8, 9)), ((4, 9),)) == ((4, 5), (8, 9))
    assert union(((0, 1),), ((3, 4), (1, 2))) == ((0, 2), (3, 4))
    assert contains(((0, 1), (3, 4)), 3)
    assert not contains(((0, 1), (3, 4)), 1)


@given(pairs)
def test_union_brings_any_ranges_into_form(items: list[tuple[int, int]]) -> None:
    assert rows_of(union(NO_ROWS, items)) == {row for start, end in items for row in range(start, end)}


@given(row_ranges, row_ranges)
def test_operations_are_those_of_sets(a: RowRanges, b: RowRanges) -> None:
    assert rows_of(union(a, b)) == rows_of(a) | rows_of(b)
    assert rows_of(intersect(a, b)) == rows_of(a) & rows_of(b)
    assert rows_of(subtract(a, b)) == rows_of(a) - rows_of(b)
    assert {row for row in range(31) if contains(a, row)} == rows_of(a)
