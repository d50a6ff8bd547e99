"""Sequence ids of producers: what is known of them, what of that survives, and who is forgotten."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.errors import ProducerBusy
from pulsar_ray.format.metadata import ChunkInfo
from pulsar_ray.managed_ledger.log.ledger_policies import Retention
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.producer_incarnations import Duplicate, NeverStored
from pulsar_ray.managed_ledger.log.producer_sequences import KEPT_PREFIX, ProducerSequences
from pulsar_ray.testing.faulty_disk import FaultyDisk
from tests.stored_blocks import abandon, append_blocks, block, change, open_log, settings

HOUR_MS = 3_600_000


def deduplicated_log(path: Path, **options: Any) -> ManagedLedger:
    log = open_log(path, **options)
    change(log, log.changes.switch_deduplication(on=True))
    return log


def ids(log: ManagedLedger) -> dict[str, int]:
    return {known.name: known.durable_id for known in log.sequences}


def send(log: ManagedLedger, seq: int, first_id: int, producer: str = "p", **fields: Any) -> None:
    append_blocks(log, [block(seq, first_id=first_id, producer=producer, **fields)])


def test_nothing_is_remembered_while_it_is_off(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0, 7)
    assert ids(log) == {}
    change(log, log.changes.switch_deduplication(on=True))
    assert ids(log) == {}, "blocks from before do not count"
    send(log, 1, 8, rows=3)
    assert ids(log) == {"p": 10}
    abandon(log)
    log = open_log(tmp_path)
    assert log.sequences.is_on
    assert ids(log) == {"p": 10}
    change(log, log.changes.switch_deduplication(on=False))
    assert ids(log) == {}
    abandon(log)
    log = open_log(tmp_path)
    assert not log.sequences.is_on
    change(log, log.changes.switch_deduplication(on=True))
    assert ids(log) == {}
    assert log.changes.switch_deduplication(on=True) is None, "it is on already"


def test_a_failed_write_takes_its_ids_back(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = deduplicated_log(tmp_path, disk=disk)
    send(log, 0, 0)
    disk.fail("fdatasync")
    with pytest.raises(OSError):
        append_blocks(log, [block(1, first_id=1, producer="p"), block(2, first_id=2, producer="p")])
    assert log.sequences.last_id("p") == log.sequences.durable_id("p") == 0
    send(log, 1, 1)
    assert ids(log) == {"p": 1}


def test_only_the_last_chunk_of_a_message_takes_its_id(tmp_path: Path) -> None:
    log = deduplicated_log(tmp_path)
    for number, expected in enumerate((-1, -1, 7)):
        send(log, number, 7, chunk=ChunkInfo("p-7", number, 3, 120))
        assert log.sequences.durable_id("p") == expected
    abandon(log)
    assert ids(open_log(tmp_path)) == {"p": 7}


def test_ids_outlive_the_blocks_that_told_them(tmp_path: Path) -> None:
    """A trim takes ledgers away that no checkpoint has seen."""
    config = settings(managed_ledger_max_entries_per_ledger=1)
    log = deduplicated_log(tmp_path, config=config)
    for number in range(5):
        send(log, number, number, producer=f"p{number}", incarnation=number + 1)
    change(log, log.changes.register("s", True, "latest"))
    trimmed = change(log, log.changes.trim(HOUR_MS, Retention(0, 0)))
    assert len(trimmed) >= 4
    expected = ids(log)
    abandon(log)
    log = open_log(tmp_path, config=config)
    assert ids(log) == expected == {f"p{number}": number for number in range(5)}


def test_a_block_left_out_is_told_from_a_refused_one_after_a_crash(tmp_path: Path) -> None:
    """entry_seq 1 was a duplicate, 2 was refused by a full disk, and 3 was stored."""
    log = deduplicated_log(tmp_path)
    send(log, 0, 10)
    send(log, 3, 12)
    for _ in range(3):
        assert log.incarnations.classify(5, 1, 1, 9) == Duplicate()
        assert log.incarnations.classify(5, 2, 1, 11) == NeverStored()
        abandon(log)
        log = open_log(tmp_path)


def test_an_administrator_forgets_producers_for_good(tmp_path: Path) -> None:
    log = deduplicated_log(tmp_path)
    query = KEPT_PREFIX + "q1"
    for number, name in enumerate((f"{query}-0", f"{query}-1", "other")):
        send(log, 0, 50, producer=name, incarnation=number + 1)
    assert sorted(change(log, log.changes.forget_producers(query))) == [f"{query}-0", f"{query}-1"]
    send(log, 1, 3, producer=f"{query}-0", incarnation=1)
    abandon(log)
    log = open_log(tmp_path)
    assert ids(log) == {f"{query}-0": 3, "other": 50}
    abandon(log)
    assert ids(open_log(tmp_path)) == {f"{query}-0": 3, "other": 50}


def test_idle_producers_are_forgotten_but_not_connected_and_kept_ones() -> None:
    known = ProducerSequences()
    known.switch(on=True)
    for number, name in enumerate(("idle", "here", KEPT_PREFIX + "q", "young")):
        used_ms = 5 * HOUR_MS if name == "young" else 0
        known.record(block(0, first_id=9, producer=name, incarnation=number + 1)[0], used_ms)
    known.keep()
    assert known.forget_idle(6 * HOUR_MS, 6 * HOUR_MS, {"here"}) == ["idle"]
    assert known.forget_idle(11 * HOUR_MS, 6 * HOUR_MS, set()) == ["young"]
    assert known.durable_id(KEPT_PREFIX + "q") == 9
    assert known.forget_idle(12 * HOUR_MS, 6 * HOUR_MS, set()) == ["here"]


def test_how_many_are_remembered_is_limited() -> None:
    known = ProducerSequences()
    known.switch(on=True)
    for number, name in enumerate(("b", "a", KEPT_PREFIX + "q")):
        known.record(block(0, first_id=9, producer=name, incarnation=number + 1)[0], number)
    known.keep()
    assert known.make_room("a", 3, set()) is None, "it is one of them"
    assert known.make_room("new", 4, set()) is None
    assert known.make_room("new", 3, {"a"}) == "b", "the one that has been away longest"
    with pytest.raises(ProducerBusy, match="broker_deduplication_max_number_of_producers is 2"):
        known.make_room("new", 2, {"a"})


@pytest.mark.parametrize("interval", [1, 4, 60])
def test_a_crash_at_any_byte_leaves_what_the_stored_blocks_say(tmp_path: Path, interval: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    config = settings(
        index_checkpoint_entries=interval,
        segment_size_bytes=64 * 1024,
        managed_ledger_max_entries_per_ledger=rng.choice((5, 40)),
    )
    log = deduplicated_log(tmp_path, config=config)
    change(log, log.changes.register("s", True, "latest"))
    names = [f"p{number}" for number in range(4)]
    confirmed = dict.fromkeys(names, -1)
    next_seq = dict.fromkeys(names, 0)
    incarnations = {name: number + 1 for number, name in enumerate(names)}
    for crash in range(8):
        for _ in range(rng.randrange(1, 25)):
            group, said = [], []
            for name in rng.sample(names, rng.randint(1, 3)):
                rows = rng.choice((1, 1, 4))
                first = max(confirmed[name] + 1 + rng.choice((0, 0, 5)), 0)
                group.append(
                    block(
                        next_seq[name], incarnation=incarnations[name], rows=rows, size=400, first_id=first,
                        producer=name,
                    )
                )  # fmt: skip
                said.append((name, first + rows - 1))
                next_seq[name] += rows
            append_blocks(log, group)
            confirmed.update(said)
            if rng.random() < 0.2:
                number = log.changes.subscriptions()[0].number
                change(log, log.changes.move_hold(number, log.last_position))
                change(log, log.changes.trim(HOUR_MS, Retention(0, 0)))
        assert ids(log) == {name: last for name, last in confirmed.items() if last >= 0}
        # One more write, of which only a part reaches the disk.
        segment = log.segments()[-1]
        size = segment.path.stat().st_size
        half_sent = rng.choice(names)
        last_id = confirmed[half_sent] + 2
        torn = block(
            next_seq[half_sent], incarnation=incarnations[half_sent], first_id=last_id - 1, rows=2, size=400,
            producer=half_sent,
        )  # fmt: skip
        commit = log.begin_append([torn], 1000)
        is_same_file = commit.segment_path is None
        if is_same_file:
            commit.run()
        abandon(log)
        is_whole = False
        if is_same_file:
            content = segment.path.read_bytes()
            end = commit.offset + commit.frame_length
            cut = rng.choice((end, rng.randrange(commit.offset, end)))
            segment.path.write_bytes(content[:cut] + bytes(max(size, end) - cut))
            is_whole = cut == end
        log = open_log(tmp_path, config=config)
        if is_whole:
            confirmed[half_sent] = last_id
        next_seq[half_sent] += 2
        assert ids(log) == {name: last for name, last in confirmed.items() if last >= 0}, f"crash {crash}"
