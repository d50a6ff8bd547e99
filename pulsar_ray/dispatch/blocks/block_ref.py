"""Where a stored block lies and which entries it holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pulsar_ray.model.row_sets import RowSet, span


class BlockRef(NamedTuple):
    """A block in a segment file.

    It is one entry whose rows are batch indexes, or its rows are entries.

    A dispatcher handles `messages` rows, numbered from 0, whichever it is; only acknowledging tells them
    apart.
    """

    ledger_id: int
    segment_index: int
    offset: int
    length: int
    first_entry_id: int
    entries: int
    messages: int
    row_is_entry: bool
    is_marked: bool = False
    """Whether its header has to be read: it may be delayed or a chunk."""
    chunks: tuple[BlockRef, ...] = ()
    """The chunks before the last one of a message, which this is (ADR 0038)."""
    stored_ms: int = 0
    """The broker's time when the partition began to store it; 0: not known."""

    @property
    def last_entry_id(self) -> int:
        return self.first_entry_id + self.entries - 1

    @property
    def is_batch(self) -> bool:
        """Whether several messages share one entry."""
        return self.messages > 1 and not self.row_is_entry

    @property
    def all_rows(self) -> RowSet:
        return (1 << self.messages) - 1

    def rows_of_entries(self, first: int, last: int) -> RowSet:
        """The rows of entries first..last, as far as they lie in this block."""
        if not self.row_is_entry:
            return self.all_rows
        start = max(first - self.first_entry_id, 0)
        end = min(last - self.first_entry_id + 1, self.messages)
        return span(start, end) if start < end else 0


block_ref: Callable[
    [tuple[int, int, int, int, int, int, int, bool, bool, tuple[BlockRef, ...], int]], BlockRef
] = partial(tuple.__new__, BlockRef)
"""As `BlockRef(*fields)`, without the function that a NamedTuple puts before it."""
