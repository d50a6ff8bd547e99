"""When sleeping partitions are to be woken: notes in their directories, and the table made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_ray.managed_ledger.store.wake_times import NOTE, WakeTimes, read_wake_times, write_wake_time


@pytest.fixture
def ledgers(tmp_path: Path) -> Path:
    for number in (1, 2, 3):
        (tmp_path / str(number)).mkdir()
    return tmp_path


def test_notes_are_read_back(ledgers: Path) -> None:
    write_wake_time(ledgers / "1", 5000)
    write_wake_time(ledgers / "2", None)
    write_wake_time(ledgers / "3", 6000)
    write_wake_time(ledgers / "3", 7000)
    assert read_wake_times(ledgers) == {1: 5000, 3: 7000}
    write_wake_time(ledgers / "1", None)
    assert read_wake_times(ledgers) == {3: 7000}


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "\u0664", "9" * 5000])
def test_a_damaged_note_is_due_at_once(ledgers: Path, text: str) -> None:
    (ledgers / "2" / NOTE).write_text(text)
    assert read_wake_times(ledgers) == {2: 0}


def test_a_staged_note_is_no_note(ledgers: Path) -> None:
    (ledgers / "2" / "wake-at.new").write_text("5")
    assert read_wake_times(ledgers) == {}


def test_no_directory_has_no_notes(tmp_path: Path) -> None:
    assert read_wake_times(tmp_path / "p") == {}


def test_what_is_due_is_answered_once_the_longest_due_first() -> None:
    times = WakeTimes()
    times.learn({1: 300, 2: 100, 3: 900, 4: 200})
    assert times.take_due(50, 10) == []
    assert times.take_due(300, 2) == [2, 4]
    assert times.take_due(300, 2) == [1]
    assert times.take_due(300, 2) == []
    times.slept({3: None, 2: 400})
    assert times.take_due(1000, 10) == [2]
