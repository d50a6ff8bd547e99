"""Rows of a range as a table with the columns of received tables."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pulsar_ray.client.arrow.table_schema import TABLE_SCHEMA
from pulsar_ray.data.reading.message_columns import MESSAGE_COLUMNS


def table_schema_of(columns: Sequence[str] = MESSAGE_COLUMNS) -> pa.Schema:
    """The part of TABLE_SCHEMA that has these columns, in their order."""
    return pa.schema([TABLE_SCHEMA.field(name) for name in columns])


def message_table(batch: pa.RecordBatch, topic: str, partition: int, columns: Sequence[str]) -> pa.Table:
    """Make a table of a batch of `message_batches`, with these columns of TABLE_SCHEMA.

    It can be sent on by `Producer.send_arrow` as it is. A range is read past all subscriptions, so the
    redelivery count is 0.
    """
    made = {"topic": topic, "partition": partition, "redelivery_count": 0}
    schema = table_schema_of(columns)
    arrays = []
    for field in schema:
        if field.name in made:
            arrays.append(pa.repeat(pa.scalar(made[field.name], field.type), batch.num_rows))
        else:
            arrays.append(batch.column(field.name).cast(field.type))
    return pa.Table.from_arrays(arrays, schema=schema)
