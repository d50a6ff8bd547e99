"""A key that is empty is none, and the event time 0 is unset, in every way in and out, over every carrier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.client.received.message_json import message_json
from pulsar_ray.data.writing.publishing import Part, Sending, publish_part
from tests.conformance.broker import WAIT_MS, Broker

ROWS = [("", "", 0), ("k", "", 0), ("", "o", 5), (None, None, None)]
STORED = [(None, None, None), ("k", None, None), (None, "o", 5), (None, None, None)]
Send = Callable[[Broker, Client, str], None]


def one_by_one(broker: Broker, client: Client, topic: str) -> None:
    producer = client.create_producer(topic)
    for key, ordering_key, time in ROWS:
        producer.send(b"x", partition_key=key, ordering_key=ordering_key, event_timestamp=time)


def without_waiting(broker: Broker, client: Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=True)
    for key, ordering_key, time in ROWS:
        producer.send_async(b"x", None, partition_key=key, ordering_key=ordering_key, event_timestamp=time)
    producer.flush()


def as_lists(broker: Broker, client: Client, topic: str) -> None:
    keys, ordering_keys, times = zip(*ROWS, strict=True)
    client.create_producer(topic).send_many(
        [b"x"] * len(ROWS), partition_keys=keys, ordering_keys=ordering_keys, event_timestamps=times
    )


def table() -> pa.Table:
    keys, ordering_keys, times = zip(*ROWS, strict=True)
    return pa.table(
        {
            "key": pa.array(keys, pa.string()),
            "value": [b"x"] * len(ROWS),
            "ordering_key": pa.array(ordering_keys, pa.string()),
            "event_time": pa.array(times, pa.int64()),
        }
    )


def as_a_table(broker: Broker, client: Client, topic: str) -> None:
    client.create_producer(topic).send_arrow(table())


def as_a_table_of_other_types(broker: Broker, client: Client, topic: str) -> None:
    sent = table()
    times = sent.column("event_time").cast(pa.timestamp("ms"))
    sent = sent.set_column(3, "event_timestamp", times).set_column(0, "key", sent["key"].dictionary_encode())
    client.create_producer(topic).send_arrow(sent)


def in_bulk(broker: Broker, client: Client, topic: str) -> None:
    client.create_producer(topic).close()
    publish_part(client, Part(0, table, topic, Sending()))


def on_a_loop(broker: Broker, client: Client, topic: str) -> None:
    async def send() -> None:
        async with broker.asyncio_client() as other:
            producer = await other.create_producer(topic)
            for key, ordering_key, time in ROWS:
                await producer.send(b"x", partition_key=key, ordering_key=ordering_key, event_timestamp=time)

    asyncio.run(send())


WAYS = [one_by_one, without_waiting, as_lists, as_a_table, as_a_table_of_other_types, in_bulk, on_a_loop]


@pytest.mark.parametrize("send", WAYS)
def test_what_stands_for_nothing_is_stored_as_nothing(broker: Broker, client: Client, send: Send) -> None:
    topic = broker.topic()
    tables, messages = client.subscribe(topic, "tables"), client.subscribe(topic, "messages")
    send(broker, client, topic)
    got: list[tuple[Any, ...]] = []
    while len(got) < len(ROWS):
        received = tables.receive_arrow(timeout_millis=WAIT_MS)
        columns = [received["key"], received["ordering_key"], received["event_time"].cast(pa.int64())]
        got += zip(*(column.to_pylist() for column in columns), strict=True)
    assert got == STORED
    for key, ordering_key, time in STORED:
        message = messages.receive(WAIT_MS)
        shown = (message.partition_key(), message.ordering_key(), message.event_timestamp())
        assert shown == (key or "", ordering_key or "", time or 0)
        assert (b'"key": null' in message_json(message)) == (key is None)


@pytest.mark.parametrize("time", [-1, -(2**40)])
def test_times_before_1970_are_refused(client: Client, broker: Broker, time: int) -> None:
    topic = broker.topic()
    producer: Producer = client.create_producer(topic)
    sent = pa.table({"value": [b"x", b"y"], "event_time": pa.array([5, time], pa.int64())})
    typed = sent.set_column(1, "event_time", sent["event_time"].cast(pa.timestamp("ms")))
    for send in (
        lambda: producer.send(b"x", event_timestamp=time),
        lambda: producer.send_async(b"x", None, event_timestamp=time),
        lambda: producer.send_many([b"x", b"y"], event_timestamps=[5, time]),
        lambda: producer.send_arrow(sent),
        lambda: producer.send_arrow(typed),
    ):
        with pytest.raises(ValueError, match=f"event_time.*{time}"):
            send()
    assert broker.stored(topic) == []
