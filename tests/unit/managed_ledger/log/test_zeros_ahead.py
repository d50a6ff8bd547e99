"""Segments whose small appends went into zeros: what an owner that comes later finds in them."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import pytest

from pulsar_ray.ledger.segment_file import FILLED_APPEND_BYTES, MAX_FILL_BYTES, MIN_FILL_BYTES
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.message_id import Position
from pulsar_ray.testing.faulty_disk import FaultyDisk
from tests.stored_blocks import IDENTITY, abandon, append, change, open_log

LEDGER = IDENTITY.number << 31
SMALL = 500


def ends_of(log: ManagedLedger, frames: int) -> list[int]:
    """Append so many small frames; where each ends."""
    ends = []
    for seq in range(frames):
        append(log, seq, size=SMALL)
        ends.append(log.segments()[-1].end_offset)
    return ends


def zeros_behind(path: Path, end: int) -> int:
    content = path.read_bytes()
    assert not any(content[end:])
    return len(content) - end


def filled_log(path: Path) -> tuple[Path, list[int]]:
    """A log left as by kill -9 with zeros behind its last frame; its segment file and its frames' ends."""
    log = open_log(path)
    ends = ends_of(log, 60)
    abandon(log)
    segment = log.segments()[0].path
    assert zeros_behind(segment, ends[-1])
    return segment, ends


def test_zeros_are_never_longer_than_what_stands_before_them(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    filled = []
    for seq in range(1500):
        append(log, seq, size=SMALL)
        [segment] = log.segments()
        zeros = zeros_behind(segment.path, segment.end_offset) if seq % 20 == 0 else 0
        assert zeros <= min(segment.end_offset, MAX_FILL_BYTES)
        assert not zeros or segment.end_offset >= MIN_FILL_BYTES
        filled.append(zeros)
    assert max(filled) > MAX_FILL_BYTES // 2


def test_long_appends_leave_nothing_behind_them(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for seq in range(20):
        append(log, seq, size=FILLED_APPEND_BYTES)
    [segment] = log.segments()
    assert zeros_behind(segment.path, segment.end_offset) == 0


@pytest.mark.parametrize("is_closed", [False, True])
def test_the_next_owner_finds_every_entry_and_goes_on_elsewhere(tmp_path: Path, is_closed: bool) -> None:
    log = open_log(tmp_path)
    ends_of(log, 60)
    log.close() if is_closed else abandon(log)
    again = open_log(tmp_path, must_exist=True)
    assert again.last_position == Position(LEDGER, 59)
    assert again.corruptions == []
    assert append(again, 60).positions == [Position(LEDGER + 1, 0)]


def test_a_tail_torn_at_any_byte_among_zeros_ends_the_ledger_before_it(tmp_path: Path) -> None:
    path, ends = filled_log(tmp_path / "log")
    content = path.read_bytes()
    print("seed", 3)
    cuts = random.Random(3).sample(range(ends[-2], ends[-1]), 100)
    for number, cut in enumerate([ends[-2], *cuts, ends[-1] - 1]):
        directory = tmp_path / f"copy-{number}"
        shutil.copytree(tmp_path / "log", directory)
        # Of the last frame only so much was written over the zeros.
        torn = content[:cut] + bytes(len(content) - cut)
        (directory / path.name).write_bytes(torn)
        log = open_log(directory)
        # What is cut off may be zeros itself: then nothing is torn.
        last = 59 if torn == content else 58
        assert log.last_position == Position(LEDGER, last)
        assert log.corruptions == []
        abandon(log)


def test_damage_before_the_zeros_is_reported_and_not_cut(tmp_path: Path) -> None:
    path, ends = filled_log(tmp_path)
    content = bytearray(path.read_bytes())
    content[ends[30] + 100] ^= 4
    path.write_bytes(content)
    log = open_log(tmp_path)
    assert log.last_position == Position(LEDGER, 59)
    [corruption] = log.corruptions
    assert (corruption.offset, corruption.first_entry_id, corruption.last_entry_id) == (ends[30], 31, 31)


def test_without_room_for_zeros_appends_go_on(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    disk.fail("pwrite", *[errno.ENOSPC] * 1000)
    ends = ends_of(log, 60)
    assert "pwrite" in disk.calls
    assert len(log.segments()) == 1
    assert zeros_behind(log.segments()[0].path, ends[-1]) == 0


def test_a_segment_with_zeros_is_trimmed_as_any_other(tmp_path: Path) -> None:
    path, _ = filled_log(tmp_path)
    log = open_log(tmp_path)
    append(log, 60)
    change(log, log.changes.trim(10_000_000))
    assert not path.exists()
