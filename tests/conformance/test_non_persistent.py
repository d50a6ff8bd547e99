"""Non-persistent topics over every carrier: what is delivered, at once, to whoever is there."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.errors import (
    MessageTooBig,
    NotAllowedError,
    TopicNotFound,
)
from pulsar_ray.model.enums import (
    CompressionType,
    ConsumerType,
)
from pulsar_ray.model.message_id import MessageId
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, receive, values
from tests.conformance.non_persistent import NOWHERE, drops, new_topic, place, send_all, wait_for_permits

Quiet = Callable[[Consumer], None]
TYPES = tuple(ConsumerType)
pytestmark = pytest.mark.usefixtures("carriers_are_kept")


@pytest.mark.parametrize("consumer_type", TYPES)
@pytest.mark.parametrize("batching", [False, True])
def test_every_subscription_gets_everything_in_order(
    client: Client, consumer_type: ConsumerType, batching: bool
) -> None:
    topic = new_topic()
    consumers = [client.subscribe(topic, f"s{number}", consumer_type) for number in range(3)]
    producer = client.create_producer(topic, batching_enabled=batching, batching_max_messages=7)
    send_all(producer, numbers(0, 100))
    for consumer in consumers:
        assert values(consumer, 100, acknowledge=True) == numbers(0, 100)


@pytest.mark.parametrize("compression", list(CompressionType))
def test_messages_come_with_all_they_have(client: Client, compression: CompressionType) -> None:
    topic = new_topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, "me", compression_type=compression, batching_enabled=True)
    producer.send_async(
        b"value" * 100,
        None,
        properties={"a": "b"},
        partition_key="k",
        ordering_key="o",
        sequence_id=7,
        event_timestamp=5,
    )
    producer.send(None)
    message, tombstone = receive(consumer, 2)
    assert (message.data(), message.properties()) == (b"value" * 100, {"a": "b"})
    assert (message.partition_key(), message.ordering_key(), message.event_timestamp()) == ("k", "o", 5)
    assert (message.producer_name(), message.topic_name()) == ("me", topic)
    assert (message.redelivery_count(), tombstone.has_null_value()) == (0, True)


def test_ids_say_that_a_message_stands_nowhere(client: Client) -> None:
    topic = new_topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    sent = [producer.send(value) for value in numbers(0, 3)]
    assert sent == [MessageId(-1, -1, -1, -1)] * 3
    told: list[MessageId] = []
    for value in numbers(3, 40):
        producer.send_async(value, lambda _, message_id: told.append(message_id))
    producer.flush()
    assert {place(message_id) for message_id in told} == {NOWHERE}
    assert [place(message_id) for message_id in producer.send_many(numbers(40, 60))] == [NOWHERE]
    batching = client.create_producer(topic, batching_enabled=True)
    batched: list[MessageId] = []
    for value in numbers(60, 63):
        batching.send_async(value, lambda _, message_id: batched.append(message_id))
    batching.flush()
    assert [(*place(one), one.batch_index()) for one in batched] == [(-1, -1, row) for row in range(3)]
    got = receive(consumer, 63)
    assert {place(message.message_id()) for message in got} == {NOWHERE}
    assert [message.data() for message in got] == numbers(0, 63)
    assert [message.message_id().batch_index() for message in got[60:]] == [0, 1, 2]


def test_arrow_in_and_out(client: Client) -> None:
    topic = new_topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    ids = producer.send_arrow(pa.table({"key": ["a", "b"] * 200, "value": numbers(0, 400)}))
    assert [place(message_id) for message_id in ids] == [NOWHERE]
    rows = 0
    while rows < 400:
        table = consumer.receive_arrow(timeout_millis=WAIT_MS)
        assert table["value"].to_pylist() == numbers(rows, rows + table.num_rows)
        assert set(table["ledger_id"].to_pylist()) == set(table["entry_id"].to_pylist()) == {-1}
        consumer.acknowledge_arrow(table)
        consumer.negative_acknowledge_arrow(table)
        rows += table.num_rows


def test_nothing_is_kept_for_later(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    topic = new_topic()
    producer = client.create_producer(topic)
    producer.send(b"before anybody came")
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    wait_for_permits(broker, topic, "s")
    producer.send(b"seen")
    assert values(consumer, 1) == [b"seen"]
    consumer.close()
    producer.send(b"while away")
    again = client.subscribe(topic, "s", initial_position=EARLIEST)
    wait_for_permits(broker, topic, "s")
    assert_quiet(again)
    producer.send(b"after")
    assert values(again, 1) == [b"after"]
    assert drops(broker, topic, "s")["msgDropCounter"] == 1
    assert list(broker._directory.glob("**/*.seg")) == []
    assert list(broker._directory.glob("p/*")) == []


def test_partitioned_topics(broker: Broker, client: Client) -> None:
    topic = new_topic()
    broker.cluster.create_topic(topic, 3)
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{index}" for index in range(3)]
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    ids = [producer.send(b"%d" % number, partition_key=f"k{number}") for number in range(40)]
    assert {place(message_id) for message_id in ids} == {NOWHERE}
    got = receive(consumer, 40)
    assert sorted(int(message.data()) for message in got) == list(range(40))
    assert {message.message_id().partition() for message in got} == {0, 1, 2}
    for message in got:
        consumer.acknowledge(message)
    alone = client.subscribe(f"{topic}-partition-1", "alone")
    client.create_producer(f"{topic}-partition-1").send(b"to one")
    assert values(alone, 1) == [b"to one"]


def test_readers_see_what_comes_from_now_on(client: Client) -> None:
    topic = new_topic()
    producer = client.create_producer(topic)
    producer.send(b"before")
    readers = [client.create_reader(topic, start) for start in (MessageId.earliest, MessageId.latest)]
    assert [reader.has_message_available() for reader in readers] == [False, False]
    send_all(producer, numbers(0, 5))
    for reader in readers:
        assert [reader.read_next(WAIT_MS).data() for _ in range(5)] == numbers(0, 5)
        reader.seek(MessageId.earliest)
        assert not reader.has_message_available()
        reader.close()


def test_large_messages_pass_and_too_large_ones_are_refused(client: Client) -> None:
    topic = new_topic()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    large = b"x" * (5 * 1024 * 1024)
    producer.send(large)
    assert consumer.receive(WAIT_MS).data() == large
    with pytest.raises(MessageTooBig):
        producer.send(large + b"x")
    producer.send(b"after")
    assert values(consumer, 1) == [b"after"]


def test_the_switch_refuses_them(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(enable_non_persistent_topics=False)
    client, topic = broker.client(), new_topic()
    uses: list[Callable[[], object]] = [
        lambda: client.create_producer(topic),
        lambda: client.subscribe(topic, "s"),
        lambda: client.create_reader(topic, MessageId.latest),
    ]
    for use in uses:
        with pytest.raises(NotAllowedError, match="enable_non_persistent_topics"):
            use()
    client.create_producer(broker.topic()).send(b"stored topics work")


def test_a_missing_namespace_and_a_partition_that_is_none_are_refused(broker: Broker, client: Client) -> None:
    with pytest.raises(TopicNotFound):
        client.create_producer("non-persistent://nobody/nowhere/t")
    topic = new_topic()
    broker.cluster.create_topic(topic, 2)
    with pytest.raises(NotAllowedError):
        client.create_producer(f"{topic}-partition-2")


def test_a_table_view_needs_something_stored(client: Client) -> None:
    with pytest.raises(NotAllowedError, match="non-persistent"):
        client.create_table_view(new_topic())
