"""Backlogs by arithmetic, against counting entry by entry."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.managed_ledger.cursor.managed_cursor import SHOWN_RANGES, deleted_text
from pulsar_ray.managed_ledger.log.log_sizes import LogSizes, ledger_sizes
from pulsar_ray.model.message_id import EARLIEST, LATEST, Position
from pulsar_ray.model.position_ranges import PositionRanges

LEDGERS = [(2, 10, 1_000), (5, 0, 0), (6, 4, 40), (9, 100, 5_000)]


def test_the_ends() -> None:
    log = LogSizes(LEDGERS)
    assert log.above(EARLIEST) == (114, 6_040)
    assert log.above(LATEST) == (0, 0)
    assert log.above(Position(2, -1)) == (114, 6_040)
    assert log.above(Position(6, 3)) == (100, 5_000)
    assert log.above(Position(2, 4)) == (109, 5_540)
    assert log.above(Position(6, 3), acknowledged=25) == (75, 3_750)
    assert LogSizes([]).above(Position(3, 3)) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_counting_says_the_same(seed: int) -> None:
    source = random.Random(seed)
    ids = sorted(source.sample(range(20), 6))
    ledgers = [(ledger_id, source.choice([0, 1, 7, 30]), source.randrange(1_000)) for ledger_id in ids]
    entries = [Position(ledger_id, entry) for ledger_id, count, _ in ledgers for entry in range(count)]
    log = LogSizes(ledgers)
    for _ in range(50):
        position = Position(source.randrange(-1, 21), source.randrange(-1, 40))
        left, size = log.above(position)
        assert left == sum(1 for entry in entries if entry > position), f"seed {seed}, {position}"
        assert 0 <= size <= log.total_bytes


def test_ledgers_are_put_together_from_their_segments() -> None:
    def segment(ledger_id: int, index: int, first: int, end: int, last: int) -> SegmentInfo:
        return SegmentInfo(ledger_id, index, Path("x"), first, end, last)

    segments = [segment(1, 0, 0, 500, 9), segment(1, 1, 10, 300, 14), segment(4, 0, 0, 80, 0)]
    assert ledger_sizes(segments) == [(1, 15, 800), (4, 1, 80)]


def test_holes_as_pulsar_writes_them() -> None:
    deleted = PositionRanges()
    assert deleted_text(deleted) == "[]"
    deleted.add(484, 2, 2)
    deleted.add(484, 5, 8)
    assert deleted_text(deleted) == "[(484:1..484:2],(484:4..484:8]]"
    for entry in range(100, 100 + 2 * SHOWN_RANGES, 2):
        deleted.add(484, entry, entry)
    assert deleted_text(deleted).endswith(",...]")
