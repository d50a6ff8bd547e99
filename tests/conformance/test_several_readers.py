"""Readers beside each other on one partition, over every carrier, served by one dispatcher (ADR 0005)."""

from __future__ import annotations

from pulsar_ray.client.client import Client
from pulsar_ray.client.reader import Reader
from pulsar_ray.model.message_id import MessageId
from tests.conformance.broker import WAIT_MS, Broker, numbers


def read(reader: Reader, count: int) -> list[bytes]:
    return [reader.read_next(WAIT_MS).data() for _ in range(count)]


def test_a_seek_of_one_moves_no_other(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in numbers(0, 20)]
    clients = (client, client, broker.client())
    readers = [each.create_reader(topic, MessageId.earliest, receiver_queue_size=3) for each in clients]
    assert [read(reader, 5) for reader in readers] == [numbers(0, 5)] * 3
    readers[0].seek(ids[14])
    readers[2].seek(MessageId.earliest)
    assert read(readers[1], 15) == numbers(5, 20)
    assert read(readers[0], 5) == numbers(15, 20)
    assert read(readers[2], 20) == numbers(0, 20)
    serving = [address for address in broker.cluster.addresses if address.startswith(f"{topic} ")]
    assert serving == [f"{topic} => readers"]
