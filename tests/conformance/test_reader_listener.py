"""A reader's listener over every carrier: it is called with the reader, as in the official client."""

from __future__ import annotations

import pickle
import threading

import pytest

from pulsar_ray.client.client import _SHARED, Client
from pulsar_ray.client.consumer.reader import Reader
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import Broker, numbers

HEARD: list[bytes] = []


def remember(reader: Reader, message: Message) -> None:
    """A listener that can be pickled."""
    assert isinstance(reader, Reader)
    HEARD.append(message.data())


def test_the_listener_is_called_with_the_reader_in_order(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=2)
    producer = client.create_producer(f"{topic}-partition-1")
    for value in numbers(0, 20):
        producer.send(value)
    heard: list[tuple[Reader, bytes]] = []
    reader = client.create_reader(
        topic, MessageId.earliest, reader_listener=lambda *call: heard.append((call[0], call[1].data()))
    )
    wait_until(lambda: len(heard) == 20, what="the listener has all")
    producer.send(b"later")
    wait_until(lambda: len(heard) == 21, what="the listener goes on")
    assert [value for _, value in heard] == [*numbers(0, 20), b"later"]
    assert all(called_with is reader for called_with, _ in heard)
    with pytest.raises(InvalidConfiguration, match="reader_listener"):
        reader.read_next(1000)


def test_the_listener_may_use_and_close_its_reader(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    for value in numbers(0, 3):
        producer.send(value)
    heard: list[bytes] = []
    done = threading.Event()

    def listener(reader: Reader, message: Message) -> None:
        heard.append(message.data())
        if len(heard) == 3:
            reader.seek(MessageId.earliest)
        if len(heard) == 5:
            assert reader.has_message_available()
            reader.close()
            done.set()

    client.create_reader(topic, MessageId.earliest, reader_listener=listener)
    assert done.wait(20)
    assert heard == [*numbers(0, 3), *numbers(0, 2)]


def test_nothing_a_listener_was_given_stays_unacknowledged(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    heard: list[bytes] = []
    client.create_reader(topic, MessageId.earliest, reader_listener=lambda _, m: heard.append(m.data()))
    for value in numbers(0, 50):
        producer.send(value)
    wait_until(lambda: len(heard) == 50, what="the listener has all")
    dispatcher = broker.cluster.dispatcher_of(topic, "", durable=False).server
    assert dispatcher is not None

    def unacked() -> list[int]:
        return [each["unackedMessages"] for each in dispatcher.stats()["subscriptions"].values()]

    wait_until(lambda: unacked() == [0], what="everything is acknowledged")


def test_a_pickled_reader_with_a_listener_reads_by_itself(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    options = client._options
    key = (options.service_url, str(options.data_dir), options.transport)
    monkeypatch.setitem(_SHARED._clients, key, client)
    reader = client.create_reader(topic, MessageId.earliest, reader_listener=remember)
    copy = pickle.loads(pickle.dumps(reader))
    HEARD.clear()
    producer.send(b"x")
    wait_until(lambda: HEARD == [b"x", b"x"], what="both have read it")
    copy.close()
