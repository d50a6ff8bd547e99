"""Producer incarnations: repeats, gaps, retirement, forgetting, and what survives."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_ray.managed_ledger.producer_incarnations import (
    FORGET_AFTER_MS,
    WINDOW_BLOCKS,
    Gap,
    InFlight,
    NeverStored,
    New,
    ProducerIncarnations,
    Refused,
    Repeat,
)
from pulsar_ray.model.position import EARLIEST, Position
from tests.stored_blocks import abandon, append, append_blocks, block, open_log, settings


def test_new_repeat_and_gap() -> None:
    known = ProducerIncarnations()
    assert known.classify(1, 0, 1) == New()
    assert known.classify(1, 3, 1) == Gap(0)
    assert not known.knows(1)
    assert known.last_entry_seq(1) == -1
    known.record(block(0, incarnation=1)[0], 10, 0, 0)
    known.record(block(1, incarnation=1, rows=5)[0], 10, 1, 0)
    assert known.classify(1, 0, 1) == InFlight()
    known.confirm()
    known.record(block(6, incarnation=1)[0], 11, 0, 0)
    assert known.classify(1, 0, 1) == Repeat(Position(10, 0))
    assert known.classify(1, 1, 5) == Repeat(Position(10, 1))
    assert known.classify(1, 6, 1) == InFlight()
    assert known.classify(1, 7, 1) == New()
    assert known.classify(1, 8, 1) == Gap(7)
    assert known.last_entry_seq(1) == 6
    known.confirm()
    assert known.classify(1, 6, 1) == Repeat(Position(11, 0))


@pytest.mark.parametrize(("seq", "rows"), [(1, 4), (2, 4), (0, 2), (6, 2)])
def test_other_boundaries_than_the_stored_ones_are_refused(seq: int, rows: int) -> None:
    known = ProducerIncarnations()
    known.record(block(0, incarnation=1)[0], 10, 0, 0)
    known.record(block(1, incarnation=1, rows=5)[0], 10, 1, 0)
    known.record(block(6, incarnation=1)[0], 10, 6, 0)
    known.confirm()
    assert known.classify(1, seq, rows) == Gap(7)


def test_a_block_that_was_left_out_is_never_taken_for_stored() -> None:
    known = ProducerIncarnations()
    known.record(block(0, incarnation=1, rows=2)[0], 10, 0, 0)
    known.record(block(5, incarnation=1)[0], 10, 2, 0)
    known.confirm()
    for seq in (2, 3, 4):
        assert known.classify(1, seq, 1) == NeverStored()
    assert known.classify(1, 0, 2) == Repeat(Position(10, 0))
    assert known.classify(1, 5, 1) == Repeat(Position(10, 2))
    [record] = known.snapshot()
    restored = ProducerIncarnations()
    restored.restore(record, 0)
    assert restored.classify(1, 3, 1) == NeverStored()
    assert restored.classify(1, 0, 2) == Repeat(Position(10, 0))
    assert restored.classify(1, 6, 1) == New()


def test_the_first_blocks_may_be_left_out() -> None:
    known = ProducerIncarnations()
    known.record(block(3, incarnation=1)[0], 10, 0, 0)
    known.confirm()
    assert known.classify(1, 0, 1) == NeverStored()
    assert known.classify(1, 3, 1) == Repeat(Position(10, 0))
    known.record(block(4, incarnation=1)[0], 10, 1, 0)
    known.take_back()
    assert known.classify(1, 4, 1) == New()
    assert known.classify(1, 2, 1) == NeverStored()


def test_what_failed_may_be_sent_again() -> None:
    known = ProducerIncarnations()
    known.record(block(0, incarnation=1)[0], 10, 0, 0)
    known.confirm()
    known.record(block(1, incarnation=1)[0], 10, 1, 0)
    known.record(block(0, incarnation=2, rows=3)[0], 10, 2, 0)
    known.take_back()
    assert known.classify(1, 1, 1) == New()
    assert known.classify(2, 0, 3) == New()
    assert known.classify(1, 0, 1) == Repeat(Position(10, 0))


def test_positions_are_known_of_the_latest_blocks() -> None:
    known = ProducerIncarnations()
    header, _ = block(0, incarnation=1)
    for seq in range(3 * WINDOW_BLOCKS):
        header.entry_seq = seq
        known.record(header, 10, seq, 0)
    known.confirm()
    last = 3 * WINDOW_BLOCKS - 1
    for seq in (last, last - WINDOW_BLOCKS + 1):
        assert known.classify(1, seq, 1) == Repeat(Position(10, seq))
    assert known.classify(1, 0, 1) == Repeat(EARLIEST)
    [record] = known.snapshot()
    assert len(record.first_seqs) == 8 * WINDOW_BLOCKS


def test_a_retired_incarnation_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 0)
    log.incarnations.retire(5)
    assert log.incarnations.classify(5, 0, 1) == Refused()
    assert log.incarnations.classify(5, 1, 1) == Refused()
    log.close()
    assert open_log(tmp_path).incarnations.classify(5, 1, 1) == Refused()


def test_an_incarnation_is_forgotten_an_hour_after_its_last_session() -> None:
    known = ProducerIncarnations()
    known.open_session(1, 0)
    known.open_session(1, 0)
    known.open_session(2, 0)
    known.close_session(1, 100)
    known.close_session(2, 100)
    known.record(block(0, incarnation=3)[0], 10, 0, 100)
    known.confirm()
    assert known.forget_idle(99 + FORGET_AFTER_MS) == []
    assert known.forget_idle(100 + FORGET_AFTER_MS) == [2, 3]
    known.close_session(1, 200)
    known.retire(1)
    assert known.forget_idle(200 + FORGET_AFTER_MS) == [1]
    assert len(known) == 0
    assert not known.knows(1)
    assert known.classify(1, 5, 1) == Gap(0)
    known.close_session(1, 300)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("interval", [3, 1000])
def test_they_are_rebuilt_from_snapshot_checkpoints_and_tail(
    tmp_path: Path, closed: bool, interval: int
) -> None:
    config = settings(index_checkpoint_entries=interval)
    log = open_log(tmp_path, config=config)
    last = []
    for seq in range(10):
        result = append_blocks(log, [block(2 * seq, incarnation=8, rows=2), block(seq, incarnation=9)])
        last = result.positions
    for _ in range(3):
        if closed:
            log.close()
        else:
            abandon(log)
        log = open_log(tmp_path, config=config)
        known = log.incarnations
        assert known.classify(8, 20, 1) == known.classify(9, 10, 1) == New()
        assert known.classify(8, 18, 2) == Repeat(last[0])
        assert known.classify(9, 9, 1) == Repeat(last[1])
        assert known.classify(9, 11, 1) == Gap(10)


def test_recovery_reads_little_with_checkpoints(tmp_path: Path) -> None:
    config = settings(index_checkpoint_entries=100)
    log = open_log(tmp_path, config=config)
    for seq in range(1000):
        append(log, seq)
    abandon(log)
    again = open_log(tmp_path, config=config)
    # Of one producer only the tail behind the last but one checkpoint is met again.
    assert again.incarnations.classify(5, 999, 1) == Repeat(log.last_position)
    assert again.incarnations.classify(5, 890, 1) != Repeat(EARLIEST)
    assert again.incarnations.classify(5, 500, 1) == Repeat(EARLIEST)
