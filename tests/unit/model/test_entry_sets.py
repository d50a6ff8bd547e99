"""Entries as ranges and bits against Python's sets."""

from __future__ import annotations

import random

import pytest

from pulsar_ray.model.row_sets import MAX_ENTRIES, EntrySet, entry_set, ranges_in


def entries_of(found: EntrySet) -> list[tuple[int, int]]:
    ranges = [*found.ranges, *(part for bits in found.bits for part in ranges_in(bits))]
    return [(ledger, entry) for ledger, first, last in ranges for entry in range(first, last + 1)]


@pytest.mark.parametrize("seed", range(40))
def test_entry_sets_agree_with_sets(seed: int) -> None:
    rng = random.Random(seed)
    reach = rng.choice([20, 1000, 50_000])
    flat: list[int] = []
    for _ in range(rng.randrange(400)):
        first = rng.randrange(reach)
        flat += (rng.choice([7, 7, 9]), first, first + rng.choice([0, 0, 1, 5, 2 * MAX_ENTRIES]) % reach)
    expected = {(flat[i], e) for i in range(0, len(flat), 3) for e in range(flat[i + 1], flat[i + 2] + 1)}
    found = entry_set(flat)
    said = entries_of(found)
    assert len(said) == len(set(said))
    assert set(said) == expected
    assert found.ranges == sorted(found.ranges)
    assert list(found.bits) == sorted(found.bits)
    assert all(len(data) <= MAX_ENTRIES // 8 for _, _, data in found.bits)


def test_a_few_ranges_stay_ranges_and_scattered_entries_become_bits() -> None:
    assert entry_set([]) == EntrySet([], ())
    assert entry_set([3, 5, 9]) == EntrySet([(3, 5, 9)], ())
    assert entry_set([3, 5, 9, 3, 10, 12, 3, 20, 20]) == EntrySet([(3, 5, 12), (3, 20, 20)], ())
    every_other = [number for entry in range(100, 200, 2) for number in (3, entry, entry)]
    assert entry_set(every_other) == EntrySet([], ((3, 100, b"\x55" * 12 + b"\x05"),))
