"""Which slot a key has: what Key_Shared divides among consumers (ADR 0011).

The sticky key of an entry is its first message's ordering key, else its key, else NON_KEY; an empty one is
none. Hash ranges and declared ranges have slots 0..65535, the ring has 1..65535.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import mmh3

from pulsar_ray.dispatch.key_shared.key_hashes import murmur3_32_of
from pulsar_ray.numpy_on_demand import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NON_KEY = "NON_KEY"
"""Stands for the key of messages without one: all of them have one owner."""
SLOTS = 65_536

Slots: TypeAlias = "int | NDArray[np.uint16]"
"""The slots of a block: one for all of its rows, or one for each."""


class Slotting(Enum):
    """How a hash becomes a slot; slots of different ones must not be mixed."""

    RANGE = "range"
    RING = "ring"


def sticky_key(ordering_key: str | None, key: str | None) -> str:
    """The key that decides who gets a message."""
    return ordering_key or key or NON_KEY


def murmur3_32(key: str) -> int:
    """Murmur3 x86 32 bits, seed 0, over UTF-8, unsigned."""
    return mmh3.hash(key.encode("utf-8", "surrogatepass"), 0, signed=False)


def slot_of(key: str, slotting: Slotting) -> int:
    """The slot of a sticky key."""
    digest = murmur3_32(key)
    if slotting is Slotting.RANGE:
        return digest % SLOTS
    return (digest & 0x7FFFFFFF) % (SLOTS - 1) + 1


def slots_of(keys: Iterable[str], slotting: Slotting) -> NDArray[np.uint16]:
    """The slots of many sticky keys."""
    encoded = [key.encode("utf-8", "surrogatepass") for key in keys]
    offsets = np.fromiter(accumulate(map(len, encoded), initial=0), np.int32, len(encoded) + 1)
    return slots_of_encoded(np.frombuffer(b"".join(encoded), np.uint8), offsets, slotting)


def slots_of_encoded(
    data: NDArray[np.uint8], offsets: NDArray[np.int32], slotting: Slotting
) -> NDArray[np.uint16]:
    """The slots of many sticky keys that are UTF-8 already: `data[offsets[i]:offsets[i + 1]]` each."""
    digests = murmur3_32_of(data, offsets)
    if slotting is Slotting.RANGE:
        return digests.astype(np.uint16)  # the lower 16 bits
    return ((digests & 0x7FFFFFFF) % (SLOTS - 1) + 1).astype(np.uint16)
