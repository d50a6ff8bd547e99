"""The slots of stored blocks' rows, from their headers and their key columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pulsar_ray.dispatch.key_shared.sticky_key import (
    NON_KEY,
    Slots,
    Slotting,
    slot_of,
    slots_of_encoded,
    sticky_key,
)
from pulsar_ray.format.block import (
    ARROW,
    ENCRYPTED,
    KEY_COLUMN,
    ORDERING_KEY_COLUMN,
    BlockHeader,
    parse_block_header,
)
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.compression import decompress
from pulsar_ray.numpy_on_demand import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MANY_KEYS = 4096
"""Keys that are hashed together at most.

Of more at once each would cost the same again, or more where they outgrow the processor's caches.
"""
_MANY_BYTES = 256 * 1024


def needs_payload(header: BlockHeader) -> bool:
    """Return whether a block's rows are entries with keys of their own.

    Then its header does not name them all.
    """
    return (
        header.row_is_entry
        and header.payload_format == ARROW
        and bool(header.columns & (KEY_COLUMN | ORDERING_KEY_COLUMN))
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

    @property
    def is_full(self) -> bool:
        """Whether hashing more at once would gain nothing."""
        return self._keys >= _MANY_KEYS or self._bytes >= _MANY_BYTES

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
        self.add_slot(self._slot_in(header))

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

    def _slot_in(self, header: BlockHeader) -> int:
        metadata = header.metadata()
        return slot_of(sticky_key(metadata.ordering_key, metadata.key), self._slotting)

    def take(self) -> list[Slots]:
        """Return the slots of all blocks added since the last call, in order.

        A block whose rows agree has one slot.
        """
        found, self._found = self._found, []
        self._keys = self._bytes = 0
        columns = [column for block in found if isinstance(block, _Rows) for column in block.columns]
        if not columns:
            return [block for block in found if not isinstance(block, _Rows)]
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
