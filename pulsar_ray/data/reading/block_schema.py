"""Columns of the Arrow blocks that ranges are read as.

Spark reads blocks by position and physical layout, ignoring their own schema (Arrow Java 12, no
dictionaries): so BLOCK_SCHEMA and `block_struct()` of the Spark package have to agree field by field. Times
are us since 1970, UTC.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from pulsar_ray.client.arrow.received_table import TABLE_SCHEMA
from pulsar_ray.errors import InvalidConfiguration

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


MESSAGE_COLUMNS: tuple[str, ...] = tuple(TABLE_SCHEMA.names)
_OF_SOURCE = {"topic", "partition"}
_MADE = {*_OF_SOURCE, "redelivery_count"}


def as_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Normalise the columns wanted, None for all.

    Raises InvalidConfiguration for one that MESSAGE_COLUMNS lacks, for repeats, and for none.
    """
    if columns is None:
        return MESSAGE_COLUMNS
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    for name in names:
        if name not in MESSAGE_COLUMNS:
            raise InvalidConfiguration(
                f"columns: {name!r} is no column of a topic; there are {', '.join(MESSAGE_COLUMNS)}"
            )
    if not names or len(set(names)) < len(names):
        raise InvalidConfiguration(f"columns={list(names)} must name at least one column, each once")
    return names


def block_columns(columns: Collection[str]) -> tuple[str, ...]:
    """The columns of BLOCK_SCHEMA that the columns of a message are made of."""
    wanted = {name for name in columns if name not in _MADE}
    if not wanted or _OF_SOURCE & set(columns):
        wanted.add("source")  # a block without any column would have no rows either
    return tuple(name for name in BLOCK_SCHEMA.names if name in wanted)
