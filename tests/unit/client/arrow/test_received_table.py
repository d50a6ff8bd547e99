from __future__ import annotations

import random
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.client.arrow.received_table import TABLE_SCHEMA, received_table
from pulsar_ray.client.arrow.table_positions import TablePositions, table_nacks, table_positions
from pulsar_ray.client.received.message import BlockRows, Message
from pulsar_ray.client.received.received_block import ReceivedBlock
from tests.unit.client.blocks import TOPIC, received

OTHER = "persistent://public/default/other"


def whole(*args: Any, **fields: Any) -> BlockRows:
    block = received(*args, **fields)
    return BlockRows(block, range(block.message_count))


def expected_row(message: Message) -> dict[str, Any]:
    """The row a message must be, from the message's own methods."""
    message_id = message.message_id()
    event_time = message.event_timestamp()
    version = message.schema_version()
    return {
        "key": message.partition_key() or None,
        "value": None if message.has_null_value() else message.data(),
        "ordering_key": message.ordering_key() or None,
        "properties": list(message.properties().items()) or None,
        "topic": message.topic_name(),
        "partition": message_id.partition(),
        "ledger_id": message_id.ledger_id(),
        "entry_id": message_id.entry_id(),
        "batch_index": message_id.batch_index(),
        "publish_time": datetime.fromtimestamp(message.publish_timestamp() / 1000, timezone.utc),
        "event_time": datetime.fromtimestamp(event_time / 1000, timezone.utc) if event_time else None,
        "sequence_id": message.block.sequence_ids[message.row],
        "producer_name": message.producer_name(),
        "schema_version": version.encode("latin-1") or None,
        "redelivery_count": message.redelivery_count(),
    }


def random_parts(choose: random.Random) -> list[BlockRows]:
    parts = []
    entry_id = 0
    for _ in range(choose.randrange(1, 12)):
        count = choose.choice([1, 1, 2, 5, 200, 300])
        is_batching = choose.random() < 0.5
        with_fields = choose.random() < 0.5
        block = received(
            [choose.choice([None, b"", b"value"]) for _ in range(count)],
            is_batching=is_batching,
            keys=[choose.choice([None, "k", "é"]) for _ in range(count)] if with_fields else None,
            ordering_keys=["o"] * count if with_fields else None,
            properties=[choose.choice([None, {"a": "b", "c": ""}]) for _ in range(count)]
            if with_fields
            else None,
            event_times=[choose.choice([None, 5]) for _ in range(count)] if with_fields else None,
            now_ms=1_700_000_000_000 + choose.randrange(1000),
            topic_name=choose.choice([TOPIC, OTHER]),
            partition=choose.choice([-1, 4]),
            ledger_id=choose.choice([3, 4]),
            first_entry_id=entry_id,
            redelivery_count=choose.randrange(3),
            schema_version=choose.choice([None, bytes(8)]),
        )
        entry_id += 1 if is_batching else count
        first = choose.randrange(count)
        rows = range(first, choose.randint(first, count))
        scattered = [row for row in rows if choose.random() < 0.5]
        parts.append(BlockRows(block, rows if choose.random() < 0.5 else scattered))
    return parts


def test_rows_are_the_messages() -> None:
    for seed in range(40):
        print("seed", seed)
        parts = random_parts(random.Random(seed))
        table = received_table(parts)
        table.validate(full=True)
        assert table.schema == TABLE_SCHEMA
        messages = [Message(block, row) for block, rows in parts for row in rows]
        assert table.to_pylist() == [expected_row(message) for message in messages]


def test_no_rows() -> None:
    table = received_table([])
    assert table.schema == TABLE_SCHEMA
    assert table.num_rows == 0
    assert table_positions(table) == {}
    assert table_nacks(table) == {}


def test_values_of_long_batches_are_not_copied() -> None:
    block = received([b"value"] * 500)
    table = received_table([BlockRows(block, range(100, 500))])
    stored = block.decoded.record_batch().column(0).buffers()[2]
    assert table.column("value").chunk(0).buffers()[2].address == stored.address


def test_a_shared_block_is_described_for_each_consumer() -> None:
    (block, rows) = whole([b"v"] * 3, first_entry_id=5)
    other = ReceivedBlock(
        block.decoded, topic_name=OTHER, partition=2, ledger_id=3, first_entry_id=5, redelivery_count=4
    )
    for part in (BlockRows(block, rows), BlockRows(other, rows), BlockRows(block, rows)):
        expected = [expected_row(Message(part.block, row)) for row in rows]
        assert received_table([part]).to_pylist() == expected
    assert len(block.decoded.record_batches) == 2


def test_tables_of_many_batches_count_sequence_ids_on_or_anew() -> None:
    blocks = [received([b"v"] * 200, first_entry_id=number) for number in range(10)]
    in_order = [BlockRows(block, range(200)) for block in blocks]
    for number, block in enumerate(blocks):
        block.first_sequence_id = 200 * number
    assert received_table(in_order).column("sequence_id").to_pylist() == list(range(2000))
    cut = [BlockRows(block, range(10, 12)) for block in blocks]
    table = received_table(cut)
    assert table.column("sequence_id").to_pylist() == [
        200 * number + row for number in range(10) for row in (10, 11)
    ]
    assert table.column("batch_index").to_pylist() == [10, 11] * 10


def test_positions_of_a_whole_table() -> None:
    table = received_table(
        [
            whole([b"v"] * 5, is_batching=False, first_entry_id=0),
            whole([b"v"] * 3, first_entry_id=5),
            whole([b"v"] * 2, is_batching=False, first_entry_id=6),
            whole([b"v"], is_batching=False, first_entry_id=8),
            whole([b"v"], is_batching=False, first_entry_id=0, ledger_id=9),
        ]
    )
    assert table_positions(table) == {
        TOPIC: TablePositions([(3, 0, 4), (3, 6, 8), (9, 0, 0)], [(3, 5, ((0, 3),))])
    }


def test_positions_by_topic() -> None:
    table = received_table(
        [
            whole([b"v"] * 2, is_batching=False, first_entry_id=0),
            whole([b"v"] * 2, is_batching=False, first_entry_id=0, topic_name=OTHER),
        ]
    )
    assert table_positions(table) == {
        TOPIC: TablePositions([(3, 0, 1)], []),
        OTHER: TablePositions([(3, 0, 1)], []),
    }


def test_positions_of_any_rows_in_any_order_against_a_naive_model() -> None:
    for seed in range(60):
        print("seed", seed)
        choose = random.Random(seed)
        table = received_table(random_parts(choose))
        if not table.num_rows:
            continue
        chosen = [choose.randrange(table.num_rows) for _ in range(choose.randrange(1, 2 * table.num_rows))]
        if choose.random() < 0.3:
            chosen.sort()
        subset = table.take(chosen).select(["topic", "ledger_id", "entry_id", "batch_index"])
        expected = {tuple(row.values()) for row in subset.to_pylist()}
        found = []
        for topic, positions in table_positions(subset).items():
            assert positions.ranges == sorted(positions.ranges)
            assert positions.batch_rows == sorted(positions.batch_rows)
            found += [
                (topic, ledger_id, entry_id, -1)
                for ledger_id, first, last in positions.ranges
                for entry_id in range(first, last + 1)
            ]
            found += [
                (topic, ledger_id, entry_id, row)
                for ledger_id, entry_id, rows in positions.batch_rows
                for start, end in rows
                for row in range(start, end)
            ]
        assert len(found) == len(set(found))
        assert set(found) == expected


def test_nacks_name_the_delivery_that_failed() -> None:
    table = received_table(
        [
            whole([b"v"] * 2, is_batching=False, first_entry_id=0, redelivery_count=1),
            whole([b"v"] * 3, first_entry_id=5),
        ]
    )
    assert table_nacks(table.slice(1, 2)) == {TOPIC: [(3, 5, ((0, 1),), 0), (3, 1, (), 1)]}


def test_tables_that_did_not_come_from_here_are_refused() -> None:
    table = received_table([whole([b"v"])])
    with pytest.raises(ValueError, match="no column batch_index"):
        table_positions(table.drop_columns(["batch_index"]))
    with pytest.raises(ValueError, match=r"entry_id is string"):
        table_positions(table.set_column(7, "entry_id", pa.array(["1"])))
    with pytest.raises(ValueError, match="1 nulls"):
        table_positions(table.set_column(7, "entry_id", pa.array([None], pa.int64())))
    with pytest.raises(ValueError, match="topic is int64"):
        table_positions(table.set_column(4, "topic", pa.array([1])))
    with pytest.raises(ValueError, match=r"pa\.Table"):
        table_positions([1])


def test_record_batches_are_taken_too() -> None:
    (batch,) = received_table([whole([b"v"] * 2, is_batching=False)]).to_batches()
    assert table_positions(batch) == {TOPIC: TablePositions([(3, 0, 1)], [])}


def test_chunks_that_share_memory_are_looked_at_once() -> None:
    table = received_table([whole([b"v"] * 8000, first_entry_id=0), whole([b"v"] * 8000, first_entry_id=1)])
    assert table.column("topic").num_chunks == 2
    assert table_positions(table) == {TOPIC: TablePositions([], [(3, 0, ((0, 8000),)), (3, 1, ((0, 8000),))])}
    mixed = pa.concat_tables(
        [table, received_table([whole([b"v"] * 8192, topic_name=OTHER)]), table.slice(100, 5)]
    )
    assert list(table_positions(mixed)) == [TOPIC, OTHER]
    assert list(table_positions(mixed.slice(16_100))) == [OTHER, TOPIC]
