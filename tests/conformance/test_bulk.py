"""Lists and tables over every carrier: send_many, send_arrow, receive_arrow, acknowledge_arrow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.client.arrow.received_table import TABLE_SCHEMA
from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.errors import AlreadyClosed, MessageTooBig, Result, Timeout
from pulsar_ray.model.enums import BatchingType, CompressionType, ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import WAIT_MS, Broker, numbers, receive, values

Quiet = Callable[[Consumer], None]


def received(consumer: Consumer, count: int) -> pa.Table:
    """As many calls of receive_arrow as it takes."""
    tables: list[pa.Table] = []
    while sum(table.num_rows for table in tables) < count:
        tables.append(consumer.receive_arrow(count, WAIT_MS))
    return pa.concat_tables(tables)


@pytest.mark.parametrize("batching", [False, True])
def test_send_many_stores_a_list_in_order_and_returns_the_last_id(
    broker: Broker, client: Client, batching: bool
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, batching_enabled=batching)
    consumer = client.subscribe(topic, "s", receiver_queue_size=100)
    sent = numbers(0, 1000)
    (last,) = producer.send_many(sent)
    messages = receive(consumer, 1000)
    assert [message.data() for message in messages] == sent
    assert messages[-1].message_id() == last
    assert (last.batch_index() >= 0) == batching
    assert producer.last_sequence_id() == 999
    assert producer.send_many([]) == []


def test_send_many_carries_the_other_columns(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    producer.send_many(
        [b"a", None, b"c"],
        partition_keys=["k", None, "m"],
        ordering_keys=[None, "o", None],
        properties=[{"p": "q"}, None, {}],
        event_timestamps=[None, 7, 8],
    )
    a, b, c = receive(consumer, 3)
    assert (a.data(), a.partition_key(), a.ordering_key(), a.properties(), a.event_timestamp()) == (
        b"a", "k", "", {"p": "q"}, 0
    )  # fmt: skip
    assert (b.has_null_value(), b.partition_key(), b.ordering_key(), b.event_timestamp()) == (
        True,
        "",
        "o",
        7,
    )
    assert (c.partition_key(), c.properties(), c.event_timestamp()) == ("m", {}, 8)
    with pytest.raises(ValueError, match="partition_keys has 1"):
        producer.send_many([b"a", b"b"], partition_keys=["k"])
    with pytest.raises(TypeError, match="bytes"):
        producer.send_many(["text"])  # type: ignore[list-item]


def test_send_many_is_in_line_with_single_sends(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    producer.send_async(b"before", None)
    producer.send_many([b"many 1", b"many 2"])
    producer.send_async(b"after", None)
    producer.flush()
    assert broker.stored(topic) == [b"before", b"many 1", b"many 2", b"after"]
    assert producer.last_sequence_id() == 3


def test_send_many_over_partitions_keeps_keys_together_and_in_order(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=3)
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    keys = [f"k{number % 8}" for number in range(400)]
    ids = producer.send_many(numbers(0, 400), partition_keys=keys)
    assert [i.partition() for i in ids] == sorted({i.partition() for i in ids})
    messages = receive(consumer, 400)
    for index in range(8):
        own = [m for m in messages if m.partition_key() == f"k{index}"]
        assert [m.data() for m in own] == [b"%06d" % number for number in range(index, 400, 8)]
        assert len({m.message_id().partition() for m in own}) == 1


def test_send_many_async_answers_once(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    answers: list[tuple[Any, list[MessageId]]] = []
    producer.send_many_async(numbers(0, 100), lambda result, ids: answers.append((result, ids)))
    wait_until(lambda: answers, what="the answer")
    ((result, (last,)),) = answers
    assert result == Result.Ok
    assert last == client.subscribe(topic, "s").get_last_message_id()


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
def test_a_table_goes_through_and_can_be_sent_on(
    broker: Broker, client: Client, codec: CompressionType
) -> None:
    topic, other = broker.topic(), broker.topic()
    consumer = client.subscribe(topic, "s")
    following = client.subscribe(other, "s")
    table = pa.table(
        {
            "value": pa.array([b"a", None, b"c"], pa.large_binary()),
            "partition_key": ["k", None, "m"],
            "properties": pa.array([[("p", "q")], None, []], pa.map_(pa.string(), pa.string())),
            "event_timestamp": pa.array([None, 7, 8], pa.int64()),
        }
    )
    (last,) = client.create_producer(topic, compression_type=codec).send_arrow(table)
    got = received(consumer, 3)
    assert got.schema == TABLE_SCHEMA
    assert got.column("value").to_pylist() == [b"a", None, b"c"]
    assert got.column("key").to_pylist() == ["k", None, "m"]
    assert [dict(p or ()) for p in got.column("properties").to_pylist()] == [{"p": "q"}, {}, {}]
    assert got.column("topic").to_pylist() == [topic] * 3
    assert got.column("batch_index").to_pylist() == [0, 1, 2]
    assert got.column("redelivery_count").to_pylist() == [0, 0, 0]
    assert (last.ledger_id(), last.entry_id(), last.batch_index()) == tuple(
        got.column(name)[2].as_py() for name in ("ledger_id", "entry_id", "batch_index")
    )
    client.create_producer(other).send_arrow(got)
    again = received(following, 3)
    assert again.select(["key", "value", "event_time"]).equals(got.select(["key", "value", "event_time"]))


def test_a_large_table_is_cut_into_entries_and_keeps_its_order(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    count = 20_000
    client.create_producer(topic).send_arrow(pa.table({"value": numbers(0, count)}))
    assert broker.stored(topic) == numbers(0, count)
    assert all(len(block.values()) <= 8192 for _, _, block in broker.stored_blocks(topic))
    assert received(consumer, count).column("value").to_pylist() == numbers(0, count)


def test_a_table_is_split_by_partition_and_by_key(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=2)
    producer = client.create_producer(topic, batching_enabled=True, batching_type=BatchingType.KeyBased)
    keys = [None if number % 5 == 4 else f"k{number % 5}" for number in range(100)]
    producer.send_arrow(pa.table({"value": numbers(0, 100), "key": keys}))
    blocks = [b for index in range(2) for _, _, b in broker.stored_blocks(f"{topic}-partition-{index}")]
    found = {block.metadata.key: block.values() for block in blocks}
    assert found == {
        key: [b"%06d" % number for number in range(100) if keys[number] == key] for key in set(keys)
    }


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("as_table", [False, True])
def test_rows_share_a_key_based_batch_by_ordering_key_then_key(
    broker: Broker, client: Client, as_table: bool, partitions: int
) -> None:
    topic = broker.topic(partitions)
    producer = client.create_producer(topic, batching_enabled=True, batching_type=BatchingType.KeyBased)
    sent: list[bytes | None] = [*numbers(0, 60)]
    keys = [["a", "b", "c" if partitions else None][number % 3] for number in range(60)]
    ordering = [["x", "y", "", None][number // 3 % 4] for number in range(60)]
    if as_table:
        producer.send_arrow(pa.table({"value": sent, "key": keys, "ordering_key": ordering}))
    else:
        producer.send_many(sent, partition_keys=keys, ordering_keys=ordering)
    names = [f"{topic}-partition-{index}" for index in range(partitions)] or [topic]
    found: dict[str | None, list[bytes | None]] = {}
    for name in names:
        in_this: dict[str | None, list[bytes | None]] = {}
        for _, _, block in broker.stored_blocks(name):
            in_this.setdefault(block.metadata.ordering_key or block.metadata.key, []).extend(block.values())
        for key, rows in in_this.items():
            assert rows == sorted(rows, key=sent.index)
            found.setdefault(key, []).extend(rows)
    wanted: dict[str | None, list[bytes | None]] = {}
    for value, key, ordering_key in zip(sent, keys, ordering, strict=True):
        wanted.setdefault(ordering_key or key, []).append(value)
    assert {key: sorted(rows, key=sent.index) for key, rows in found.items()} == wanted


def test_wrong_tables_are_refused_with_what_is_allowed(broker: Broker, client: Client) -> None:
    producer = client.create_producer(broker.topic())
    for wrong in (
        pa.table({"value": [1, 2]}),
        pa.table({"other": [b"a"]}),
        pa.table({"value": [b"a"], "key": [1]}),
    ):
        with pytest.raises(ValueError):
            producer.send_arrow(wrong)
    no_text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    named = pa.MapArray.from_arrays([0, 1], no_text, no_text)
    with pytest.raises(ValueError, match=r"column 'properties' of type .* is no valid Arrow: .*UTF8"):
        producer.send_arrow(pa.table({"value": [b"x"], "properties": named}))
    with pytest.raises(ValueError, match="Table or RecordBatch"):
        producer.send_arrow([b"a"])
    with pytest.raises(MessageTooBig):
        producer.send_arrow(pa.table({"value": [b"x" * 6_000_000]}))
    producer.send_arrow(pa.table({"value": [b"still usable"]}))
    producer.close()
    with pytest.raises(AlreadyClosed):
        producer.send_arrow(pa.table({"value": [b"a"]}))


def test_receive_arrow_times_out_and_counts_messages_of_single_sends(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    with pytest.raises(Timeout):
        consumer.receive_arrow(timeout_millis=50)
    with pytest.raises(ValueError, match="max_messages"):
        consumer.receive_arrow(0)
    for value in numbers(0, 30):
        producer.send(value)
    first = consumer.receive_arrow(7, WAIT_MS)
    assert 1 <= first.num_rows <= 7
    rest = received(consumer, 30 - first.num_rows)
    assert pa.concat_tables([first, rest]).column("value").to_pylist() == numbers(0, 30)
    assert set(first.column("batch_index").to_pylist()) == {-1}


@pytest.mark.parametrize("batched", [False, True])
def test_acknowledge_arrow_takes_any_rows(
    make_broker: Callable[..., Broker], batched: bool, assert_quiet: Quiet
) -> None:
    broker = make_broker(acknowledgment_at_batch_index_level_enabled=True)
    client, topic = broker.client(), broker.topic()
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    producer = client.create_producer(topic, batching_enabled=batched)
    producer.send_many(numbers(0, 20))
    table = received(consumer, 20)
    positions = table.select(["topic", "ledger_id", "entry_id", "batch_index", "partition"])
    consumer.acknowledge_arrow(positions.slice(0, 5))
    consumer.acknowledge_arrow(positions.filter(pa.array([number % 2 == 1 for number in range(20)])))
    consumer.close()
    again = client.subscribe(topic, "s", batch_index_ack_enabled=True)
    assert values(again, 7) == [b"%06d" % number for number in range(6, 20, 2)]
    assert_quiet(again)


def test_negative_acknowledge_arrow_brings_rows_back(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    client.create_producer(topic).send_many(numbers(0, 10))
    table = received(consumer, 10)
    consumer.acknowledge_arrow(table.slice(0, 7))
    consumer.negative_acknowledge_arrow(table.slice(7, 2))
    again = received(consumer, 2)
    assert again.column("value").to_pylist() == numbers(7, 9)
    assert again.column("redelivery_count").to_pylist() == [1, 1]
    assert_quiet(consumer)


def test_a_table_of_several_partitions_is_acknowledged_at_once(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic(partitions=3)
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send_many(numbers(0, 90), partition_keys=[f"k{n % 9}" for n in range(90)])
    consumer.acknowledge_arrow(received(consumer, 90))
    consumer.close()
    assert_quiet(client.subscribe(topic, "s"))


def test_tables_survive_the_death_of_partition_and_dispatcher(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    answers: list[Any] = []
    got: list[bytes] = []
    for turn in range(4):
        table = pa.table({"value": numbers(turn * 1000, turn * 1000 + 1000)})
        producer.send_arrow_async(table, lambda result, _: answers.append(result))
        broker.cluster.kill(topic)
        part = consumer.receive_arrow(300, WAIT_MS)
        got += part.column("value").to_pylist()
        broker.cluster.kill(f"{topic} -> s")
    producer.flush()
    got += received(consumer, 4000 - len(got)).column("value").to_pylist()
    assert answers == [Result.Ok] * 4
    assert got == numbers(0, 4000)
    assert broker.stored(topic) == numbers(0, 4000)


def test_large_tables_that_have_to_be_sent_again_are_what_was_sent(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    sent: list[bytes] = []
    answers: list[Any] = []
    for number in range(24):
        rows = [bytes([number, row]) * 5000 for row in range(60)]
        producer.send_arrow_async(pa.table({"value": rows}), lambda result, _: answers.append(result))
        sent += rows
        if number % 8 == 7:
            broker.cluster.kill(topic)
    producer.flush()
    assert answers == [Result.Ok] * 24
    assert received(consumer, len(sent)).column("value").to_pylist() == sent
