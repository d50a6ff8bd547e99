"""Producer incarnations: repeats, gaps, retirement, forgetting, and what survives."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pulsar_ray.managed_ledger.log.manifest.manifest_records import IncarnationRecord
from pulsar_ray.managed_ledger.log.producer_incarnations import (
    FORGET_AFTER_MS,
    WINDOW_BLOCKS,
    Forgotten,
    Gap,
    GivenUp,
    InFlight,
    NeverStored,
    New,
    ProducerIncarnations,
    Repeat,
)
from pulsar_ray.model.message_id import Position
from pulsar_ray.testing.faulty_disk import FaultyDisk
from tests.stored_blocks import MIB, abandon, append, append_blocks, block, open_log, settings


def test_new_repeat_and_gap() -> None:
    known = ProducerIncarnations()
    assert known.classify(1, 0, 1) == New()
    assert known.classify(1, 3, 1) == Gap(0)
    assert not known.knows(1)
    assert known.last_entry_seq(1) == -1
    known.record(block(0, incarnation=1)[0], 10, 0, 0)
    known.record(block(1, incarnation=1, rows=5)[0], 10, 1, 0)
    assert known.classify(1, 0, 1) == InFlight()
    known.keep()
    known.record(block(6, incarnation=1)[0], 11, 0, 0)
    assert known.classify(1, 0, 1) == Repeat(Position(10, 0))
    assert known.classify(1, 1, 5) == Repeat(Position(10, 1))
    assert known.classify(1, 6, 1) == InFlight()
    assert known.classify(1, 7, 1) == New()
    assert known.classify(1, 8, 1) == Gap(7)
    assert known.last_entry_seq(1) == 6
    known.keep()
    assert known.classify(1, 6, 1) == Repeat(Position(11, 0))


@pytest.mark.parametrize(("seq", "rows"), [(1, 4), (2, 4), (0, 2), (6, 2)])
def test_other_boundaries_than_the_stored_ones_are_refused(seq: int, rows: int) -> None:
    known = ProducerIncarnations()
    known.record(block(0, incarnation=1)[0], 10, 0, 0)
    known.record(block(1, incarnation=1, rows=5)[0], 10, 1, 0)
    known.record(block(6, incarnation=1)[0], 10, 6, 0)
    known.keep()
    assert known.classify(1, seq, rows) == Gap(7)


def test_a_block_that_was_left_out_is_never_taken_for_stored() -> None:
    known = ProducerIncarnations()
    known.record(block(0, incarnation=1, rows=2)[0], 10, 0, 0)
    known.record(block(5, incarnation=1)[0], 10, 2, 0)
    known.keep()
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
    known.keep()
    assert known.classify(1, 0, 1) == NeverStored()
    assert known.classify(1, 3, 1) == Repeat(Position(10, 0))
    known.record(block(4, incarnation=1)[0], 10, 1, 0)
    known.take_back()
    assert known.classify(1, 4, 1) == New()
    assert known.classify(1, 2, 1) == NeverStored()


def test_what_failed_may_be_sent_again() -> None:
    known = ProducerIncarnations()
    known.record(block(0, incarnation=1)[0], 10, 0, 0)
    known.keep()
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
    known.keep()
    last = 3 * WINDOW_BLOCKS - 1
    for seq in (last, last - WINDOW_BLOCKS + 1):
        assert known.classify(1, seq, 1) == Repeat(Position(10, seq))
    assert known.classify(1, 0, 1) == Forgotten()
    [record] = known.snapshot()
    assert len(record.first_seqs) == 8 * WINDOW_BLOCKS


def test_a_retired_incarnation_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 0)
    log.incarnations.retire(5, 1000)
    assert log.incarnations.classify(5, 0, 1) == GivenUp()
    assert log.incarnations.classify(5, 1, 1) == GivenUp()
    log.close()
    assert open_log(tmp_path).incarnations.classify(5, 1, 1) == GivenUp()


@pytest.mark.parametrize("restarts", [False, True])
def test_one_that_was_retired_before_it_stored_anything_is_forgotten_too(
    tmp_path: Path, restarts: bool
) -> None:
    log = open_log(tmp_path)
    append(log, 0)
    log.incarnations.retire(5, 1000)
    if restarts:
        log.close()
        log = open_log(tmp_path)
    log.incarnations.forget_idle(1000 + 2 * FORGET_AFTER_MS)
    log.incarnations.forget_idle(1000 + 4 * FORGET_AFTER_MS)
    for seconds in range(0, 2 * FORGET_AFTER_MS // 1000, 5):
        log.incarnations.forget_idle(1000 + 4 * FORGET_AFTER_MS + 1000 * seconds)
    assert log.incarnations.retired() == []
    log.close()


@pytest.mark.parametrize("jump_ms", [10 * FORGET_AFTER_MS, -10 * FORGET_AFTER_MS])
def test_setting_the_clock_neither_forgets_a_producer_nor_keeps_it(jump_ms: int) -> None:
    known = ProducerIncarnations()
    now_ms = 100 * FORGET_AFTER_MS
    known.forget_idle(now_ms)
    known.open_session(1, now_ms)
    known.close_session(1, now_ms)
    for second in range(FORGET_AFTER_MS // 1000):
        if second == 1000:
            now_ms += jump_ms
        assert known.forget_idle(now_ms + second * 1000) == []
    forgotten: list[int] = []
    for second in range(FORGET_AFTER_MS // 1000, 3 * FORGET_AFTER_MS // 1000):
        forgotten += known.forget_idle(now_ms + second * 1000)
    assert forgotten == [1]


def test_an_hour_of_many_short_lives_is_an_hour(tmp_path: Path) -> None:
    now_ms, ten_minutes = 1_000_000, FORGET_AFTER_MS // 6
    log = open_log(tmp_path)
    append(log, 0)
    lives = 0
    while log.incarnations.knows(5):
        log.close()
        now_ms += 20 * FORGET_AFTER_MS  # asleep
        log = open_log(tmp_path, now_ms=now_ms)
        for _ in range(ten_minutes // 1000):
            now_ms += 1000
            log.incarnations.forget_idle(now_ms)
        change = log.changes.trim(now_ms, is_leaving=True)
        if change is not None:
            change.run()
            log.changes.finish(change)
        lives += 1
        assert lives < 10
    assert lives == 6


def test_the_hour_begins_anew_with_each_block() -> None:
    known = ProducerIncarnations()
    known.restore(IncarnationRecord(1, 4, b"", b"", b"", FORGET_AFTER_MS - 1), 0)
    known.restore(IncarnationRecord(2, 4, b"", b"", b"", FORGET_AFTER_MS - 1), 0)
    known.record(block(5, incarnation=1)[0], 10, 0, 0)
    known.keep()
    assert known.forget_idle(1000) == [2]


def test_an_incarnation_is_forgotten_an_hour_after_its_last_session() -> None:
    known = ProducerIncarnations()
    known.open_session(1, 0)
    known.open_session(1, 0)
    known.open_session(2, 0)
    known.close_session(1, 100)
    known.close_session(2, 100)
    known.record(block(0, incarnation=3)[0], 10, 0, 100)
    known.keep()
    assert known.forget_idle(99 + FORGET_AFTER_MS) == []
    assert known.forget_idle(100 + FORGET_AFTER_MS) == [2, 3]
    known.close_session(1, 200)
    known.retire(1, 200)
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


@pytest.mark.parametrize("interval", [1, 3, 50])
def test_after_a_crash_every_repeat_is_answered_as_before(tmp_path: Path, interval: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    config = settings(index_checkpoint_entries=interval, segment_size_bytes=64 * 1024)
    log = open_log(tmp_path, config=config)
    next_seq = dict.fromkeys((1, 2, 3), 0)
    sent: list[tuple[int, int, int]] = []
    for _ in range(6):
        for _ in range(30):
            group = []
            for incarnation in rng.sample((1, 2, 3), rng.randint(1, 3)):
                rows = rng.choice((1, 1, 4))
                sent.append((incarnation, next_seq[incarnation], rows))
                if rng.random() < 0.8:  # the others are refused, and their numbers left out
                    group.append(block(next_seq[incarnation], incarnation=incarnation, rows=rows, size=300))
                next_seq[incarnation] += rows
            if group:
                append_blocks(log, group)
        before = [log.incarnations.classify(*each) for each in sent]
        abandon(log)
        log = open_log(tmp_path, config=config)
        assert [log.incarnations.classify(*each) for each in sent] == before
    assert {type(verdict) for verdict in before} >= {Repeat, NeverStored}


def test_a_checkpoint_that_was_not_written_is_made_up_for(tmp_path: Path) -> None:
    disk = FaultyDisk()
    config = settings(index_checkpoint_entries=3)
    log = open_log(tmp_path, config=config, disk=disk)
    positions = append(log, 0, 1, 2, 3).positions
    disk.fail("fdatasync")
    with pytest.raises(OSError):
        append(log, 4)
    for seq in range(4, 20):
        positions += append(log, seq).positions
    abandon(log)
    known = open_log(tmp_path, config=config).incarnations
    assert [known.classify(5, seq, 1) for seq in range(20)] == [Repeat(at) for at in positions]


def test_blocks_between_what_is_known_are_forgotten_not_guessed() -> None:
    known = ProducerIncarnations()
    for seq in range(3):
        known.record(block(seq, incarnation=1)[0], 10, seq, 0)
    known.keep()
    [early] = known.take_touched()
    for seq in range(3, 6):
        known.record(block(seq, incarnation=1)[0], 10, seq, 0)
    known.keep()
    known.take_touched()
    for seq in range(6, 9):
        known.record(block(seq, incarnation=1)[0], 10, seq, 0)
    known.keep()
    [late] = known.take_touched()
    restored = ProducerIncarnations()
    restored.restore_checkpoint([early, late], [], 0)
    assert [restored.classify(1, seq, 1) for seq in (0, 5)] == [Forgotten()] * 2
    assert [restored.classify(1, seq, 1) for seq in (6, 8)] == [Repeat(Position(10, seq)) for seq in (6, 8)]
    assert restored.classify(1, 9, 1) == New()


def test_the_manifest_stays_short_however_many_blocks_are_written(tmp_path: Path) -> None:
    config = settings(index_checkpoint_entries=4096, segment_size_bytes=1 * MIB)
    log = open_log(tmp_path, config=config)
    seq = 0
    for _ in range(120):
        append(log, *range(seq, seq + 1024), size=1)
        seq += 1024
    [manifest] = tmp_path.glob("manifest-*")
    assert 100_000 < manifest.stat().st_size < 2 * MIB


def test_recovery_reads_little_with_checkpoints(tmp_path: Path) -> None:
    config = settings(index_checkpoint_entries=100)
    log = open_log(tmp_path, config=config)
    for seq in range(1000):
        append(log, seq)
    [segment] = log.segments()
    abandon(log)
    content = bytearray(segment.path.read_bytes())
    content[segment.end_offset // 2] ^= 1
    segment.path.write_bytes(content)
    again = open_log(tmp_path, config=config)
    assert again.incarnations.classify(5, 999, 1) == Repeat(log.last_position)
    # What lies before the last but one checkpoint is not looked at.
    assert again.corruptions == []
