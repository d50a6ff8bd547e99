"""Blocks whose checksum is right and that nobody can decode: each counts as one, and can be settled."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_ray import ConsumerDeadLetterPolicy, ConsumerType, MessageId
from pulsar_ray.broker.subscription.served_subscription import ServedSubscription
from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import InvalidMessage, PulsarException
from pulsar_ray.format.arrow_payload import encode_rows
from pulsar_ray.format.block import check_claim, parse_block_header, verify_block
from pulsar_ray.format.payload import encode_batch
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, values
from tests.conformance.malformed import GARBAGE, publish_garbage

Quiet = Callable[[Consumer], None]
TYPES = (ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.Shared, ConsumerType.KeyShared)
BLOCKS = 7
"""Of 8,192 claimed messages each: more than a consumer may leave unacknowledged (50,000)."""
ENTRIES = pytest.mark.parametrize("rows_are_entries", [False, True])


def refused(consumer: Any) -> MessageId:
    """The id of the block that the next receive cannot decode."""
    with pytest.raises(InvalidMessage, match=r"cannot be decoded.*message id") as refusal:
        consumer.receive(WAIT_MS)
    again = pickle.loads(pickle.dumps(refusal.value))
    assert again.message_id == refusal.value.message_id
    assert isinstance(again.message_id, MessageId)
    return again.message_id


@ENTRIES
@pytest.mark.parametrize("kind", TYPES)
def test_they_keep_no_consumer_from_what_is_behind_them(
    broker: Broker, client: Client, kind: ConsumerType, rows_are_entries: bool
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", kind)
    producer = client.create_producer(topic)
    for _ in range(BLOCKS):
        publish_garbage(producer, rows_are_entries=rows_are_entries)
    producer.send(b"after")
    ids = [refused(consumer) for _ in range(BLOCKS)]
    assert values(consumer, 1) == [b"after"]
    assert len(set(ids)) == BLOCKS
    most = 2 * BLOCKS + 1 if rows_are_entries else BLOCKS + 1
    wait_until(lambda: sum(broker.unacked(topic, "s")) <= most, what="each counts as one")


@ENTRIES
@pytest.mark.parametrize("kind", TYPES)
def test_each_can_be_acknowledged_by_its_id(
    broker: Broker, client: Client, kind: ConsumerType, rows_are_entries: bool, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", kind, receiver_queue_size=10)
    producer = client.create_producer(topic)
    for _ in range(3):
        publish_garbage(producer, rows_are_entries=rows_are_entries)
    producer.send(b"after")
    for _ in range(3):
        consumer.acknowledge(refused(consumer))
    message = consumer.receive(WAIT_MS)
    assert message.data() == b"after"
    consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", kind)
    assert_quiet(again)
    with broker.admin() as admin:
        assert admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0


@ENTRIES
@pytest.mark.parametrize("kind", TYPES[:2])
def test_a_cumulative_acknowledgment_takes_the_whole_block(
    broker: Broker, client: Client, kind: ConsumerType, rows_are_entries: bool, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", kind)
    producer = client.create_producer(topic)
    producer.send(b"before")
    publish_garbage(producer, rows_are_entries=rows_are_entries)
    assert values(consumer, 1) == [b"before"]
    consumer.acknowledge_cumulative(refused(consumer))
    consumer.close()
    assert_quiet(client.subscribe(topic, "s", kind))


@ENTRIES
@pytest.mark.parametrize("kind", TYPES)
def test_a_negative_acknowledgment_lets_it_come_again(
    broker: Broker, client: Client, kind: ConsumerType, rows_are_entries: bool
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", kind, negative_ack_redelivery_delay_ms=10, receiver_queue_size=10)
    publish_garbage(client.create_producer(topic), rows_are_entries=rows_are_entries)
    first = refused(consumer)
    consumer.negative_acknowledge(first)
    assert refused(consumer) == first
    consumer.acknowledge(first)
    consumer.close()
    with broker.admin() as admin:
        assert admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0


@ENTRIES
def test_the_ack_timeout_lets_it_come_again(broker: Broker, client: Client, rows_are_entries: bool) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, unacked_messages_timeout_ms=10_000)
    consumer.core.partitions.all[0]._state.timeouts._timeout_ms = 100  # type: ignore[union-attr]
    publish_garbage(client.create_producer(topic), rows_are_entries=rows_are_entries)
    assert refused(consumer) == refused(consumer)


@ENTRIES
@pytest.mark.parametrize("queue", [1, 1000])
def test_a_dead_letter_policy_moves_what_is_stored_of_it(
    broker: Broker, client: Client, rows_are_entries: bool, queue: int, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    policy = ConsumerDeadLetterPolicy(1, f"{topic}-letters", initial_subscription_name="l")
    consumer = client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        dead_letter_policy=policy,
        negative_ack_redelivery_delay_ms=10,
        receiver_queue_size=queue,
    )
    producer = client.create_producer(topic)
    publish_garbage(producer, rows_are_entries=rows_are_entries)
    place = refused(consumer)
    assert refused(consumer) == place
    letters = client.subscribe(f"{topic}-letters", "l", ConsumerType.Shared, initial_position=EARLIEST)
    letter = letters.receive(WAIT_MS)
    stored = memoryview(letter.data())
    verify_block(stored, 0, parse_block_header(stored))
    assert GARBAGE in letter.data()
    properties = letter.properties()
    assert "InvalidMessage" in properties["UNREADABLE_BLOCK"]
    assert properties["REAL_TOPIC"] == topic
    assert properties["ORIGIN_MESSAGE_ID"].startswith(f"{place.ledger_id()}:{place.entry_id()}:")
    producer.send(b"after")
    assert values(consumer, 1, acknowledge=True) == [b"after"]
    consumer.close()
    letters.close()
    assert_quiet(client.subscribe(topic, "s", ConsumerType.Shared))
    with broker.admin() as admin:
        moved = admin.topics.redrive(f"{topic}-letters", subscription="l", to=broker.topic())
    assert moved == {"": 1}, "bytes of a block are no message of the topic"


@ENTRIES
def test_an_administrator_can_skip_it(
    broker: Broker, client: Client, rows_are_entries: bool, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    client.subscribe(topic, "s", ConsumerType.Shared).close()
    producer = client.create_producer(topic)
    publish_garbage(producer, 100, rows_are_entries=rows_are_entries)
    producer.send(b"after")
    with broker.admin() as admin:
        admin.topics.skip(topic, "s", 100 if rows_are_entries else 1)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    assert values(consumer, 1, acknowledge=True) == [b"after"]
    assert_quiet(consumer)


@ENTRIES
def test_it_counts_as_one_again_at_a_new_dispatcher(
    broker: Broker, client: Client, rows_are_entries: bool
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=10)
    producer = client.create_producer(topic)
    publish_garbage(producer, rows_are_entries=rows_are_entries)
    place = refused(consumer)
    broker.cluster.kill(f"{topic} -> s")
    producer.send(b"after")
    assert values(consumer, 1, acknowledge=True) == [b"after"], "the block is held, and comes to nobody"
    wait_until(lambda: broker.unacked(topic, "s") == [1], what="it counts as one")
    consumer.acknowledge(place)
    consumer.close()
    with broker.admin() as admin:
        assert admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0


def test_a_consumer_that_can_decode_it_gets_every_message(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    blind = client.subscribe(topic, "s", ConsumerType.Shared)

    def cannot(_delivery: Any) -> Any:
        raise InvalidMessage("a codec that this build does not know")

    (source,) = [partition.deliveries for partition in blind.core.partitions.all]
    monkeypatch.setattr(source, "decode", cannot)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    sent = [b"%d" % number for number in range(20)]
    for value in sent:
        producer.send_async(value, None)
    producer.flush()
    with pytest.raises(InvalidMessage):
        blind.receive(WAIT_MS)
    wait_until(lambda: broker.unacked(topic, "s") == [1], what="it counts as one")
    blind.close()
    seeing = broker.client().subscribe(topic, "s", ConsumerType.Shared)
    assert values(seeing, 20, acknowledge=True) == sent
    wait_until(lambda: broker.unacked(topic, "s") == [0], what="all are acknowledged")


# --- the other forms of receiving ---------------------------------------------------------------------


@pytest.mark.parametrize("form", ["batch_receive", "receive_arrow"])
def test_what_was_collected_before_it_is_handed_out_and_it_is_raised_next(
    broker: Broker, client: Client, form: str
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send(b"before")
    publish_garbage(producer, 100)
    producer.send(b"after")
    wait_until(lambda: len(consumer.core.queue.deliveries) == 3, what="all have arrived")

    def collected() -> list[bytes]:
        if form == "batch_receive":
            return [message.data() for message in consumer.batch_receive()]
        found: list[bytes] = consumer.receive_arrow(timeout_millis=WAIT_MS)["value"].to_pylist()
        return found

    assert collected() == [b"before"]
    with pytest.raises(InvalidMessage) as refusal:
        collected()
    consumer.acknowledge(refusal.value.message_id)
    assert collected() == [b"after"]
    wait_until(lambda: broker.unacked(topic, "s") == [2], what="the block is acknowledged")


def test_a_listener_goes_on_and_a_policy_moves_it(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    heard: list[bytes] = []

    def hear(consumer: Consumer, message: Message) -> None:
        heard.append(message.data())
        consumer.acknowledge(message)

    policy = ConsumerDeadLetterPolicy(1, f"{topic}-letters", initial_subscription_name="l")
    client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        message_listener=hear,
        dead_letter_policy=policy,
        negative_ack_redelivery_delay_ms=10,
    )
    producer = client.create_producer(topic)
    publish_garbage(producer)
    producer.send(b"after")
    letters = client.subscribe(f"{topic}-letters", "l", ConsumerType.Shared, initial_position=EARLIEST)
    assert GARBAGE in letters.receive(WAIT_MS).data()
    wait_until(lambda: heard == [b"after"], what="the listener was called")
    wait_until(lambda: broker.unacked(topic, "s") == [0], what="the block was moved")


def test_a_reader_passes_it_and_holds_nothing(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    reader = client.create_reader(topic, MessageId.earliest)
    for number in range(3):
        publish_garbage(producer, rows_are_entries=number == 1)
    producer.send(b"after")
    for _ in range(3):
        with pytest.raises(InvalidMessage) as refusal:
            reader.read_next(WAIT_MS)
        assert refusal.value.message_id.ledger_id() >= 0
    assert reader.read_next(WAIT_MS).data() == b"after"
    server = broker.cluster.dispatcher_of(topic, "", durable=False).server
    assert server is not None
    (served,) = server.subscriptions.served.values()
    assert isinstance(served, ServedSubscription)
    blocks = served.core.blocks
    wait_until(lambda: blocks.pending_acks == 0, what="the reader holds nothing")


def test_a_table_view_has_what_is_behind_it(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send(b"1", partition_key="a")
    publish_garbage(producer)
    producer.send(b"2", partition_key="b")
    view = client.create_table_view(topic)
    assert (view.get("a"), view.get("b")) == (b"1", b"2")
    publish_garbage(producer)
    producer.send(b"3", partition_key="c")
    wait_until(lambda: view.get("c") == b"3", what="the view goes on")
    view.close()


def test_of_several_topics_each_has_its_own(broker: Broker, client: Client) -> None:
    topics = [broker.topic(), broker.topic(2)]
    consumer = client.subscribe(topics, "s", ConsumerType.Shared)
    for topic in topics:
        producer = client.create_producer(topic)
        publish_garbage(producer)
        producer.close()
    for _ in topics:
        consumer.acknowledge(refused(consumer))
    consumer.close()
    with broker.admin() as admin:
        for topic in topics:
            assert admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0


def test_a_redrive_passes_those_of_the_dead_letter_topic(broker: Broker, client: Client) -> None:
    source, target = broker.topic(), broker.topic()
    kept = client.subscribe(target, "s")
    client.subscribe(source, "l").close()
    producer = client.create_producer(source)
    producer.send(b"one")
    publish_garbage(producer)
    producer.send(b"two")
    with broker.admin() as admin:
        assert admin.topics.redrive(source, subscription="l", to=target) == {target: 2}
    assert values(kept, 2) == [b"one", b"two"]


async def _refused_by_asyncio(broker: Broker, topic: str) -> PulsarException:
    client = broker.asyncio_client()
    consumer = await client.subscribe(topic, "s", ConsumerType.Shared)
    with pytest.raises(InvalidMessage) as refusal:
        await consumer.receive()
    await consumer.acknowledge(refusal.value.message_id)
    message = await consumer.receive()
    assert message.data() == b"after"
    await consumer.close()
    await client.close()
    return refusal.value


def test_with_asyncio_it_is_the_same(broker: Broker, client: Client) -> None:
    import asyncio  # noqa: PLC0415

    topic = broker.topic()
    client.subscribe(topic, "s", ConsumerType.Shared).close()
    producer = client.create_producer(topic)
    publish_garbage(producer)
    producer.send(b"after")
    asyncio.run(_refused_by_asyncio(broker, topic))
    wait_until(lambda: broker.unacked(topic, "s") == [], what="the consumer has left")
    with broker.admin() as admin:
        assert admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 1


def test_a_claim_that_cannot_be_true_is_refused_at_the_door(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    with pytest.raises(AssertionError, match=r"InvalidMessage.*8192 messages.*at least 32772"):
        publish_garbage(producer, uncompressed_length=32_771)
    publish_garbage(producer, uncompressed_length=32_772)
    producer.send(b"after")


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(st.one_of(st.none(), st.binary(max_size=3)), min_size=2, max_size=50))
def test_no_batch_of_ours_is_refused_so(rows: list[bytes | None]) -> None:
    payload, columns = encode_rows(rows)
    block = encode_batch(
        payload,
        columns,
        message_count=len(rows),
        incarnation=1,
        entry_seq=0,
        first_sequence_id=0,
        last_sequence_id=len(rows) - 1,
        publish_time_ms=1,
    )
    check_claim(parse_block_header(b"".join(block)))
