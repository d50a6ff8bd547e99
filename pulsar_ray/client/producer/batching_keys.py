"""Tells which rows of a table may share an entry.

Rows of one key share entries where batches are made by key (`BatchingType.KeyBased`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


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
