"""Which slot a key has: what Key_Shared divides among consumers (ADR 0011).

The sticky key of an entry is its first message's ordering key, else its key, else NON_KEY; an empty one is
none. Hash ranges and declared ranges have slots 0..65535, the ring has 1..65535.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import mmh3

from pulsar_ray.numpy_on_demand import np

if TYPE_CHECKING:
    from numpy.typing import NDArray


_SHORT = 16
_LONGEST = 64
"""Keys are hashed together up to this many bytes; longer ones singly."""
_Numbers: TypeAlias = "NDArray[np.uint32]"


class _Constants(NamedTuple):
    """Arrays without dimensions, which numpy takes faster than scalars, and masks by length."""

    c1: _Numbers
    c2: _Numbers
    five: _Numbers
    added: _Numbers
    f1: _Numbers
    f2: _Numbers
    masks: _Numbers


@cache
def _constants() -> _Constants:
    numbers = (0xCC9E2D51, 0x1B873593, 5, 0xE6546B64, 0x85EBCA6B, 0xC2B2AE35)
    c1, c2, five, added, f1, f2 = (np.array(number, np.uint32) for number in numbers)
    return _Constants(c1, c2, five, added, f1, f2, np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32))


@cache
def _bits(count: int) -> _Numbers:
    return np.array(count, np.uint32)


def murmur3_32_of(data: NDArray[np.uint8], offsets: NDArray[np.int32]) -> _Numbers:
    """Murmur3 x86 32 bits, seed 0, unsigned, of `data[offsets[i]:offsets[i + 1]]` for each i.

    Costs a few operations on whole columns for each four bytes of a key: of the longest one up to 16 bytes,
    and of the longest one up to 64, where there are such.
    """
    starts, lengths = offsets[:-1], offsets[1:] - offsets[:-1]
    if not len(lengths):
        return np.empty(0, np.uint32)
    shortest, longest = int(lengths.min()), int(lengths.max())
    if longest <= _SHORT or (longest <= _LONGEST and shortest > _SHORT):
        return _together(data, starts, lengths, shortest >> 2, longest >> 2)
    digests = np.empty(len(lengths), np.uint32)
    is_short = lengths <= _SHORT
    for group, most in ((is_short, _SHORT >> 2), (~is_short & (lengths <= _LONGEST), _LONGEST >> 2)):
        if group.any():
            digests[group] = _together(data, starts[group], lengths[group], 0, most)
    for i in np.flatnonzero(lengths > _LONGEST).tolist():
        digests[i] = mmh3.hash(data[offsets[i] : offsets[i + 1]].tobytes(), 0, signed=False)
    return digests


def _together(
    data: NDArray[np.uint8], starts: NDArray[np.int32], lengths: NDArray[np.int32], fewest: int, most: int
) -> _Numbers:
    """Each key has at least `fewest` whole words, and at most `most`."""
    words, constants = _words(data), _constants()
    whole = lengths >> 2
    state = np.zeros(len(lengths), np.uint32)
    spare, word = np.empty_like(state), np.empty_like(state)
    places = starts.astype(np.intp)
    for number in range(most):
        words.take(places, out=word, mode="clip")  # keys without this word may end with the data
        places += 4
        _mix(word, spare)
        mixed = state if number < fewest else word
        np.bitwise_xor(state, word, out=mixed)
        _rotate(mixed, 13, spare)
        mixed *= constants.five
        mixed += constants.added
        if mixed is word:
            np.copyto(state, word, where=whole > number)
    tails = words.take(starts + (whole << 2))
    tails &= constants.masks.take(lengths & 3)
    _mix(tails, spare)
    state ^= tails
    state ^= lengths.view(np.uint32)
    _finish(state, spare)
    return state


def _words(data: NDArray[np.uint8]) -> _Numbers:
    """The four bytes from each place on; behind the end there are zeros."""
    padded = np.zeros(len(data) + 4, np.uint8)
    padded[: len(data)] = data
    return np.ndarray((len(data) + 1,), np.dtype("<u4"), padded, strides=(1,)).astype(np.uint32)


def _mix(words: _Numbers, spare: _Numbers) -> None:
    constants = _constants()
    words *= constants.c1
    _rotate(words, 15, spare)
    words *= constants.c2


def _rotate(words: _Numbers, by: int, spare: _Numbers) -> None:
    np.right_shift(words, _bits(32 - by), out=spare)
    words <<= _bits(by)
    words |= spare


def _finish(state: _Numbers, spare: _Numbers) -> None:
    constants = _constants()
    for shift, factor in ((16, constants.f1), (13, constants.f2), (16, None)):
        np.right_shift(state, _bits(shift), out=spare)
        state ^= spare
        if factor is not None:
            state *= factor


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
