"""Checks the columns of `send_many`, and groups the rows of tables by their keys."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_ray.client.options.checks import check_properties, refuse
from pulsar_ray.client.producer.message_fields import check_delivery_time

_LOOK_LIKE_LISTS = (str, bytes, bytearray, memoryview, Mapping)
"""Iterables whose items nobody means to send one by one."""


def as_list(name: str, items: Any) -> list[Any]:
    """Make a list of any iterable; a list or tuple stays as it is.

    Raises ValueError for anything else.
    """
    if isinstance(items, (list, tuple)):
        return items  # type: ignore[return-value]
    if isinstance(items, _LOOK_LIKE_LISTS) or not isinstance(items, Iterable):
        raise refuse(name, items, "a list or another iterable, with one item for each message")
    return list(items)


def _column(name: str, items: Any, kinds: tuple[type, ...], expected: str) -> list[Any] | None:
    if items is None:
        return None
    column = as_list(name, items)
    # By type first: a thousand times less work than item by item.
    if not set(map(type, column)) <= {*kinds, type(None)}:
        for row, item in enumerate(column):
            if item is not None and not isinstance(item, kinds):
                raise refuse(f"{name}[{row}]", item, expected)
    return column


def key_column(name: str, keys: Iterable[str | None] | None) -> list[str | None] | None:
    """Check keys; an empty one is none. Raises ValueError for items that are no text."""
    column = _column(name, keys, (str,), "a str or None")
    return [key or None for key in column] if column and "" in column else column


def property_column(
    properties: Iterable[dict[str, str] | None] | None,
) -> list[dict[str, str] | None] | None:
    """Check properties. Raises ValueError for items that are no dicts of text."""
    column = _column("properties", properties, (dict, Mapping), "a dict of str to str or None")
    for row, item in enumerate(column or ()):
        check_properties(f"properties[{row}]", item)
    return column


def time_column(times: Iterable[int | None] | None) -> list[int | None] | None:
    """Check event times, of which 0 is none.

    Raises ValueError for items that are no times in ms.
    """
    column = _column("event_timestamps", times, (int,), "an int (ms since 1970) or None")
    for at in (min(filter(None, column or ()), default=0), max(filter(None, column or ()), default=0)):
        if not 0 <= at < 2**63:
            raise refuse("event_timestamps", at, "ms since 1970, from 0")
    return [at or None for at in column] if column and 0 in column else column


def delivery_column(deliver_at: Any) -> tuple[int | None, list[int | None] | None]:
    """Check when messages are due.

    Returns (a time for all of them, a time for each). None, or a time that has passed, means at once. Raises
    ValueError for anything but a time in ms, None, or an iterable of these.
    """
    if isinstance(deliver_at, _LOOK_LIKE_LISTS) or not isinstance(deliver_at, Iterable):
        if deliver_at is None:
            return None, None
        at: Any = deliver_at
        check_delivery_time("deliver_at", at)
        return (int(at) if at > time.time_ns() // 1_000_000 else None), None
    column = _column("deliver_at", deliver_at, (int,), "an int (ms since 1970) or None")
    given = [at for at in column or () if at is not None]
    if given:
        check_delivery_time("deliver_at", min(given))
        check_delivery_time("deliver_at", max(given))
    return None, column


def due_times(times: Sequence[int | None] | pa.Array, now_ms: int) -> int | list[int] | None:
    """Say when the rows of a block are due.

    All at one time, or each at its own, 0 for at once; None if all are at once.
    """
    if isinstance(times, pa.Array):
        column = times.fill_null(0).to_numpy(zero_copy_only=False)
    else:
        column = np.array([at or 0 for at in times], np.int64)
    column = np.where(column > now_ms, column, 0)
    if not column.any():
        return None
    return int(column[0]) if (column == column[0]).all() else column.tolist()


def dictionary_codes(table: pa.Table, column: str) -> tuple[list[Any], np.ndarray[Any, np.dtype[np.int64]]]:
    """List a column's distinct values, and the index of each row's value.

    The index is -1 for a row without a value. Of a column that is not there the list is empty.
    """
    if column not in table.column_names:
        return [], np.full(table.num_rows, -1, dtype=np.int64)
    return _codes(table.column(column))


def batching_keys(table: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Number each row by its ordering key, else by its key.

    Rows of the same text get the same number, rows without one -1.
    """
    if "ordering_key" not in table.column_names:
        return dictionary_codes(table, "key")[1]
    ordering = table.column("ordering_key")
    key = table.column("key") if "key" in table.column_names else pa.nulls(table.num_rows, pa.string())
    is_given = pc.greater(pc.fill_null(pc.binary_length(ordering), 0), 0)
    return _codes(pc.if_else(is_given, ordering, key))[1]


def _codes(column: pa.ChunkedArray) -> tuple[list[Any], np.ndarray[Any, np.dtype[np.int64]]]:
    encoded = column.combine_chunks().dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return encoded.dictionary.to_pylist(), codes.astype(np.int64)
