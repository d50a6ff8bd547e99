"""Blocks whose values are read with an Avro schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from pulsar_ray.data.reading.avro_values import AvroValues
from pulsar_ray.data.reading.rows import StoredRows, ipc_stream, message_batches

CORRUPT_COLUMN = "_corrupt_record"
"""The last column of these blocks: the bytes of a value that cannot be read.

The value of such a row is null.
"""


def encode_avro_blocks(
    rows: Iterable[StoredRows], source: int, block_bytes: int, columns: Sequence[str], avro: AvroValues
) -> Iterator[tuple[bytes, int]]:
    """Yield all rows as `encode_blocks` does, with structs in place of values, and CORRUPT_COLUMN."""
    for batch in message_batches(rows, source, block_bytes, columns):
        typed = _typed(batch, avro)
        yield ipc_stream(typed), typed.num_rows


def _typed(batch: pa.RecordBatch, avro: AvroValues) -> pa.RecordBatch:
    structs, unread = avro.decode(batch.column("value"))
    value = pa.field("value", avro.type)
    fields = [value if field.name == "value" else field for field in batch.schema]
    arrays = [structs if field.name == "value" else batch.column(field.name) for field in batch.schema]
    schema = pa.schema([*fields, pa.field(CORRUPT_COLUMN, pa.binary())])
    return pa.RecordBatch.from_arrays([*arrays, unread], schema=schema)
