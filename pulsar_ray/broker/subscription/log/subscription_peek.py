"""Reading the messages a subscription would deliver next, for an administrator, without moving anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.subscription.log.log_view import LogView
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.inspect.peek import Peeked, peek
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.ledger.segment_file import segment_name
from pulsar_ray.managed_ledger.cursor.managed_cursor import ManagedCursor
from pulsar_ray.model import row_ranges
from pulsar_ray.model.position import Position

MAX_ANSWER_BYTES = 8 * 1024 * 1024
READ_AHEAD_MESSAGES = 10_000


async def peek_blocks(
    cursor: ManagedCursor,
    log: LogView,
    reader: DiskThread,
    directory: str,
    messages: int,
    behind: Position,
) -> dict[str, Any]:
    """Blocks with up to so many unacknowledged messages behind a position, and the position reached.

    `blocks` are (ledger id, first entry id, rows, redelivery count, bytes), 8 MiB or one block at the most;
    `end` is where to ask again, None behind the last message. Raises CorruptData for a block that cannot be
    read.
    """
    position = max(cursor.mark_delete, behind).next()
    position = max(position, Position(0, 0))
    while (read := log.reader_from(position, None, READ_AHEAD_MESSAGES)) is not None:
        refs = (await reader.run(read.run)).refs
        if not refs:
            break
        last = Position(refs[-1].ledger_id, refs[-1].last_entry_id)
        found = peek(cursor, refs, messages)
        if found:
            blocks = await reader.run(lambda found=found: _contents(directory, found))  # type: ignore[misc]
            taken = found[: len(blocks)]
            is_complete = len(taken) == len(found) and _count(taken) < messages
            return {"blocks": blocks, "end": list(last if is_complete else _end_of(taken[-1].block))}
        position = last.next()
    return {"blocks": [], "end": None}


def _contents(directory: str, found: list[Peeked]) -> list[tuple[int, int, Any, int, bytes]]:
    contents: list[tuple[int, int, Any, int, bytes]] = []
    size = 0
    for block, rows, count in found:
        size += block.length
        if contents and size > MAX_ANSWER_BYTES:
            break
        path = Path(directory) / segment_name(block.ledger_id, block.segment_index)
        with SegmentReader(path) as segment:
            data = segment.read_block(block.offset, block.length)
        contents.append((block.ledger_id, block.first_entry_id, rows, count, data))
    return contents


def _count(found: list[Peeked]) -> int:
    return sum(row_ranges.count(rows) for _, rows, _ in found)


def _end_of(block: BlockRef) -> Position:
    return Position(block.ledger_id, block.last_entry_id)
