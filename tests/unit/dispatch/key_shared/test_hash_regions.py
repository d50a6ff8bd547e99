"""The figures of Pulsar's Key_Shared chapter, and what a real broker showed for the ring."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from pulsar_ray.dispatch.key_shared.hash_regions import (
    AutoSplitRanges,
    HashRegions,
    HashRing,
    KeySharedSpec,
    StickyRanges,
    key_shared_spec,
)
from pulsar_ray.dispatch.key_shared.sticky_key import SLOTS, slot_of
from pulsar_ray.errors import ConsumerAssignError
from pulsar_ray.model.enums import KeySharedMode

SPEC = KeySharedSpec()


def add(regions: HashRegions, *consumers: int) -> None:
    for incarnation in consumers:
        regions.add(incarnation, f"c{incarnation}", SPEC)


def halves(regions: HashRegions) -> dict[int, tuple[int, int]]:
    """Half-open regions, as the figures draw them."""
    return {owner: (first, last + 1) for first, last, owner in regions.regions()}


def arrays(regions: HashRegions, incarnation: int) -> list[list[int]]:
    """`keyHashRangeArrays` of a consumer."""
    return [[first, last] for first, last, owner in regions.regions() if owner == incarnation]


def sticky(*ranges: tuple[int, int]) -> KeySharedSpec:
    return KeySharedSpec(KeySharedMode.Sticky, sticky_ranges=ranges)


def owner_of(regions: HashRegions, key: str) -> int:
    slot = slot_of(key, regions.slotting)
    return next(owner for first, last, owner in regions.regions() if first <= slot <= last)


def test_ranges_split_and_merge_as_in_the_figures() -> None:
    ranges = AutoSplitRanges()
    add(ranges, 1)
    assert halves(ranges) == {1: (0, 65536)}
    add(ranges, 2)
    assert halves(ranges) == {2: (0, 32768), 1: (32768, 65536)}
    add(ranges, 3)
    assert halves(ranges) == {3: (0, 16384), 2: (16384, 32768), 1: (32768, 65536)}
    add(ranges, 4)
    assert halves(ranges) == {3: (0, 16384), 2: (16384, 32768), 4: (32768, 49152), 1: (49152, 65536)}
    assert owner_of(ranges, "Order-3459134") == 3
    ranges.remove(4)
    assert halves(ranges)[1] == (32768, 65536)
    ranges.remove(1)
    assert halves(ranges) == {3: (0, 16384), 2: (16384, 65536)}
    ranges.remove(3)
    ranges.remove(2)
    assert halves(ranges) == {}


def test_of_equal_regions_the_lowest_is_split() -> None:
    ranges = AutoSplitRanges()
    add(ranges, 1, 2, 3, 4, 5)
    assert halves(ranges)[5] == (0, 8192)
    assert halves(ranges)[3] == (8192, 16384)


def test_there_is_a_region_for_each_slot_and_no_more() -> None:
    ranges = AutoSplitRanges()
    ranges._ends = [(slot + 1, slot) for slot in range(SLOTS)]
    with pytest.raises(ConsumerAssignError, match="gets no keys"):
        add(ranges, SLOTS)


def test_the_ring_gives_the_documented_stats() -> None:
    ring = HashRing(10)
    add(ring, 1)
    assert arrays(ring, 1) == [[1, 65535]]
    add(ring, 2)
    assert arrays(ring, 1) == [[2960, 5968], [22258, 43033], [49261, 54464], [55155, 61273]]
    assert arrays(ring, 2) == [[1, 2959], [5969, 22257], [43034, 49260], [54465, 55154], [61274, 65535]]
    moved = [key for key in "0123456789" if owner_of(ring, key) == 2]
    assert moved == ["3", "4", "7", "8", "9"]
    assert sorted(slot_of(key, ring.slotting) for key in moved) == [2862, 11707, 15786, 43539, 45436]


def test_consumers_of_one_name_have_points_of_their_own() -> None:
    ring = HashRing(100)
    for incarnation in (1, 2, 3):
        ring.add(incarnation, "same", SPEC)
    shares = [sum(b - a + 1 for a, b in arrays(ring, incarnation)) for incarnation in (1, 2, 3)]
    assert sum(shares) == SLOTS - 1
    assert min(shares) > SLOTS // 6
    before = ring.regions()
    ring.remove(2)
    ring.add(4, "same", SPEC)  # takes the index that became free
    assert [r._replace(incarnation=2) if r.incarnation == 4 else r for r in ring.regions()] == before


def test_colliding_points_are_first_come_first_served() -> None:
    ring = HashRing(10)
    add(ring, 1, 2)
    slot = ring._points.keys()[0]
    first = ring._points[slot][0]
    ring._points[slot].append(3 - first)
    assert next(r for r in ring.regions() if r.first <= slot <= r.last).incarnation == first
    ring._points[slot].remove(first)
    assert next(r for r in ring.regions() if r.first <= slot <= r.last).incarnation == 3 - first


def test_declared_ranges_may_leave_gaps() -> None:
    ranges = StickyRanges()
    ranges.add(1, "c1", sticky((20001, 65535), (0, 9)))
    ranges.add(2, "c2", sticky((10, 20000)))
    assert arrays(ranges, 1) == [[0, 9], [20001, 65535]]
    ranges.remove(2)
    assert arrays(ranges, 2) == []
    ranges.add(3, "c3", sticky((10, 10)))
    assert arrays(ranges, 3) == [[10, 10]]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (sticky(), "declares no ranges"),
        (sticky((5, 4)), r"\[5, 4\]"),
        (sticky((0, 65536)), r"\[0, 65536\]"),
        (sticky((-1, 5)), r"\[-1, 5\]"),
        (sticky((0, 10), (10, 20)), "overlap"),
        (sticky((0, 99), (400, 500)), r"overlaps \[400, 499\] of 'c1'"),
    ],
)
def test_wrong_ranges_are_refused_and_change_nothing(spec: KeySharedSpec, told: str) -> None:
    ranges = StickyRanges()
    ranges.add(1, "c1", sticky((400, 499)))
    with pytest.raises(ConsumerAssignError, match=told):
        ranges.add(2, "c2", spec)
    assert halves(ranges) == {1: (400, 500)}


def owner_table(regions: HashRegions) -> NDArray[np.int64]:
    table = np.full(SLOTS, -1)
    for first, last, owner in regions.regions():
        assert (table[first : last + 1] == -1).all()
        table[first : last + 1] = owner
    return table


@pytest.mark.parametrize("kind", ["range", "ring"])
def test_all_slots_have_one_owner_and_only_the_needed_ones_move(kind: str) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        regions: HashRegions = AutoSplitRanges() if kind == "range" else HashRing(rng.choice([1, 10, 50]))
        lowest = 0 if kind == "range" else 1
        present: list[int] = []
        before = owner_table(regions)
        for incarnation in range(30):
            gone = -1
            if present and rng.random() < 0.45:
                gone = rng.choice(present)
                present.remove(gone)
                regions.remove(gone)
            else:
                present.append(incarnation)
                add(regions, incarnation)
            table = owner_table(regions)
            assert set(np.unique(table[lowest:])) <= {*present, *([] if present else [-1])}, f"seed {seed}"
            moved = (before != table) & (before != -1)
            assert ((before == gone) | (table == incarnation))[moved].all(), f"seed {seed}"
            before = table


def test_what_a_client_says_of_its_policy_is_checked() -> None:
    assert key_shared_spec(None) == KeySharedSpec()
    assert key_shared_spec([1, True, [[0, 5], [6, 9]]]) == KeySharedSpec(
        KeySharedMode.Sticky, allow_out_of_order_delivery=True, sticky_ranges=((0, 5), (6, 9))
    )
    for told in (
        5,
        [1],
        [7, False, []],
        [1, False, [[1]]],
        [1, False, [["a", "b"]]],
        [1, False, 3],
        {"a": 1},
    ):
        with pytest.raises(ConsumerAssignError):
            key_shared_spec(told)
