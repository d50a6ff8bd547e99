"""Received blocks as Arrow record batches with the columns of a received table."""

from __future__ import annotations

import functools
from array import array
from typing import Any

import numpy as np
import pyarrow as pa

from pulsar_ray.client.arrow.constant_columns import constant_array
from pulsar_ray.client.arrow.table_schema import NUMBERS, TABLE_SCHEMA, TIME
from pulsar_ray.client.received.block_rows import BlockRows, row_numbers
from pulsar_ray.client.received.received_block import ReceivedBlock

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
    value, key, ordering_key, properties, event_time = [
        none if column is None else column
        for column, none in zip(decoded.columns(_STORED_NAMES), _nulls(count), strict=True)
    ]
    is_one_entry = block.is_batch or first_entry_id < 0
    return pa.RecordBatch.from_arrays(
        [
            key,
            value,
            ordering_key,
            properties,
            topic,
            partition,
            ledger_id,
            _repeated(first_entry_id, count, _INT64) if is_one_entry else _counted(first_entry_id, count),
            NUMBERS.slice(0, count) if block.is_batch else no_index,
            _repeated(block.publish_time_ms, count, TIME),
            event_time.view(TIME),
            decoded.column("sequence_id")
            if decoded.has_sequence_ids
            else _counted(block.first_sequence_id, count),
            producer_name,
            schema_version,
            redelivery_count,
        ],
        schema=TABLE_SCHEMA,
    )


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


def _repeated(number: int, count: int, kind: pa.DataType) -> pa.Array:
    return _of_memory(array("q", (number,)) * count, count, kind)


def _counted(first: int, count: int) -> pa.Array:
    return _of_memory(np.arange(first, first + count, dtype=np.int64), count, _INT64)


def _of_memory(numbers: Any, count: int, kind: pa.DataType) -> pa.Array:
    """An array at half the price of `pa.array`, which looks at its argument."""
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(numbers)])
