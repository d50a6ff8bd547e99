"""Which rows of a table may share an entry when batches are made by key (`BatchingType.KeyBased`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def dictionary_codes(table: pa.Table, column: str) -> tuple[list[Any], np.ndarray[Any, np.dtype[np.int64]]]:
    """(distinct values, index of each row's value or -1) of a column; none of a column that is not there."""
    if column not in table.column_names:
        return [], np.full(table.num_rows, -1, dtype=np.int64)
    return _codes(table.column(column))


def batching_keys(table: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A number of each row's ordering key, else its key: the same for the same text; -1 without one."""
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
