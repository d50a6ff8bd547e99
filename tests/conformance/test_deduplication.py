"""Messages that a producer sends twice are stored once, over every carrier and across restarts."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import Result
from pulsar_ray.model.enums import BatchingType, CompressionType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.transport.actor_names import partition_name
from tests.conformance.broker import EARLIEST, Broker, numbers, values
from tests.conformance.event_loop import on_a_loop
from tests.conformance.non_persistent import wait_for_permits

NOWHERE = MessageId()
"""The id of a message that was stored before: (-1,-1,-1,-1)."""
LZ4 = CompressionType.LZ4
WAYS: list[dict[str, Any]] = [
    {},
    {"batching_enabled": True, "batching_max_publish_delay_ms": 60_000},
    {"batching_enabled": True, "batching_max_publish_delay_ms": 60_000, "compression_type": LZ4},
]  # fmt: skip


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    return make_broker(
        broker_deduplication_enabled=True,
        default_retention_time_in_minutes=-1,
        default_retention_size_in_mb=-1,
        index_checkpoint_entries=20,
    )


class Receipts:
    """Collects the answers to messages that were sent without waiting."""

    def __init__(self) -> None:
        self.ids: list[MessageId] = []
        self.results: set[Any] = set()

    def __call__(self, result: Any, message_id: MessageId) -> None:
        self.results.add(result)
        self.ids.append(message_id)


def send_window(producer: Producer, first: int, end: int) -> list[MessageId]:
    """Send messages whose sequence ids are their numbers; their ids once all are confirmed."""
    receipts = Receipts()
    for number in range(first, end):
        producer.send_async(b"%06d" % number, receipts, sequence_id=number)
    producer.flush()
    assert receipts.results == {Result.Ok}
    return receipts.ids


def test_a_repeated_message_is_confirmed_and_not_stored_again(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, "p")
    first = producer.send(b"000000", sequence_id=5)
    assert producer.send(b"again", sequence_id=5) == NOWHERE
    assert str(NOWHERE) == "(-1,-1,-1,-1)"
    assert producer.send(b"going back", sequence_id=3) == NOWHERE
    assert producer.last_sequence_id() == 5, "the highest that is stored"
    assert producer.send(b"000001") > first, "automatic ids go on behind the highest one given"
    assert producer.last_sequence_id() == 6
    assert broker.stored(topic) == numbers(0, 2)


def test_a_repeated_message_in_chunks_is_confirmed_and_not_stored_again(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, "p", batching_enabled=False, chunking_enabled=True)
    large = b"x" * (6 * 1024 * 1024)
    assert producer.send(large, sequence_id=5) != NOWHERE
    assert producer.send(large, sequence_id=5) == NOWHERE
    assert b"".join(filter(None, broker.stored(topic))) == large, "in chunks, once"


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("kill", [False, True])
def test_a_producer_of_the_same_name_goes_on_where_it_stopped(
    broker: Broker, options: dict[str, Any], kill: bool
) -> None:
    topic = broker.topic()
    producer = broker.client().create_producer(topic, "p", **options)
    assert producer.last_sequence_id() == -1
    send_window(producer, 0, 25)
    producer.close()
    broker.restart(kill=kill)
    producer = broker.client().create_producer(topic, "p", **options)
    assert producer.last_sequence_id() == 24
    assert send_window(producer, 10, 25) == [NOWHERE] * 15
    assert producer.send(b"000025").ledger_id() > 0
    assert producer.last_sequence_id() == 25
    assert broker.stored(topic) == numbers(0, 26)
    other = broker.client().create_producer(topic, "q")
    assert other.last_sequence_id() == -1
    other.send(b"of another producer", sequence_id=0)
    assert broker.stored(topic)[-1] == b"of another producer"


@pytest.mark.parametrize("options", WAYS)
def test_only_the_new_part_of_an_overlapping_batch_is_stored(
    broker: Broker, client: Client, options: dict[str, Any]
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, "p", **options)
    send_window(producer, 0, 5)
    message_ids = send_window(producer, 3, 9)
    assert message_ids[:2] == [NOWHERE] * 2
    assert broker.stored(topic) == numbers(0, 9)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    received = [consumer.receive(20_000) for _ in range(9)]
    assert [message.message_id() for message in received[5:]] == message_ids[2:]
    assert [message.data() for message in received] == numbers(0, 9)


def test_messages_behind_an_overlapping_batch_stay_behind_it(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(
        topic, "p", batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=60_000
    )
    send_window(producer, 0, 15)
    # Many batches are under way when the first of them turns out to overlap.
    message_ids = send_window(producer, 8, 300)
    assert message_ids[:7] == [NOWHERE] * 7
    assert sorted(message_ids[7:]) == message_ids[7:]
    assert broker.stored(topic) == numbers(0, 300)


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("way", ["send_many", "send_arrow"])
def test_many_at_once_are_stored_once(broker: Broker, client: Client, batching: bool, way: str) -> None:
    topic = broker.topic()

    def send(producer: Producer, first: int, end: int) -> list[MessageId]:
        if way == "send_many":
            return producer.send_many(numbers(first, end))
        return producer.send_arrow(pa.table({"value": numbers(first, end)}))

    producer = client.create_producer(topic, "p", batching_enabled=batching)
    send(producer, 0, 10)
    producer.close()
    again = client.create_producer(topic, "p", batching_enabled=batching, initial_sequence_id=3)
    (last,) = send(again, 4, 17)
    assert last > NOWHERE
    assert send(again, 17, 20)
    assert again.last_sequence_id() == 19
    assert broker.stored(topic) == numbers(0, 20)
    again.close()
    repeating = client.create_producer(topic, "p", batching_enabled=batching, initial_sequence_id=-1)
    assert send(repeating, 0, 10) == [NOWHERE]
    assert broker.stored(topic) == numbers(0, 20)


def test_a_batch_keeps_keys_and_properties_when_its_front_is_cut_off(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, "p", batching_enabled=True, batching_max_publish_delay_ms=60_000)
    send_window(producer, 0, 2)
    keys = ["a", "b", None, None, "c"]
    for number, key in enumerate(keys):
        properties = {"n": str(number)} if number % 2 else None
        producer.send_async(
            b"%06d" % number, None, properties, key, sequence_id=number, event_timestamp=number + 1
        )
    producer.flush()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    received = [consumer.receive(20_000) for _ in range(5)][2:]
    assert [message.data() for message in received] == numbers(2, 5)
    assert [message.partition_key() for message in received] == ["", "", "c"]
    assert [message.properties() for message in received] == [{}, {"n": "3"}, {}]
    assert [message.event_timestamp() for message in received] == [3, 4, 5]


def test_key_based_batches_are_all_stored(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(
        topic,
        "p",
        batching_enabled=True,
        batching_type=BatchingType.KeyBased,
        batching_max_publish_delay_ms=60_000,
    )
    for number in range(12):
        producer.send_async(b"%06d" % number, None, partition_key=f"k{number % 3}")
    producer.flush()
    assert sorted(filter(None, broker.stored(topic))) == numbers(0, 12)
    for number in range(8, 24):
        producer.send_async(b"%06d" % number, None, partition_key=f"k{number % 3}", sequence_id=number)
    producer.flush()
    assert sorted(filter(None, broker.stored(topic))) == numbers(0, 24)


def test_an_initial_sequence_id_below_what_is_stored_is_warned_of(
    broker: Broker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, "p", initial_sequence_id=100)
    producer.send(b"000000")
    assert producer.last_sequence_id() == 101
    producer.close()
    with caplog.at_level(logging.WARNING, logger="pulsar_ray"):
        producer = client.create_producer(topic, "p", initial_sequence_id=10)
    assert "begins at sequence id 11, and the topic holds its messages up to 101" in caplog.text
    assert producer.send(b"000001") == NOWHERE
    assert broker.stored(topic) == numbers(0, 1)


def test_partitions_count_for_themselves(broker: Broker, client: Client) -> None:
    topic = broker.topic(3)
    producer = client.create_producer(topic, "p")
    producer.send_many(numbers(0, 30), partition_keys=[f"k{n}" for n in range(30)])
    producer.close()
    stored = [broker.stored(f"{topic}-partition-{index}") for index in range(3)]
    producer = client.create_producer(topic, "p", initial_sequence_id=-1)
    producer.send_many(numbers(0, 30), partition_keys=[f"k{n}" for n in range(30)])
    assert [broker.stored(f"{topic}-partition-{index}") for index in range(3)] == stored
    assert producer.last_sequence_id() == max(map(len, stored)) - 1


def test_a_policy_turns_it_on_and_off(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(default_retention_time_in_minutes=-1, default_retention_size_in_mb=-1)
    client, topic, admin = broker.client(), broker.topic(), broker.admin()
    producer = client.create_producer(topic, "p")
    for _ in range(2):
        producer.send(b"off", sequence_id=7)
    admin.topics.policies.set(topic, "deduplication", deduplication=True)
    for _ in range(2):
        producer.send(b"on", sequence_id=8)
    broker.cluster.kill(partition_name(topic))
    assert producer.send(b"on", sequence_id=8) == NOWHERE
    assert broker.stored(topic) == [b"off", b"off", b"on"]
    admin.topics.policies.set(topic, "deduplication", deduplication=False)
    producer.send(b"off again", sequence_id=8)
    assert broker.stored(topic)[3:] == [b"off again"]
    producer.close()
    assert client.create_producer(topic, "p").last_sequence_id() == -1


def test_an_administrator_makes_it_forget_producers(broker: Broker, client: Client) -> None:
    topic, admin = broker.topic(2), broker.admin()
    names = [f"pulsar-ray-query-q1-{number}" for number in range(2)]
    for name in (*names, "other"):
        producer = client.create_producer(topic, name)
        producer.send_many(numbers(0, 10), partition_keys=[f"k{n}" for n in range(10)])
        producer.close()
    parts = [f"{topic}-partition-{index}" for index in range(2)]
    known = admin.topics.producer_sequence_ids(topic, "pulsar-ray-query-")
    assert list(known) == parts
    for name in names:
        assert sum(known[part].get(name, -1) + 1 for part in parts) == 10
    assert admin.topics.forget_producers(topic, "pulsar-ray-query-q1-") == names
    assert {*admin.topics.producer_sequence_ids(topic)[parts[0]]} == {"other"}
    assert admin.topics.forget_producers(topic, "pulsar-ray-query-q1-") == []
    broker.cluster.kill(partition_name(f"{topic}-partition-0"))
    assert client.create_producer(topic, names[0]).last_sequence_id() == -1
    assert client.create_producer(topic, "other").last_sequence_id() > 0
    with pytest.raises(ValueError, match="prefix is empty"):
        admin.topics.forget_producers(topic, "")


def test_stats_say_whether_it_is_on(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(default_retention_time_in_minutes=-1, default_retention_size_in_mb=-1)
    topic, topics = broker.topic(2), broker.admin().topics
    producer = broker.client().create_producer(topic)
    assert topics.stats(topic)["deduplicationStatus"] == "Disabled"
    topics.policies.set(topic, "deduplication", deduplication=True)
    producer.send_many(numbers(0, 20), partition_keys=[f"k{number}" for number in range(20)])
    stats = topics.stats(topic)
    assert [one["deduplicationStatus"] for one in (stats, *stats["partitions"].values())] == ["Enabled"] * 3


@on_a_loop
async def test_an_asyncio_producer_goes_on_where_it_stopped_and_repeats_nothing(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic, "p")
        await asyncio.gather(*(producer.send(value) for value in numbers(0, 20)))
        await producer.close()
        producer = await client.create_producer(topic, "p")
        assert producer.last_sequence_id() == 19
        sends = (producer.send(b"%06d" % number, sequence_id=number) for number in range(10, 30))
        ids = await asyncio.gather(*sends)
        assert ids[:10] == [NOWHERE] * 10
        assert NOWHERE not in ids[10:]
        await producer.send(b"000030")
        assert producer.last_sequence_id() == 30
    assert broker.stored(topic) == numbers(0, 31)


@pytest.mark.usefixtures("carriers_are_kept")
def test_a_non_persistent_topic_has_nothing_to_compare_with(client: Client, broker: Broker) -> None:
    topic = "non-persistent://public/default/passing"
    consumer = client.subscribe(topic, "s")
    wait_for_permits(broker, topic, "s")
    producer = client.create_producer(topic, "p")
    for _ in range(2):
        producer.send(b"v", sequence_id=1)
    assert values(consumer, 2) == [b"v", b"v"]


def test_random_windows_are_stored_once_and_in_order_while_the_partition_dies(broker: Broker) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    topic = broker.topic()
    sent = {"a": 0, "b": 0}
    client = broker.client()
    producers: dict[str, Producer] = {}

    def open_producer(name: str) -> Producer:
        if name in producers:
            producers.pop(name).close()
        options = rng.choice(WAYS)
        many = rng.choice((5, 1000))
        producers[name] = client.create_producer(
            topic, name, **options, batching_max_messages=many, send_timeout_millis=60_000
        )
        # Of what was sent and never confirmed a part may be missing; the confirmed is all there.
        return producers[name]

    for turn in range(14):
        receipts: dict[str, Receipts] = {}
        for name in ("a", "b"):
            producer = open_producer(name) if turn == 0 or rng.random() < 0.3 else producers[name]
            receipts[name] = Receipts()
            first = max(0, sent[name] - rng.randrange(40))
            end = max(sent[name], first + rng.randrange(60))
            for number in range(first, end):
                producer.send_async(f"{name}{number:06d}".encode(), receipts[name], sequence_id=number)
            sent[name] = end
        if rng.random() < 0.6:
            broker.cluster.kill(partition_name(topic))
        for name, producer in producers.items():
            producer.flush()
            assert receipts[name].results <= {Result.Ok}
    stored = [value.decode() for value in broker.stored(topic) if value is not None]
    for name in ("a", "b"):
        own = [value for value in stored if value.startswith(name)]
        assert own == [f"{name}{number:06d}" for number in range(sent[name])]
