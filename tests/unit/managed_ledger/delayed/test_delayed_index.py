"""The index of delayed rows against a naive model, over crashes, merges and damage."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pulsar_ray.errors import CorruptData, Fenced
from pulsar_ray.managed_ledger.delayed.delayed_index import MOST_RUNS, DelayedIndex, dropped_key
from pulsar_ray.managed_ledger.delayed.delayed_rows import (
    ALL_ROWS,
    NO_KEY,
    SHARES_ENTRY,
    DelayedRow,
    RowKey,
    empty_rows,
    read_rows,
)
from pulsar_ray.model.message_id import Position
from tests.unit.ledger.test_directory_owner import grant

START = Position(1, -1)


def opened(directory: Path, mark_delete: Position = START) -> DelayedIndex:
    return DelayedIndex.open(directory, mark_delete, acquire_lock=grant)


def rows(*entries: tuple[int, int], ledger_id: int = 1) -> Any:
    """Rows of blocks with one message each: (deliver_at, entry id)."""
    made = empty_rows(len(entries))
    for place, (deliver_at, entry_id) in enumerate(entries):
        made[place] = (deliver_at, ledger_id, entry_id, 0, 8 * entry_id, 80, 1, 0)
    return made


def due(index: DelayedIndex, until_ms: int, messages: int = 1 << 30) -> list[tuple[int, int]]:
    found = read_rows(index.due(until_ms, messages).tobytes())
    return [(row.deliver_at, row.first_entry_id) for row in found]


def test_rows_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    index = opened(tmp_path / "delayed")
    index.add(rows((30, 0), (10, 1), (20, 2), (10, 3)), Position(1, 3))
    assert index.next_time() == 10
    assert due(index, 9) == []
    assert due(index, 20) == [(10, 1), (10, 3), (20, 2)]
    assert due(index, 20) == [(10, 1), (10, 3), (20, 2)], "what was not taken comes again"
    index.set_taken(RowKey(10, 1, 3, 0), 0)
    assert due(index, 99) == [(20, 2), (30, 0)]
    assert (index.entries, index.next_time()) == (2, 20)


def test_only_so_many_messages_come_at_once(tmp_path: Path) -> None:
    index = opened(tmp_path / "delayed")
    several = empty_rows(3)
    several[0] = (10, 1, 0, 0, 0, 800, 50, ALL_ROWS)
    several[1] = (11, 1, 50, 0, 800, 80, 9, 3)
    several[2] = (12, 1, 59, 0, 900, 80, SHARES_ENTRY | 7, ALL_ROWS)
    index.add(several, Position(1, 59))
    assert index.entries == 50 + 1 + 1
    assert len(index.due(99, 10)) == 1, "a block goes whole"
    assert len(index.due(99, 51)) == 2
    assert len(index.due(99, 52)) == 3
    index.flush()
    assert (index.entries, len(index.due(99, 51))) == (52, 2)
    assert list(read_rows(index.due(99, 1).tobytes())) == [DelayedRow(10, 1, 0, 0, 0, 800, 50, ALL_ROWS)]


def test_entries_that_are_due_do_not_wait(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed: {seed}")
    chance = random.Random(seed)
    index = opened(tmp_path / "delayed")
    times: list[int] = []
    for entry_id in range(400):
        times.append(chance.randrange(1, 1000))
        index.add(rows((times[-1], entry_id)), Position(1, entry_id))
        if chance.random() < 0.05:
            index.flush()
        if chance.random() < 0.2:
            by_ms = chance.randrange(0, 1001)
            assert index.entries_waiting(by_ms) == sum(time > by_ms for time in times)
    taken = chance.randrange(300)
    index.set_taken(RowKey(taken, 1, 1 << 30, 0), 0)
    for by_ms in (0, taken, 500, 1000):
        assert index.entries_waiting(by_ms) == sum(time > max(by_ms, taken) for time in times)


def test_a_row_that_is_found_late_is_handed_over_next(tmp_path: Path) -> None:
    index = opened(tmp_path / "delayed")
    index.add(rows((10, 0), (50, 1)), Position(1, 1))
    index.set_taken(RowKey(50, 1, 1, 0), floor_ms=5)
    index.add(rows((20, 2), (60, 3), (5, 4)), Position(1, 4))
    assert due(index, 99) == [(51, 2), (60, 3)], "what was due by the floor is found in the log"


def test_made_anew_it_has_again_what_was_taken_far_ahead(tmp_path: Path) -> None:
    index = opened(tmp_path / "delayed")
    index.add(rows((10, 0), (5000, 1)), Position(1, 1))
    index.flush()
    index.set_taken(RowKey(5000, 1, 1, 0), 5)
    assert dropped_key(tmp_path / "delayed") == RowKey(5000, 1, 1, 0)
    index.make_anew(Position(1, 0))
    assert (index.through, dropped_key(tmp_path / "delayed")) == (Position(1, 0), NO_KEY)
    index.set_taken(RowKey(20), 20)
    index.add(rows((5000, 1), (30, 2)), Position(1, 2))
    assert due(index, 9999) == [(30, 2), (5000, 1)]


def test_all_that_is_durable_is_there_after_a_crash(tmp_path: Path) -> None:
    index = opened(tmp_path / "delayed")
    index.add(rows((30, 0), (10, 1)), Position(1, 1))
    index.flush()
    index.add(rows((20, 2)), Position(1, 2))
    # Killed here: the successor takes the directory over.
    again = opened(tmp_path / "delayed", Position(1, 0))
    assert (again.covers_from, again.through) == (START, Position(1, 1)), "the rest is read from the log"
    assert due(again, 99) == [(10, 1), (30, 0)]
    index.add(rows((20, 2)), Position(1, 3))
    with pytest.raises(Fenced):
        index.flush()
    assert due(opened(tmp_path / "delayed"), 99) == [(10, 1), (30, 0)]


def test_runs_that_were_handed_over_are_removed(tmp_path: Path) -> None:
    directory = tmp_path / "delayed"
    index = opened(directory)
    for first in (0, 10):
        index.add(rows(*((first + n, first + n) for n in range(10))), Position(1, first + 9))
        index.flush()
    assert len(list(directory.glob("run-*"))) == 2
    index.set_taken(RowKey(12), 0)
    assert len(list(directory.glob("run-*"))) == 1
    assert dropped_key(directory) == RowKey(12)
    assert dropped_key(tmp_path) == NO_KEY
    assert [at for at, _ in due(index, 99)] == list(range(13, 20))


def test_a_damaged_index_is_begun_anew(tmp_path: Path) -> None:
    directory = tmp_path / "delayed"
    index = opened(directory)
    index.add(rows(*((n, n) for n in range(3000))), Position(1, 2999))
    index.flush()
    index.close()
    (run,) = directory.glob("run-*")
    whole = run.read_bytes()
    run.write_bytes(whole[:-1])
    again = opened(directory, Position(1, 7))
    assert "instead of" in again.problem
    assert (again.covers_from, again.through, again.entries) == (Position(1, 7), Position(1, 7), 0)
    assert not list(directory.glob("run-*"))


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    directory = tmp_path / "delayed"
    index = opened(directory)
    index.add(rows(*((n, n) for n in range(3000))), Position(1, 2999))
    index.flush()
    index.close()
    (run,) = directory.glob("run-*")
    damaged = bytearray(run.read_bytes())
    damaged[50_000] ^= 4
    run.write_bytes(damaged)
    again = opened(directory)
    with pytest.raises(CorruptData, match="checksum"):
        again.due(1 << 40, 5000)


@pytest.mark.parametrize("seed", range(6))
def test_it_is_what_a_sorted_list_would_be(tmp_path: Path, seed: int) -> None:
    """Random adds, portions, flushes, merges, crashes and new dispatchers."""
    chance = random.Random(seed)
    directory = tmp_path / "delayed"
    log: list[tuple[int, int]] = []  # by entry id
    index = opened(directory)
    taken, floor = NO_KEY, -1
    handed: set[int] = set()
    now, most_runs = 0, 0
    for _ in range(400):
        now += chance.randrange(30)
        for _ in range(chance.choice((0, 5, 40))):
            log.append((now + chance.choice((1, 50, 500, 5000)) + chance.randrange(20), len(log)))
        read = index.through.entry_id + 1
        end = min(len(log), read + chance.choice((0, 10, 100)))
        if end > read:
            index.add(rows(*log[read:end]), Position(1, end - 1))
        got = index.due(now, chance.choice((1, 10, 100)))
        assert np.all(got["deliver_at"] <= now)
        if len(got) and chance.random() < 0.8:  # else the answer was lost
            found = list(read_rows(got.tobytes()))
            handed.update(row.first_entry_id for row in found)
            taken = found[-1].key
        index.set_taken(taken, floor)
        if chance.random() < 0.2:
            index.flush()
        most_runs = max(most_runs, len(list(directory.glob("run-*"))))
        if chance.random() < 0.5:
            index.work(START)
        if chance.random() < 0.03:
            killed, index = index, opened(directory)
            killed.close()  # behind its successor's back, as a process that ends: only its files go
            index.set_taken(taken, floor)
        if chance.random() < 0.02:  # a new dispatcher: it finds all that is due by now in the log
            handed.update(entry for at, entry in log if at <= now)
            taken, floor = RowKey(now), now
            index.set_taken(taken, floor)
            assert index.dropped <= taken
    while index.work(START):
        pass
    now += 100_000
    index.set_taken(taken, floor)
    read = index.through.entry_id + 1
    index.add(rows(*log[read:]), Position(1, len(log) - 1))
    last = [row.first_entry_id for row in read_rows(index.due(now, 1 << 30).tobytes())]
    assert len(last) == len(set(last))
    assert handed | set(last) == set(range(len(log))), f"seed {seed}"
    index.close()
    assert most_runs > MOST_RUNS


def test_merging_leaves_out_what_is_acknowledged(tmp_path: Path) -> None:
    directory = tmp_path / "delayed"
    index = opened(directory)
    for entry in range(MOST_RUNS + 1):
        index.add(rows((1000 - entry, entry)), Position(1, entry))
        index.flush()
    while index.work(Position(1, 3)):
        pass
    assert index.covers_from == Position(1, 3)
    assert [entry for _, entry in due(index, 2000)] == list(range(MOST_RUNS, 3, -1))
    assert len(list(directory.glob("run-*"))) < MOST_RUNS
    again = opened(directory)
    assert again.covers_from == Position(1, 3)
    assert [entry for _, entry in due(again, 2000)] == list(range(MOST_RUNS, 3, -1))


def test_many_rows_of_one_time_are_merged_in_little_memory(tmp_path: Path) -> None:
    index = opened(tmp_path / "delayed")
    for part in range(MOST_RUNS + 1):
        first = part * 5000
        index.add(rows(*((7, entry) for entry in range(first, first + 5000))), Position(1, first + 4999))
        index.flush()
    while index.work(START):
        pass
    total = (MOST_RUNS + 1) * 5000
    taken = 0
    while len(got := index.due(7, 9000)):
        found = list(read_rows(got.tobytes()))
        assert [row.first_entry_id for row in found] == list(range(taken, taken + len(found)))
        taken += len(found)
        index.set_taken(found[-1].key, 0)
    assert taken == total
