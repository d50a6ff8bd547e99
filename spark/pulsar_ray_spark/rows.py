"""Turn stored blocks into the Arrow blocks that Spark reads.

Many small ones become few large ones, and metadata is added by the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_ray.format.arrow_payload import BLOCK_SCHEMA as STORED_SCHEMA
from pulsar_ray.format.payload import DecodedBlock
from pulsar_ray_spark.block_schema import BLOCK_SCHEMA

BLOCK_BYTES = 8 << 20
"""Bytes per block.

Spark's cost per task is small against a block, and executors hold a few at a time.
"""

# A message's other columns take about so much; small messages are not to make blocks of millions of rows.
_ROW_BYTES = 96
# An IPC stream of one batch, put together here: a writer would copy the batch once more.
_STREAM_START = BLOCK_SCHEMA.serialize().to_pybytes()
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

    @property
    def payload_bytes(self) -> int:
        header = self.block.header
        return max(header.uncompressed_length, header.payload_length) + (self.stop - self.start) * _ROW_BYTES


def encode_blocks(
    rows: Iterable[StoredRows], source: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[bytes, int]]:
    """Yield all rows in order as (Arrow IPC stream, messages).

    Each stream is of about `block_bytes`, or of one stored block.
    """
    pending: list[StoredRows] = []
    size = 0
    for stored in rows:
        if pending and size + stored.payload_bytes > block_bytes:
            yield _encode(pending, source)
            pending, size = [], 0
        pending.append(stored)
        size += stored.payload_bytes
    if pending:
        yield _encode(pending, source)


def _encode(pending: list[StoredRows], source: int) -> tuple[bytes, int]:
    batch = _message_batch(pending, source)
    return b"".join((_STREAM_START, batch.serialize(), _STREAM_END)), batch.num_rows


def _message_batch(pending: list[StoredRows], source: int) -> pa.RecordBatch:
    payload = pa.Table.from_batches(_payload_batches(pending), STORED_SCHEMA).combine_chunks()
    count = payload.num_rows
    counts = np.array([rows.stop - rows.start for rows in pending])
    row = np.arange(count) - np.repeat(np.cumsum(counts) - counts, counts)
    row += np.repeat(np.array([rows.start for rows in pending]), counts)

    def per_row(values: Iterable[int]) -> npt.NDArray[np.int64]:
        return np.repeat(np.fromiter(values, np.int64, len(pending)), counts)

    is_batch = np.repeat(np.array([_is_batch(rows.block) for rows in pending]), counts)
    row_is_entry = per_row(rows.block.header.row_is_entry for rows in pending)
    publish_ms = per_row(rows.block.header.publish_time_ms for rows in pending)
    arrays = {
        "source": pa.array(np.full(count, source, np.int32)),
        "key": _whole(payload["key"]),
        "value": _whole(payload["value"]),
        "ordering_key": _whole(payload["ordering_key"]),
        "properties": _without_nulls(_whole(payload["properties"])),
        "ledger_id": pa.array(per_row(rows.ledger_id for rows in pending)),
        "entry_id": pa.array(per_row(rows.first_entry_id for rows in pending) + row * row_is_entry),
        "batch_index": pa.array(np.where(is_batch, row, -1).astype(np.int32)),
        "publish_time": _microseconds(pa.array(publish_ms)),
        "event_time": _microseconds(_whole(payload["event_time"])),
        "sequence_id": _whole(payload["sequence_id"]),
        "producer_name": _repeated(
            [rows.block.metadata.producer_name or "" for rows in pending], counts, pa.utf8()
        ),
        "schema_version": _repeated(
            [rows.block.metadata.schema_version for rows in pending], counts, pa.binary()
        ),
    }
    return pa.RecordBatch.from_arrays([arrays[name] for name in BLOCK_SCHEMA.names], schema=BLOCK_SCHEMA)


def _is_batch(block: DecodedBlock) -> bool:
    # As in the client: the batch's messages share an entry and have indexes in it.
    return bool(block.header.payload_format) and not block.header.row_is_entry


def _payload_batches(pending: list[StoredRows]) -> Iterator[pa.RecordBatch]:
    """The stored columns, with a run of single messages as one batch.

    Arrays for each message would cost 20 us.
    """
    for single, run in groupby(pending, lambda rows: rows.block.header.payload_format == 0):
        if single:
            yield _batch_of_singles([rows.block for rows in run])
        else:
            for rows in run:
                yield rows.block.record_batch().slice(rows.start, rows.stop - rows.start)


def _batch_of_singles(blocks: list[DecodedBlock]) -> pa.RecordBatch:
    metadata = [block.metadata for block in blocks]
    columns = (
        [block.values()[0] for block in blocks],
        [fields.key for fields in metadata],
        [fields.ordering_key for fields in metadata],
        [list(fields.properties.items()) if fields.properties else None for fields in metadata],
        [fields.event_time for fields in metadata],
        [block.header.first_sequence_id for block in blocks],
    )
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, STORED_SCHEMA, strict=True)],
        schema=STORED_SCHEMA,
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _without_nulls(properties: pa.Array) -> pa.Array:
    """Empty maps for messages without properties."""
    kind = BLOCK_SCHEMA.field("properties").type
    if properties.null_count == len(properties):
        none = pa.array([], pa.utf8())
        return pa.MapArray.from_arrays(pa.array(np.zeros(len(properties) + 1, np.int32)), none, none, kind)
    if properties.null_count:
        lists = [row.as_py() or [] for row in properties]
        properties = pa.array(lists, properties.type)
    return pa.MapArray.from_arrays(properties.offsets, properties.keys, properties.items, kind)


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
