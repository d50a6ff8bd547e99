"""The slots of a stored block's rows, from its header and its key columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pulsar_ray.dispatch.sticky_key import NON_KEY, Slots, Slotting, slot_of, slots_of_encoded, sticky_key
from pulsar_ray.format.arrow_payload import KEY_COLUMN, ORDERING_KEY_COLUMN, decode_keys, to_list
from pulsar_ray.format.block import ARROW, ENCRYPTED, BlockHeader
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.compression import decompress


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
    """The slots of rows that are entries; one if they agree. Keys are hashed once each.

    Raises ValueError for a payload that cannot be decoded, InvalidMessage for a header that cannot.
    """
    payload = decompress(header.codec, payload, header.uncompressed_length)
    slots = np.full(header.message_count, slots_of_header(header, slotting), np.uint16)
    columns = decode_keys(payload, header.columns, header.message_count)
    for column in reversed(columns):  # the ordering key comes first, and so it is written last
        has_key, of_keys = _slots_of_column(column, slotting)
        slots = np.where(has_key, of_keys, slots)
    return int(slots[0]) if (slots == slots[0]).all() else slots


def slot_of_unreadable(slotting: Slotting) -> int:
    """Where a block goes that cannot be read: its consumer meets the error, typed."""
    return slot_of(NON_KEY, slotting)


def _slots_of_column(column: Any, slotting: Slotting) -> tuple[NDArray[np.bool_], NDArray[np.uint16]]:
    encoded = column.dictionary_encode()
    keys: list[bytes] = to_list(encoded.dictionary.cast(pa.binary()))
    codes = encoded.indices.fill_null(len(keys)).to_numpy(zero_copy_only=False)
    has_key = np.array([*map(bool, keys), False])
    return has_key[codes], np.append(slots_of_encoded(keys, slotting), np.uint16(0))[codes]
