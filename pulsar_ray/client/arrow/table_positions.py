"""Positions that rows of a received table acknowledge.

Any subset of rows in any order will do; none costs an object.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_ray.client.acks.ack_tracker import BatchRows
from pulsar_ray.client.acks.nack_tracker import Nack
from pulsar_ray.client.arrow.received_table import distinct_values
from pulsar_ray.format.typed_rows import OWN
from pulsar_ray.model.row_sets import EntryRange

MAX_BATCH_INDEX = 2**31 - 2
_Int64s = npt.NDArray[np.int64]


class TablePositions(NamedTuple):
    """The messages of one topic (or partition): entries as inclusive ranges, and rows of batches."""

    ranges: list[EntryRange]
    batch_rows: list[BatchRows]


def table_positions(table: pa.Table) -> dict[str, TablePositions]:
    """The stored messages of these rows, by full topic name; duplicates count once.

    Needs the columns topic, ledger_id, entry_id and batch_index. Raises ValueError if one is missing, has a
    wrong type or a null.
    """
    ledgers, entries, rows = (_numbers(table, name) for name in ("ledger_id", "entry_id", "batch_index"))
    are_stored = ledgers >= 0
    if (are_stored & (entries < 0)).any():
        raise _no_such_row("entry_id")
    if not are_stored.all():
        return table_positions(table.filter(pa.array(are_stored)))
    return {
        topic: _positions(ledgers[chosen], entries[chosen], rows[chosen])
        for topic, chosen in _by_topic(table)
    }


def table_nacks(table: pa.Table) -> dict[str, list[Nack]]:
    """The failed messages and the delivery they failed in, by full topic name.

    Needs the column redelivery_count as well.
    """
    counts = _numbers(table, "redelivery_count")
    nacks: dict[str, list[Nack]] = {}
    for count in np.unique(counts).tolist():
        for topic, found in table_positions(table.filter(pa.array(counts == count))).items():
            items = nacks.setdefault(topic, [])
            for ledger_id, first, last in found.ranges:
                items += [(ledger_id, entry_id, (), count) for entry_id in range(first, last + 1)]
            items += [(*batch_rows, count) for batch_rows in found.batch_rows]
    return nacks


def _column(table: pa.Table, name: str) -> pa.ChunkedArray:
    if not isinstance(table, (pa.Table, pa.RecordBatch)):
        raise ValueError(f"a received pa.Table is needed, not {type(table).__name__}")
    if table.schema.get_field_index(OWN + name) >= 0:
        name = OWN + name  # beside a column of that name of the rows
    if table.schema.get_field_index(name) < 0:
        raise ValueError(f"the table has no column {name}; keep it from the received table")
    column = table.column(name)
    if column.null_count:
        raise ValueError(f"column {name} has {column.null_count} nulls; received rows have none there")
    return column


def _numbers(table: pa.Table, name: str) -> _Int64s:
    column = _column(table, name)
    if not pa.types.is_integer(column.type):
        raise ValueError(f"column {name} is {column.type}; it must hold the integers of the received table")
    numbers: _Int64s = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    # -1 is the place of what is not stored, and no index.
    if len(numbers) and (numbers.min() < -1 or (name == "batch_index" and numbers.max() > MAX_BATCH_INDEX)):
        raise _no_such_row(name)
    return numbers


def _no_such_row(name: str) -> ValueError:
    return ValueError(f"column {name} has a number that no received row has")


def _by_topic(table: pa.Table) -> list[tuple[str, Any]]:
    """Each topic, and which rows are its own."""
    topics = _column(table, "topic")
    names = distinct_values(topics)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"column topic is {topics.type}; it must hold the text of the received table")
    if len(names) == 1:
        return [(names[0], slice(None))]
    return [
        (name, np.asarray(pc.equal(topics, name).to_numpy(zero_copy_only=False), dtype=bool))
        for name in names
    ]


def _positions(ledgers: _Int64s, entries: _Int64s, rows: _Int64s) -> TablePositions:
    in_batch = rows >= 0
    if not in_batch.any():
        return TablePositions(_entry_ranges(ledgers, entries), [])
    if in_batch.all():
        return TablePositions([], _batch_rows(ledgers, entries, rows))
    alone = ~in_batch
    return TablePositions(
        _entry_ranges(ledgers[alone], entries[alone]),
        _batch_rows(ledgers[in_batch], entries[in_batch], rows[in_batch]),
    )


def _entry_ranges(ledgers: _Int64s, entries: _Int64s) -> list[EntryRange]:
    ledgers, entries = _sorted(ledgers, entries)
    is_new = (np.diff(ledgers) != 0) | (np.diff(entries) > 1)
    firsts, lasts = _runs(is_new)
    return list(zip(ledgers[firsts].tolist(), entries[firsts].tolist(), entries[lasts].tolist(), strict=True))


def _batch_rows(ledgers: _Int64s, entries: _Int64s, rows: _Int64s) -> list[BatchRows]:
    ledgers, entries, rows = _sorted(ledgers, entries, rows)
    is_new = (np.diff(ledgers) != 0) | (np.diff(entries) != 0) | (np.diff(rows) > 1)
    firsts, lasts = _runs(is_new)
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    runs = (ledgers[firsts], entries[firsts], rows[firsts], rows[lasts] + 1)
    for ledger_id, entry_id, first, end in zip(*(numbers.tolist() for numbers in runs), strict=True):
        found.setdefault((ledger_id, entry_id), []).append((first, end))
    return [(ledger_id, entry_id, tuple(ranges)) for (ledger_id, entry_id), ranges in found.items()]


def _runs(is_new: npt.NDArray[np.bool_]) -> tuple[_Int64s, _Int64s]:
    """First and last index of each run.

    `is_new` marks the rows, from the second on, that start a new one.
    """
    breaks = np.flatnonzero(is_new)
    return np.concatenate(([0], breaks + 1)), np.concatenate((breaks, [len(is_new)]))


def _sorted(*columns: _Int64s) -> tuple[_Int64s, ...]:
    """The rows in order of the first column, then the second, ...

    Received tables mostly are in order already.
    """
    in_order = np.ones(len(columns[0]) - 1, dtype=bool)
    for column in reversed(columns):
        step = np.diff(column)
        in_order = (step > 0) | ((step == 0) & in_order)
    if in_order.all():
        return columns
    order = np.lexsort(columns[::-1])
    return tuple(column[order] for column in columns)
