"""Messages in several chunks, over every carrier: to everybody but the log they are one message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.errors import MessageTooBig
from pulsar_ray.model.enums import CompressionType, ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, receive
from tests.conformance.chunking import CHUNK_BYTES, backlog, chunking, large
from tests.conformance.event_loop import on_a_loop
from tests.conformance.test_lifecycle import pickled

Quiet = Callable[[Consumer], None]
TYPES = list(ConsumerType)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("queue_size", [0, 1, 1000])
def test_a_message_in_chunks_arrives_as_one(
    broker: Broker, client: Client, assert_quiet: Quiet, kind: ConsumerType, queue_size: int
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", consumer_type=kind, receiver_queue_size=queue_size)
    producer = chunking(client, topic)
    sent = producer.send(large(1), {"p": "q"}, partition_key="k", ordering_key="o", event_timestamp=9)
    small = producer.send(b"small")
    message = consumer.receive(WAIT_MS if queue_size else None)
    assert message.data() == large(1)
    assert message.properties() == {"p": "q"}
    assert (message.partition_key(), message.ordering_key(), message.event_timestamp()) == ("k", "o", 9)
    assert message.message_id() == sent
    assert str(message.message_id()) == str(sent)
    first = sent.first_chunk()
    assert first is not None
    assert (first.entry_id(), sent.entry_id()) == (0, 4)
    assert consumer.receive(WAIT_MS if queue_size else None).message_id() == small
    consumer.acknowledge(message)
    consumer.acknowledge(small)
    consumer.close()
    again = client.subscribe(topic, "s", consumer_type=kind)
    assert_quiet(again)
    assert backlog(broker, topic) == 0


def test_handles_in_another_process_go_on_with_chunks(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    made = (
        chunking(client, topic),
        client.subscribe(topic, "s", ConsumerType.Shared, max_pending_chunked_message=7),
        client.create_reader(topic, MessageId.earliest),
    )
    elsewhere = broker.client()
    copies: Any = [pickled(elsewhere, handle, monkeypatch) for handle in made]
    made[1].close()
    producer, consumer, reader = copies
    sent = producer.send(large(3), partition_key="k")
    assert sent.first_chunk().entry_id() == 0
    message = consumer.receive(WAIT_MS)
    assert (message.data(), message.message_id(), message.partition_key()) == (large(3), sent, "k")
    assert reader.read_next(WAIT_MS).data() == large(3)
    consumer.seek(MessageId.earliest)
    assert consumer.receive(WAIT_MS).data() == large(3)


def test_producers_chunks_are_interwoven_and_messages_come_where_their_last_chunk_is(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    producers = [chunking(client, topic, producer_name=f"p{number}") for number in range(4)]
    results: list[str] = []
    for round_number in range(6):
        for number, producer in enumerate(producers):
            value = large(10 * round_number + number, 5000 + 9000 * number)
            producer.send_async(value, lambda result, place: results.append(str(place)))
    for producer in producers:
        producer.flush()
    got = [consumer.receive(WAIT_MS) for _ in range(24)]
    assert sorted(str(message.message_id()) for message in got) == sorted(results)
    assert [message.message_id() for message in got] == sorted(message.message_id() for message in got)
    for number in range(4):
        of_one = [message.data() for message in got if message.producer_name() == f"p{number}"]
        assert of_one == [large(10 * r + number, 5000 + 9000 * number) for r in range(6)]


@pytest.mark.parametrize("codec", list(CompressionType))
def test_it_is_compressed_before_it_is_cut(broker: Broker, client: Client, codec: CompressionType) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    producer = chunking(client, topic, compression_type=codec)
    text = b"".join(b"line %d of many; " % (number * 7919 % 10_007) for number in range(20_000))
    producer.send(text)
    producer.send(bytes(200_000))
    producer.send(large(2))
    assert [consumer.receive(WAIT_MS).data() for _ in range(3)] == [text, bytes(200_000), large(2)]


@pytest.mark.parametrize("kind", TYPES)
def test_a_negative_acknowledgment_brings_all_of_it_again(
    broker: Broker, client: Client, kind: ConsumerType
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", consumer_type=kind, negative_ack_redelivery_delay_ms=50)
    producer = chunking(client, topic)
    producer.send(large(1), partition_key="k")
    producer.send(b"behind", partition_key="k")
    message = consumer.receive(WAIT_MS)
    consumer.negative_acknowledge(message)
    while (again := consumer.receive(WAIT_MS)).data() == b"behind":
        pass
    assert again.data() == large(1)
    assert again.redelivery_count() == 1
    assert again.message_id() == message.message_id()


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared, ConsumerType.Failover])
def test_it_goes_to_another_consumer_whole_when_its_own_leaves(
    broker: Broker, client: Client, kind: ConsumerType
) -> None:
    topic = broker.topic()
    first = client.subscribe(topic, "s", consumer_type=kind)
    producer = chunking(client, topic)
    for number in range(6):
        producer.send(large(number), partition_key=str(number))
    assert first.receive(WAIT_MS).data() == large(0)
    second = broker.client().subscribe(topic, "s", consumer_type=kind)
    first.close()
    got = {second.receive(WAIT_MS).data() for _ in range(6)}
    assert got == {large(number) for number in range(6)}


def test_a_cumulative_acknowledgment_spares_messages_that_are_not_complete(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    slow = chunking(client, topic, producer_name="slow")
    other = client.create_producer(topic)
    for round_number in range(5):
        slow.send_async(large(round_number, 200_000), None)
        for number in range(10):
            other.send_async(b"%d" % number, None)
            message = consumer.receive(WAIT_MS)
            consumer.acknowledge_cumulative(message)
    slow.flush()
    other.flush()
    consumer.close()
    again = client.subscribe(topic, "s")
    rest = []
    while backlog(broker, topic):
        message = again.receive(WAIT_MS)
        rest.append(message.message_id())
        again.acknowledge_cumulative(message)
        again.close()
        again = client.subscribe(topic, "s")
    assert rest == sorted(set(rest))
    assert_quiet(again)


def test_chunks_show_in_the_stats(broker: Broker, client: Client) -> None:
    topic = broker.topic(2)
    consumer = client.subscribe(topic, "s")
    producer = chunking(client, topic, producer_name="p")
    producer.send(b"small")
    assert broker.admin().topics.stats(topic)["msgChunkPublished"] is False
    producer.send(large(1))
    for _ in range(2):
        consumer.acknowledge(consumer.receive(WAIT_MS))
    admin = broker.admin()
    wait_until(lambda: admin.topics.stats(topic)["chunkedMessageRate"] > 0, what="the rate is sampled")
    stats = admin.topics.stats(topic)
    publisher = stats["publishers"][0]
    assert stats["msgChunkPublished"] is publisher["msgChunkPublished"] is True
    assert publisher["chunkedMessageRate"] > 0
    wait_until(
        lambda: admin.topics.stats(topic)["subscriptions"]["s"]["chunkedMessageRate"] > 0, what="so it is"
    )
    shown = admin.topics.stats(topic)["subscriptions"]["s"]
    assert shown["bytesOutCounter"] > len(large(1)), "all chunks count"
    assert (shown["incompleteChunkedMessages"], shown["droppedChunkedMessages"]) == (0, 0)


def test_a_seek_goes_to_its_first_chunk(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", start_message_id_inclusive=True)
    producer = chunking(client, topic)
    producer.send(b"before")
    sent = producer.send(large(1))
    producer.send(b"behind")
    for _ in range(3):
        consumer.acknowledge(consumer.receive(WAIT_MS))
    consumer.seek(MessageId.deserialize(sent.serialize()))
    assert [consumer.receive(WAIT_MS).data() for _ in range(2)] == [large(1), b"behind"]


def test_readers_and_table_views_take_it(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = chunking(client, topic)
    first = producer.send(large(1), partition_key="a")
    producer.send(large(2), partition_key="b")
    reader = client.create_reader(topic, MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(2)] == [large(1), large(2)]
    assert not reader.has_message_available()
    behind = client.create_reader(topic, first)
    assert behind.read_next(WAIT_MS).data() == large(2)
    view = client.create_table_view(topic)
    assert view.get("a") == large(1)


def test_bulk_receiving_takes_it_as_a_row(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = chunking(client, topic)
    for number in range(3):
        producer.send(large(number), partition_key="k")
        producer.send(b"%d" % number)
    table = consumer.receive_arrow(4, WAIT_MS)
    values = table["value"].to_pylist()
    while len(values) < 6:
        values += consumer.receive_arrow(4, WAIT_MS)["value"].to_pylist()
    assert values == [large(0), b"0", large(1), b"1", large(2), b"2"]
    consumer.acknowledge_arrow(table)
    consumer.redeliver_unacknowledged_messages()
    batch = [message.data() for message in consumer.batch_receive()]
    assert all(value in values for value in batch)


@on_a_loop
async def test_the_asyncio_client_sends_and_receives_it(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        consumer = await client.subscribe(topic, "s")
        producer = await client.create_producer(
            topic, batching_enabled=False, chunking_enabled=True, chunk_max_message_size=CHUNK_BYTES
        )
        sent = await producer.send(large(1))
        message = await consumer.receive()
        assert message.data() == large(1)
        assert str(message.message_id()) == str(sent)
        await consumer.acknowledge(message)


def test_a_large_message_goes_through_a_queue_of_one(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", receiver_queue_size=1)
    producer = client.create_producer(topic, chunking_enabled=True, max_pending_messages=1)
    value = bytes(range(256)) * 80_000
    producer.send(value)
    assert consumer.receive(WAIT_MS).data() == value


def test_a_message_that_fails_too_often_goes_to_the_dead_letter_topic_whole(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    dead = client.subscribe(f"{topic}-s-DLQ", "look", initial_position=EARLIEST)
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=20,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
    )
    value = large(1, 6_000_000)
    client.create_producer(topic, chunking_enabled=True).send(value, {"p": "q"}, partition_key="k")
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    letter = dead.receive(WAIT_MS)
    assert (letter.data(), letter.partition_key(), letter.properties()["p"]) == (value, "k", "q")
    wait_until(lambda: backlog(broker, topic) == 0, what="the original is acknowledged")


@pytest.mark.parametrize("form", ["many", "table"])
def test_rows_that_are_too_large_for_a_block_go_in_chunks_in_their_place(
    broker: Broker, client: Client, form: str
) -> None:
    topic = broker.topic()
    broker.admin().topics.policies.set(topic, "max_message_size", 2 * CHUNK_BYTES)
    consumer = client.subscribe(topic, "s")
    rows = [b"first", large(1), b"", None, *(b"%d" % number for number in range(50)), large(2), b"last"]
    keys = [f"k{number}" if number % 2 else None for number in range(len(rows))]
    producer = chunking(client, topic)
    ids = (
        producer.send_many(rows, partition_keys=keys)
        if form == "many"
        else producer.send_arrow(pa.table({"value": pa.array(rows, pa.binary()), "key": keys}))
    )
    found = receive(consumer, len(rows))
    assert [None if message.has_null_value() else message.data() for message in found] == rows
    assert [message.partition_key() or None for message in found] == keys
    assert ids[-1] == found[-1].message_id()
    plain = client.create_producer(topic)
    with pytest.raises(MessageTooBig):
        plain.send_many(rows)


def test_what_cannot_be_in_chunks_is_refused(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    with pytest.raises(ValueError, match="batching_enabled and chunking_enabled"):
        client.create_producer(topic, chunking_enabled=True, batching_enabled=True)
    with pytest.raises(ValueError, match="only persistent topics"):
        client.create_producer(f"non-persistent://public/default/{topic}", chunking_enabled=True)
    with pytest.raises(ValueError, match="max_message_size"):
        chunking(client, topic, chunk_max_message_size=6_000_000)
    producer = chunking(client, topic, chunk_max_message_size=1)
    with pytest.raises(MessageTooBig, match="raise chunk_max_message_size"):
        producer.send(large(1))
    with pytest.raises(MessageTooBig):
        client.create_producer(topic).send(bytes(6_000_000))
