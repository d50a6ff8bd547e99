"""Finding positions in files and by time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.manifest_changes import mark_delete_before
from pulsar_ray.managed_ledger.log.position_index import POINT_BYTES, POINT_ENTRIES, IndexPoint, PositionIndex
from pulsar_ray.model.message_id import EARLIEST, Position
from tests.stored_blocks import abandon, append, append_blocks, block, change, open_log, settings
from tests.unit.managed_ledger.log.test_holds_and_trimming import NONE


def test_points_by_bytes_entries_and_segments() -> None:
    index = PositionIndex([], 0)
    index.add_frame(1, 0, 4096, 0, 10)
    index.add_frame(1, 0, 5000, POINT_ENTRIES - 1, 30)
    index.add_frame(1, 0, 6000, POINT_ENTRIES, 20)
    index.add_frame(1, 0, 6000 + POINT_BYTES, POINT_ENTRIES + 1, 5)
    index.add_frame(1, 1, 4096, POINT_ENTRIES + 2, 5)
    index.add_frame(2, 0, 4096, 0, 40)
    assert index.points == [
        IndexPoint(1, 0, 0, 4096, 0),
        IndexPoint(1, POINT_ENTRIES, 0, 6000, 30),
        IndexPoint(1, POINT_ENTRIES + 1, 0, 6000 + POINT_BYTES, 30),
        IndexPoint(1, POINT_ENTRIES + 2, 1, 4096, 30),
        IndexPoint(2, 0, 0, 4096, 30),
    ]
    assert index.max_publish_ms == 40
    assert index.floor(EARLIEST) is None
    assert index.floor(Position(1, POINT_ENTRIES - 1)) == index.points[0]
    assert index.floor(Position(1, POINT_ENTRIES)) == index.points[1]
    assert index.floor(Position(3, 0)) == index.points[-1]
    assert index.floor_of_time(30) == index.points[0]
    assert index.floor_of_time(31) == index.points[-1]
    assert index.floor_of_time(0) == index.points[0]
    index.forget_before(2)
    assert index.points == [IndexPoint(2, 0, 0, 4096, 30)]


@pytest.mark.parametrize("seed", range(5))
def test_the_first_message_at_or_after_a_time_is_found(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print("seed", seed)
    monkeypatch.setattr("pulsar_ray.managed_ledger.log.position_index.POINT_ENTRIES", 7)
    rng = random.Random(seed)
    config = settings(
        managed_ledger_max_entries_per_ledger=30, segment_size_bytes=64 * 1024, index_checkpoint_entries=9
    )
    log = open_log(tmp_path, config=config)
    published: list[tuple[Position, int]] = []
    seq = 0
    for _ in range(60):
        blocks = []
        for _ in range(rng.randint(1, 3)):
            # Clocks of different clients: up and down.
            blocks.append(
                block(seq, publish_ms=max(10 * seq + rng.randint(-300, 300), 0), size=rng.choice([9, 6000]))
            )
            seq += 1
        times = [header.publish_time_ms for header, _ in blocks]
        published += zip(append_blocks(log, blocks).positions, times, strict=True)
        if rng.random() < 0.05:
            abandon(log)
            log = open_log(tmp_path, config=config)
    for time_ms in range(0, 10 * seq + 400, 37):
        expected = next(
            (at for at, published_ms in published if published_ms >= time_ms), log.last_position.next()
        )
        assert log.begin_position_at_time(time_ms).run() == expected
    trimmed = change(log, log.changes.trim(10_000, NONE))
    remaining = [(at, ms) for at, ms in published if at.ledger_id not in trimmed]
    for time_ms in range(0, 10 * seq, 97):
        expected = next((at for at, ms in remaining if ms >= time_ms), log.last_position.next())
        assert log.begin_position_at_time(time_ms).run() == expected


def located(log: ManagedLedger, position: Position) -> IndexPoint | None:
    """The last of the log's index points at or before a position."""
    points = [p for p in log.index_points() if (p.ledger_id, p.entry_id) <= position]
    return points[-1] if points else None


def test_a_position_is_located_at_a_frame_before_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert located(log, EARLIEST) is None
    for seq in range(20):
        append(log, seq, size=500_000)
    at = located(log, log.last_position)
    assert at is not None
    assert 0 < at.entry_id <= 19
    assert log.segments()[0].end_offset - at.offset <= POINT_BYTES + 600_000


def test_marks_are_clamped(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 0)
    append(log, 1)
    first = log.first_position
    assert mark_delete_before(first) == Position(first.ledger_id, -1)
    assert mark_delete_before(Position(first.ledger_id, -1)) == Position(first.ledger_id, -1)
    assert log.changes.clamp(EARLIEST) == mark_delete_before(first)
    assert log.changes.clamp(Position(first.ledger_id, 0)) == first
    assert log.changes.clamp(Position(first.ledger_id, 99)) == log.last_position
