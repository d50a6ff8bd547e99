from __future__ import annotations

import pytest

from pulsar_ray.data.writing.query_batch import IDS_PER_BATCH, MAX_BATCH_ID, Layout, QueryBatch, query_prefix
from pulsar_ray.errors import InvalidConfiguration, NotAllowedError
from pulsar_ray.model.enums import HashingScheme

USUAL = Layout(4, 2)


def known_after(batch: QueryBatch, layout: Layout, *rows: int) -> dict[str, dict[str, int]]:
    """What the partitions know once the tasks have stored so many rows each in the first one."""
    names = [batch.producer_name(layout, task) for task in range(len(rows))]
    ids = {name: batch.first_id + count - 1 for name, count in zip(names, rows, strict=True)}
    return {"t-partition-0": ids, "t-partition-1": {}}


def test_batches_use_ids_that_rise_and_never_meet() -> None:
    first, second = QueryBatch("q", 0), QueryBatch("q", 1)
    assert first.first_id == 0
    assert second.first_id == IDS_PER_BATCH
    assert first.rows_stored(-1) == 0
    assert first.rows_stored(9) == 10
    assert second.rows_stored(9) == 0


@pytest.mark.parametrize(
    ("query", "batch_id"), [("", 0), ("\ud800", 0), ("q", -1), ("q", MAX_BATCH_ID + 1), ("q", None), (7, 0)]
)
def test_wrong_names_and_ids_are_refused(query: str, batch_id: int) -> None:
    with pytest.raises(ValueError, match=r"name|batch_id"):
        QueryBatch.checked(query, batch_id)


def test_no_query_has_names_that_begin_as_those_of_another() -> None:
    queries = ["q", "q/", "q/4x2", "q 1", "q%2F", "日本"]
    prefixes = [query_prefix(query) for query in queries]
    for prefix in prefixes:
        assert [other for other in prefixes if other.startswith(prefix)] == [prefix]
        assert prefix.startswith("pulsar-ray-query-")


def test_a_batch_that_is_new_is_divided_as_usual() -> None:
    batch = QueryBatch("q", 3)
    assert batch.choose_layout({}, USUAL) == USUAL
    before = known_after(QueryBatch("q", 2), Layout(8, 1), 5, 5)
    assert batch.choose_layout(before, USUAL) == USUAL
    assert batch.former_layouts(before, USUAL) == {Layout(8, 1)}


def test_a_batch_that_was_begun_is_divided_as_it_was() -> None:
    batch, before = QueryBatch("q", 3), Layout(8, 1)
    known = known_after(batch, before, 0, 0, 7)
    assert batch.choose_layout(known, USUAL) == before
    assert batch.former_layouts(known, before) == set()


def test_a_batch_that_was_begun_keeps_its_hash_of_keys() -> None:
    batch, before = QueryBatch("q", 3), Layout(4, 2, HashingScheme.Murmur3_32Hash)
    known = known_after(batch, before, 7)
    assert batch.choose_layout(known, USUAL) == before
    assert batch.former_layouts(known, USUAL) == {before}
    assert not batch.layout_prefix(before).startswith(batch.layout_prefix(USUAL))


def test_a_batch_behind_a_later_one_is_refused() -> None:
    known = known_after(QueryBatch("q", 3), USUAL, 1)
    with pytest.raises(NotAllowedError, match="batch 2 of 'q' comes after batch 3"):
        QueryBatch("q", 2).choose_layout(known, USUAL)


def test_names_of_others_say_nothing() -> None:
    batch = QueryBatch("q", 1)
    known = {"t": {"pulsar-ray-query-q/other": 9, "pulsar-ray-query-p/4x2/0": 1 << 60, "p": 9}}
    assert batch.choose_layout(known, USUAL) == USUAL
    assert batch.former_layouts(known, USUAL) == set()


def test_wrong_names_are_of_the_projects_type() -> None:
    with pytest.raises(InvalidConfiguration, match="at least one character"):
        query_prefix("")
