"""Columns of the Arrow blocks that ranges are read as.

Spark reads blocks by position and physical layout, ignoring their own schema (Arrow Java 12, no
dictionaries): so BLOCK_SCHEMA and `block_struct()` of the Spark package have to agree field by field. Times
are us since 1970, UTC.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

_MICROSECONDS = pa.timestamp("us", tz="UTC")

BLOCK_SCHEMA = pa.schema(
    [
        pa.field("source", pa.int32(), nullable=False),
        pa.field("key", pa.utf8()),
        pa.field("value", pa.binary()),
        pa.field("ordering_key", pa.utf8()),
        pa.field(
            "properties", pa.map_(pa.utf8(), pa.field("value", pa.utf8(), nullable=False)), nullable=False
        ),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("batch_index", pa.int32(), nullable=False),
        pa.field("publish_time", _MICROSECONDS, nullable=False),
        pa.field("event_time", _MICROSECONDS),
        pa.field("sequence_id", pa.int64(), nullable=False),
        pa.field("producer_name", pa.utf8(), nullable=False),
        pa.field("schema_version", pa.binary()),
    ]
)
"""`source` is a number in place of a topic and partition per row.

The number counts in the list that `as_messages` gets.
"""

BLOCK_COLUMNS: tuple[str, ...] = tuple(BLOCK_SCHEMA.names)


def schema_of(columns: Collection[str]) -> pa.Schema:
    """The part of BLOCK_SCHEMA that has these columns, in its order."""
    return pa.schema([field for field in BLOCK_SCHEMA if field.name in columns])
