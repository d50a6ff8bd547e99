"""Tables that users hand in: brought to the stored columns and cut to blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_ray.format.arrow_payload import BLOCK_SCHEMA
from pulsar_ray.format.block import MAX_ROWS

MAX_BATCH_BYTES = 1024 * 1024

# The columns of `send_arrow`, by both of their names: those of received tables and those of `send`.
SENT_COLUMNS = {
    "value": "value",
    "key": "key",
    "partition_key": "key",
    "ordering_key": "ordering_key",
    "properties": "properties",
    "event_time": "event_time",
    "event_timestamp": "event_time",
    "deliver_at": "deliver_at",
}
DELIVER_AT = pa.field("deliver_at", pa.int64())
"""The time of each row; it goes into the headers of blocks, not into payloads."""
_TABLE_SCHEMA = BLOCK_SCHEMA.append(DELIVER_AT)
# Schemas of tables that need no look at their columns, by column names.
_AS_STORED = {
    ("value", *others): pa.schema([BLOCK_SCHEMA.field(name) for name in ("value", *others)])
    for count in range(4)
    for others in itertools.combinations(("key", "ordering_key", "event_time"), count)
}
_NONE = pa.schema([])
# A received table's columns about the sending that is over; the new sending makes its own.
IGNORED_COLUMNS = frozenset(
    (
        "topic",
        "partition",
        "ledger_id",
        "entry_id",
        "batch_index",
        "publish_time",
        "sequence_id",
        "producer_name",
        "schema_version",
        "redelivery_count",
    )
)
_REMEDIES = {
    "value": "encode each row to bytes or cast the column to pa.binary()",
    "key": "cast the column to pa.string()",
    "ordering_key": "cast the column to pa.string()",
    "properties": "build the column with pa.array(..., pa.map_(pa.string(), pa.string()))",
    "event_time": 'give ms since 1970 as pa.int64() or cast the column to pa.timestamp("ms")',
    "deliver_at": 'give ms since 1970 as pa.int64() or cast the column to pa.timestamp("ms")',
}
# An array's offsets are 32 bits wide after the cast.
_CAST_BELOW_BYTES = 1 << 30


def normalize_table(data: pa.Table | pa.RecordBatch) -> pa.Table:
    """Return the columns that are sent, with their stored names, order and types.

    value becomes binary, key and ordering_key utf8, properties map<utf8, utf8>, times int64 ms; types
    that mean the same (strings, large and view types, dictionaries, timestamps, smaller integers) are cast.
    An empty key is none, and so is the event time 0, as in single messages. Raises ValueError naming the
    column, its type and a remedy.
    """
    table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
    if not table.schema.equals(_AS_STORED.get(tuple(table.schema.names), _NONE)):
        table = _of_stored_types(table)
    return _with_unset(table)


def _of_stored_types(table: pa.Table) -> pa.Table:
    columns: dict[str, pa.ChunkedArray] = {}
    for given, column in zip(table.column_names, table.columns, strict=True):
        if given in IGNORED_COLUMNS:
            continue
        name = SENT_COLUMNS.get(given)
        if name is None:
            raise ValueError(
                f"column {given!r} of type {column.type} is none that can be sent: rename it to one of "
                f"{', '.join(SENT_COLUMNS)} or drop it"
            )
        if name in columns:
            raise ValueError(f"column {given!r} of type {column.type} gives {name} a second time: drop one")
        columns[name] = _normalized(given, name, column)
    if "value" not in columns:
        raise ValueError(
            "column 'value' of type binary is missing: rename the column with the payload to value "
            "(all null for tombstones)"
        )
    names = [name for name in _TABLE_SCHEMA.names if name in columns]
    return pa.table(
        [columns[name] for name in names], schema=pa.schema([_TABLE_SCHEMA.field(name) for name in names])
    )


def _with_unset(table: pa.Table) -> pa.Table:
    """Make empty keys and the event time 0 null.

    Raises ValueError for an earlier time.
    """
    for name in ("key", "ordering_key"):
        if name in table.column_names:
            lengths = pc.binary_length(table.column(name))
            if pc.min(lengths).as_py() == 0:
                table = _with_nulls(table, name, pc.equal(lengths, 0))
    if "event_time" in table.column_names:
        times = table.column("event_time")
        # Comparing all costs a fraction of finding the lowest.
        if pc.any(pc.less_equal(times, 0)).as_py():
            first = pc.min(times).as_py()
            if first < 0:
                raise ValueError(
                    f"column 'event_time' of type {times.type} has {first}: give ms since 1970, from 0, "
                    "which stands for none"
                )
            table = _with_nulls(table, "event_time", pc.equal(times, 0))
    return table


def _with_nulls(table: pa.Table, name: str, is_unset: pa.ChunkedArray) -> pa.Table:
    place, column = table.column_names.index(name), table.column(name)
    return table.set_column(
        place, table.schema.field(place), pc.if_else(is_unset, pa.scalar(None, column.type), column)
    )


def _normalized(given: str, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    target = _TABLE_SCHEMA.field(name).type
    if not column.type.equals(target) and not _is_castable(column.type, name):
        raise ValueError(f"column {given!r} has type {column.type}, not {target}: {_REMEDIES[name]}")
    try:
        chunks = [piece for chunk in column.chunks for piece in _cast(chunk, target)]
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(
            f"column {given!r} of type {column.type} cannot be made {target} ({error}): {_REMEDIES[name]}"
        ) from None
    normalized = pa.chunked_array(chunks, target)
    if name == "properties":
        _refuse_null_properties(given, normalized)
    return normalized


def _is_castable(kind: pa.DataType, name: str) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_null(kind):
        return True
    if name == "properties":
        return (
            pa.types.is_map(kind)
            and _is_bytes_or_text(kind.key_type)
            and (_is_bytes_or_text(kind.item_type) or pa.types.is_null(kind.item_type))
        )
    if name in ("event_time", "deliver_at"):
        return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind))
    return _is_bytes_or_text(kind)


_IS_BYTES_OR_TEXT = tuple(
    getattr(pa.types, name)
    for name in (
        "is_binary",
        "is_large_binary",
        "is_binary_view",  # views are there from pyarrow 16 on
        "is_fixed_size_binary",
        "is_string",
        "is_large_string",
        "is_string_view",
    )
    if hasattr(pa.types, name)
)


def _is_bytes_or_text(kind: pa.DataType) -> bool:
    return any(check(kind) for check in _IS_BYTES_OR_TEXT)


def _cast(chunk: pa.Array, target: pa.DataType) -> Iterator[pa.Array]:
    if chunk.type.equals(target):
        yield chunk
    elif chunk.nbytes > _CAST_BELOW_BYTES and len(chunk) > 1:
        half = len(chunk) // 2
        yield from _cast(chunk[:half], target)
        yield from _cast(chunk[half:], target)
    elif pa.types.is_timestamp(chunk.type):
        # A time finer than ms is cut, as Pulsar's clients do.
        yield chunk.cast(pa.timestamp("ms", chunk.type.tz), safe=False).cast(target)
    else:
        yield chunk.cast(target)


def _refuse_null_properties(given: str, column: pa.ChunkedArray) -> None:
    for chunk in column.chunks:
        start, stop = chunk.offsets[0].as_py(), chunk.offsets[-1].as_py()
        if chunk.items[start:stop].null_count:
            raise ValueError(
                f"column {given!r} of type {column.type} has properties without a value: "
                "give each a string or drop it"
            )


def split_table(
    table: pa.Table, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BATCH_BYTES
) -> list[pa.RecordBatch]:
    """Cut a normalized table into batches for one block each, in row order.

    Only a batch of a single row may be above `max_bytes`. Small chunks are joined first, so that they do not
    become small blocks.
    """
    if table.num_rows > 0 and table.column("value").num_chunks * max_rows > 2 * table.num_rows:
        table = table.combine_chunks()
    return [
        piece
        for batch in table.to_batches(max_chunksize=max_rows)
        for piece in _cut_by_bytes(batch, max_bytes)
    ]


def _cut_by_bytes(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    if batch.num_rows <= 1 or _fits(batch, max_bytes):
        if batch.num_rows:
            yield batch
        return
    # A guess from the mean; pieces that are still too large are cut again.
    step = max(1, batch.num_rows * max_bytes // batch.nbytes)
    for start in range(0, batch.num_rows, step):
        yield from _cut_by_bytes(batch.slice(start, step), max_bytes)


def _fits(batch: pa.RecordBatch, max_bytes: int) -> bool:
    # The sum of whole buffers costs a tenth of `nbytes` and is never less, unless columns share a buffer.
    if batch.num_columns == 1 and batch.get_total_buffer_size() <= max_bytes:
        return True
    return bool(batch.nbytes <= max_bytes)


def split_rows(
    sizes: Sequence[int], max_rows: int = MAX_ROWS, max_bytes: int = MAX_BATCH_BYTES
) -> list[tuple[int, int]]:
    """Cut rows of the given sizes in bytes into half-open ranges for one block each.

    Only a range of a single row may be above `max_bytes`.
    """
    ranges = []
    start = total = 0
    for row, size in enumerate(sizes):
        if row > start and (row - start >= max_rows or total + size > max_bytes):
            ranges.append((start, row))
            start, total = row, 0
        total += size
    if start < len(sizes):
        ranges.append((start, len(sizes)))
    return ranges
