"""Table views and readers of partitioned topics over every carrier."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.options.schema import StringSchema
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import AlreadyClosed, OperationNotSupported, SchemaSerializationException
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import WAIT_MS, Broker, numbers


def put(producer: Producer, **pairs: Any) -> None:
    for key, value in pairs.items():
        producer.send(value, partition_key=key)


@pytest.mark.parametrize("partitions", [0, 3])
def test_a_table_view_has_the_latest_value_of_each_key(
    broker: Broker, client: Client, partitions: int
) -> None:
    topic = broker.topic(partitions)
    producer = client.create_producer(topic)
    put(producer, a=b"1", b=b"2", c=b"3", d=b"\xff")
    put(producer, a=b"4", b=None, c=b"")
    producer.send(b"without a key")
    with_name = client.create_table_view(topic, "watcher")
    assert {key: with_name.get(key) for key in "abcd"} == {"a": b"4", "b": None, "c": None, "d": b"\xff"}
    assert len(with_name) == 2
    assert str(with_name) == f"TableView(topic={topic}, subscription=watcher)"
    put(producer, b=b"back", d=None)
    wait_until(lambda: with_name.get("b") == b"back" and with_name.get("d") is None)
    with_name.close()
    with pytest.raises(AlreadyClosed):
        with_name.close()


def test_a_value_that_cannot_be_read_hides_no_other_one(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    typed = client.create_producer(topic, schema=StringSchema())
    put(typed, a="1")
    put(client.create_producer(topic), bad=b"\xff")
    put(typed, b="2")
    view = client.create_table_view(topic, schema=StringSchema())
    seen: dict[str, Any] = {}
    with pytest.raises(SchemaSerializationException):
        view.for_each(seen.__setitem__)
    assert seen == {"a": "1", "b": "2"}
    heard: list[tuple[str, Any]] = []
    view.for_each_and_listen(lambda key, value: heard.append((key, value)))
    assert heard == [("a", "1"), ("b", "2")]
    put(typed, a="3")
    wait_until(lambda: heard[2:] == [("a", "3")])
    with pytest.raises(SchemaSerializationException):
        view.get("bad")


def test_listeners_of_a_table_view_get_what_is_there_and_then_every_update(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, schema=StringSchema())
    put(producer, a="1", b="2")
    view = client.create_table_view(topic, schema=StringSchema())
    assert str(view) == f"TableView(topic={topic})"
    seen: list[tuple[str, Any]] = []
    view.for_each_and_listen(lambda key, value: seen.append((key, value)))
    assert seen == [("a", "1"), ("b", "2")]
    put(producer, a="3", b=None, c="4")
    wait_until(lambda: seen[2:] == [("a", "3"), ("b", ""), ("c", "4")])
    now: dict[str, Any] = {}
    view.for_each(now.__setitem__)
    assert now == {"a": "3", "c": "4"}


def test_a_table_view_follows_over_restarts_and_loads_many(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    keys = [f"key-{number % 500}" for number in range(20_000)]
    producer.send_many(numbers(0, 20_000), partition_keys=keys)
    view = client.create_table_view(topic)
    assert len(view) == 500
    assert view.get("key-499") == b"019999"
    broker.cluster.kill(f"{topic} => readers")
    broker.cluster.kill(topic)
    put(producer, after=b"the crash")
    wait_until(lambda: view.get("after") == b"the crash")
    empty = client.create_table_view("made-by-looking")
    assert len(empty) == 0


def test_a_reader_reads_all_partitions(broker: Broker, client: Client) -> None:
    topic = broker.topic(3)
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in numbers(0, 30)]
    reader = client.create_reader(topic, MessageId.earliest)
    got = [reader.read_next(WAIT_MS) for _ in range(30)]
    assert sorted(message.data() for message in got) == numbers(0, 30)
    assert len({message.topic_name() for message in got}) == 3
    assert not reader.has_message_available()
    latest = client.create_reader(topic, MessageId.latest)
    assert not latest.has_message_available()
    producer.send(b"new")
    assert latest.read_next(WAIT_MS).data() == reader.read_next(WAIT_MS).data() == b"new"
    reader.seek(MessageId.earliest)
    assert len({reader.read_next(WAIT_MS).data() for _ in range(31)}) == 31
    with pytest.raises(OperationNotSupported):
        client.create_reader(topic, ids[3])
    one = client.create_reader(f"{topic}-partition-{ids[0].partition()}", ids[0])
    assert one.read_next(WAIT_MS).message_id().partition() == ids[0].partition()
