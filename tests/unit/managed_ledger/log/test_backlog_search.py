"""How much stands behind a position, and where what is young or little enough begins."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pulsar_ray.managed_ledger.log.backlog_search import BacklogFront
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.message_id import EARLIEST, Position
from tests.stored_blocks import IDENTITY, abandon, append, append_blocks, block, open_log, settings

FIRST = IDENTITY.number << 31


def test_an_empty_log_has_no_front(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.begin_backlog(EARLIEST.next()).run() == BacklogFront(log.last_position.next(), None, 0)


def test_a_clock_ahead_of_the_brokers_makes_nobody_young(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 0, now_ms=1000, publish_ms=999_000)
    append(log, 1, now_ms=5000, publish_ms=2000)
    found = log.begin_backlog(Position(FIRST, 0)).run(1001)
    assert found[:2] == (Position(FIRST, 1), 2000)
    assert log.begin_backlog(Position(FIRST, 0)).run(2001)[:2] == (Position(FIRST, 2), None)


def test_an_old_message_behind_a_younger_one_waits(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 0, now_ms=5000, publish_ms=4000)
    append(log, 1, now_ms=5000, publish_ms=1000)
    assert log.begin_backlog(Position(FIRST, 0)).run(2000).position == Position(FIRST, 0)


def test_entries_of_one_block_are_told_apart_by_size(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append_blocks(log, [block(0, rows=10, size=4000), block(10, size=4000)])
    whole = log.begin_backlog(Position(FIRST, 0)).run().size_bytes
    half = log.begin_backlog(Position(FIRST, 5)).run().size_bytes
    last = log.begin_backlog(Position(FIRST, 10)).run().size_bytes
    assert whole - half == pytest.approx((whole - last) / 2, abs=1)
    found = log.begin_backlog(Position(FIRST, 0)).run(more_than_bytes=half)
    assert found.position == Position(FIRST, 5)
    assert found.size_bytes <= half


def test_what_cannot_be_read_is_passed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for seq in range(3):
        append(log, seq, now_ms=1000 + seq, publish_ms=1000 + seq)
    second = log.begin_backlog(Position(FIRST, 1)).run()
    [segment] = log.segments()
    with segment.path.open("r+b") as file:
        file.seek(segment.end_offset - second.size_bytes - 60)
        file.write(b"\xff" * 100)
    assert log.begin_backlog(Position(FIRST, 0)).run(1001).position == Position(FIRST, 2)


@pytest.mark.parametrize("seed", range(4))
def test_as_a_naive_search_finds_it(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print("seed", seed)
    monkeypatch.setattr("pulsar_ray.managed_ledger.log.position_index.POINT_ENTRIES", 7)
    rng = random.Random(seed)
    config = settings(managed_ledger_max_entries_per_ledger=30, segment_size_bytes=64 * 1024)
    log = open_log(tmp_path, config=config)
    entries: list[tuple[Position, int, float]] = []
    seq = 0
    for step in range(80):
        blocks = []
        for _ in range(rng.randint(1, 3)):
            rows = rng.choice([1, 1, 4])
            published_ms = 1000 * step + rng.randint(-3000, 3000)
            blocks.append(block(seq, rows=rows, size=rng.randint(10, 3000), publish_ms=max(published_ms, 0)))
            seq += rows
        result = append_blocks(log, blocks, now_ms=1000 * step)
        for (header, _), position in zip(blocks, result.positions, strict=True):
            stored_ms = min(header.publish_time_ms, 1000 * step)
            for row in range(header.entries):
                place = Position(position[0], position[1] + row)
                entries.append((place, stored_ms, header.total_length / header.entries))
    if seed % 2:
        abandon(log)
        log = open_log(tmp_path, config=config)
    for _ in range(60):
        first = rng.randrange(len(entries))
        oldest_ms = rng.choice([0, rng.randrange(85_000)])
        found = log.begin_backlog(entries[first][0]).run(oldest_ms)
        expected = next((entry for entry in entries[first:] if entry[1] >= oldest_ms), None)
        if expected is None:
            assert found == BacklogFront(log.last_position.next(), None, 0)
            continue
        assert found[:2] == expected[:2]
        _check_size(log, entries, found)
        limit = rng.randrange(found.size_bytes + 1000)
        little = log.begin_backlog(entries[first][0]).run(more_than_bytes=limit)
        assert little.size_bytes <= limit
        index = [entry[0] for entry in entries].index(little.position) if little.stored_ms is not None else -1
        if index > first:
            assert log.begin_backlog(entries[index - 1][0]).run().size_bytes > limit, "no more than needed"


def _check_size(log: ManagedLedger, entries: list[tuple[Position, int, float]], found: BacklogFront) -> None:
    """All blocks from there on count, and the headers of their frames a little more."""
    blocks = sum(size for position, _, size in entries if position >= found.position)
    assert 0 <= found.size_bytes - blocks + 1 <= 110 * 80 + 1
