"""Validates columns that others have made: a bad offset would end the process."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa

_LEAST_BYTES = 16_384
_AT_ONCE_BYTES = 128 * 1024
MOST_EMPTY_ITEMS = 1_000_000
"""Items of lists that take no bytes, as nulls, in all columns of a batch.

A hundred bytes could stand for billions of them.
"""
_AS_BYTES = {pa.utf8().id: pa.binary(), pa.large_utf8().id: pa.large_binary()}


def validate_batch(batch: pa.RecordBatch) -> None:
    """Look at each offset and character. Raises pa.ArrowException.

    Arrow looks at texts one by one. A column of nothing but ASCII is looked at in one go, and its offsets as
    those of bytes, which takes a third of the time.
    """
    batch.validate()
    for column in batch.columns:
        checked = column
        if (as_bytes := _AS_BYTES.get(column.type.id)) is not None:
            buffers = column.buffers()
            if _is_ascii(buffers[2]):
                checked = pa.Array.from_buffers(
                    as_bytes, len(column), buffers, column.null_count, column.offset
                )
        checked.validate(full=True)


def check_empty_items(batch: pa.RecordBatch) -> None:
    """Raise ValueError for more items without bytes than anybody would have in memory as values."""
    if not _may_have_empty_items(batch.schema):
        return
    found = sum(map(_empty_items, batch.columns))
    if found > MOST_EMPTY_ITEMS:
        raise ValueError(
            f"lists have {found:,} items that take no bytes, as nulls; at most {MOST_EMPTY_ITEMS:,} are read"
        )


@lru_cache(maxsize=256)
def _may_have_empty_items(schema: pa.Schema) -> bool:
    return any(_has_empty_items(field.type) for field in schema)


def _has_empty_items(kind: pa.DataType) -> bool:
    """Whether a type has lists of items without bytes in it."""
    if _is_list(kind):
        return _takes_no_bytes(kind.value_type) or _has_empty_items(kind.value_type)
    if pa.types.is_dictionary(kind):
        return _has_empty_items(kind.value_type)
    if pa.types.is_map(kind) and _takes_no_bytes(pa.struct([kind.key_field, kind.item_field])):
        return True
    return any(_has_empty_items(kind.field(place).type) for place in range(kind.num_fields))


def _takes_no_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_null(kind):
        return True
    if pa.types.is_fixed_size_list(kind):
        return kind.list_size == 0 or _takes_no_bytes(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_takes_no_bytes(field.type) for field in kind)
    return bool(
        pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind) and kind.byte_width == 0
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _empty_items(array: pa.Array) -> int:
    kind = array.type
    if not _has_empty_items(kind):
        return 0
    if _is_list(kind):
        items = array.values
        return (len(items) if _takes_no_bytes(kind.value_type) else 0) + _empty_items(items)
    if pa.types.is_map(kind):
        is_empty = _takes_no_bytes(pa.struct([kind.key_field, kind.item_field]))
        return (len(array.keys) if is_empty else 0) + _empty_items(array.keys) + _empty_items(array.items)
    if pa.types.is_dictionary(kind):
        return _empty_items(array.dictionary)
    return sum(_empty_items(array.field(place)) for place in range(kind.num_fields))


def check_given(data: pa.Table | pa.RecordBatch) -> None:
    """Look at a table of a user as whoever receives it will.

    Raises ValueError, which names the column, for memory that no value of its type could have.
    """
    for name, column in zip(data.schema.names, data.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowException as error:
            raise ValueError(f"column {name!r} of type {column.type} is no valid Arrow: {error}") from None
    for batch in data.to_batches() if isinstance(data, pa.Table) else (data,):
        check_empty_items(batch)


def _is_ascii(data: pa.Buffer | None) -> bool:
    """Whether this is so of much data; little is not worth a look.

    The end comes first: whoever has verified the bytes before has left that in the processor's cache.
    """
    if data is None or data.size < _LEAST_BYTES:
        return False
    signed = np.frombuffer(data, np.int8)
    ends = range(len(signed), 0, -_AT_ONCE_BYTES)
    return all(signed[max(end - _AT_ONCE_BYTES, 0) : end].min() >= 0 for end in ends)
