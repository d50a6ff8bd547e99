"""The slots of a stored block's rows, from its header and its key columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pulsar_ray.dispatch.sticky_key import NON_KEY, Slots, Slotting, slot_of, slots_of_encoded, sticky_key
from pulsar_ray.format.block import ARROW, ENCRYPTED, BlockHeader
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.columns import KEY_COLUMN, ORDERING_KEY_COLUMN
from pulsar_ray.format.compression import decompress
from pulsar_ray.numpy_on_demand import np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def needs_payload(header: BlockHeader) -> bool:
    """Whether the block's header does not say all: its rows are entries with keys of their own."""
    return (
        header.row_is_entry
        and header.payload_format == ARROW
        and bool(header.columns & (KEY_COLUMN | ORDERING_KEY_COLUMN))
        and not header.flags & ENCRYPTED
    )


def slots_of_header(header: BlockHeader, slotting: Slotting) -> int:
    """The slot of an entry: its first message's ordering key, else its key. Raises InvalidMessage."""
    metadata = header.metadata()
    return slot_of(sticky_key(metadata.ordering_key, metadata.key), slotting)


def slots_of_rows(header: BlockHeader, payload: Buffer, slotting: Slotting) -> Slots:
    """The slots of rows that are entries; one if they agree.

    Raises ValueError for a payload that cannot be decoded, InvalidMessage for a header that cannot.
    """
    # Arrow is big, and most dispatchers never decode a block.
    from pulsar_ray.format.arrow_payload import decode_keys  # noqa: PLC0415

    payload = decompress(header.codec, payload, header.uncompressed_length)
    slots = np.full(header.message_count, slots_of_header(header, slotting), np.uint16)
    columns = decode_keys(payload, header.columns, header.message_count)
    for column in reversed(columns):  # the ordering key comes first, and so it is written last
        has_key, of_keys = _slots_of_column(column, slotting)
        slots = of_keys if has_key.all() else np.where(has_key, of_keys, slots)
    first = slots[0]
    return int(first) if slots[-1] == first and (slots == first).all() else slots


def slot_of_unreadable(slotting: Slotting) -> int:
    """Where a block goes that cannot be read: its consumer meets the error, typed."""
    return slot_of(NON_KEY, slotting)


def _slots_of_column(column: Any, slotting: Slotting) -> tuple[NDArray[np.bool_], NDArray[np.uint16]]:
    _, offset_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(b"" if data_buffer is None else data_buffer, np.uint8)[: offsets[-1]]
    has_key = offsets[1:] > offsets[:-1]
    if column.null_count:
        has_key &= column.is_valid().to_numpy(zero_copy_only=False)
    return has_key, slots_of_encoded(data, offsets, slotting)
