"""Slots against the numbers of Pulsar's documentation and of a real broker."""

from __future__ import annotations

import random

import mmh3
import numpy as np
import pytest

from pulsar_ray.dispatch.key_shared.sticky_key import (
    SLOTS,
    Slotting,
    murmur3_32_of,
    slot_of,
    slots_of,
)

OBSERVED = {
    # key: slot of the range, slot of the ring
    "0": (49279, 4850),
    "1": (44179, 49322),
    "2": (57879, 58177),
    "3": (41396, 45436),
    "4": (52360, 11707),
    "5": (13796, 35071),
    "6": (31936, 42171),
    "7": (34344, 43539),
    "8": (23, 15786),
    "9": (59041, 2862),
    "Order-3459134": (6067, 20788),
    "NON_KEY": (17380, 34330),
    "hello": (64071, 7892),
    "polygenelubricants": (7776, 24586),
    "é": (1927, 6041),
    "orders": (19593, 49570),
}


def test_the_documented_hash() -> None:
    assert slot_of("Order-3459134", Slotting.RANGE) == 3112179635 % SLOTS
    assert slot_of("orders-aggregator-pod-2345-consumer1", Slotting.RANGE) == 1003084738 % SLOTS
    assert slot_of("NON_KEY", Slotting.RING) == 1110787044 % (SLOTS - 1) + 1


@pytest.mark.parametrize("key", OBSERVED)
def test_a_key_has_a_slot_of_each_kind(key: str) -> None:
    assert (slot_of(key, Slotting.RANGE), slot_of(key, Slotting.RING)) == OBSERVED[key]


def test_many_keys_at_once_have_the_same_slots() -> None:
    keys = [*OBSERVED, *(f"key-{number}" for number in range(1000)), "\udc80"]
    keys += ["", "long " * 13, "longer " * 10, "longest " * 100]
    for slotting in Slotting:
        assert slots_of(keys, slotting).tolist() == [slot_of(key, slotting) for key in keys]


@pytest.mark.parametrize(
    "lengths", [[], [0], [100], [70, 3, 64, 65, 0, 8], range(17), range(17, 65), [5, 33], range(90)]
)
def test_many_hashes_at_once_are_what_they_are_singly(lengths: list[int]) -> None:
    rng = random.Random(1)
    keys = [rng.randbytes(length) for length in lengths]
    data = np.frombuffer(b"".join((b"in front", *keys, b"behind")), np.uint8)
    offsets = np.cumsum([8, *map(len, keys)]).astype(np.int32)
    assert murmur3_32_of(data, offsets).tolist() == [mmh3.hash(key, 0, signed=False) for key in keys]
