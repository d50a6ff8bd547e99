"""Blocks out of a dispatcher's memory, wherever its cursor stands in them."""

from __future__ import annotations

from pulsar_ray.broker.subscription.log_feed import MAX_TAIL_BLOCKS, NEAR_BLOCKS, LogFeed
from pulsar_ray.format.frame import encode_frame_header
from pulsar_ray.model.position import Position
from pulsar_ray.session.requests import Advanced


def told(blocks: int) -> tuple[LogFeed, list[tuple[int, int]]]:
    """A log of two ledgers, frames of one to three blocks and blocks of one to four entries; all blocks."""
    feed = LogFeed()
    known: list[tuple[int, int]] = []
    feed.advanced(Advanced(1, 1, -1, 1, 0, [(1, 0, "1-0", 0, 4096, -1)], None, []))
    ledger_id, first, offset = 1, 0, 4096
    while len(known) < blocks:
        if ledger_id == 1 and len(known) > blocks - NEAR_BLOCKS - 4:
            ledger_id, first, offset = 2, 0, 4096
        spans = [(64, 1 + n % 4, 1 + n % 4) for n in range(len(known), len(known) + 1 + len(known) % 3)]
        header = encode_frame_header(ledger_id, 1, first, first - 1, 0, spans)
        frame = (ledger_id, 0, offset, header)
        for _, entries, _ in spans:
            known.append((ledger_id, first))
            first += entries
        offset += len(header) + 64 * len(spans)
        feed.advanced(Advanced(1, ledger_id, first - 1, 1, 0, None, None, [frame]))
    return feed, known


def test_blocks_come_from_every_entry_that_memory_holds() -> None:
    feed, known = told(100)
    last = known[-1]
    for at, (ledger_id, first) in enumerate(known):
        following = known[at + 1] if at + 1 < len(known) else (ledger_id, feed.last.entry_id + 1)
        end = following[1] if following[0] == ledger_id else first + 1
        for entry_id in range(first, end):
            blocks = feed.blocks_from(Position(ledger_id, entry_id), 1000)
            assert blocks is not None
            assert [(ref.ledger_id, ref.first_entry_id) for ref in blocks] == known[at:]
    assert feed.blocks_from(Position(*last), 1) == feed.blocks_from(Position(*last), 1000)
    assert feed.blocks_from(feed.last.next(), 10) == []
    assert feed.blocks_from(Position(0, 5), 10) is None


def test_no_more_blocks_come_than_are_wanted_and_what_was_forgotten_is_read() -> None:
    feed, known = told(MAX_TAIL_BLOCKS + 10)
    forgotten = len(known) - MAX_TAIL_BLOCKS
    assert feed.blocks_from(Position(*known[forgotten - 1]), 10) is None
    blocks = feed.blocks_from(Position(*known[forgotten]), 10)
    assert blocks is not None
    assert sum(ref.messages for ref in blocks[:-1]) < 10 <= sum(ref.messages for ref in blocks)
