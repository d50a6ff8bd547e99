"""Blocks out of a dispatcher's memory, wherever its cursor stands in them."""

from __future__ import annotations

from pulsar_ray.broker.subscription.log.log_view import MAX_TAIL_BLOCKS, NEAR_BLOCKS, LogView
from pulsar_ray.format.frame import encode_frame_header
from pulsar_ray.model.message_id import Position
from pulsar_ray.session.requests import Advanced


def told(blocks: int) -> tuple[LogView, list[tuple[int, int]]]:
    """A log of two ledgers, frames of one to three blocks and blocks of one to four entries; all blocks."""
    log = LogView()
    known: list[tuple[int, int]] = []
    log.advanced(Advanced(1, 1, -1, 1, 0, [(1, 0, "1-0", 0, 4096, -1)], None, 0, -1, []))
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
        log.advanced(Advanced(1, ledger_id, first - 1, 1, 0, None, None, *log.last, [frame]))
    return log, known


def test_blocks_come_from_every_entry_that_memory_holds() -> None:
    log, known = told(100)
    last = known[-1]
    for at, (ledger_id, first) in enumerate(known):
        following = known[at + 1] if at + 1 < len(known) else (ledger_id, log.last.entry_id + 1)
        end = following[1] if following[0] == ledger_id else first + 1
        for entry_id in range(first, end):
            blocks = log.blocks_from(Position(ledger_id, entry_id), 1000)
            assert blocks is not None
            assert [(ref.ledger_id, ref.first_entry_id) for ref in blocks] == known[at:]
    assert log.blocks_from(Position(*last), 1) == log.blocks_from(Position(*last), 1000)
    assert log.blocks_from(log.last.next(), 10) == []
    assert log.blocks_from(Position(0, 5), 10) is None


def test_no_more_blocks_come_than_are_wanted_and_what_was_forgotten_is_read() -> None:
    log, known = told(MAX_TAIL_BLOCKS + 10)
    forgotten = len(known) - MAX_TAIL_BLOCKS
    assert log.blocks_from(Position(*known[forgotten - 1]), 10) is None
    blocks = log.blocks_from(Position(*known[forgotten]), 10)
    assert blocks is not None
    assert sum(ref.messages for ref in blocks[:-1]) < 10 <= sum(ref.messages for ref in blocks)


def sent(log: LogView, before: tuple[int, int], *entries: tuple[int, int]) -> None:
    """A packet with frames of one entry each, the first behind an entry `before`."""
    frames = []
    for ledger_id, entry_id in entries:
        header = encode_frame_header(ledger_id, 1, entry_id, entry_id - 1, 0, [(64, 1, 1)])
        frames.append((ledger_id, 0, 4096 + 100 * entry_id, header))
    log.advanced(Advanced(1, *entries[-1], 1, 0, None, None, *before, frames))


def served(log: LogView, ledger_id: int, entry_id: int) -> list[tuple[int, int]] | None:
    """The entries from a position on that come out of memory; None if a file is read."""
    blocks = log.blocks_from(Position(ledger_id, entry_id), 10)
    return None if blocks is None else [(ref.ledger_id, ref.first_entry_id) for ref in blocks]


def test_a_ledger_whose_last_packet_was_missed_is_read_before_the_next_one() -> None:
    log = LogView()
    sent(log, (0, -1), (1, 0))
    # (1, 1) and (1, 2) are never sent, as to a follower that did not read or whose lane was lost.
    sent(log, (1, 2), (2, 0))
    assert served(log, 1, 1) is None
    assert served(log, 2, 0) == [(2, 0)]


def test_entries_missed_within_a_ledger_are_read() -> None:
    log = LogView()
    sent(log, (0, -1), (1, 0))
    sent(log, (1, 3), (1, 4))
    assert served(log, 1, 1) is None
    assert served(log, 1, 4) == [(1, 4)]


def test_a_ledger_comes_out_of_memory_behind_the_one_before_also_in_one_packet() -> None:
    log = LogView()
    sent(log, (0, -1), (1, 0))
    sent(log, (1, 0), (1, 1), (3, 0))
    sent(log, (3, 0), (3, 1))
    sent(log, (3, 1), (7, 0))
    assert served(log, 1, 1) == [(1, 1), (3, 0), (3, 1), (7, 0)]


def test_a_packet_that_comes_twice_is_kept_once() -> None:
    log = LogView()
    sent(log, (0, -1), (1, 0))
    for _ in range(2):
        sent(log, (1, 0), (1, 1))
    assert served(log, 1, 1) == [(1, 1)]
