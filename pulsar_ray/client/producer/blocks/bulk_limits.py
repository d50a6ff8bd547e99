"""The limits of blocks of `send_many` and `send_arrow` at one partition."""

from __future__ import annotations

from typing import NamedTuple

from pulsar_ray.session.requests import ProducerOpened

_ARROW_BYTES = 1024  # an Arrow message around its rows
_ROW_BYTES = 40  # offsets, validity, ids and times of one row in all columns


class BulkLimits(NamedTuple):
    """The most rows and bytes of a block.

    Only a row that is larger by itself is above.
    """

    max_rows: int
    max_bytes: int

    @classmethod
    def of(cls, opened: ProducerOpened) -> BulkLimits:
        """Take the broker's settings, or less if `max_message_size` leaves no room."""
        rows = max(1, min(opened.max_block_rows, opened.max_message_size // 128))
        room = opened.max_message_size - _ARROW_BYTES - _ROW_BYTES * rows
        return cls(rows, max(1, min(opened.max_block_bytes, room)))
