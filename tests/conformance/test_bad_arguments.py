"""Arguments of wrong types and values: each is refused by an error that names the argument."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pulsar_ray.admin.admin import Admin
from pulsar_ray.asyncio import Client as AsyncioClient
from pulsar_ray.client.client import Client
from pulsar_ray.errors import (
    InvalidTopicName,
    MessageTooBig,
    NotAllowedError,
    ProducerQueueIsFull,
    PulsarException,
    SubscriptionNotFound,
    TopicNotFound,
)
from pulsar_ray.model.message_id import MessageId
from tests.conformance.broker import EARLIEST, Broker, numbers, values
from tests.conformance.event_loop import on_a_loop

pytestmark = pytest.mark.parametrize("transport", ["socket"], indirect=True)
NO_FUNCTIONS: list[Any] = [5, "x", b"x", [], {}, object()]
NO_LISTS: list[Any] = [5, None, 1.5, "ab", b"ab", {"a": b"x"}, object(), len]


def refused(call: Callable[..., object], name: str, *arguments: Any, **named: Any) -> str:
    """The text of the error, which names the argument."""
    with pytest.raises((ValueError, TypeError)) as raised:
        call(*arguments, **named)
    assert type(raised.value) in (ValueError, TypeError)
    assert name in str(raised.value)
    return str(raised.value)


def test_what_cannot_be_called_is_no_callback(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    view = client.create_table_view(topic)
    for wrong in NO_FUNCTIONS:
        refused(producer.send_async, "callback", b"x", wrong)
        refused(producer.send_many_async, "callback", [b"x"], wrong)
        refused(producer.send_arrow_async, "callback", None, wrong)
        refused(view.for_each, "callback", wrong)
        refused(view.for_each_and_listen, "callback", wrong)
        refused(client.subscribe, "message_listener", topic, "s", message_listener=wrong)
        refused(client.create_reader, "reader_listener", topic, MessageId.earliest, reader_listener=wrong)
        refused(client.create_producer, "message_router", topic, message_router=wrong)
    for missing in (view.for_each, view.for_each_and_listen):
        refused(missing, "callback", None)
    assert broker.stored(topic) == []


def test_many_are_sent_from_any_iterable_and_from_nothing_else(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send_many(value for value in numbers(0, 3))
    producer.send_many(dict.fromkeys(numbers(3, 5)).keys(), partition_keys=(key for key in ("a", None)))
    producer.send_many(
        tuple(numbers(5, 7)), properties=iter([None, {"a": "b"}]), event_timestamps={1: 1, 2: 2}.values()
    )
    producer.send_many(())
    producer.send_many(iter(()))
    assert broker.stored(topic) == numbers(0, 7)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    got = [consumer.receive(20_000) for _ in range(7)]
    assert [message.partition_key() for message in got[3:5]] == ["a", ""]
    assert (got[6].properties(), got[5].event_timestamp(), got[6].event_timestamp()) == ({"a": "b"}, 1, 2)
    for wrong in NO_LISTS:
        refused(producer.send_many, "values", wrong)
        for name in ("partition_keys", "ordering_keys", "properties", "event_timestamps"):
            if wrong is not None:
                refused(producer.send_many, name, [b"x", b"y"], **{name: wrong})
    items: dict[str, list[Any]] = {
        "partition_keys": [5, b"k"],
        "ordering_keys": [5, b"k"],
        "properties": [5, "x", {"a": 5}, {5: "a"}],
        "event_timestamps": ["x", 1.5, -5, 2**63],
    }
    for name, wrong_items in items.items():
        for item in wrong_items:
            refused(producer.send_many, name, [b"x", b"y"], **{name: [None, item]})
        refused(producer.send_many, name, [b"x"], **{name: []})
    assert broker.stored(topic) == numbers(0, 7)


@on_a_loop
async def test_asyncio_sends_many_from_any_iterable(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic)
        await producer.send_many(value for value in numbers(0, 3))
        with pytest.raises(ValueError, match="values=None must be a list or another iterable"):
            await producer.send_many(None)  # type: ignore[arg-type]
        consumer = await client.subscribe(topic, "s")
        with pytest.raises(ValueError, match="max_messages='5' must be an int from 1"):
            await consumer.receive_arrow("5")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"topic=\[\] must be a list of at least one topic"):
            await client.subscribe([], "s")
    assert broker.stored(topic) == numbers(0, 3)


def test_other_arguments_of_wrong_types_are_named(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer, consumer = client.create_producer(topic), client.subscribe(topic, "s")
    view, admin = client.create_table_view(topic), broker.admin()
    for wrong in (5, None, 1.5, b"x", [], {}, object()):
        refused(admin.topics.list, "namespace", wrong)
        refused(view.get, "key", wrong)
        if wrong != 5:
            refused(consumer.receive_arrow, "max_messages", wrong)
        if wrong is not None:
            refused(client.create_table_view, "subscription_name", topic, wrong)
            refused(producer.send, "partition_key", b"x", partition_key=wrong)
            refused(producer.send, "ordering_key", b"x", ordering_key=wrong)
            if wrong != {}:
                refused(producer.send, "properties", b"x", properties=wrong)
    for wrong in (5, "x", object(), len):
        refused(admin.topics.delete, "force", topic, wrong)
    producer.send(b"x", properties={}, partition_key="", ordering_key="")
    assert broker.stored(topic) == [b"x"]


def test_errors_say_what_can_be_done(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(
        topic, max_pending_messages=3, batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    with pytest.raises(
        MessageTooBig, match="split it, store it elsewhere and send a reference, or raise max_"
    ):
        producer.send(bytes(6_000_000))
    for _ in range(3):
        producer.send_async(b"x", None)
    with pytest.raises(ProducerQueueIsFull, match="3 messages wait to be stored and confirmed"):
        producer.send(b"y")
    consumer = client.subscribe(topic, "s")
    for call in (consumer.seek, client.create_reader(topic, MessageId.earliest).seek):
        assert "a publish time is in ms since 1970" in refused(call, "seek(-5)", -5)


def test_a_cumulative_acknowledgment_of_no_message_does_nothing_and_says_so(
    broker: Broker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.topic()
    client.create_producer(topic).send_many(numbers(0, 3))
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, ack_receipt_enabled=True)
    values(consumer, 3)
    with caplog.at_level(logging.WARNING):
        for nothing in (MessageId.latest, MessageId.earliest):
            consumer.acknowledge_cumulative(nothing)
    assert [record.message for record in caplog.records] == [
        f"acknowledge_cumulative({nothing}) has no effect, as in Pulsar: it names no message; to pass "
        "everything stored by now use seek(MessageId.latest)"
        for nothing in (MessageId.latest, MessageId.earliest)
    ]
    assert broker.unacked(topic, "s") == [3]


ON_TOPICS: dict[str, tuple[Any, ...]] = {
    "stats": (),
    "partitioned_stats": (),
    "stats_internal": (),
    "subscriptions": (),
    "get_partitions": (),
    "get_last_message_id": (),
    "delete": (),
    "update_partitioned_topic": (3,),
    "expire_messages_all_subscriptions": (1,),
}
ON_SUBSCRIPTIONS: dict[str, tuple[Any, ...]] = {
    "unsubscribe": (),
    "skip": (1,),
    "skip_all": (),
    "peek_messages": (),
    "peek_message": (),
    "reset_cursor": ("earliest",),
    "expire_messages": (1,),
    "why_blocked": (),
    "key_owner": ("k",),
}
MISSING = ("missing", "public/nope/x", "nope/ns/x", "missing-partition-0", "__change_event", "a\nb")
MALFORMED = ("", "a/b", "http://public/default/x", "a\ud800")


def test_admin_calls_on_what_is_not_there_name_it(broker: Broker) -> None:
    topic, partitioned = broker.topic(), broker.topic(2)
    topics = broker.admin().topics
    calls = {**ON_TOPICS, **{name: ("s", *more) for name, more in ON_SUBSCRIPTIONS.items()}}
    calls["create_subscription"] = ("s",)

    def check(error: type[PulsarException], method: str, name: str, *more: Any, names: str) -> None:
        with pytest.raises(error) as raised:
            getattr(topics, method)(name, *more)
        assert type(raised.value) is error, method
        assert names in str(raised.value), method

    for method, more in calls.items():
        for missing in MISSING:
            is_refused = method == "update_partitioned_topic" and "-partition-" in missing
            names = missing if method != "get_partitions" else missing.rpartition("/")[0] or missing
            check(NotAllowedError if is_refused else TopicNotFound, method, missing, *more, names=names)
        for malformed in MALFORMED:
            check(InvalidTopicName, method, malformed, *more, names=repr(malformed))
    for name, more in ON_SUBSCRIPTIONS.items():
        for place in (topic, partitioned, f"{partitioned}-partition-0"):
            for missing in ("missing", "", "reader-x", "a\nb"):
                check(SubscriptionNotFound, name, place, missing, *more, names=repr(missing))
    for call in (topics.list, topics.partitions):
        for missing in ("public/nope", "nope/default"):
            with pytest.raises(TopicNotFound, match=missing):
                call(missing)
        for malformed in (
            "public",
            "",
            "public/",
            "/default",
            "a/b/c",
            "persistent://public/default",
            "a/ b",
        ):
            with pytest.raises(InvalidTopicName) as raised:
                call(malformed)
            assert f"{malformed!r} is not a namespace" in str(raised.value)
    assert topics.list() == sorted([topic, partitioned])
    assert topics.subscriptions(topic) == []


def test_arguments_of_wrong_types_of_admin_methods_are_named(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    topics, brokers = broker.admin().topics, broker.admin().brokers
    topics.create_subscription(topic, "s")
    for wrong in (5, None, 1.5, b"x", [], {}, object()):
        refused(client.get_topic_partitions, "topic", wrong)
        refused(client.create_table_view, "topic", wrong)
        for create, more in ((topics.create_topic, ()), (topics.create_partitioned_topic, (2,))):
            refused(create, "topic", wrong, *more)
        for name, more in ON_TOPICS.items():
            refused(getattr(topics, name), "topic", wrong, *more)
        for name, more in {**ON_SUBSCRIPTIONS, "create_subscription": ()}.items():
            refused(getattr(topics, name), "topic", wrong, "s", *more)
            refused(getattr(topics, name), "subscription", topic, wrong, *more)
        for call in (brokers.drain, brokers.undrain, partial(topics.move, topic)):
            refused(call, "node", wrong)
        if wrong is not None:
            refused(topics.offload, "message_id", topic, wrong)
    for wrong in (5, None, "x", [], object()):
        refused(topics.unsubscribe, "force", topic, "s", wrong)
        refused(lambda wrong=wrong: topics.stats(topic, subscriptions=wrong), "subscriptions")
    refused(topics.reset_cursor, str(2**63), topic, "s", 2**63)
    assert topics.subscriptions(topic) == ["s"]


@pytest.mark.usefixtures("transport")
def test_arguments_of_wrong_types_of_constructors_are_named() -> None:
    for kind in (Admin, Client, AsyncioClient):
        for wrong in (None, 0, -5, "x", b"x", [], {}, object(), 2**40, float("nan")):
            refused(kind, "operation_timeout_seconds", operation_timeout_seconds=wrong)
        for wrong in (5, 1.5, b"x", [], {}, object()):
            for name in ("service_url", "data_dir", "config_file"):
                refused(kind, name, **{name: wrong})
    for kind in (Client, AsyncioClient):
        refused(kind, "connection_timeout_ms", connection_timeout_ms=2**31)


def test_numbers_that_nothing_can_hold_are_refused_and_bools_are_numbers(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    for name in ("initial_sequence_id", "send_timeout_millis", "max_pending_messages"):
        refused(client.create_producer, name, topic, **{name: 2**63})
    for name in ("priority_level", "receiver_queue_size", "negative_ack_redelivery_delay_ms"):
        refused(client.subscribe, name, topic, "s", **{name: 2**63})
    consumer = client.subscribe(topic, "s", priority_level=True)
    producer = client.create_producer(topic, batching_enabled=True)
    producer.send(b"x", event_timestamp=True, sequence_id=True)
    message = consumer.receive(20_000)
    assert (message.event_timestamp(), producer.last_sequence_id()) == (1, 1)


def test_ids_behind_the_highest_sequence_id_that_is_taken_are_stored(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    refused(producer.send, "sequence_id", b"x", sequence_id=2**63 - 1)
    refused(producer.send_async, "sequence_id", b"x", None, sequence_id=2**63 - 1)
    refused(client.create_producer, "initial_sequence_id", topic, initial_sequence_id=2**63 - 2)
    producer.send_async(b"first", None, sequence_id=2**63 - 2**40)
    producer.send_async(b"second", None)
    producer.flush()
    assert broker.stored(topic) == [b"first", b"second"]
    producer.close()
