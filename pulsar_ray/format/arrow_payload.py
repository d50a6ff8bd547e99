"""Arrow payloads: one record batch, one row per message (ADR 0002).

The batch is an IPC message without its schema.

Which of the canonical columns are there says the block header's `columns`; a column without any value is
left out. Producers write value, key, ordering_key, properties and event_time; sequence_id only if a batch's
ids are not consecutive.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeAlias, cast

import pyarrow as pa

from pulsar_ray.format.arrow_message import BatchMessage, BatchTemplate, padded
from pulsar_ray.format.block import COLUMNAR, SEQUENCE_ID_COLUMN, VALUE_COLUMN
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.columnar import (
    as_value_column,
    is_columnar,
    offsets_of,
    stored_columns,
    stream_bytes,
    write_stream,
)
from pulsar_ray.format.metadata import PADDING

# The stored batch's columns, in the order of their bits. All are nullable; a null value is a tombstone.
BLOCK_SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.utf8()),
        ("ordering_key", pa.utf8()),
        ("properties", pa.map_(pa.utf8(), pa.utf8())),
        ("event_time", pa.int64()),
        ("sequence_id", pa.int64()),
    ]
)

_schemas = {
    columns: pa.schema([field for bit, field in enumerate(BLOCK_SCHEMA) if columns >> bit & 1])
    for columns in range(1, 2 ** len(BLOCK_SCHEMA))
}
_VALUES_ONLY = _schemas[VALUE_COLUMN]
# Given to every writer: it would look for them in the environment, which must not change what is stored.
_WRITE_OPTIONS = pa.ipc.IpcWriteOptions()
_schema_bytes = {columns: len(schema.serialize()) for columns, schema in _schemas.items()}

Room: TypeAlias = Callable[[int], memoryview | None]
"""Memory for so many bytes, if there is any to write to."""


def encode_rows(
    values: Sequence[bytes | None] | pa.StructArray,
    keys: Sequence[str | None] | None = None,
    ordering_keys: Sequence[str | None] | None = None,
    properties: Sequence[Mapping[str, str] | None] | None = None,
    event_times: Sequence[int | None] | None = None,
    sequence_ids: Sequence[int] | None = None,
) -> tuple[Buffer, int]:
    """Encode messages to (payload, columns); `sequence_ids` is None if they are consecutive.

    Values are bytes, or rows of columns.

    Raises ValueError or TypeError if a column has a wrong type, another length, or is above 2 GiB.
    """
    is_rows = isinstance(values, pa.StructArray)
    value_array = as_value_column(values) if is_rows else _value_array(cast("Sequence[bytes | None]", values))
    flags = COLUMNAR if is_rows else 0
    if keys is ordering_keys is properties is event_times is sequence_ids is None:
        return pa.RecordBatch.from_arrays(
            [value_array], schema=_VALUES_ONLY
        ).serialize(), VALUE_COLUMN | flags
    pairs = None if properties is None else [list(row.items()) if row else None for row in properties]
    arrays = [value_array]
    columns = VALUE_COLUMN
    for bit, column in enumerate((keys, ordering_keys, pairs, event_times, sequence_ids), start=1):
        if column is None:
            continue
        encoded = pa.array(column, BLOCK_SCHEMA.field(bit).type)
        if len(encoded) != len(value_array):
            raise ValueError(
                f"column {BLOCK_SCHEMA.field(bit).name} has {len(encoded)} rows, value {len(value_array)}"
            )
        if encoded.null_count != len(encoded):
            arrays.append(encoded)
            columns |= 1 << bit
    return pa.RecordBatch.from_arrays(arrays, schema=_schemas[columns]).serialize(), columns | flags


def _value_array(values: Sequence[bytes | None]) -> pa.Array:
    try:
        joined = b"".join(values)  # type: ignore[arg-type]  # a None among them raises TypeError
    except TypeError:
        return pa.array(values, pa.binary())
    try:
        offsets = array("i", accumulate(map(len, values), initial=0))  # type: ignore[arg-type]
    except OverflowError:
        raise ValueError(f"values have {len(joined)} bytes, more than one batch can hold") from None
    if offsets[-1] != len(joined):
        raise TypeError("values must be bytes; a memoryview of other items than bytes is among them")
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(joined)]
    )


def encode_table(batch: pa.RecordBatch, room: Room | None = None) -> tuple[Buffer, int]:
    """Encode a batch of canonical columns (see `normalize_table`) to (payload, columns).

    Its column value may be rows of columns. The payload is at the end of what `room` gave for it, or has
    memory of its own. Raises ValueError if `value` is missing or a column is not canonical.
    """
    if batch.schema.equals(_VALUES_ONLY):
        return _serialized(batch, VALUE_COLUMN, room), VALUE_COLUMN
    if batch.schema.names == ["value"] and is_columnar(batch.column(0)):
        payload = _rows_alone(batch.column(0), room)
        if payload is not None:
            return payload, VALUE_COLUMN | COLUMNAR
    arrays = []
    columns = flags = 0
    for bit, field in enumerate(BLOCK_SCHEMA):
        place = batch.schema.get_field_index(field.name)
        if place < 0:
            continue
        column = batch.column(place)
        if bit == 0 and is_columnar(column):
            column, flags = as_value_column(column), COLUMNAR
        if not column.type.equals(field.type):
            raise ValueError(f"column {field.name} is {column.type}, not {field.type}; normalize the table")
        if bit == 0 or column.null_count != len(column):
            arrays.append(column)
            columns |= 1 << bit
    if not columns & VALUE_COLUMN:
        raise ValueError("the batch has no column value")
    stored = pa.RecordBatch.from_arrays(arrays, schema=_schemas[columns])
    return _serialized(stored, columns, room), columns | flags


def _rows_alone(rows: pa.StructArray, room: Room | None) -> Buffer | None:
    """The payload of rows that have nothing else, written where it goes.

    It is as `_serialized` makes it, which would copy the columns once more. None if there are tombstones or
    dictionaries.
    """
    columns = None if rows.null_count else stored_columns(rows)
    length = None if columns is None else stream_bytes(columns)
    if columns is None or length is None:
        return None
    offsets = offsets_of(len(rows), length)
    lengths = (0, len(offsets), length)
    metadata = _rows_template().metadata(len(rows), [(len(rows), 0)], lengths)
    at = len(metadata) + padded(len(offsets))
    total = at + padded(length)
    memory = None if room is None else room(total)
    if memory is None:
        memory = memoryview(bytearray(total))
    memory[: len(metadata)] = metadata
    memory[len(metadata) : at] = offsets + PADDING[-len(offsets) & 7]
    sink = pa.FixedSizeBufferWriter(pa.py_buffer(memory[at : at + length]))
    write_stream(columns, sink)
    memory[at + length :] = PADDING[-length & 7]
    return memory


@lru_cache(maxsize=1)
def _rows_template() -> BatchTemplate:
    sample = pa.RecordBatch.from_arrays([pa.array([b"x"], pa.binary())], schema=_VALUES_ONLY)
    return BatchTemplate(sample.serialize().to_pybytes())


def _serialized(batch: pa.RecordBatch, columns: int, room: Room | None) -> Buffer:
    if room is not None:
        # Arrow writes a message without its schema only to memory that it allocates.
        schema_bytes = _schema_bytes[columns]
        length = schema_bytes + pa.ipc.get_record_batch_size(batch)
        memory = room(length)
        if memory is not None:
            file = pa.FixedSizeBufferWriter(pa.py_buffer(memory))
            writer = pa.ipc.RecordBatchStreamWriter(file, _schemas[columns], options=_WRITE_OPTIONS)
            writer.write_batch(batch)
            if file.tell() == length:
                return memory[schema_bytes:]
    return cast("Buffer", batch.serialize())


def decode_rows(payload: Buffer, columns: int, message_count: int) -> pa.RecordBatch:
    """Decode a payload without copying it, validated down to each offset and character.

    The batch is safe to use as long as the payload's memory does not change. Raises ValueError.
    """
    batch = _read_batch(payload, columns, message_count)
    try:
        # A valid checksum does not make Arrow safe: a bad offset would end the process.
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise ValueError(f"bad Arrow: {error}") from None
    if columns & SEQUENCE_ID_COLUMN and batch.column(batch.num_columns - 1).null_count:
        raise ValueError("the batch has a message without sequence id")
    return batch


def _read_batch(payload: Buffer, columns: int, message_count: int) -> pa.RecordBatch:
    BatchMessage(payload, len(payload), columns)
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), _schemas[columns & ~COLUMNAR])
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise ValueError(f"bad Arrow: {error}") from None
    if batch.num_rows != message_count:
        raise ValueError(f"the batch has {batch.num_rows} rows instead of {message_count}")
    return batch


def to_list(column: pa.Array) -> list[Any]:
    """Return a column's rows as Python objects, None for nulls."""
    if pa.types.is_integer(column.type):
        # numpy has no null integers.
        return cast("list[Any]", column.to_pylist() if column.null_count else column.to_numpy().tolist())
    # Through numpy objects: before pyarrow 25, to_pylist takes 20 times as long.
    return cast("list[Any]", column.to_numpy(zero_copy_only=False).tolist())
