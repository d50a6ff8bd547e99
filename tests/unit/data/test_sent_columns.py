from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.data.writing.dataset_writing import sent_columns, write
from pulsar_ray.errors import InvalidConfiguration

NOTHING: dict[str, str | None] = dict.fromkeys(("value", "key", "properties", "ordering_key", "event_time"))


def test_columns_are_those_named_or_of_the_name_and_no_others() -> None:
    block = pa.table({"value": ["v"], "key": ["k"], "who": ["w"], "topic": ["t"], "event_time": [1]})
    assert sent_columns(block, NOTHING).to_pydict() == {"value": ["v"], "key": ["k"], "event_time": [1]}
    assert sent_columns(block, {**NOTHING, "key": "who"}).to_pydict() == {
        "value": ["v"],
        "key": ["w"],
        "event_time": [1],
    }


@pytest.mark.parametrize(
    ("rows", "maps"),
    [
        ([{"a": "b"}, {"c": "d"}, None], [[("a", "b")], [("c", "d")], None]),
        ([[("a", "b"), ("c", "d")], [], None], [[("a", "b"), ("c", "d")], [], None]),
    ],
)
def test_properties_are_taken_as_functions_of_rows_make_them(rows: list[Any], maps: list[Any]) -> None:
    """Of a map Ray Data makes lists of pairs for a function of rows, and of dicts it makes structs."""
    sent = sent_columns(pa.table({"value": ["v"] * 3, "properties": rows}), NOTHING)
    assert sent.column("properties").to_pylist() == maps
    assert pa.types.is_map(sent.column("properties").type)


@pytest.mark.parametrize(
    "rows", [[{"a": 1}], [["a", "b"]], [[["a", "b", "c"]]], [[{"key": "a", "value": "b"}]]]
)
def test_other_properties_are_left_to_be_refused(rows: list[Any]) -> None:
    block = pa.table({"value": ["v"], "properties": rows})
    assert sent_columns(block, NOTHING).column("properties") == block.column("properties")


@pytest.mark.parametrize(("argument", "given"), [("value", None), ("key", "who")])
def test_a_column_that_is_not_there_is_named(argument: str, given: str | None) -> None:
    block = pa.table({"said": ["v"]})
    columns = {**NOTHING, "value": "said", argument: given}
    with pytest.raises(
        InvalidConfiguration, match=f"{argument}: the Dataset has no column .* there are said"
    ):
        sent_columns(block, columns)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"batch_id": 7}, "batch_id=7 without a name"),
        ({"hashing_scheme": "murmur"}, "hashing_scheme='murmur'"),
    ],
)
def test_arguments_of_a_write_that_would_do_nothing_are_refused(wrong: dict[str, Any], named: str) -> None:
    dataset: Any = None
    with pytest.raises(ValueError, match=named):
        write(dataset, "t", **wrong)
