"""Chunks behind one that was refused: which of them may be stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_ray.broker.partition.publishing.broken_messages import part_broken
from pulsar_ray.broker.partition.publishing.producer_endpoint import Admitted
from pulsar_ray.format.metadata import ChunkInfo
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.memory_log import PassingIncarnations
from tests.stored_blocks import abandon, append, open_log
from tests.unit.broker.partition.publishing.test_duplicate_blocks import admitted

P = ord("p")
CHUNKS = 3


def chunk(number: int, seq: int, name: str = "p") -> Admitted:
    """One of the three chunks of a message."""
    return admitted(9, name=name, seq=seq, chunk=ChunkInfo(f"{name}-9", number, CHUNKS, 100))


def kept(group: list[Admitted], log: ManagedLedger) -> list[int]:
    """The places in the group of the blocks that are to be stored; all others are broken."""
    parted = part_broken(group, log.incarnations)
    place = {id(each): index for index, each in enumerate(group)}
    broken = [place[id(each)] for each in parted.broken]
    to_store = [place[id(each)] for each in parted.to_store]
    assert sorted(to_store + broken) == list(range(len(group)))
    return to_store


@pytest.fixture
def log(tmp_path: Path) -> ManagedLedger:
    """A log with the entries 0 to 2 of incarnation p."""
    log = open_log(tmp_path)
    append(log, 0, 1, 2, incarnation=P)
    return log


def test_chunks_that_follow_each_other_are_stored(log: ManagedLedger) -> None:
    assert kept([chunk(0, 3), chunk(1, 4), chunk(2, 5), admitted(10, seq=6)], log) == [0, 1, 2, 3]


@pytest.mark.parametrize("first", [1, 2])
def test_chunks_behind_a_stored_one_are_stored(log: ManagedLedger, first: int) -> None:
    assert kept([chunk(number, 3 + number - first) for number in range(first, CHUNKS)], log) == list(
        range(CHUNKS - first)
    )


@pytest.mark.parametrize("refused", [0, 1])
def test_no_chunk_behind_a_refused_one_is_stored(log: ManagedLedger, refused: int) -> None:
    group = [chunk(number, 3 + number) for number in range(CHUNKS) if number != refused]
    assert kept([*group, admitted(10, seq=6), chunk(0, 7)], log) == [*range(refused), 2, 3]


def test_producers_break_for_themselves(log: ManagedLedger) -> None:
    group = [chunk(1, 4), chunk(0, 0, "q"), chunk(2, 5), chunk(1, 1, "q"), chunk(2, 1, "r")]
    assert kept(group, log) == [1, 3]


def test_a_restart_forgets_no_refusal(tmp_path: Path, log: ManagedLedger) -> None:
    """A producer goes on behind the entries that were answered, refused ones too."""
    abandon(log)
    assert kept([chunk(1, 4), chunk(2, 5)], open_log(tmp_path)) == []


def test_a_partition_that_keeps_nothing_lets_the_rest_pass_after_a_restart() -> None:
    group = [chunk(1, 4), chunk(2, 5)]
    assert part_broken(group, PassingIncarnations()).broken == []
