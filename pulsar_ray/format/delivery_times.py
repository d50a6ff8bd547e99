"""When the rows of a delayed block are due (ADR 0035).

One time for all rows stands in the field `deliver_at`, several in `delivery_times`: an i64 for each row, in
ms since 1970, little-endian, 0 for a row that is not delayed. Both stand in the block's header, so that a
dispatcher reads them without its payload.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any, TypeAlias

from pulsar_ray.errors import InvalidMessage, NotAllowedError
from pulsar_ray.format.block import DELAYED, BlockHeader

DeliveryTimes: TypeAlias = "int | array[int]"
"""When a block's rows are due, in ms since 1970: all at once, or each."""


def encode_times(times: Sequence[int | None]) -> bytes:
    """Encode a time for each row, None for one that is not delayed.

    Raises ValueError for a time that is out of range.
    """
    try:
        # A search costs less than a list of all of them, which are many.
        given: Any = times if None not in times else [time or 0 for time in times]
        column = array("q", given)
    except OverflowError as error:
        raise ValueError(f"deliver_at: {error}") from None
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def check_delay(deliver_at: int, now_ms: int, max_delay_ms: int) -> None:
    """Raise NotAllowedError for a message that is to be delivered later than its topic allows."""
    if deliver_at - now_ms > max_delay_ms:
        raise NotAllowedError(
            f"a delay of {deliver_at - now_ms} ms exceeds the {max_delay_ms} ms of the topic's policy "
            "delayed_delivery: give less, or raise its max_delivery_delay_in_millis"
        )


def delivery_times(header: BlockHeader) -> DeliveryTimes | None:
    """When the rows of a block are due; None if they are not delayed.

    Raises InvalidMessage for a header that its producer made wrongly.
    """
    if not header.flags & DELAYED:
        return None
    metadata = header.metadata()
    if metadata.delivery_times is None:
        return metadata.deliver_at
    column = array("q")
    column.frombytes(metadata.delivery_times)
    if sys.byteorder == "big":
        column.byteswap()
    if len(column) != header.message_count:
        raise InvalidMessage(
            f"block {header.entry_seq} of incarnation {header.incarnation:#x}: {len(column)} delivery times "
            f"for {header.message_count} messages"
        )
    return column
