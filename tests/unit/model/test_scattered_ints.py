from __future__ import annotations

import random
import sys
from itertools import pairwise

import pytest

from pulsar_ray.model.position_ranges import ScatteredInts

END = 5000


@pytest.mark.parametrize("seed", range(40))
def test_against_a_plain_set(seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    held, model = ScatteredInts(), set[int]()
    for step in range(60):
        change(rng, held, model)
        assert held.count == len(model)
        if step % 8 == 0:
            check(rng, held, model)


@pytest.mark.parametrize("seed", range(40))
def test_many_pieces_at_once_are_what_they_are_one_by_one(seed: int) -> None:
    """Behind all others, among them, and with and without bits on either side."""
    print("seed", seed)
    rng = random.Random(seed)
    held, model = ScatteredInts(), set[int]()
    for _ in range(6):
        added, numbers = ScatteredInts(), set[int]()
        origin = rng.choice((0, 0, 100_000 * len(model)))
        step = rng.choice((2, 40, 300))
        for _ in range(rng.choice((1, 10, 200))):
            first = origin + rng.randrange(200 * step)
            last = first + rng.choice((0, 0, 1, 30))
            added.add(first, last)
            numbers |= set(range(first, last + 1))
        assert held.add_columns(added.columns()) == len(numbers - model)
        model |= numbers
        assert held.count == len(model)
        listed = list(held)
        assert {number for first, last in listed for number in range(first, last + 1)} == model
        assert all(last + 1 < first for (_, last), (first, _) in pairwise(listed))
        # The set goes on to work.
        for _ in range(20):
            number = rng.choice(listed)[0] + rng.randrange(3)
            assert held.add(number, number) == (number not in model)
            model.add(number)
        check(rng, held, model)


def change(rng: random.Random, held: ScatteredInts, model: set[int]) -> None:
    first = rng.randrange(END)
    if rng.random() < 0.05:
        gone = {number for number in model if number <= first}
        assert held.remove_up_to(first) == len(gone)
        model -= gone
    elif rng.random() < 0.4:
        bits = rng.getrandbits(rng.choice((1, 40, 1100, 2100))) & rng.getrandbits(2100)
        wanted = {first + bit for bit in range(bits.bit_length()) if bits >> bit & 1}
        assert held.add_bits(first, bits) == len(wanted - model)
        model |= wanted
    else:
        last = first + rng.choice((0, 0, 1, 3, 40, 900, 1500, 3000))
        if rng.random() < 0.3:  # whole windows
            first, last = first & ~1023, last | 1023
        wanted = set(range(first, last + 1))
        assert held.add(first, last) == len(wanted - model)
        model |= wanted


def check(rng: random.Random, held: ScatteredInts, model: set[int]) -> None:
    listed = list(held)
    assert {number for first, last in listed for number in range(first, last + 1)} == model
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(listed))
    again = ScatteredInts()
    for first, last, bits in held.pieces():
        assert first <= last
        again.add(first, last) if bits is None else again.add_bits(first, bits)
    assert list(again) == listed
    number = rng.randrange(END)
    end = number
    while end in model:
        end += 1
    assert (number in held) == (number in model)
    assert held.run_end(number) == (end - 1 if number in model else None)
    last = number + rng.randrange(-1, 2000)
    gaps = {gap for start, stop in held.missing(number, last) for gap in range(start, stop + 1)}
    assert gaps == set(range(number, last + 1)) - model


def test_what_becomes_full_is_one_range_again() -> None:
    held = ScatteredInts()
    even = sum(1 << bit for bit in range(0, 8192, 2))
    assert held.add_bits(0, even) == 4096
    assert len(list(held.pieces())) == 8
    assert held.add_bits(1, even) == 4096
    assert list(held.pieces()) == [(0, 8191, None)]


@pytest.mark.parametrize("step", [1, -1])
def test_close_holes_take_little_memory(step: int) -> None:
    held = ScatteredInts()
    for number in range(0, 100_000, 2)[::step]:
        held.add(number, number)
    assert sum(sys.getsizeof(piece.bits) for piece in held.pieces()) < 50_000
    assert len(list(held.pieces())) <= 100
