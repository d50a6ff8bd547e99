"""Finding undelivered messages in stored blocks, without moving anything. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.managed_ledger.cursor.managed_cursor import ManagedCursor
from pulsar_ray.model import row_ranges
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.row_ranges import RowRanges


class Peeked(NamedTuple):
    """Unacknowledged rows of a block, and the redelivery count of the first one."""

    block: BlockRef
    rows: RowRanges
    redelivery_count: int


def unacknowledged_rows(cursor: ManagedCursor, block: BlockRef) -> RowRanges:
    """The rows of a block that are not acknowledged durably."""
    first = block.first_entry_id
    if not block.is_batch:
        gaps = cursor.missing(block.ledger_id, first, block.last_entry_id)
        return tuple((a - first, b - first + 1) for a, b in gaps)
    position = Position(block.ledger_id, first)
    if cursor.is_acknowledged(position):
        return ()
    return row_ranges.subtract(row_ranges.all_rows(block.messages), cursor.durable_rows(position))


def peek(cursor: ManagedCursor, blocks: Iterable[BlockRef], messages: int) -> list[Peeked]:
    """Return the first so many unacknowledged messages of these blocks.

    Blocks without any are left out.
    """
    found: list[Peeked] = []
    for block in blocks:
        if messages <= 0:
            break
        rows = _first(unacknowledged_rows(cursor, block), messages)
        if rows:
            entry_id = block.first_entry_id + (0 if block.is_batch else rows[0][0])
            found.append(Peeked(block, rows, cursor.counts.of(block.ledger_id, entry_id)))
            messages -= row_ranges.count(rows)
    return found


def _first(rows: RowRanges, count: int) -> RowRanges:
    kept: list[tuple[int, int]] = []
    for start, end in rows:
        if count <= 0:
            break
        kept.append((start, min(end, start + count)))
        count -= end - start
    return tuple(kept)
