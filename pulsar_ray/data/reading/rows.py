"""Turn stored blocks into Arrow blocks for bulk readers.

Many small ones become few large ones, and metadata is added by the column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_ray.data.reading.block_schema import BLOCK_COLUMNS, BLOCK_SCHEMA, schema_of
from pulsar_ray.data.reading.block_stream import (
    Column,
    batch_of_stream,
    joined_stream,
    of_empty_maps,
    of_fixed,
    of_maps,
    of_no_value,
    of_numbers,
    of_same_string,
    of_strings,
)
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.format.arrow_payload import BLOCK_SCHEMA as STORED_SCHEMA
from pulsar_ray.format.block import BLOCK_HEADER_SIZE
from pulsar_ray.format.payload import DecodedBlock

BLOCK_BYTES = 16 << 20
"""Bytes per block.

A reader and an executor have one in memory several times over; smaller ones cost Ray and Spark more.
"""

# A row takes so much in a column, besides bytes of strings, values and properties.
_ROW_BYTES = {
    name: 8 if pa.types.is_timestamp(kind) or kind == pa.int64() else 4
    for name, kind in zip(BLOCK_SCHEMA.names, BLOCK_SCHEMA.types, strict=True)
}
# Strings of a row are guessed to take so much where payloads, which have them too, are not counted.
_KEY_BYTES = 16
# Here a stored block can have a value for all of its rows; each gets a copy.
_OF_METADATA = frozenset({"key", "ordering_key", "properties", "producer_name", "schema_version"})
# A rest that is smaller than this part of a block goes with it: a task of Spark costs some ms.
_SMALL_REST = 0.4
# Stored blocks stay in memory until theirs is made, also where only small columns of them are wanted.
_HELD_BYTES = 64 << 20
# Offsets of strings have 32 bits.
_MAX_BLOCK_BYTES = 1 << 30
# A producer's clock may say anything. Python's datetimes, to which rows are collected, end with the years 1
# and 9999; a day less is in them in every time zone.
_FIRST_MS, _LAST_MS = -62_135_510_400_000, 253_402_214_399_999


class StoredRows(NamedTuple):
    """Rows `start`..`stop` of a decoded block that lies at (ledger_id, first_entry_id).

    With `places` it is only those of the rows, which are in order.
    """

    block: DecodedBlock
    ledger_id: int
    first_entry_id: int
    start: int
    stop: int
    places: npt.NDArray[np.int64] | None = None

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return self.stop - self.start if self.places is None else len(self.places)

    def of(self, column: pa.Array) -> pa.Array:
        """These rows of a column that has all of the block's."""
        if self.places is not None:
            return column.take(pa.array(self.places))
        return column if self.row_count == len(column) else column.slice(self.start, self.row_count)

    def payloads(self) -> list[bytes | None]:
        """The values of these rows."""
        values = self.block.values()
        if self.places is not None:
            return [values[place] for place in self.places]
        return values[self.start : self.stop]

    @property
    def held_bytes(self) -> int:
        """About how much memory the stored block takes."""
        header = self.block.header
        return max(header.uncompressed_length, header.payload_length)

    @property
    def metadata_bytes(self) -> int:
        """At least the size of values that the stored block has for all rows."""
        return self.block.header.header_length - BLOCK_HEADER_SIZE


def check_block_bytes(block_bytes: object) -> None:
    """Raise InvalidConfiguration unless the size of blocks that somebody gave is a positive integer."""
    if not isinstance(block_bytes, int) or isinstance(block_bytes, bool) or block_bytes < 1:
        raise InvalidConfiguration(
            f"block_bytes is {block_bytes!r}: give a number of bytes, 1 or more (usual are {BLOCK_BYTES})"
        )


def encode_blocks(
    rows: Iterable[StoredRows],
    source: int,
    block_bytes: int = BLOCK_BYTES,
    columns: Sequence[str] = BLOCK_COLUMNS,
    stored_bytes: int = 0,
) -> Iterator[tuple[bytes, int]]:
    """Yield all rows in order as (Arrow IPC stream, messages).

    A stream takes about `block_bytes`, or is of one stored block. It has `columns` of BLOCK_SCHEMA, in its
    order; others are not made. Where it is known how many bytes of files the rows are in, the last stream is
    never a small rest.
    """
    wanted = tuple(columns)
    schema = schema_of(wanted)
    limit = min(block_bytes, _MAX_BLOCK_BYTES)
    taken_by = _taken_bytes(wanted)
    pending: list[StoredRows] = []
    size = held = read = 0
    unread = stored_bytes
    for stored in rows:
        holds, taken = stored.held_bytes, taken_by(stored)
        is_full = size + taken > limit or held + holds > _HELD_BYTES
        if pending and is_full and not 0 < unread < read * _SMALL_REST:
            yield _encoded(pending, source, schema)
            pending, size, held, read = [], 0, 0, 0
        pending.append(stored)
        size += taken
        held += holds
        read += stored.block.header.total_length
        unread -= stored.block.header.total_length
    if pending:
        yield _encoded(pending, source, schema)


def _taken_bytes(columns: Sequence[str]) -> Callable[[StoredRows], int]:
    """Tell of stored rows about how many bytes of these columns they make."""
    row_bytes = sum(_ROW_BYTES[name] for name in columns)
    has_payload = "value" in columns or "properties" in columns
    has_metadata = not _OF_METADATA.isdisjoint(columns)
    if not has_payload:
        row_bytes += _KEY_BYTES * len({"key", "ordering_key"}.intersection(columns))

    def taken(stored: StoredRows) -> int:
        of_row = row_bytes + (stored.metadata_bytes if has_metadata else 0)
        payload_bytes = stored.held_bytes if has_payload else 0
        if stored.places is not None:
            payload_bytes = payload_bytes * stored.row_count // stored.block.message_count
        return stored.row_count * of_row + payload_bytes

    return taken


def message_batches(
    rows: Iterable[StoredRows],
    source: int,
    block_bytes: int = BLOCK_BYTES,
    columns: Sequence[str] = BLOCK_COLUMNS,
) -> Iterator[pa.RecordBatch]:
    """Yield all rows in order, in the batches of `encode_blocks`."""
    for block, _ in encode_blocks(rows, source, block_bytes, columns):
        yield batch_of_stream(block)


def ipc_stream(batch: pa.RecordBatch) -> bytes:
    """The Arrow IPC stream of one batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def _encoded(pending: list[StoredRows], source: int, schema: pa.Schema) -> tuple[bytes, int]:
    block = _Pending(pending)
    columns = [_MAKERS[name](block) if name != "source" else block.same(source) for name in schema.names]
    return joined_stream(schema, block.count, columns), block.count


class _Pending:
    """The rows of a block to be, and what columns are made of."""

    def __init__(self, pending: list[StoredRows]) -> None:
        self.rows = pending
        self.counts = np.array([rows.row_count for rows in pending])
        self.count = int(self.counts.sum())

    def same(self, number: int) -> Column:
        """An int32 that is the same for all."""
        return of_numbers(np.full(self.count, number, np.int32))

    def per_row(self, values: Iterable[int]) -> npt.NDArray[np.int64]:
        """A number of each stored block, for each of its rows."""
        return np.repeat(np.fromiter(values, np.int64, len(self.rows)), self.counts)

    @cached_property
    def row(self) -> npt.NDArray[np.int64]:
        """The place of each row in its stored block."""
        begins = np.cumsum(self.counts) - self.counts
        starts = np.array([rows.start for rows in self.rows])
        places: npt.NDArray[np.int64] = np.arange(self.count) - np.repeat(begins - starts, self.counts)
        for rows, begin in zip(self.rows, begins, strict=True):
            if rows.places is not None:
                places[begin : begin + rows.row_count] = rows.places
        return places

    def stored(self, name: str) -> list[pa.Array] | None:
        """A column of STORED_SCHEMA in pieces; None if no message has anything in it."""
        kind = STORED_SCHEMA.field(name).type
        pieces: list[pa.Array] = []
        is_there = False
        # A run of single messages is one piece: arrays for each message would cost 20 us.
        for single, run in groupby(self.rows, lambda rows: rows.block.header.payload_format == 0):
            if single:
                values = [_OF_SINGLE[name](rows.block) for rows in run]
                is_there = is_there or any(value is not None for value in values)
                pieces.append(pa.array(values, kind))
                continue
            for rows in run:
                column = rows.block.column(name)
                if column is None:
                    pieces.append(_nulls(rows.row_count, kind))
                    continue
                is_there = True
                pieces.append(rows.of(column))
        return pieces if is_there else None


@lru_cache(maxsize=64)
def _nulls(count: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(count, kind)


def _values(block: _Pending) -> Column:
    pieces = block.stored("value")
    return of_no_value(block.count, pa.binary()) if pieces is None else of_strings(pieces)


def _strings(name: str) -> Callable[[_Pending], Column]:
    """The maker of a column of short strings: Arrow joins many of them faster."""

    def make(block: _Pending) -> Column:
        pieces = block.stored(name)
        if pieces is None:
            return of_no_value(block.count, pa.utf8())
        return of_strings([pa.concat_arrays(pieces)])

    return make


def _properties(block: _Pending) -> Column:
    pieces = block.stored("properties")
    if pieces is None:
        return of_empty_maps(block.count)
    maps = pa.concat_arrays(pieces)
    if maps.null_count:
        maps = pa.array([row.as_py() or [] for row in maps], maps.type)
    return of_maps(np.ascontiguousarray(maps.offsets.to_numpy()), maps.keys, maps.items)


def _entry_id(block: _Pending) -> Column:
    entries = block.per_row(rows.first_entry_id for rows in block.rows)
    is_entry = [rows.block.header.row_is_entry for rows in block.rows]
    if any(is_entry):
        entries = entries + block.row * block.per_row(is_entry)
    return of_numbers(entries)


def _batch_index(block: _Pending) -> Column:
    is_batch = [_is_batch(rows.block) for rows in block.rows]
    if all(is_batch):
        return of_numbers(block.row.astype(np.int32))
    indexes = np.where(np.repeat(np.array(is_batch), block.counts), block.row, -1)
    return of_numbers(indexes.astype(np.int32))


def _publish_time(block: _Pending) -> Column:
    times = [min(max(rows.block.header.publish_time_ms, _FIRST_MS), _LAST_MS) for rows in block.rows]
    return of_numbers(block.per_row(time_ms * 1000 for time_ms in times))


def _event_time(block: _Pending) -> Column:
    pieces = block.stored("event_time")
    if pieces is None:
        return of_no_value(block.count, BLOCK_SCHEMA.field("event_time").type)
    return of_fixed(_microseconds(pa.concat_arrays(pieces)), np.int64)


def _sequence_id(block: _Pending) -> Column:
    if any(rows.block.has_sequence_ids for rows in block.rows):
        pieces = block.stored("sequence_id")
        assert pieces is not None
        return of_fixed(pa.concat_arrays(pieces), np.int64)
    return of_numbers(block.per_row(rows.block.header.first_sequence_id for rows in block.rows) + block.row)


def _producer_name(block: _Pending) -> Column:
    names = [rows.block.metadata.producer_name or "" for rows in block.rows]
    if len(set(names)) == 1:
        return of_same_string(block.count, names[0].encode())
    return of_strings([_taken(names, block.counts, pa.utf8())])


def _schema_version(block: _Pending) -> Column:
    versions = [rows.block.metadata.schema_version for rows in block.rows]
    if not any(version is not None for version in versions):
        return of_no_value(block.count, pa.binary())
    return of_strings([_taken(versions, block.counts, pa.binary())])


def _taken(
    values: Sequence[str] | Sequence[bytes | None], counts: npt.NDArray[np.int64], kind: pa.DataType
) -> pa.Array:
    return pa.array(values, kind).take(pa.array(np.repeat(np.arange(len(values)), counts)))


_MAKERS: dict[str, Callable[[_Pending], Column]] = {
    "key": _strings("key"),
    "value": _values,
    "ordering_key": _strings("ordering_key"),
    "properties": _properties,
    "ledger_id": lambda block: of_numbers(block.per_row(rows.ledger_id for rows in block.rows)),
    "entry_id": _entry_id,
    "batch_index": _batch_index,
    "publish_time": _publish_time,
    "event_time": _event_time,
    "sequence_id": _sequence_id,
    "producer_name": _producer_name,
    "schema_version": _schema_version,
}


def _is_batch(block: DecodedBlock) -> bool:
    # As in the client: the batch's messages share an entry and have indexes in it.
    return bool(block.header.payload_format) and not block.header.row_is_entry


_OF_SINGLE: dict[str, Callable[[DecodedBlock], object]] = {
    "value": lambda block: block.values()[0],
    "key": lambda block: block.metadata.key,
    "ordering_key": lambda block: block.metadata.ordering_key,
    "properties": lambda block: list((block.metadata.properties or {}).items()) or None,
    "event_time": lambda block: block.metadata.event_time,
    "sequence_id": lambda block: block.header.first_sequence_id,
}


def _microseconds(milliseconds: pa.Array) -> pa.Array:
    floor = pc.max_element_wise(milliseconds, _FIRST_MS, skip_nulls=False)
    in_range = pc.min_element_wise(floor, _LAST_MS, skip_nulls=False)
    return pc.multiply(in_range, 1000).cast(BLOCK_SCHEMA.field("publish_time").type)
