"""Rows of several messages as columns of their own types, in one payload (ADR 0129).

The first value of such a batch is an Arrow IPC stream of one record batch, a row for each message; the
other values are empty, and those of tombstones null. Keys, properties and times stand in their columns as in
all batches, so brokers need not know of it. A message alone has the record batch of its row for a payload,
without schema and dictionaries.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from pulsar_ray.format.arrow_message import BatchMessage, check_stream
from pulsar_ray.format.arrow_types import fitted, plain_field
from pulsar_ray.format.block import VALUE_COLUMN
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.validation import check_empty_items, validate_batch

# Given to every writer: it would look for them in the environment, which must not change what is stored.
_OPTIONS = pa.ipc.IpcWriteOptions()
_END_BYTES = 8
_MOST_KNOWN_BYTES = 32 * 1024
"""Longer schemas are read anew with each stream, others are remembered."""


def is_columnar(values: pa.Array) -> bool:
    """Whether values are rows, in place of bytes."""
    return bool(pa.types.is_struct(values.type))


def as_value_column(rows: pa.StructArray) -> pa.Array:
    """Return the stored column of rows; those that are null are tombstones."""
    batch = stored_columns(rows)
    sink = pa.BufferOutputStream()
    write_stream(batch, sink)
    stream = sink.getvalue()
    offsets = offsets_of(len(rows), stream.size)
    nulls = rows.null_count
    validity = pa.py_buffer(_bitmap(rows.is_valid())) if nulls else None
    return pa.Array.from_buffers(pa.binary(), len(rows), [validity, pa.py_buffer(offsets), stream], nulls)


def stored_columns(rows: pa.StructArray) -> pa.RecordBatch:
    """Return the columns of rows as they are stored."""
    batch = columns_of(rows)
    if not _has_dictionaries(batch.schema):
        return batch
    return pa.RecordBatch.from_arrays([_small(column) for column in batch.columns], schema=batch.schema)


@lru_cache(maxsize=256)
def _has_dictionaries(schema: pa.Schema) -> bool:
    return any(pa.types.is_dictionary(kind) for kind in schema.types)


def stream_bytes(batch: pa.RecordBatch) -> int | None:
    """Return the length of a stream; None if only writing it can say."""
    if _has_dictionaries(batch.schema):
        return None
    return _schema_bytes(batch.schema) + int(pa.ipc.get_record_batch_size(batch)) + _END_BYTES


def write_stream(batch: pa.RecordBatch, sink: Any) -> None:
    """Write the stream of stored columns."""
    with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
        writer.write_batch(batch)


def offsets_of(rows: int, length: int) -> bytes:
    """Return where the values of a batch end, whose first one has so many bytes."""
    return bytes(4) + length.to_bytes(4, "little") * rows


@lru_cache(maxsize=256)
def _schema_bytes(schema: pa.Schema) -> int:
    return len(schema.serialize())


def _bitmap(flags: pa.Array) -> bytes:
    return np.packbits(flags.to_numpy(zero_copy_only=False), bitorder="little").tobytes()


def _small(column: pa.Array) -> pa.Array:
    """A column whose dictionary has no more values than it has rows."""
    if pa.types.is_dictionary(column.type) and len(column.dictionary) > len(column):
        return fitted(column.dictionary_decode(), pa.field("", column.type), "")
    return column


def columns_of(rows: pa.StructArray) -> pa.RecordBatch:
    """Return the columns of rows, null where the whole row is."""
    if not rows.null_count:
        return pa.RecordBatch.from_struct_array(rows)
    return pa.RecordBatch.from_arrays(rows.flatten(), schema=pa.schema(list(rows.type)))


def rows_of(batch: pa.RecordBatch, tombstones: pa.Array | None = None) -> pa.StructArray:
    """Return columns as rows; `tombstones` says of each whether it is none."""
    if tombstones is None:
        return batch.to_struct_array()
    return pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema), mask=tombstones)


def rows_of_value_column(column: pa.Array) -> pa.StructArray:
    """Return the rows that a stored column is made of, validated. Raises ValueError."""
    stored = column.buffers()[2]
    # A writer may have left bytes behind the offsets.
    offsets = memoryview(column.buffers()[1])[: 4 * (column.offset + len(column) + 1)].cast("i")
    first, end = offsets[column.offset], offsets[column.offset + len(column)]
    if stored is None or end != offsets[column.offset + 1]:
        raise ValueError("bad Arrow: the first value has not all columns")
    stream = stored.slice(first, end - first)
    begin = check_stream(stream)
    try:
        batch = _read_stream(stream, begin)
        validate_batch(batch)
    except (pa.ArrowException, OSError, MemoryError, StopIteration) as error:
        raise ValueError(f"bad Arrow: {error}") from None
    if batch.num_rows != len(column):
        raise ValueError(f"the columns have {batch.num_rows} rows instead of {len(column)}")
    check_empty_items(batch)
    return rows_of(batch, column.is_null() if column.null_count else None)


def _read_stream(stream: pa.Buffer, begin: int | None) -> pa.RecordBatch:
    """Return the batch of a stream, which begins there."""
    if begin is None or begin > _MOST_KNOWN_BYTES:
        return pa.ipc.open_stream(stream).read_next_batch()
    return pa.ipc.read_record_batch(stream.slice(begin), _schema_of(stream.slice(0, begin).to_pybytes()))


@lru_cache(maxsize=256)
def _schema_of(message: bytes) -> pa.Schema:
    """Return the schema that streams begin with, which most blocks of a topic share."""
    return pa.ipc.read_schema(pa.py_buffer(message))


def row_bytes(rows: pa.StructArray) -> list[bytes | None]:
    """Return each row as the payload of a message alone; None for tombstones."""
    batch = columns_of(rows)
    fields = [plain_field(field) for field in batch.schema]
    arrays = [fitted(column, field, field.name) for column, field in zip(batch.columns, fields, strict=True)]
    plain = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    values: list[bytes | None] = [plain.slice(row, 1).serialize().to_pybytes() for row in range(len(rows))]
    if rows.null_count:
        present = rows.is_valid().to_pylist()
        values = [value if is_there else None for value, is_there in zip(values, present, strict=True)]
    return values


def row_of_bytes(payload: Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return the row that is the payload of a message alone.

    It was written with this schema. Raises ValueError.
    """
    BatchMessage(payload, len(payload), VALUE_COLUMN)
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), plain_schema(schema))
        batch.validate(full=True)
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise ValueError(f"bad Arrow: {error}") from None
    if batch.num_rows != 1:
        raise ValueError(f"the payload has {batch.num_rows} rows instead of one")
    check_empty_items(batch)
    return batch


@lru_cache(maxsize=256)
def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema as messages alone have it."""
    return pa.schema([plain_field(field) for field in schema])
