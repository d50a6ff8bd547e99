"""Find the keys of a payload's rows without reading the values.

The values may be a thousand times as large.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pulsar_ray.format.arrow_message import BatchMessage, Strings
from pulsar_ray.format.block import KEY_COLUMN, ORDERING_KEY_COLUMN
from pulsar_ray.format.checksum import Buffer


def key_places(beginning: Buffer, payload_length: int, columns: int, message_count: int) -> list[Strings]:
    """Where the columns ordering_key and key stand, in this order.

    A payload may lack one or both.

    `beginning` is that of the payload, as far as its metadata goes. Raises ValueError, MetadataCutOff if it
    does not go so far.
    """
    message = BatchMessage(beginning, payload_length, columns)
    places = [
        message.strings((columns & (bit - 1)).bit_count())
        for bit in (ORDERING_KEY_COLUMN, KEY_COLUMN)
        if columns & bit
    ]
    for place in places:
        if place.rows != message_count:
            raise ValueError(f"the batch has {place.rows} rows instead of {message_count}")
    return places


def extent(places: Sequence[Strings]) -> tuple[int, int]:
    """Start and end of the part of the payload that the columns are in."""
    buffers = [buffer for place in places for buffer in (place.validity, place.offsets, place.data)]
    return min(start for start, _ in buffers), max(end for _, end in buffers)


def keys_at(places: Sequence[Strings], part: Buffer, start: int) -> list[pa.Array]:
    """The columns, out of a part of the payload that begins at `start`.

    Validated down to each offset and character: safe to use while the part's memory does not change. Raises
    ValueError.
    """
    memory = pa.py_buffer(part)
    columns = []
    for place in places:
        validity, offsets, data = (
            memory.slice(first - start, end - first)
            for first, end in (place.validity, place.offsets, place.data)
        )
        column = pa.Array.from_buffers(
            pa.utf8(), place.rows, [validity if place.nulls else None, offsets, data], place.nulls
        )
        try:
            column.validate(full=True)
        except pa.ArrowException as error:
            raise ValueError(f"bad Arrow: {error}") from None
        columns.append(column)
    return columns


def decode_keys(payload: Buffer, columns: int, message_count: int) -> list[pa.Array]:
    """Read the columns ordering_key and key, in this order.

    A payload may lack one or both. Raises ValueError.
    """
    return keys_at(key_places(payload, len(payload), columns, message_count), payload, 0)
