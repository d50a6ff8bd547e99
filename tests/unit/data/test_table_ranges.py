"""Which rows make the table of a topic's keys, found in the log and read back from its files."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from pulsar_ray.data.planning.plan import TableSource
from pulsar_ray.data.reading.rows import message_batches
from pulsar_ray.data.reading.segments import stored_rows
from pulsar_ray.data.reading.table_ranges import check_whole_log, ranges_of_table
from pulsar_ray.errors import CorruptData, InvalidConfiguration, WrongNode
from tests.unit.managed_ledger.compaction.history import History, Row

COLUMNS = ("ledger_id", "entry_id", "batch_index", "key", "value", "properties")


def source_of(history: History, max_key_bytes: int = 1 << 20, *, retains: bool = False) -> TableSource:
    order = history.order(max_key_bytes, retains=retains)
    return TableSource(
        "node", "t", -1, tuple(order.segments), order.behind, order.horizon, retains, max_key_bytes
    )


def table(source: TableSource, slice_bytes: int = 1 << 20) -> list[tuple[tuple[int, int, int], Row]]:
    found = []
    for each in ranges_of_table(source, slice_bytes):
        for batch in message_batches(stored_rows(each), 0, columns=COLUMNS):
            for row in pa.Table.from_batches([batch]).to_pylist():
                at = (row["ledger_id"], row["entry_id"], row["batch_index"])
                found.append((at, Row(row["key"], row["value"], dict(row["properties"] or ()))))
    return found


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


@pytest.mark.parametrize("seed", range(12))
def test_it_is_a_dict_of_the_history_whether_or_not_that_was_compacted(history: History, seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    names = [f"key-{number}" for number in range(rng.choice([5, 50, 3000]))] + [None, ""]
    bound, slice_bytes = rng.choice([2_000, 40_000, 1 << 20]), rng.choice([1, 3_000, 1 << 20])

    def row() -> Row:
        value = rng.choice([b"x" * rng.randrange(1, 30), b"x", None, b""])
        return Row(rng.choice(names), value, {"p": "q"} if rng.random() < 0.1 else {})

    for _ in range(rng.randrange(1, 4)):
        for _ in range(rng.randrange(1, 40)):
            if rng.random() < 0.3:
                history.single(row(), codec=rng.choice([0, 1]))
            else:
                rows = [row() for _ in range(rng.choice([1, 2, 40, 400]))]
                history.batch(rows, row_is_entry=rng.random() < 0.5, codec=rng.choice([0, 3]))
        assert table(source_of(history, bound), slice_bytes) == history.expected()
        if rng.random() < 0.7:
            history.compact(bound)
            assert table(source_of(history, bound), slice_bytes) == history.expected()


def test_what_was_compacted_may_be_trimmed(history: History) -> None:
    history.batch([Row("a", b"1"), Row("b", b"1"), Row("c", b"1")])
    history.compact()
    trimmed = {segment.path for segment in history.log.segments()}
    history.log.changes.end_log()
    history.batch([Row("b", b"2"), Row("c", None), Row("d", b"1"), Row("d", b"2")])
    for path in trimmed:
        path.unlink()
    assert [row[:2] for _, row in table(source_of(history))] == [("a", b"1"), ("b", b"2"), ("d", b"2")]
    assert table(source_of(history)) == history.expected()


def test_keyless_messages_are_read_if_the_topic_keeps_them(history: History) -> None:
    history.batch([Row(None, b"n"), Row("a", b"1"), Row("", b"m"), Row("a", b"2")])
    history.single(Row(None, b"o"))
    values = [row.value for _, row in table(source_of(history, retains=True))]
    assert values == [b"n", b"m", b"2", b"o"]
    assert [row.value for _, row in table(source_of(history))] == [b"2"]


@pytest.mark.parametrize("slice_bytes", [1, 1 << 20])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_message_in_chunks_is_one_row(history: History, is_compacted: bool, slice_bytes: int) -> None:
    history.single(Row("k", b"small"))
    for number in range(2):
        history.chunk("old", number, 2, "k")
    for number in range(2):
        history.chunk("new", number, 3, "k")
    history.single(Row("other", b"small"))
    if is_compacted:
        history.compact()
    history.chunk("new", 2, 3, "k")
    history.chunk("begun", 0, 2, "k")
    found = [row[:2] for _, row in table(source_of(history), slice_bytes)]
    assert found == [("other", b"small"), ("k", b"partpartpart")]


def test_nothing_may_be_left(history: History) -> None:
    assert ranges_of_table(source_of(history)) == []
    history.single(Row("a", b"1"))
    history.single(Row("a", None))
    assert ranges_of_table(source_of(history)) == []


def test_damage_is_an_error_and_not_another_row(history: History) -> None:
    history.batch([Row("a", b"1" * 100), Row("b", b"2" * 100)])
    path = history.log.segments()[0].path
    data = bytearray(path.read_bytes())
    data[data.index(b"1" * 100) + 5] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptData):
        ranges_of_table(source_of(history))


def test_files_of_another_node_are_named(history: History) -> None:
    history.single(Row("a", b"1"))
    source = source_of(history)
    (history.log.directory).rename(history.log.directory.with_name("away"))
    with pytest.raises(WrongNode, match="node node"):
        ranges_of_table(source)


def test_a_part_of_a_log_has_no_table() -> None:
    check_whole_log("earliest", "latest")
    with pytest.raises(InvalidConfiguration, match="no start and no end"):
        check_whole_log("latest", "latest")
