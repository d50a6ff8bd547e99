"""Received blocks as one Arrow table, for `receive_arrow` and for Spark."""

from __future__ import annotations

import functools
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_ray.client.received.message import BlockRows, items_of, row_numbers
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.format.arrow_payload import BLOCK_SCHEMA
from pulsar_ray.format.block import MAX_ROWS
from pulsar_ray.format.payload import DecodedBlock

TIME = pa.timestamp("ms", tz="UTC")

TABLE_SCHEMA = pa.schema(
    [
        ("key", pa.utf8()),
        ("value", pa.binary()),
        ("ordering_key", pa.utf8()),
        ("properties", pa.map_(pa.utf8(), pa.utf8())),
        ("topic", pa.utf8()),
        ("partition", pa.int32()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("batch_index", pa.int32()),
        ("publish_time", TIME),
        ("event_time", TIME),
        ("sequence_id", pa.int64()),
        ("producer_name", pa.utf8()),
        ("schema_version", pa.binary()),
        ("redelivery_count", pa.int32()),
    ]
)
"""The columns; absent keys, properties, event times and schema versions are null.

Tombstones are a null value; -1 is "no batch index" and "no partition", as in MessageId.
"""

NUMBERS = pa.array(np.arange(MAX_ROWS, dtype=np.int32))
"""The batch indexes of a whole batch are a part of these."""


def constant_column(value: Any, kind: pa.DataType, count: int) -> pa.ChunkedArray:
    """`count` times the same value, or null for None."""
    return pa.chunked_array(constant_chunks(value, kind, count), kind)


def constant_chunks(value: Any, kind: pa.DataType, count: int) -> list[pa.Array]:
    """Chunks that share their memory with each other and with other tables."""
    whole = _repetition(value, kind)
    chunks = [whole] * (count // MAX_ROWS)
    if count % MAX_ROWS:
        chunks.append(whole.slice(0, count % MAX_ROWS))
    return chunks


def constant_array(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """A constant column in one piece, of at most the rows of a block."""
    return _repetition(value, kind).slice(0, count)


@functools.lru_cache(maxsize=256)
def _repetition(value: Any, kind: pa.DataType) -> pa.Array:
    return pa.nulls(MAX_ROWS, kind) if value is None else pa.repeat(pa.scalar(value, kind), MAX_ROWS)


def distinct_values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The distinct values of a column without nulls, in order of appearance."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    values: dict[Any, None] = {}
    for chunk in chunks:
        if not len(chunk):
            continue
        first = chunk[0].as_py()
        # A chunk of a received table is recognized by its memory, without a look at its rows.
        same = pa.types.is_string(chunk.type) and _data(chunk) == _data(_repetition(first, chunk.type))
        values |= dict.fromkeys([first] if same else pc.unique(chunk).to_pylist())
    return list(values)


def _data(text: pa.Array) -> int:
    """The address of the characters."""
    characters = text.buffers()[2]
    return 0 if characters is None else int(characters.address)


_INT64 = pa.int64()
_STORED_NAMES = ("value", "key", "ordering_key", "properties", "event_time")
_STORED_TYPES = [TABLE_SCHEMA.field(name).type for name in _STORED_NAMES]


def batch_of_rows(part: BlockRows) -> pa.RecordBatch:
    """Some rows of a block as a record batch.

    Neighbouring rows are views of the stored block, scattered ones are copied.
    """
    block, rows = part
    whole = _whole(block)
    if len(rows) == block.message_count:
        return whole
    if isinstance(rows, range):
        return whole.slice(rows.start, len(rows))
    return whole.take(pa.array(row_numbers(rows)))


def _whole(block: ReceivedBlock) -> pa.RecordBatch:
    """A whole block, made once for all consumers that share the decoded block."""
    shared = block.decoded.record_batches
    described = (
        block.topic_name,
        block.partition,
        block.ledger_id,
        block.first_entry_id,
        block.redelivery_count,
    )
    batch = shared.get(described)
    if batch is None:
        batch = shared[described] = _made(block)
    return batch


def _made(block: ReceivedBlock) -> pa.RecordBatch:
    value = block.decoded.column("value")
    key, *others = message_columns(block)
    return pa.RecordBatch.from_arrays(
        [key, _nulls(block.message_count)[0] if value is None else value, *others], schema=TABLE_SCHEMA
    )


def message_columns(block: ReceivedBlock) -> list[pa.Array]:
    """Return the columns of TABLE_SCHEMA but for the values, of a whole block."""
    decoded, count, first_entry_id = block.decoded, block.message_count, block.first_entry_id
    topic, partition, ledger_id, producer_name, schema_version, redelivery_count, no_index = _constants(
        count,
        block.topic_name,
        block.partition,
        block.ledger_id,
        block.producer_name,
        block.schema_version,
        block.redelivery_count,
    )
    key, ordering_key, properties, event_time = [
        none if column is None else column
        for column, none in zip(decoded.columns(_STORED_NAMES[1:]), _nulls(count)[1:], strict=True)
    ]
    is_one_entry = block.is_batch or first_entry_id < 0
    return [
        key,
        ordering_key,
        properties,
        topic,
        partition,
        ledger_id,
        _same(first_entry_id, count, _INT64) if is_one_entry else _numbered(first_entry_id, count),
        NUMBERS.slice(0, count) if block.is_batch else no_index,
        _same(block.publish_time_ms, count, TIME),
        event_time.view(TIME),
        decoded.column("sequence_id")
        if decoded.has_sequence_ids
        else _numbered(block.first_sequence_id, count),
        producer_name,
        schema_version,
        redelivery_count,
    ]


@functools.lru_cache(maxsize=256)
def _constants(
    count: int,
    topic: str,
    partition: int,
    ledger_id: int,
    producer_name: str,
    schema_version: bytes,
    redelivery_count: int,
) -> tuple[pa.Array, ...]:
    """Columns that most blocks of a topic with so many messages share, in this order.

    The last one is -1 as the batch index.
    """
    int32 = pa.int32()
    return (
        constant_array(topic, pa.utf8(), count),
        constant_array(partition, int32, count),
        constant_array(ledger_id, _INT64, count),
        constant_array(producer_name, pa.utf8(), count),
        constant_array(schema_version or None, pa.binary(), count),
        constant_array(redelivery_count, int32, count),
        constant_array(-1, int32, count),
    )


@functools.lru_cache(maxsize=256)
def _nulls(count: int) -> tuple[pa.Array, ...]:
    """Nulls in place of stored columns that no message has anything in."""
    return tuple(constant_array(None, kind, count) for kind in _STORED_TYPES)


def _same(number: int, count: int, kind: pa.DataType) -> pa.Array:
    return _of_memory(array("q", (number,)) * count, count, kind)


def _numbered(first: int, count: int) -> pa.Array:
    return _of_memory(np.arange(first, first + count, dtype=np.int64), count, _INT64)


def _of_memory(numbers: Any, count: int, kind: pa.DataType) -> pa.Array:
    """An array at half the price of `pa.array`, which looks at its argument."""
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(numbers)])


# For so few blocks, columns of all of them together cost more than a record batch of each.
FEW_BLOCKS = 8
# Below both of these a block's own arrays and chunks cost more than a copy of the rows.
_SHORT_BLOCK = 128
_SHORT_BLOCK_BYTES = 16 * 1024

_STORED = tuple(BLOCK_SCHEMA.names)
STORED_BUT_VALUE = tuple(name for name in _STORED if name != "value")

_Run = tuple[int, list[pa.Array | None]]
"""(neighbouring rows, their stored columns).

A column is None if none of these rows has it.
"""
_Int64s = npt.NDArray[np.int64]


def received_table(parts: Iterable[BlockRows]) -> pa.Table:
    """The messages of these rows in order, with the columns of TABLE_SCHEMA.

    Values, keys, properties and times of batches are views of the decoded blocks, which therefore stay in
    memory as long as the table; only short blocks among many and scattered rows are copied. Columns may
    have chunks of their own.
    """
    parts = [part for part in parts if part.rows]
    if len(parts) <= FEW_BLOCKS:
        return pa.Table.from_batches(map(batch_of_rows, parts), TABLE_SCHEMA)
    columns = described_columns(parts) | stored_columns(parts)
    return pa.Table.from_arrays([columns[name] for name in TABLE_SCHEMA.names], schema=TABLE_SCHEMA)


def stored_columns(
    parts: Sequence[BlockRows], names: tuple[str, ...] = _STORED
) -> dict[str, pa.ChunkedArray]:
    """Return columns that producers wrote; without sequence ids if all are consecutive."""
    if not any(part.block.decoded.has_sequence_ids for part in parts):
        names = tuple(name for name in names if name != "sequence_id")
    runs = list(_runs(parts, names))
    return {
        name: _joined([(count, arrays[place]) for count, arrays in runs], TABLE_SCHEMA.field(name).type)
        for place, name in enumerate(names)
    }


def _runs(parts: Sequence[BlockRows], names: tuple[str, ...]) -> Iterator[_Run]:
    """Pieces of a table: each long block, and all short ones between two of them."""
    short: list[BlockRows] = []
    for part in parts:
        if _is_short(part.block):
            short.append(part)
            continue
        if short:
            yield _gathered(short, names)
            short = []
        yield _stored(part, names)
    if short:
        yield _gathered(short, names)


def _is_short(block: ReceivedBlock) -> bool:
    return (
        block.message_count < _SHORT_BLOCK and block.decoded.header.uncompressed_length < _SHORT_BLOCK_BYTES
    )


def _stored(part: BlockRows, names: tuple[str, ...]) -> _Run:
    """Stored columns of a block's rows, uncopied."""
    block, rows = part
    columns = block.decoded.columns(names)
    if isinstance(rows, range):
        if len(rows) < block.message_count:
            columns = [column if column is None else column.slice(rows[0], len(rows)) for column in columns]
    else:
        chosen = pa.array(row_numbers(rows))
        columns = [column if column is None else column.take(chosen) for column in columns]
    return len(rows), columns


def _joined(parts: Sequence[tuple[int, pa.Array | None]], kind: pa.DataType) -> pa.ChunkedArray:
    """The parts as chunks, with nulls for those that are None."""
    chunks: list[pa.Array] = []
    missing = 0
    for count, part in parts:
        if part is None:
            missing += count
            continue
        if missing:
            chunks += constant_chunks(None, kind, missing)
            missing = 0
        chunks.append(part if part.type.equals(kind) else part.view(kind))
    if missing:
        chunks += constant_chunks(None, kind, missing)
    return pa.chunked_array(chunks, kind)


def _gathered(parts: Sequence[BlockRows], names: tuple[str, ...]) -> _Run:
    """Stored columns of short blocks, as one piece.

    Arrow arrays of each block would cost more than its rows.
    """
    arrays: list[pa.Array | None] = []
    for name in names:
        column = _gathered_column(parts, _LISTS[name])
        arrays.append(column if column is None else pa.array(column, BLOCK_SCHEMA.field(name).type))
    return sum(len(part.rows) for part in parts), arrays


def _gathered_column(
    parts: Sequence[BlockRows], column_of: Callable[[DecodedBlock], list[Any] | None]
) -> list[Any] | None:
    """A column that few messages have, or None if none has it."""
    gathered: list[Any] = []
    missing = 0
    for block, rows in parts:
        column = column_of(block.decoded)
        if column is None:
            missing += len(rows)
            continue
        gathered += [None] * missing
        missing = 0
        gathered += items_of(column, rows)
    return gathered + [None] * missing if gathered else None


def _property_pairs(decoded: DecodedBlock) -> list[list[tuple[str, str]] | None] | None:
    column = decoded.properties()
    return None if column is None else [list(row.items()) if row else None for row in column]


_LISTS: dict[str, Callable[[DecodedBlock], list[Any] | None]] = {
    "value": DecodedBlock.values,
    "key": DecodedBlock.keys,
    "ordering_key": DecodedBlock.ordering_keys,
    "properties": _property_pairs,
    "event_time": DecodedBlock.event_times,
    "sequence_id": DecodedBlock.sequence_ids,
}


class ReceivedTables:
    """Knows the rows of tables that were handed out, while they are alive. Thread-safe.

    So a table that is acknowledged unchanged takes no look at its columns.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[pa.Table], Sequence[BlockRows]]] = {}

    def add(self, table: pa.Table, parts: Sequence[BlockRows]) -> pa.Table:
        """Remember the rows of a table; returns the table."""
        key = id(table)
        self._known[key] = weakref.ref(table, lambda _: self._known.pop(key, None)), parts
        return table

    def rows_of(self, table: pa.Table) -> Sequence[BlockRows] | None:
        """The rows of this very table, if it was handed out.

        None for any other, cut or filtered ones among them.
        """
        handed, parts = self._known.get(id(table), (None, None))
        return parts if handed is not None and handed() is table else None


def described_columns(parts: Sequence[BlockRows]) -> dict[str, pa.ChunkedArray | pa.Array]:
    """Return the columns that no producer wrote, for all rows of these parts.

    They are the places of messages. Values that all rows share cost nothing per row. The sequence ids are
    those of blocks that have no column for them.
    """
    blocks = [part.block for part in parts]
    counts = _int64s([len(part.rows) for part in parts])
    publish_times = np.repeat(_int64s([block.publish_time_ms for block in blocks]), counts)
    return {
        "topic": _repeated([block.topic_name for block in blocks], counts, pa.utf8()),
        "partition": _repeated([block.partition for block in blocks], counts, pa.int32()),
        "ledger_id": _repeated([block.ledger_id for block in blocks], counts, pa.int64()),
        "publish_time": pa.array(publish_times).view(TIME),
        "producer_name": _repeated([block.producer_name for block in blocks], counts, pa.utf8()),
        "schema_version": _repeated([block.schema_version or None for block in blocks], counts, pa.binary()),
        "redelivery_count": _repeated([block.redelivery_count for block in blocks], counts, pa.int32()),
        **_numbered_columns(parts, counts),
    }


def _numbered_columns(parts: Sequence[BlockRows], counts: _Int64s) -> dict[str, pa.ChunkedArray | pa.Array]:
    """A number that counts on from row to row."""
    blocks = [part.block for part in parts]
    entry_ids = np.repeat(_int64s([block.first_entry_id for block in blocks]), counts)
    if all(block.is_batch and isinstance(rows, range) for block, rows in parts):
        # Most tables, and of these hardly anything has to be counted.
        first_ids = _int64s([block.first_sequence_id + rows[0] for block, rows in parts])
        return {
            "entry_id": pa.array(entry_ids),
            "batch_index": pa.chunked_array([NUMBERS.slice(rows[0], len(rows)) for _, rows in parts]),
            "sequence_id": pa.array(_counted(first_ids, counts)),
        }
    numbers = _numbers(parts, counts)
    in_batch = np.repeat(np.array([block.is_batch for block in blocks], dtype=bool), counts)
    sequence_ids = np.repeat(_int64s([block.first_sequence_id for block in blocks]), counts)
    return {
        "entry_id": pa.array(entry_ids + np.where(in_batch | (entry_ids < 0), 0, numbers)),
        "batch_index": pa.array(np.where(in_batch, numbers, -1).astype(np.int32)),
        "sequence_id": pa.array(sequence_ids + numbers),
    }


def _numbers(parts: Sequence[BlockRows], counts: _Int64s) -> _Int64s:
    """The number of each row in its block."""
    if not all(isinstance(part.rows, range) for part in parts):
        return np.concatenate([row_numbers(part.rows) for part in parts])
    # Neighbours need no array for each part.
    return _counted(_int64s([part.rows[0] for part in parts]), counts)


def _counted(firsts: _Int64s, counts: _Int64s) -> _Int64s:
    """From each first number on, as many numbers as its count."""
    offsets = firsts - (np.cumsum(counts) - counts)
    total = int(counts.sum())
    numbers: _Int64s
    if (offsets == offsets[0]).all():
        numbers = np.arange(firsts[0], firsts[0] + total)
    else:
        numbers = np.arange(total) + np.repeat(offsets, counts)
    return numbers


def _repeated(items: Sequence[Any], counts: _Int64s, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    """Each item as often as its count."""
    if items.count(items[0]) == len(items):
        return constant_column(items[0], kind, int(counts.sum()))
    places: dict[Any, int] = {}
    indices = [places.setdefault(item, len(places)) for item in items]
    return pa.array(list(places), kind).take(pa.array(np.repeat(_int64s(indices), counts)))


def _int64s(numbers: Sequence[int]) -> _Int64s:
    return np.array(numbers, dtype=np.int64)
