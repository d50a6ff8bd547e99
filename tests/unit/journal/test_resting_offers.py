"""Notes of partitions that sleep: which segments may leave the disk, the oldest first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pulsar_ray.journal.offloaded.resting_offers import (
    MOST_PARTITIONS,
    NOTE,
    read_resting,
    write_resting_note,
)
from pulsar_ray.journal.offloaded.room_plan import Offer


def partition(ledgers: Path, number: int, written_s: float, *sizes: int, percent: int = 80) -> Path:
    directory = ledgers / str(number)
    directory.mkdir(parents=True)
    names = []
    for index, size in enumerate(sizes):
        path = directory / f"7-{index}.seg"
        path.write_bytes(b"x" * size)
        os.utime(path, (written_s + index, written_s + index))
        names.append(path.name)
    write_resting_note(directory, percent, names)
    return directory


def test_what_is_here_is_offered_in_its_order(tmp_path: Path) -> None:
    directory = partition(tmp_path, 3, 100, 10, 20, 30)
    (directory / "7-0.seg").unlink()
    least, [resting] = read_resting(tmp_path, ())
    assert (least, resting.partition, resting.percent) == (80, "3", 80)
    assert resting.offers == [Offer(101, "7-1.seg", 20), Offer(102, "7-2.seg", 30)]


def test_those_with_the_oldest_segments_come_and_no_more_than_so_many(tmp_path: Path) -> None:
    for number in range(MOST_PARTITIONS + 5):
        partition(tmp_path, number, 1000 - number, 10, percent=50 + number)
    least, resting = read_resting(tmp_path, {str(MOST_PARTITIONS + 4)})
    oldest_first = [str(number) for number in reversed(range(4, MOST_PARTITIONS + 4))]
    assert (least, [each.partition for each in resting]) == (50, oldest_first)


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"[80",
        b"80",
        b"{}",
        b"[80]",
        b'[0, ["7-0.seg"]]',
        b'[true, ["7-0.seg"]]',
        b'[101, ["7-0.seg"]]',
        b'[80, "7-0.seg"]',
        b'[80, [7, "../7-0.seg", "manifest-1"]]',
        b"\xff" * 10,
        b"[" * 100_000,
    ],
)
def test_a_damaged_note_offers_nothing(tmp_path: Path, note: bytes) -> None:
    (partition(tmp_path, 3, 100, 10) / NOTE).write_bytes(note)
    assert read_resting(tmp_path, ())[1] == []


def test_nothing_to_leave_is_no_note(tmp_path: Path) -> None:
    directory = partition(tmp_path, 3, 100, 10)
    write_resting_note(directory, 80, [])
    assert not (directory / NOTE).exists()
    assert read_resting(tmp_path, ()) == (0, [])
    assert read_resting(tmp_path / "none", ()) == (0, [])
