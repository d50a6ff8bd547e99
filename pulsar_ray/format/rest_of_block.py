"""Cuts off the front of a block, of which the messages are stored already."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from pulsar_ray.format.arrow_payload import encode_table
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.payload import decode_block, encode_batch

_TIME_BYTES = 8
"""Of a delivery time."""


class RestOfBlock(NamedTuple):
    """The rest of a block, and how much of its front was cut off."""

    buffers: list[Buffer]
    dropped_messages: int
    dropped_entries: int


def rest_of_block(buffers: Sequence[Buffer], stored_id: int) -> RestOfBlock:
    """Encode a batch again without the messages up to a sequence id.

    One message at least is left.     Its sequence ids rise. The entries that are left keep their numbers.
    """
    decoded = decode_block(b"".join(buffers))
    header = decoded.header
    ids = decoded.sequence_ids()
    dropped = min(bisect_right(ids, stored_id), len(ids) - 1)
    if not dropped:
        return RestOfBlock(list(buffers), 0, 0)
    payload, columns = encode_table(decoded.stored_rows().slice(dropped))
    keys, ordering_keys = decoded.keys(), decoded.ordering_keys()
    metadata = decoded.metadata
    if not header.row_is_entry:
        # A batch has those of its first message in its header.
        metadata = metadata._replace(
            key=keys[dropped] if keys else None,
            ordering_key=ordering_keys[dropped] if ordering_keys else None,
        )
    if metadata.delivery_times is not None:
        metadata = metadata._replace(delivery_times=metadata.delivery_times[dropped * _TIME_BYTES :])
    entries = dropped if header.row_is_entry else 0
    rest = encode_batch(
        payload,
        columns,
        message_count=len(ids) - dropped,
        incarnation=header.incarnation,
        entry_seq=header.entry_seq + entries,
        first_sequence_id=ids[dropped],
        last_sequence_id=ids[-1],
        publish_time_ms=header.publish_time_ms,
        row_is_entry=header.row_is_entry,
        codec=header.codec,
        metadata=metadata,
    )
    return RestOfBlock(rest, dropped, entries)
