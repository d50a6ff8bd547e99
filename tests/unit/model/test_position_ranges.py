from __future__ import annotations

import random
from itertools import pairwise

import pytest

from pulsar_ray.model.message_id import EARLIEST, LATEST, Position
from pulsar_ray.model.position_ranges import PositionRanges


def ranges(*items: tuple[int, int, int]) -> PositionRanges:
    result = PositionRanges()
    for ledger_id, first, last in items:
        result.add(ledger_id, first, last)
    return result


def test_positions_sort_in_log_order() -> None:
    assert EARLIEST < Position(0, 5) < Position(0, 6) < Position(1, 0) < LATEST
    assert Position(3, 4).next() == Position(3, 5)
    assert EARLIEST.next() == Position(-1, 0)


@pytest.mark.parametrize(
    ("added", "newly_added", "expected"),
    [
        ((1, 20, 22), 3, [(1, 10, 12), (1, 15, 16), (1, 20, 22)]),
        ((1, 13, 14), 2, [(1, 10, 16)]),
        ((1, 13, 13), 1, [(1, 10, 13), (1, 15, 16)]),
        ((1, 14, 14), 1, [(1, 10, 12), (1, 14, 16)]),
        ((1, 11, 12), 0, [(1, 10, 12), (1, 15, 16)]),
        ((1, 0, 30), 26, [(1, 0, 30)]),
        ((1, 12, 15), 2, [(1, 10, 16)]),
        ((0, 5, 5), 1, [(0, 5, 5), (1, 10, 12), (1, 15, 16)]),
    ],
)
def test_added_ranges_melt(
    added: tuple[int, int, int], newly_added: int, expected: list[tuple[int, int, int]]
) -> None:
    held = ranges((1, 10, 12), (1, 15, 16))
    assert held.add(*added) == newly_added
    assert list(held) == expected
    assert (len(held), held.entries) == (len(expected), 5 + newly_added)


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ValueError, match=r"5\.\.4 of ledger 1"):
        PositionRanges().add(1, 5, 4)


def test_what_is_missing() -> None:
    held = ranges((1, 10, 12), (1, 15, 16))
    assert held.missing(1, 9, 20) == [(9, 9), (13, 14), (17, 20)]
    assert held.missing(1, 11, 15) == [(13, 14)]
    assert held.missing(1, 10, 12) == []
    assert held.missing(1, 13, 14) == [(13, 14)]
    assert held.missing(2, 0, 3) == [(0, 3)]
    assert held.missing(2, 3, 0) == held.missing(1, 3, 0) == []


def test_how_far_a_run_goes_on() -> None:
    held = ranges((1, 10, 12))
    assert held.run_end(1, 10) == held.run_end(1, 11) == 12
    assert held.run_end(1, 9) is held.run_end(1, 13) is held.run_end(2, 11) is None


def test_removing_up_to_a_position_includes_it() -> None:
    held = ranges((1, 0, 9), (2, 0, 4), (2, 8, 8), (3, 1, 1))
    assert held.remove_up_to(Position(2, 2)) == 13
    assert list(held) == [(2, 3, 4), (2, 8, 8), (3, 1, 1)]
    assert held.remove_up_to(Position(2, 8)) == 3
    assert list(held) == [(3, 1, 1)]
    assert held.remove_up_to(EARLIEST) == 0
    assert held.remove_up_to(LATEST) == 1
    assert (len(held), held.entries, list(held)) == (0, 0, [])


def test_clear_and_equality() -> None:
    held = ranges((1, 0, 9))
    assert held == ranges((1, 5, 9), (1, 0, 4))
    assert held != ranges((1, 0, 8))
    assert repr(held) == "PositionRanges(1:0-9)"
    held.clear()
    assert held == PositionRanges()
    assert held.entries == 0


@pytest.mark.parametrize("seed", range(20))
def test_against_a_plain_set(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    held, model = PositionRanges(), set[tuple[int, int]]()
    for _ in range(300):
        ledger, first = rng.randrange(3), rng.randrange(60)
        last = min(59, first + rng.choice((0, 0, 0, 1, 3, 15)))
        wanted = {(ledger, entry) for entry in range(first, last + 1)}
        if rng.random() < 0.05:
            gone = {item for item in model if item <= (ledger, first)}
            assert held.remove_up_to(Position(ledger, first)) == len(gone)
            model -= gone
        else:
            missing = {(ledger, e) for a, b in held.missing(ledger, first, last) for e in range(a, b + 1)}
            assert missing == wanted - model
            assert held.add(ledger, first, last) == len(wanted - model)
            model |= wanted
        check(held, model)


def check(held: PositionRanges, model: set[tuple[int, int]]) -> None:
    listed = list(held)
    assert {(ledger, entry) for ledger, a, b in listed for entry in range(a, b + 1)} == model
    assert listed == sorted(listed)
    for (ledger, _, last), (next_ledger, first, _) in pairwise(listed):
        assert ledger < next_ledger or last + 1 < first
    assert (len(held), held.entries) == (len(listed), len(model))
    for ledger in range(3):
        for entry in range(60):
            assert held.contains(ledger, entry) == ((ledger, entry) in model)


def test_bits_at_once_are_what_they_are_one_by_one() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        one_by_one, at_once = PositionRanges(), PositionRanges()
        for _ in range(30):
            origin, bits = rng.randrange(1500), rng.getrandbits(rng.choice((1, 40, 1100)))
            entries = [origin + bit for bit in range(bits.bit_length()) if bits >> bit & 1]
            added = sum(one_by_one.add(3, entry, entry) for entry in entries)
            assert at_once.add_bits(3, origin, bits) == added, f"seed {seed}"
            assert at_once == one_by_one, f"seed {seed}"
            assert (len(at_once), at_once.entries) == (len(one_by_one), one_by_one.entries)
            limit = Position(3, rng.randrange(1000))
            assert at_once.remove_up_to(limit) == one_by_one.remove_up_to(limit)
