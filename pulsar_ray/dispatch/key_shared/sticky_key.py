"""Which slot a key has: what Key_Shared divides among consumers (ADR 0011).

The sticky key of an entry is its first message's ordering key, else its key, else NON_KEY; an empty one is
none. Hash ranges and declared ranges have slots 0..65535, the ring has 1..65535.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import mmh3

from pulsar_ray.format.block import (
    ARROW,
    ENCRYPTED,
    KEY_COLUMN,
    ORDERING_KEY_COLUMN,
    ROW_IS_ENTRY,
    BlockHeader,
    parse_block_header,
)
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.compression import decompress
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


def slot_of(key: str, slotting: Slotting) -> int:
    """The slot of a sticky key.

    By Murmur3 x86 32 bits, seed 0, over UTF-8, unsigned.
    """
    digest = mmh3.hash(key.encode("utf-8", "surrogatepass"), 0, signed=False)
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


_MANY_KEYS = 4096
"""Keys that are hashed together at most.

Of more at once each would cost the same again, or more where they outgrow the processor's caches.
"""
_MANY_BYTES = 256 * 1024


def needs_payload(header: BlockHeader) -> bool:
    """Return whether a block's rows are entries with keys of their own.

    Then its header does not name them all.
    """
    return bool(
        header.flags & ROW_IS_ENTRY
        and header.payload_format == ARROW
        and header.columns & (KEY_COLUMN | ORDERING_KEY_COLUMN)
        and not header.flags & ENCRYPTED
    )


class _Keys(NamedTuple):
    """One column of keys, in memory of its own: `data[offsets[i]:offsets[i + 1]]` each."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int32]
    has_key: NDArray[np.bool_] | None
    """None: every row has."""


class _Rows(NamedTuple):
    """A block whose slots are still to be found."""

    keyless: int
    """The slot of rows without a key."""
    columns: list[_Keys]
    """The first of them that a row has counts."""


class SlotsOfBlocks:
    """Finds the slots of blocks one after the other, hashing several blocks' keys together.

    That costs a quarter of hashing blocks of a thousand keys one by one, and less with smaller ones. Ask
    `is_full` after each: keys are copied.
    """

    def __init__(self, slotting: Slotting) -> None:
        self._slotting = slotting
        self._found: list[Slots | _Rows] = []
        self._keys = 0
        self._bytes = 0
        self.is_full = False
        """Whether hashing more at once would gain nothing."""

    def add_slot(self, slot: int) -> None:
        """The next block is known to have this one."""
        self._found.append(slot)

    def add_block(self, block: memoryview) -> None:
        """The next block, whole; its checksum is not verified.

        Raises CorruptData or UnsupportedFormatVersion for its header, and what the following raise; then
        nothing was added.
        """
        header = parse_block_header(block)
        if needs_payload(header):
            self.add_rows(header, block[header.header_length :][: header.payload_length])
        else:
            self.add_header(header)

    def add_header(self, header: BlockHeader) -> None:
        """Add a block by its header: it has the key of its first message.

        Raises InvalidMessage; then nothing was added.
        """
        self._found.append(self._slot_in(header))

    def add_unreadable(self) -> None:
        """The next block cannot be read: it goes to one consumer, which meets the error."""
        self.add_slot(slot_of(NON_KEY, self._slotting))

    def add_rows(self, header: BlockHeader, payload: Buffer) -> None:
        """The next block has rows that are entries.

        Raises ValueError for a payload that cannot be decoded, InvalidMessage for a header that cannot; then
        nothing was added.
        """
        # Arrow is big, and most dispatchers never decode a block.
        from pulsar_ray.format.key_columns import decode_keys  # noqa: PLC0415

        payload = decompress(header.codec, payload, header.uncompressed_length)
        self.add_keys(header, decode_keys(payload, header.columns, header.message_count))

    def add_keys(self, header: BlockHeader, arrays: Sequence[Any]) -> None:
        """The same, of the columns ordering_key and key themselves, as far as there are such."""
        columns = [_keys_of(array) for array in arrays]
        has_keyless = all(column.has_key is not None for column in columns)
        keyless = self._slot_in(header) if has_keyless else 0
        self._found.append(_Rows(keyless, columns))
        for column in columns:
            self._keys += header.message_count
            self._bytes += len(column.data)
        self.is_full = self._keys >= _MANY_KEYS or self._bytes >= _MANY_BYTES

    def _slot_in(self, header: BlockHeader) -> int:
        metadata = header.metadata()
        return slot_of(metadata.ordering_key or metadata.key or NON_KEY, self._slotting)

    def take(self) -> list[Slots]:
        """Return the slots of all blocks added since the last call, in order.

        A block whose rows agree has one slot.
        """
        found, self._found = self._found, []
        if not self._keys:
            return cast("list[Slots]", found)  # none has rows with keys of their own
        self._keys = self._bytes = 0
        self.is_full = False
        columns = [column for block in found if isinstance(block, _Rows) for column in block.columns]
        hashed = iter(_slots_of_columns(columns, self._slotting))
        return [
            _combined(block, [next(hashed) for _ in block.columns]) if isinstance(block, _Rows) else block
            for block in found
        ]


def _keys_of(column: Any) -> _Keys:
    _, offset_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(b"" if data_buffer is None else data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    has_key = offsets[1:] > offsets[:-1]
    if column.null_count:
        has_key &= column.is_valid().to_numpy(zero_copy_only=False)
    return _Keys(data.copy(), offsets - offsets[0], None if has_key.all() else has_key)


def _slots_of_columns(columns: list[_Keys], slotting: Slotting) -> list[NDArray[np.uint16]]:
    """The slots of the rows of each, keyless ones too."""
    if len(columns) == 1:
        return [slots_of_encoded(columns[0].data, columns[0].offsets, slotting)]
    offsets, at = [columns[0].offsets[:1]], 0
    for column in columns:
        offsets.append(column.offsets[1:] + np.int32(at))
        at += len(column.data)
    slots = slots_of_encoded(
        np.concatenate([column.data for column in columns]), np.concatenate(offsets), slotting
    )
    found, start = [], 0
    for column in columns:
        end = start + len(column.offsets) - 1
        found.append(slots[start:end].copy())  # its block may stay much longer than the others
        start = end
    return found


def _combined(block: _Rows, hashed: list[NDArray[np.uint16]]) -> Slots:
    slots: NDArray[np.uint16] | None = None
    for column, of_keys in zip(reversed(block.columns), reversed(hashed), strict=True):
        if column.has_key is None:
            slots = of_keys
        else:
            slots = np.where(column.has_key, of_keys, np.uint16(block.keyless) if slots is None else slots)
    assert slots is not None
    first = slots[0]
    return int(first) if slots[-1] == first and (slots == first).all() else slots
