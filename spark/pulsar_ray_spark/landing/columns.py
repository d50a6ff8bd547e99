"""Columns of landed files, without pyspark: a table of messages as Arrow has it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pulsar_ray.data.reading.avro_values import CORRUPT_COLUMN, AvroValues
from pulsar_ray.data.reading.block_schema import BLOCK_SCHEMA
from pulsar_ray.errors import InvalidConfiguration

_SCHEMA = pa.schema(
    [
        *(BLOCK_SCHEMA.field(name) for name in ("key", "value", "ordering_key", "properties")),
        pa.field("topic", pa.utf8(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        *(
            BLOCK_SCHEMA.field(name)
            for name in (
                "ledger_id",
                "entry_id",
                "batch_index",
                "publish_time",
                "event_time",
                "sequence_id",
                "producer_name",
                "schema_version",
            )
        ),
    ]
)

LANDING_COLUMNS: tuple[str, ...] = tuple(_SCHEMA.names)
"""Those of MESSAGE_SCHEMA without `redelivery_count`, which is 0 of whatever is read past subscriptions."""


def landing_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Normalise the columns wanted, None for all; in the order of LANDING_COLUMNS.

    Raises InvalidConfiguration for one that there is not, and for none.
    """
    if columns is None:
        return LANDING_COLUMNS
    wanted = {columns} if isinstance(columns, str) else set(columns)
    unknown = wanted.difference(LANDING_COLUMNS)
    if unknown or not wanted:
        raise InvalidConfiguration(
            f"columns={sorted(unknown or wanted)}: give at least one of {', '.join(LANDING_COLUMNS)}"
        )
    return tuple(name for name in LANDING_COLUMNS if name in wanted)


def file_schema(columns: Sequence[str], avro: AvroValues | None = None) -> pa.Schema:
    """The Arrow schema of files with these columns.

    With `avro` values are structs, and a last column has the bytes of those that are none.
    """
    plain = pa.schema([_SCHEMA.field(name) for name in columns])
    if avro is None:
        return plain
    fields = [pa.field("value", avro.type) if field.name == "value" else field for field in plain]
    return pa.schema([*fields, pa.field(CORRUPT_COLUMN, pa.binary())])


def block_columns_of(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of a block that a file's columns are made of.

    A block needs one to have rows.
    """
    return tuple(name for name in BLOCK_SCHEMA.names if name in columns) or ("source",)


def file_table(block: pa.Table, topic: str, partition: int, schema: pa.Schema) -> pa.Table:
    """Make a table of a file's schema of a block of one partition."""
    same = {"topic": topic, "partition": partition}
    arrays = [
        pa.repeat(pa.scalar(same[field.name], field.type), block.num_rows)
        if field.name in same
        else block[field.name]
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
