"""Whoever uses a topic that is deleted and made anew follows the new one, or is told at the next call."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.errors import PulsarException, SubscriptionNotFound, Timeout, TopicNotFound
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker
from tests.conformance.event_loop import on_a_loop

Follow = Callable[[], object]
"""A next call: returns a value of the topic, or None."""


def consumer_of(client: Client, topic: str) -> Follow:
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    return lambda: consumer.receive(WAIT_MS).data()


def listener_of(client: Client, topic: str) -> Follow:
    heard: list[bytes] = []
    consumer = client.subscribe(
        topic,
        "l",
        initial_position=EARLIEST,
        message_listener=lambda _, message: heard.append(message.data()),
    )

    def look() -> object:
        consumer.has_message_available()
        return heard[-1] if heard else None

    return look


def list_of(client: Client, topic: str) -> Follow:
    consumer = client.subscribe(
        [topic, f"{topic}-other"], "s", initial_position=EARLIEST, pattern_auto_discovery_period=1
    )
    return lambda: consumer.receive(WAIT_MS).data()


def pattern_of(client: Client, topic: str) -> Follow:
    consumer = client.subscribe(
        re.compile(re.escape(topic)), "s", initial_position=EARLIEST, pattern_auto_discovery_period=1
    )
    return lambda: consumer.receive(WAIT_MS).data()


def reader_of(client: Client, topic: str) -> Follow:
    reader = client.create_reader(topic, MessageId.earliest)
    return lambda: reader.read_next(WAIT_MS).data()


def reader_listener_of(client: Client, topic: str) -> Follow:
    heard: list[bytes] = []
    reader = client.create_reader(
        topic, MessageId.earliest, reader_listener=lambda _, message: heard.append(message.data())
    )

    def look() -> object:
        reader.has_message_available()
        return heard[-1] if heard else None

    return look


def table_of(client: Client, topic: str) -> Follow:
    view = client.create_table_view(topic)
    return lambda: view.get("k")


def table_items_of(client: Client, topic: str) -> Follow:
    view = client.create_table_view(topic)

    def items() -> object:
        found: dict[str, bytes] = {}
        view.for_each(found.__setitem__)
        return found.get("k")

    return items


def table_length_of(client: Client, topic: str) -> Follow:
    view = client.create_table_view(topic)
    return lambda: b"new" if len(view) > 1 else None


def producer_of(client: Client, topic: str) -> Follow:
    producer = client.create_producer(topic)

    def send() -> object:
        producer.send(b"sent", partition_key="k")
        return b"new"

    return send


FOLLOWERS = [
    consumer_of,
    listener_of,
    list_of,
    pattern_of,
    reader_of,
    reader_listener_of,
    table_of,
    table_items_of,
    table_length_of,
    producer_of,
]


async def _asyncio_reads(broker: Broker, topic: str, replaced: Callable[[], None], kind: str) -> object:
    async with broker.asyncio_client() as client:
        if kind == "reader":
            follower: Any = await client.create_reader(topic, MessageId.earliest)
            call = follower.read_next
        else:
            follower = await client.subscribe(topic, "s", initial_position=EARLIEST)
            call = follower.receive
        assert (await call()).data() == b"old"
        await asyncio.to_thread(replaced)
        return await _outcome(call)


async def _asyncio_sends(broker: Broker, topic: str, replaced: Callable[[], None]) -> object:
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic)
        await producer.send(b"old", partition_key="k")
        await asyncio.to_thread(replaced)
        return await _outcome(lambda: producer.send(b"new", partition_key="k"))


async def _outcome(call: Callable[[], Any]) -> object:
    try:
        await call()
    except PulsarException as error:
        return error
    return True


def replace(broker: Broker, topic: str, partitions: int, is_noticed: Callable[[], object]) -> None:
    topics = broker.admin().topics
    topics.delete(topic, force=True)
    is_noticed()
    topics.create_partitioned_topic(topic, partitions) if partitions else topics.create_topic(topic)
    topics.create_subscription(topic, "keep")
    producer = broker.client().create_producer(topic)
    producer.send(b"new", partition_key="k")
    producer.send(b"new", partition_key="other")
    producer.close()


def is_told(call: Follow) -> bool:
    try:
        call()
    except Timeout:
        raise
    except PulsarException:
        return True
    return False


def check_word(error: PulsarException) -> None:
    """A subscription is not there on the new topic; of the topic itself nobody says that it is not there."""
    assert isinstance(error, (TopicNotFound, SubscriptionNotFound))
    assert not isinstance(error, TopicNotFound) or "was deleted" in str(error)


@pytest.mark.parametrize("is_noticed", [False, True])
@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("follower", FOLLOWERS)
def test_who_uses_a_replaced_topic_follows_it_or_is_told(
    broker: Broker,
    client: Client,
    follower: Callable[[Client, str], Follow],
    partitions: int,
    is_noticed: bool,
) -> None:
    topic = broker.topic(partitions)
    producer = broker.client().create_producer(topic)
    call = follower(client, topic)
    producer.send(b"old", partition_key="k")
    producer.close()
    if follower not in (producer_of, table_length_of):
        wait_until(lambda: call() == b"old", what="what was there before")
    goes_on = follower in (list_of, pattern_of)
    notice = is_noticed and not goes_on
    replace(
        broker,
        topic,
        partitions,
        lambda: not notice or wait_until(lambda: is_told(call), what="a word of the deletion"),
    )

    def is_told_or_follows() -> object:
        try:
            return call() == b"new"
        except Timeout:
            raise
        except PulsarException as error:
            return error

    outcome = wait_until(is_told_or_follows, what="a word of the new topic")
    assert outcome is True or not goes_on
    if outcome is not True:
        assert isinstance(outcome, PulsarException)
        check_word(outcome)
        assert is_told(call)


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("kind", ["reader", "consumer", "producer"])
def test_on_a_loop_too(broker: Broker, kind: str, partitions: int) -> None:
    topic = broker.topic(partitions)
    producer = broker.client().create_producer(topic)
    producer.send(b"old", partition_key="k")
    producer.close()
    replaced = partial(replace, broker, topic, partitions, lambda: None)
    found: list[object] = []

    async def run() -> None:
        if kind == "producer":
            found.append(await _asyncio_sends(broker, topic, replaced))
        else:
            found.append(await _asyncio_reads(broker, topic, replaced, kind))

    on_a_loop(run)()
    if found != [True]:
        assert isinstance(found[0], PulsarException)
        check_word(found[0])


def test_a_closed_table_view_keeps_its_values(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send(b"old", partition_key="k")
    view = client.create_table_view(topic)
    view.close()
    replace(broker, topic, 0, lambda: None)
    assert (view.get("k"), len(view)) == (b"old", 1)
