"""Where an entry stands in a managed ledger."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple


class Position(NamedTuple):
    """Ledger and entry id; positions sort in the order of the log."""

    ledger_id: int
    entry_id: int

    def next(self) -> Position:
        """The following entry of the same ledger, whether or not it exists."""
        return Position(self.ledger_id, self.entry_id + 1)


position_of: Callable[[tuple[int, int]], Position] = partial(tuple.__new__, Position)
"""As `Position(*pair)`, without the function that a NamedTuple puts before it."""


def entry_at(first_entry_id: int, row: int) -> int:
    """The entry id of a row that is an entry.

    It is -1 for all rows of a block that was never stored.
    """
    return first_entry_id + row if first_entry_id >= 0 else -1


EARLIEST = Position(-1, -1)
LATEST = Position(2**63 - 1, 2**63 - 1)
DUPLICATE_LEDGER = -2
DUPLICATE = Position(DUPLICATE_LEDGER, DUPLICATE_LEDGER)
"""In receipts: the messages had been stored before, and were left out."""
