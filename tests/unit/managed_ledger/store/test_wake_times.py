"""When sleeping partitions are to be woken: notes in their directories, and the table made of them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from pulsar_ray.managed_ledger.store.wake_times import (
    NOTE,
    WAS_AWAKE,
    WakeTimes,
    mark_awake,
    read_wake_times,
    write_wake_time,
)


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
    assert read_wake_times(ledgers) == {2: WAS_AWAKE}


def test_one_that_is_awake_is_due_at_once_should_it_die(ledgers: Path) -> None:
    write_wake_time(ledgers / "1", 5000)
    for number in (1, 2):
        mark_awake(ledgers / str(number))
    assert read_wake_times(ledgers) == {1: WAS_AWAKE, 2: WAS_AWAKE}
    mark_awake(ledgers / "gone")


def test_a_staged_note_is_no_note(ledgers: Path) -> None:
    (ledgers / "2" / "wake-at.new").write_text("5")
    assert read_wake_times(ledgers) == {}


def test_other_files_beside_the_partitions_are_no_notes(ledgers: Path) -> None:
    (ledgers / "4").write_text("a file with a partition's name")
    (ledgers / "\u0664").mkdir()
    (ledgers / "\u0664" / NOTE).write_text("5")
    assert read_wake_times(ledgers) == {}


def test_no_directory_has_no_notes(tmp_path: Path) -> None:
    assert read_wake_times(tmp_path / "p") == {}


def test_what_is_due_is_answered_once_the_longest_due_first() -> None:
    times = WakeTimes()
    times.learn({1: 300, 2: 100, 3: 900, 4: 200})
    assert list(times.take_due(50, 10)) == []
    assert list(times.take_due(300, 2)) == [2, 4]
    assert list(times.take_due(300, 2)) == [1]
    assert list(times.take_due(300, 2)) == []
    times.slept({3: None, 2: 400})
    assert list(times.take_due(1000, 10)) == [2]


def test_a_time_that_is_told_before_the_notes_are_read_counts_if_it_is_earlier() -> None:
    times = WakeTimes()
    times.slept({1: 100, 2: 900, 3: 100})
    times.learn({1: 500, 2: 500})
    assert list(times.take_due(100, 10)) == [1, 3]
    times.slept({1: 300, 3: None})
    times.learn({1: 800})
    assert list(times.take_due(500, 10)) == [1, 2]
    assert list(times.take_due(1000, 10)) == []


class CountedTime(int):
    """A time that counts how often any is compared with another."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedTime.comparisons += 1
        return int(self) == other

    __hash__ = int.__hash__

    def __lt__(self, other: int) -> bool:
        CountedTime.comparisons += 1
        return int(self) < int(other)

    def __le__(self, other: int) -> bool:
        CountedTime.comparisons += 1
        return int(self) <= int(other)


def test_a_look_costs_what_is_due_and_not_what_sleeps() -> None:
    times = WakeTimes()
    sleeping = 10_000
    times.learn({number: CountedTime(1000 + number) for number in range(sleeping)})
    CountedTime.comparisons = 0
    for _ in range(100):
        assert list(times.take_due(999, 20)) == []
    assert CountedTime.comparisons <= 100
    CountedTime.comparisons = 0
    assert list(times.take_due(1_000_000, 20)) == list(range(20))
    assert CountedTime.comparisons < 20 * 100


def test_times_that_are_replaced_pile_up_nowhere() -> None:
    times = WakeTimes()
    times.learn({1: 100, 2: 200})
    for later in range(10_000):
        times.slept({1: 1_000_000 - later, 3: later})
        times.slept({3: None})
    assert len(times._heap) < 200
    assert list(times.take_due(1_000_000, 10)) == [2, 1]


def test_what_was_taken_last_is_due_again_unless_it_has_slept_since() -> None:
    times = WakeTimes()
    times.slept({1: 100, 2: 100, 3: 100})
    assert list(times.take_due(100, 10)) == [1, 2, 3]
    times.slept({1: 500, 2: None})
    times.learn({1: 500})
    assert times.take_due(100, 10) == {3: 100}
    assert times.take_due(500, 10) == {1: 500}


def test_a_time_that_is_taken_back_and_noted_again_is_due_once() -> None:
    times = WakeTimes()
    times.slept({1: 100})
    times.slept({1: None})
    times.slept({1: 100})
    assert list(times.take_due(100, 10)) == [1]
    assert list(times.take_due(100, 10)) == []


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_notes_and_looks_is_that_of_a_plain_table(seed: int) -> None:
    rng = Random(seed)
    times = WakeTimes()
    plain: dict[int, int] = {}
    for _ in range(2000):
        number, at = rng.randrange(20), rng.randrange(50)
        if rng.random() < 0.7:
            noted = rng.choice([at, at, None])
            times.slept({number: noted})
            if noted is None:
                plain.pop(number, None)
            else:
                plain[number] = noted
        else:
            most = rng.randrange(1, 5)
            expected = sorted((due, each) for each, due in plain.items() if due <= at)[:most]
            assert list(times.take_due(at, most)) == [each for _, each in expected]
            for _, each in expected:
                del plain[each]
