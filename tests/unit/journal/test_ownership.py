from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.errors import JournalDamaged
from pulsar_ray.journal.objects import (
    ENTRIES,
    FOLDS,
    SNAPSHOTS,
    CatalogEntry,
    CatalogSnapshot,
    catalog_key,
    pack_entry,
    pack_snapshot,
    snapshot_key,
    unpack_snapshot,
)
from pulsar_ray.journal.ownership import NOBODY, Ownership
from pulsar_ray.journal.requests import CREATED, EXISTS, UNKNOWN, Create, Delete, Get, ListKeys, Task, Wait
from pulsar_ray.journal.storage.bucket import open_object_store
from tests.unit.journal.test_store_journal import DEADLINE_S, homes, started, url

__all__ = ["homes", "url"]


class Bucket:
    """Objects in memory; the next `unknown` requests are carried out, and their answers are lost."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.unknown = 0

    def run(self, task: Task[Any]) -> Any:
        answer = None
        while True:
            try:
                wanted = task.send(answer)
            except StopIteration as end:
                return end.value
            answer = self._answer(wanted)
            if self.unknown and not isinstance(wanted, Wait | Delete):
                self.unknown, answer = self.unknown - 1, UNKNOWN

    def _answer(self, wanted: Any) -> Any:
        if isinstance(wanted, Get):
            return self.objects.get(wanted.key)
        if isinstance(wanted, ListKeys):
            return sorted(key for key in self.objects if key.startswith(wanted.prefix))
        if isinstance(wanted, Create):
            return EXISTS if self.objects.setdefault(wanted.key, wanted.body) is not wanted.body else CREATED
        if isinstance(wanted, Delete):
            for key in wanted.keys:
                self.objects.pop(key, None)
        return None

    def names(self, prefix: str) -> list[int]:
        return [int(key.rpartition("/")[2]) for key in sorted(self.objects) if key.startswith(prefix)]


def owner(number: int, partition: str = "p", store: str = "s") -> CatalogEntry:
    return CatalogEntry(number.to_bytes(8, "big"), "owner", partition, store, number)


def decide(bucket: Bucket, ownership: Ownership, numbers: range) -> None:
    for number in numbers:
        bucket.run(ownership.enter(owner(number, f"p{number % 3}")))


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def reader_of_four() -> Ownership:
    return Ownership(entries_of_a_snapshot=4)


def test_all_readers_know_the_last_decision_of_each_partition(bucket: Bucket) -> None:
    writer, reader = reader_of_four(), reader_of_four()
    decide(bucket, writer, range(1, 4))
    bucket.run(writer.enter(CatalogEntry(b"seal", "sealed", store="lost")))
    bucket.run(reader.read())
    assert (reader.owners, reader.sealed, reader.length) == (writer.owners, {"lost"}, 4)
    assert reader.owner("p1") == owner(1, "p1")
    assert reader.owner("unknown") == NOBODY


def test_of_two_who_decide_at_once_the_first_counts_for_both(bucket: Bucket) -> None:
    first, second = reader_of_four(), reader_of_four()
    bucket.run(first.enter(owner(1, store="first")))
    bucket.run(second.enter(owner(2, store="second")))
    assert first.owner("p").store == second.owner("p").store == "first"
    assert second.length == 1


def test_a_decision_whose_answer_was_lost_is_ones_own(bucket: Bucket) -> None:
    writer = reader_of_four()
    bucket.unknown = 3
    bucket.run(writer.enter(owner(1)))
    assert writer.owner("p") == owner(1)
    assert writer.length == 1


def test_a_snapshot_stands_for_the_entries_before_it(bucket: Bucket) -> None:
    writer = reader_of_four()
    decide(bucket, writer, range(1, 10))
    bucket.run(writer.snapshot())
    assert bucket.names(SNAPSHOTS) == [8]
    assert bucket.names(FOLDS) == [4, 8]
    assert bucket.names(ENTRIES) == [8]
    reader, late = reader_of_four(), Ownership(2, {"p": owner(99)}, {"x"}, 4)
    for each in (reader, late):
        bucket.run(each.read())
        assert (each.owners, each.sealed, each.length) == (writer.owners, set(), 9)


def test_nothing_is_written_before_a_snapshot_is_due(bucket: Bucket) -> None:
    writer = reader_of_four()
    decide(bucket, writer, range(1, 4))
    bucket.run(writer.snapshot())
    assert bucket.names(SNAPSHOTS) == []
    assert bucket.names(ENTRIES) == [0, 1, 2]


def test_two_write_the_same_snapshot(bucket: Bucket) -> None:
    writer, other = reader_of_four(), reader_of_four()
    decide(bucket, writer, range(1, 5))
    bucket.run(other.read())
    bucket.run(writer.snapshot())
    bucket.run(other.snapshot())
    assert bucket.names(SNAPSHOTS) == [4]
    assert bucket.names(ENTRIES) == []
    bucket.run(other.enter(owner(7)))
    bucket.run(writer.read())
    assert writer.owner("p") == owner(7)


@pytest.mark.parametrize("stale", range(4))
def test_what_is_written_where_entries_were_deleted_does_not_count(bucket: Bucket, stale: int) -> None:
    writer, away = reader_of_four(), reader_of_four()
    decide(bucket, writer, range(1, stale + 1))
    bucket.run(away.read())
    decide(bucket, writer, range(stale + 1, 5))
    bucket.run(writer.snapshot())
    reader = Ownership(stale, dict(away.owners), set(), 4)
    bucket.run(away.enter(owner(1000, "p0", "away")))
    assert bucket.names(ENTRIES) == [stale], "there it stands"
    for each in (away, reader, reader_of_four()):
        bucket.run(each.read())
        assert each.owners == writer.owners
        assert each.length == 4


def test_whoever_wrote_there_decides_behind_the_snapshot(bucket: Bucket) -> None:
    writer, away = reader_of_four(), reader_of_four()
    decide(bucket, writer, range(1, 6))
    bucket.run(writer.snapshot())
    for _ in range(2):
        bucket.run(away.enter(owner(50, "p0", "away")))
    bucket.run(writer.read())
    assert writer.owner("p0") == owner(50, "p0", "away")
    assert writer.length == away.length == 6


def test_a_snapshot_of_other_content_is_damage(bucket: Bucket) -> None:
    writer = reader_of_four()
    decide(bucket, writer, range(1, 5))
    bucket.objects[snapshot_key(4)] = pack_snapshot(CatalogSnapshot(4, (), ()))
    with pytest.raises(JournalDamaged, match="two contents of one snapshot"):
        bucket.run(writer.snapshot())
    assert bucket.names(ENTRIES) == [0, 1, 2, 3], "nothing was deleted"


def test_a_snapshot_that_is_gone_is_named(bucket: Bucket) -> None:
    writer = reader_of_four()
    decide(bucket, writer, range(1, 5))
    bucket.run(writer.snapshot())
    del bucket.objects[snapshot_key(4)]
    with pytest.raises(JournalDamaged, match="snapshots/ is empty"):
        bucket.run(reader_of_four().read())


def test_a_damaged_entry_is_named(bucket: Bucket) -> None:
    bucket.objects[catalog_key(0)] = pack_entry(owner(1))[:-3]
    reader = reader_of_four()
    with pytest.raises(JournalDamaged, match="catalog/000000000000"):
        bucket.run(reader.read())
    assert reader.length == 0


def test_a_snapshot_has_golden_bytes() -> None:
    stored = pack_snapshot(CatalogSnapshot(7, (owner(1), owner(2, "q", "t")), ("u",)))
    assert unpack_snapshot("k", stored) == CatalogSnapshot(7, (owner(1), owner(2, "q", "t")), ("u",))
    assert stored.hex() == (
        "50524a31010493079294c4080000000000000001a170a1730194c4080000000000000002a171a1740291a17584221619431f5646"
    )


def test_stores_fold_the_decisions_that_they_read(homes: tuple[Path, Path], url: str) -> None:
    bucket = open_object_store(url)
    journals = [started(home, url) for home in homes]
    for journal in journals:
        journal._life.ownership.entries_of_a_snapshot = 4
    decided = [str(number) for number in range(1, 11)]
    assert journals[0].adopt(decided) == decided
    for journal in journals:
        journal.run(lambda life: life.look())
    until_now(lambda: len(bucket.list(ENTRIES)) == 2)
    assert [len(bucket.list(prefix)) for prefix in (SNAPSHOTS, FOLDS)] == [1, 2]
    counts = [(journal.status()["puts"], journal.status()["lists"]) for journal in journals]
    for journal in journals:
        journal.run(lambda life: life.look())
    assert counts == [(journal.status()["puts"], journal.status()["lists"]) for journal in journals]
    late, reads = Ownership(entries_of_a_snapshot=4), journals[1].status()["gets"]
    journals[1].run(lambda _: late.read())
    assert sorted(late.owners, key=int) == decided
    assert journals[1].status()["gets"] - reads < 8
    for journal in journals:
        journal.stop()


def until_now(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
