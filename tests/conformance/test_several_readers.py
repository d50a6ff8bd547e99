"""Readers beside each other on one partition, over every carrier, served by one dispatcher (ADR 0005)."""

from __future__ import annotations

from collections.abc import Callable

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.reader import Reader
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
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


def test_a_reader_goes_on_at_what_trimming_left(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(
        retention_check_interval_in_seconds=1,
        managed_ledger_max_entries_per_ledger=10,
        managed_ledger_min_ledger_rollover_time_minutes=0,
    )
    client, topic = broker.client(), broker.topic()
    kept = client.subscribe(topic, "holds everything back")
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in numbers(0, 45)]
    reader = client.create_reader(topic, MessageId.earliest, receiver_queue_size=1)
    assert read(reader, 3) == numbers(0, 3)
    kept.unsubscribe()
    left = (ids[40].ledger_id(), 0)
    wait_until(lambda: broker.first_stored(topic) == left, what="what nobody holds is gone")
    # What the reader or its dispatcher had on the way may come still, in order; then what is left.
    rest: list[bytes] = []
    while not rest or rest[-1] != b"000044":
        rest += read(reader, 1)
    assert rest == sorted(set(rest))
    assert rest[-5:] == numbers(40, 45)
    producer.send(b"later")
    assert read(reader, 1) == [b"later"]
