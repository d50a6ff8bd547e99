"""Turn stored blocks into Arrow blocks for bulk readers.

Many small ones become few large ones, and metadata is added by the column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_ray.data.block_schema import BLOCK_COLUMNS, BLOCK_SCHEMA, schema_of
from pulsar_ray.format.arrow_payload import BLOCK_SCHEMA as STORED_SCHEMA
from pulsar_ray.format.payload import DecodedBlock

BLOCK_BYTES = 8 << 20
"""Bytes per block.

Spark's cost per task is small against a block, and executors hold a few at a time.
"""

# A message's other columns take about so much; small messages are not to make blocks of millions of rows.
_ROW_BYTES = 96
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
# A producer's clock may say anything. Python's datetimes, to which rows are collected, end with the years 1
# and 9999; a day less is in them in every time zone.
_FIRST_MS, _LAST_MS = -62_135_510_400_000, 253_402_214_399_999


class StoredRows(NamedTuple):
    """Rows `start`..`stop` of a decoded block that lies at (ledger_id, first_entry_id)."""

    block: DecodedBlock
    ledger_id: int
    first_entry_id: int
    start: int
    stop: int

    def bytes_of(self, columns: Sequence[str]) -> int:
        """About how much these columns take."""
        rows = (self.stop - self.start) * _ROW_BYTES
        if "value" not in columns and "properties" not in columns:
            return rows
        header = self.block.header
        return max(header.uncompressed_length, header.payload_length) + rows


def encode_blocks(
    rows: Iterable[StoredRows],
    source: int,
    block_bytes: int = BLOCK_BYTES,
    columns: Sequence[str] = BLOCK_COLUMNS,
) -> Iterator[tuple[bytes, int]]:
    """Yield all rows in order as (Arrow IPC stream, messages); see `message_batches`."""
    for batch in message_batches(rows, source, block_bytes, columns):
        yield ipc_stream(batch), batch.num_rows


def ipc_stream(batch: pa.RecordBatch) -> bytes:
    """The Arrow IPC stream of one batch.

    The parts are joined here: a writer would copy the batch once more.
    """
    return b"".join((_stream_start(batch.schema), batch.serialize(), _STREAM_END))


def message_batches(
    rows: Iterable[StoredRows],
    source: int,
    block_bytes: int = BLOCK_BYTES,
    columns: Sequence[str] = BLOCK_COLUMNS,
) -> Iterator[pa.RecordBatch]:
    """Yield all rows in order, in batches of about `block_bytes`, or of one stored block.

    They have `columns` of BLOCK_SCHEMA, in its order; others are not made.
    """
    wanted = tuple(columns)
    schema = schema_of(wanted)
    pending: list[StoredRows] = []
    size = 0
    for stored in rows:
        taken = stored.bytes_of(wanted)
        if pending and size + taken > block_bytes:
            yield _message_batch(pending, source, schema)
            pending, size = [], 0
        pending.append(stored)
        size += taken
    if pending:
        yield _message_batch(pending, source, schema)


@lru_cache(maxsize=256)
def _stream_start(schema: pa.Schema) -> bytes:
    data: bytes = schema.serialize().to_pybytes()
    return data


def _message_batch(pending: list[StoredRows], source: int, schema: pa.Schema) -> pa.RecordBatch:
    stored = [name for name in STORED_SCHEMA.names if name in schema.names]
    payload = None
    if stored:
        of_stored = pa.schema([STORED_SCHEMA.field(name) for name in stored])
        payload = pa.Table.from_batches(_payload_batches(pending, of_stored), of_stored).combine_chunks()
    counts = np.array([rows.stop - rows.start for rows in pending])
    count = int(counts.sum())
    row = np.arange(count) - np.repeat(np.cumsum(counts) - counts, counts)
    row += np.repeat(np.array([rows.start for rows in pending]), counts)

    def per_row(values: Iterable[int]) -> npt.NDArray[np.int64]:
        return np.repeat(np.fromiter(values, np.int64, len(pending)), counts)

    def of_payload(name: str) -> pa.Array:
        assert payload is not None
        return _whole(payload[name])

    def batch_index() -> pa.Array:
        is_batch = np.repeat(np.array([_is_batch(rows.block) for rows in pending]), counts)
        return pa.array(np.where(is_batch, row, -1).astype(np.int32))

    def entry_id() -> pa.Array:
        row_is_entry = per_row(rows.block.header.row_is_entry for rows in pending)
        return pa.array(per_row(rows.first_entry_id for rows in pending) + row * row_is_entry)

    makers: dict[str, Callable[[], pa.Array]] = {
        "source": lambda: pa.array(np.full(count, source, np.int32)),
        "properties": lambda: _without_nulls(of_payload("properties")),
        "ledger_id": lambda: pa.array(per_row(rows.ledger_id for rows in pending)),
        "entry_id": entry_id,
        "batch_index": batch_index,
        "publish_time": lambda: _microseconds(
            pa.array(per_row(rows.block.header.publish_time_ms for rows in pending))
        ),
        "event_time": lambda: _microseconds(of_payload("event_time")),
        "producer_name": lambda: _repeated(
            [rows.block.metadata.producer_name or "" for rows in pending], counts, pa.utf8()
        ),
        "schema_version": lambda: _repeated(
            [rows.block.metadata.schema_version for rows in pending], counts, pa.binary()
        ),
    }
    arrays = [makers[name]() if name in makers else of_payload(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _is_batch(block: DecodedBlock) -> bool:
    # As in the client: the batch's messages share an entry and have indexes in it.
    return bool(block.header.payload_format) and not block.header.row_is_entry


def _payload_batches(pending: list[StoredRows], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The stored columns, with a run of single messages as one batch.

    Arrays for each message would cost 20 us.
    """
    for single, run in groupby(pending, lambda rows: rows.block.header.payload_format == 0):
        if single:
            yield _batch_of_singles([rows.block for rows in run], schema)
        else:
            for rows in run:
                whole = rows.block.record_batch(schema)
                yield whole.slice(rows.start, rows.stop - rows.start)


_OF_SINGLE: dict[str, Callable[[DecodedBlock], object]] = {
    "value": lambda block: block.values()[0],
    "key": lambda block: block.metadata.key,
    "ordering_key": lambda block: block.metadata.ordering_key,
    "properties": lambda block: list((block.metadata.properties or {}).items()) or None,
    "event_time": lambda block: block.metadata.event_time,
    "sequence_id": lambda block: block.header.first_sequence_id,
}


def _batch_of_singles(blocks: list[DecodedBlock], schema: pa.Schema) -> pa.RecordBatch:
    columns = [[_OF_SINGLE[name](block) for block in blocks] for name in schema.names]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _without_nulls(properties: pa.Array) -> pa.Array:
    """Empty maps for messages without properties."""
    if properties.null_count == len(properties):
        none = pa.array([], pa.utf8())
        return _maps(np.zeros(len(properties) + 1, np.int32), none, none)
    if properties.null_count:
        lists = [row.as_py() or [] for row in properties]
        properties = pa.array(lists, properties.type)
    return _maps(properties.offsets.to_numpy(), properties.keys, properties.items)


def _maps(offsets: npt.NDArray[np.int32], keys: pa.Array, items: pa.Array) -> pa.Array:
    """Maps of the type that Spark expects; `MapArray.from_arrays` takes no type before pyarrow 15."""
    kind = BLOCK_SCHEMA.field("properties").type
    entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    starts = pa.py_buffer(np.ascontiguousarray(offsets))
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, starts], children=[entries])


def _microseconds(milliseconds: pa.Array) -> pa.Array:
    floor = pc.max_element_wise(milliseconds, _FIRST_MS, skip_nulls=False)
    in_range = pc.min_element_wise(floor, _LAST_MS, skip_nulls=False)
    return pc.multiply(in_range, 1000).cast(BLOCK_SCHEMA.field("publish_time").type)


def _repeated(
    values: list[str] | list[bytes | None], counts: npt.NDArray[np.int64], kind: pa.DataType
) -> pa.Array:
    if len(set(values)) == 1:
        return (
            pa.nulls(int(counts.sum()), kind)
            if values[0] is None
            else pa.repeat(pa.scalar(values[0], kind), int(counts.sum()))
        )
    return pa.array(values, kind).take(pa.array(np.repeat(np.arange(len(values)), counts)))
