"""What a compaction keeps of a log: the newest message of each key, as it was, and nothing else."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray.errors import CorruptData, Fenced
from pulsar_ray.format.block import COLUMNAR, parse_block_header
from pulsar_ray.format.payload import encode_batch, encode_rows
from pulsar_ray.ledger.segment_file import COMPACTED_INDEX, segment_name
from pulsar_ray.maintenance.rebuilding import rebuild_manifest
from pulsar_ray.managed_ledger.compaction.compacted_form import (
    FormLock,
    newest_form,
    numbers_of_forms,
    remove_forms,
    remove_leftovers,
)
from pulsar_ray.managed_ledger.compaction.compactor import Compactor
from tests.stored_blocks import append_blocks
from tests.unit.managed_ledger.compaction.history import History, Row


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


def test_the_newest_of_each_key_stays_with_its_id_and_tombstones_go(history: History) -> None:
    """The case of the reference page: a1 b1 [nokey] a2 c1 d1 b2 c=None e1 [nokey] d=b'' a3."""
    rows: list[tuple[str | None, bytes | None]]
    rows = [("a", b"1"), ("b", b"1"), (None, b"n"), ("a", b"2"), ("c", b"1"), ("d", b"1"), ("b", b"2")]
    rows += [("c", None), ("e", b"1"), ("", b"n"), ("d", b""), ("a", b"3")]
    for key, value in rows:
        history.single(Row(key, value, {"of": str(value)}))
    outcome = history.compact()
    assert [row[:2] for _, row in history.kept()] == [("b", b"2"), ("e", b"1"), ("a", b"3")]
    assert history.kept() == history.expected()
    assert (outcome.kept, outcome.removed) == (3, 9)
    assert outcome.last == (*history.all[-1][0][:2], -1, 0)


def test_encrypted_messages_count_by_the_keys_that_can_be_seen(history: History) -> None:
    history.single(Row("a", b"1"), is_encrypted=True)
    history.single(Row("b", b"1"), is_encrypted=True)
    history.batch([Row("a", b"2"), Row("c", b"1")], is_encrypted=True)
    history.single(Row("a", b"3"), is_encrypted=True)
    history.single(Row("b", b""), is_encrypted=True)
    outcome = history.compact()
    # Nobody sees what is in the batch, which stays.
    assert [row.value for _, row in history.kept()] == [b"2", b"1", b"3"]
    assert outcome.kept == 3


@pytest.mark.parametrize("codec", [0, 1, 2, 3])
@pytest.mark.parametrize("row_is_entry", [False, True])
def test_removed_rows_of_a_batch_leave_nothing(history: History, row_is_entry: bool, codec: int) -> None:
    rows = [Row("a", b"1"), Row("b", b"1", {"x": "y"}), Row("a", b"2"), Row(None, b"n"), Row("c", None)]
    history.batch(rows, row_is_entry=row_is_entry, codec=codec)
    history.batch([Row("d", b"1"), Row("a", b"3")], row_is_entry=row_is_entry, codec=codec)
    outcome = history.compact()
    assert history.kept() == history.expected()
    assert outcome.last[:2] == history.all[-1][0][:2]
    assert outcome.last[2:] == ((-1, 0) if row_is_entry else (1, 2))


def test_a_second_run_goes_on_from_the_first_without_the_log(history: History) -> None:
    history.batch([Row("a", b"1"), Row("b", b"1"), Row("c", b"1")])
    history.compact()
    trimmed = {segment.path for segment in history.log.segments()}
    history.log.changes.end_log()
    history.batch([Row("b", b"2"), Row("c", None)])
    for path in trimmed:
        path.unlink()
    outcome = history.compact()
    assert history.kept() == history.expected()
    assert (outcome.kept, outcome.removed) == (2, 3)


def test_nothing_may_be_left(history: History) -> None:
    history.single(Row("a", b"1"))
    history.single(Row("a", None))
    outcome = history.compact()
    assert (outcome.segments, outcome.last) == ((), (-1, -1, -1, 0))


def test_keyless_messages_stay_if_asked_for(history: History) -> None:
    history.batch([Row(None, b"n"), Row("a", b"1"), Row("", None), Row("a", b"2")])
    history.single(Row(None, None))
    history.compact(retains=True)
    assert [(at, row.value) for at, row in history.kept()] == [
        (at, row.value) for at, row in history.expected(retains=True)
    ]


def test_chunks_are_kept_or_removed_together(history: History) -> None:
    history.single(Row("k", b"small"))
    for number in range(2):
        history.chunk("old", number, 2, "k" if number else None)
    for number in range(3):
        history.chunk("new", number, 3, "k" if number == 2 else None)
    history.chunk("begun", 0, 2, None)
    history.compact()
    assert [row.key for _, row in history.kept()] == ["new/0", "new/1", "new/2", "begun/0"]
    history.chunk("begun", 1, 2, "k")
    history.compact()
    assert [row.key for _, row in history.kept()] == ["begun/0", "begun/1"]


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_match_a_dict(history: History, seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    names = [f"key-{number}" for number in range(rng.choice([5, 50, 3000]))] + [None, ""]
    bound = rng.choice([2_000, 40_000, 1 << 20])

    def row() -> Row:
        value = rng.choice([b"x" * rng.randrange(1, 30), b"x", None, b""])
        return Row(rng.choice(names), value)

    for _ in range(rng.randrange(1, 4)):
        for _ in range(rng.randrange(1, 40)):
            if rng.random() < 0.3:
                history.single(row(), codec=rng.choice([0, 1]))
            else:
                rows = [row() for _ in range(rng.choice([1, 2, 40, 400]))]
                history.batch(rows, row_is_entry=rng.random() < 0.5, codec=rng.choice([0, 3]))
        history.compact(bound)
        assert history.kept() == history.expected()


class Stop(Exception):
    pass


def test_an_end_at_any_step_leaves_the_form_before_and_a_next_run_works(history: History) -> None:
    for number in range(60):
        history.single(Row(f"k{number % 50}", b"%d" % number))
    history.compact()
    before = history.kept()
    for number in range(60):
        history.single(Row(f"k{number % 7}", b"again %d" % number))
    for stop_at in range(1, 100):
        steps = iter(range(1, stop_at))

        def watch(_share: float, steps: Iterator[int] = steps) -> None:
            if next(steps, None) is None:
                raise Stop

        order = history.order()
        try:
            Compactor(order, watch).run()
        except Stop:
            assert history.kept() == before
            assert numbers_of_forms(history.log.directory) == {1}
            continue
        break
    history.compact()
    assert history.kept() == history.expected()


def test_damage_ends_a_run_and_takes_nothing(history: History) -> None:
    history.batch([Row("a", b"1" * 100), Row("b", b"2" * 100)])
    path = history.log.segments()[0].path
    data = bytearray(path.read_bytes())
    data[data.index(b"1" * 100) + 5] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptData):
        history.compact()
    assert numbers_of_forms(history.log.directory) == set()


def test_the_second_of_two_writers_of_a_form_takes_nothing_from_the_first(history: History) -> None:
    for number in range(50):
        history.single(Row(f"k{number % 10}", b"%d" % number))
    order = history.order()
    history.form = Compactor(order).run()
    kept = history.kept()
    with pytest.raises(FileExistsError):
        Compactor(order).run()
    assert history.kept() == kept
    assert newest_form(history.log.directory) is not None


def test_leftovers_that_a_successor_may_have_made_stay(history: History) -> None:
    for number in range(50):
        history.single(Row(f"k{number}", b"v"))
    directory = history.log.directory

    def successor_compacts() -> None:
        history.compact()
        raise Fenced("somebody else has the partition")

    with pytest.raises(Fenced):
        remove_leftovers(directory, set(), successor_compacts)
    assert numbers_of_forms(directory) == {1}
    remove_leftovers(directory, {1}, lambda: None)
    assert numbers_of_forms(directory) == {1}
    remove_leftovers(directory, {2}, lambda: None)
    assert numbers_of_forms(directory) == set()


def test_files_of_a_form_stay_while_somebody_reads_them(history: History) -> None:
    for number in range(50):
        history.single(Row(f"k{number}", b"v"))
    form = history.compact()
    first = history.log.directory / segment_name(form.segments[0].ledger_id, COMPACTED_INDEX + 1)
    lock = FormLock(first)
    assert remove_forms(history.log.directory, {1}) == {1}
    assert first.exists()
    lock.release()
    assert remove_forms(history.log.directory, {1}) == set()
    assert numbers_of_forms(history.log.directory) == set()


def test_a_form_says_what_it_is_until_it_goes(history: History) -> None:
    directory = history.log.directory
    assert newest_form(directory) is None
    for number in range(50):
        history.single(Row(f"k{number}", b"v"))
    form = history.compact()
    found = newest_form(directory)
    assert found is not None
    assert (found.number, found.horizon) == (form.number, form.horizon)
    assert tuple(found.last) == tuple(form.last)
    assert [tuple(each) for each in found.segments] == [tuple(each) for each in form.segments]
    # As in a removal that was broken off: the description goes first.
    (directory / f"kept-{form.number}.form").unlink()
    assert newest_form(directory) is None
    assert numbers_of_forms(directory) == {form.number}


@pytest.mark.parametrize("harm", ["a segment is gone", "a segment is cut", "the description is damaged"])
def test_a_form_that_is_not_whole_is_passed_over(history: History, harm: str) -> None:
    directory = history.log.directory
    for number in range(50):
        history.single(Row(f"k{number}", b"v"))
    former = history.compact()
    history.single(Row("k0", b"w"))
    form = history.compact()
    segment = directory / segment_name(form.segments[0].ledger_id, COMPACTED_INDEX + form.number)
    description = directory / f"kept-{form.number}.form"
    if harm == "a segment is gone":
        segment.unlink()
    elif harm == "a segment is cut":
        segment.write_bytes(segment.read_bytes()[:-1])
    else:
        description.write_bytes(description.read_bytes()[:-1])
    found = newest_form(directory)
    assert found is None or found.number == former.number


def test_a_manifest_that_is_made_anew_knows_the_form(history: History) -> None:
    for number in range(50):
        history.single(Row(f"k{number % 7}", b"%d" % number))
    form = history.compact()
    directory = history.log.directory
    history.log.close()
    for path in directory.glob("manifest-*"):
        path.unlink()
    rebuilt = rebuild_manifest(directory, "cluster", None)
    assert rebuilt is not None
    compacted = rebuilt.content.manifest.compacted
    assert compacted is not None
    assert (compacted.number, compacted.horizon) == (form.number, form.horizon)


def test_a_block_stays_whose_columns_nobody_can_read(history: History) -> None:
    history.single(Row("a", b"1"))
    payload, columns = encode_rows([b"no columns", b""], ["a", "b"])
    block = encode_batch(
        payload, columns | COLUMNAR, message_count=2, incarnation=5, entry_seq=history.seq,
        first_sequence_id=1, last_sequence_id=2, publish_time_ms=1,
    )  # fmt: skip
    append_blocks(history.log, [(parse_block_header(b"".join(block)), block)])
    history.seq += 1
    history.single(Row("b", b"1"))
    outcome = history.compact()
    assert (outcome.kept, outcome.removed) == (4, 0)


def test_memory_is_bounded_by_bytes_however_few_rows_there_are(history: History) -> None:
    value = bytes(1 << 20)
    for number in range(64):
        history.batch([Row(f"a{number % 3}", value), Row(f"b{number % 3}", None)])
    order = history.order()
    tracemalloc.start()
    try:
        Compactor(order).run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 << 20


def test_a_process_that_compacts_loads_neither_pandas_nor_data_sets(history: History, tmp_path: Path) -> None:
    """They would take as long to load as two million messages to compact."""
    for number in range(40):
        rows = [Row(f"k{place}", b"%d" % number, {"a": "b"}) for place in range(number % 7)]
        history.batch([*rows, Row(None, b"n"), Row("x", None)])
        history.single(Row("y", b"1"))
        history.single(Row(None, b"1"))
    order = tmp_path / "order"
    order.write_bytes(pickle.dumps(history.order(100, retains=True)))
    subprocess.run([sys.executable, "-c", _COMPACTING, str(order)], check=True)


_COMPACTING = """
import pickle, sys
from pathlib import Path
from pulsar_ray.actors.topic_compactor import TopicCompactor
from pulsar_ray.managed_ledger.compaction.compactor import Compactor
outcome = Compactor(pickle.loads(Path(sys.argv[1]).read_bytes())).run()
assert outcome.kept, outcome
loaded = sys.modules.keys() & {"pandas", "pyarrow.dataset", "pyarrow.acero"}
assert not loaded, loaded
"""
