"""Chunks beside everything else: batches, tables, every codec, listeners, handles, duplicates."""

from __future__ import annotations

import pickle
import random
import threading
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.errors import MessageTooBig
from pulsar_ray.model.enums import CompressionType, ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import dispatcher_name, partition_name
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, values
from tests.conformance.chunking import CHUNK_BYTES, backlog, chunking, large
from tests.conformance.event_loop import on_a_loop

TYPES = list(ConsumerType)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_messages_batches_tables_and_chunks_of_every_codec_share_a_topic(
    broker: Broker, client: Client, kind: ConsumerType
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", kind, receiver_queue_size=7)
    sent: list[bytes] = []
    for number, codec in enumerate(CompressionType):
        text = b"%d: " % number + b"words that compress, " * 40
        alone = client.create_producer(topic, batching_enabled=False, compression_type=codec)
        batches = client.create_producer(
            topic,
            batching_enabled=True,
            batching_max_publish_delay_ms=60_000,
            batching_max_messages=4,
            compression_type=codec,
        )
        chunks = chunking(client, topic, compression_type=codec)
        chunks.send_async(large(number), None, partition_key="k")
        alone.send(text + b"alone")
        for row in range(6):
            batches.send_async(text + b"batch %d" % row, None)
        alone.send_arrow(pa.table({"value": [text + b"row %d" % row for row in range(5)]}))
        chunks.send(text * 200, partition_key="other")
        batches.flush()
        sent += [large(number), text + b"alone", text * 200]
        sent += [text + b"batch %d" % row for row in range(6)] + [text + b"row %d" % row for row in range(5)]
    got = values(consumer, len(sent), acknowledge=True)
    assert sorted(got) == sorted(sent)
    wait_until(lambda: backlog(broker, topic) == 0, what="everything is acknowledged")
    table = client.subscribe(topic, "table", initial_position=EARLIEST)
    rows: list[bytes] = []
    while len(rows) < len(sent):
        rows += table.receive_arrow(1000, WAIT_MS)["value"].to_pylist()
    assert sorted(rows) == sorted(sent)


def test_bulk_sends_are_cut_where_chunks_are_allowed(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    whole = client.create_producer(topic)
    with pytest.raises(MessageTooBig):
        whole.send_many([b"small", bytes(6_000_000)])
    producer = client.create_producer(topic, chunking_enabled=True)
    producer.send_many([bytes(6_000_001), b"behind"])
    producer.send_arrow(pa.table({"value": [bytes(6_000_002)]}))
    wanted = [b"small", bytes(6_000_001), b"behind", bytes(6_000_002)]
    assert values(consumer, 4) == wanted, "what stood before the refused one was sent"


def test_with_deduplication_it_is_stored_once(make_broker: Any) -> None:
    broker = make_broker(broker_deduplication_enabled=True)
    topic = broker.topic()
    client = broker.client()
    consumer = client.subscribe(topic, "s")
    producer = chunking(client, topic, producer_name="p")
    producer.send(large(1), sequence_id=5)
    producer.send(large(2), sequence_id=5)
    producer.send(b"small", sequence_id=4)
    producer.send(large(3), sequence_id=6)
    assert producer.last_sequence_id() == 6
    producer.close()
    again = chunking(client, topic, producer_name="p")
    assert again.last_sequence_id() == 6
    again.send(large(3), sequence_id=6)
    again.send(large(4))
    assert again.last_sequence_id() == 7
    assert values(consumer, 3, acknowledge=True) == [large(1), large(3), large(4)]
    wait_until(lambda: backlog(broker, topic) == 0, what="no chunk of a duplicate is left")


def test_a_listener_gets_it(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    got: list[bytes] = []
    done = threading.Event()

    def listen(consumer: Any, message: Any) -> None:
        got.append(message.data())
        consumer.acknowledge(message)
        if len(got) == 3:
            done.set()

    client.subscribe(topic, "s", message_listener=listen)
    producer = chunking(client, topic)
    for number in range(3):
        producer.send(large(number))
    assert done.wait(WAIT_MS / 1000)
    assert got == [large(number) for number in range(3)]


@on_a_loop
async def test_the_asyncio_client_takes_several_through_a_queue_of_one(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        consumer = await client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=1)
        producer = await client.create_producer(
            topic, batching_enabled=False, chunking_enabled=True, chunk_max_message_size=CHUNK_BYTES
        )
        for number in range(4):
            await producer.send(large(number))
        assert producer.pending_bytes() == 0
        got = []
        for _ in range(4):
            message = await consumer.receive()
            got.append(message.data())
            await consumer.acknowledge(message)
        assert got == [large(number) for number in range(4)]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_deaths_in_the_middle_lose_tear_and_repeat_nothing(
    broker: Broker, client: Client, kind: ConsumerType
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", kind)
    producers = [chunking(client, topic, producer_name=f"p{number}") for number in range(2)]
    rng = random.Random(7)
    victims = [partition_name(topic), dispatcher_name(topic, "s", durable=True)]
    sent: list[bytes] = []
    got: list[bytes] = []
    for round_number in range(6):
        for number, producer in enumerate(producers):
            value = large(10 * round_number + number, rng.randrange(20_000, 400_000))
            sent.append(value)
            producer.send_async(value, None, partition_key=str(number))
        broker.cluster.kill(victims[round_number % 2])
        message = consumer.receive(WAIT_MS)
        got.append(message.data())
        consumer.acknowledge(message)
    for producer in producers:
        producer.flush()
    got += values(consumer, len(sent) - len(got), acknowledge=True)
    assert sorted(got) == sorted(sent)
    wait_until(lambda: backlog(broker, topic) == 0, what="nothing is left of any")


def test_an_id_travels_and_finds_the_message_again(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", start_message_id_inclusive=True)
    sent = chunking(client, topic).send(large(1))
    for known in (pickle.loads(pickle.dumps(sent)), MessageId.deserialize(sent.serialize())):
        consumer.acknowledge(consumer.receive(WAIT_MS))
        consumer.seek(known)
        assert values(consumer, 1) == [large(1)]
        consumer.seek(known)
