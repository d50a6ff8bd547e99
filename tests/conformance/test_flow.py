"""Flow control over every carrier: limits of unacknowledged messages, slow consumers, tiny queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.errors import Timeout
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.session.packet import decode_packet, whole_packets
from pulsar_ray.session.requests import decode_request
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import dispatcher_name
from pulsar_ray.transport.carriers import Connection
from tests.conformance.broker import EARLIEST, QUIET_MS, WAIT_MS, Broker, numbers, receive, values

Quiet = Callable[[Consumer], None]


def test_the_subscriptions_limit_holds_everybody_until_half_is_acknowledged(
    make_broker: Callable[..., Broker], assert_quiet: Quiet
) -> None:
    broker = make_broker(max_unacked_messages_per_subscription=10)
    topic, client = broker.topic(), broker.client()
    consumers = [
        one.subscribe(topic, "s", ConsumerType.Shared, ack_receipt_enabled=True)
        for one in (client, broker.client())
    ]
    producer = client.create_producer(topic)
    for value in numbers(0, 30):
        producer.send(value)
    wait_until(lambda: sum(broker.unacked(topic, "s")) == 10, what="the limit is reached")
    shares = broker.unacked(topic, "s")
    held = [receive(consumer, count) for consumer, count in zip(consumers, shares, strict=True)]
    for consumer in consumers:
        assert_quiet(consumer)
    messages = [(consumer, message) for consumer, got in zip(consumers, held, strict=True) for message in got]
    for consumer, message in messages[:5]:
        consumer.acknowledge(message)
    for consumer in consumers:
        assert_quiet(consumer)
    messages[5][0].acknowledge(messages[5][1])
    wait_until(lambda: sum(broker.unacked(topic, "s")) == 10, what="dispatching goes on, up to the limit")


def test_a_burst_is_shared_evenly_by_those_that_have_room(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    workers = [one.subscribe(topic, "s", ConsumerType.Shared) for one in (client, broker.client())]
    broker.wait_for_room(topic, "s", len(workers))
    producer = client.create_producer(topic)
    for value in numbers(0, 200):
        producer.send_async(value, None)
    producer.flush()
    wait_until(lambda: sum(broker.unacked(topic, "s")) == 200, what="all are handed out")
    shares = broker.unacked(topic, "s")
    assert max(shares) - min(shares) <= 21, shares


def test_a_consumer_that_stands_still_delays_nobody(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    still = broker.client().subscribe(topic, "still", receiver_queue_size=1)
    shared_still = broker.client().subscribe(topic, "shared", ConsumerType.Shared, receiver_queue_size=1)
    lively = client.subscribe(topic, "lively")
    shared_lively = client.subscribe(topic, "shared", ConsumerType.Shared)
    producer = client.create_producer(topic)
    for value in numbers(0, 300):
        producer.send(value)
    assert values(lively, 300) == numbers(0, 300)
    got = values(shared_lively, 299, acknowledge=True)
    assert sorted(values(shared_still, 1) + got) == numbers(0, 300)
    assert values(still, 300) == numbers(0, 300)


@pytest.mark.parametrize("acknowledges", [True, False])
def test_tables_are_followed_by_credit_whether_they_are_acknowledged_or_not(
    broker: Broker, client: Client, acknowledges: bool
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", receiver_queue_size=10, ack_grouping_max_size=50)
    client.create_producer(topic).send_many(numbers(0, 1000))
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=25)
    for value in numbers(1000, 2000):
        producer.send_async(value, None)
    producer.flush()
    got: list[bytes] = []
    while len(got) < 2000:
        table = consumer.receive_arrow(50, WAIT_MS)
        got += table.column("value").to_pylist()
        if acknowledges:
            consumer.acknowledge_arrow(table)
    assert got == numbers(0, 2000)


def test_messages_one_by_one_follow_tables_that_are_not_acknowledged(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", receiver_queue_size=1200)
    with pytest.raises(Timeout):
        consumer.receive_arrow(600, QUIET_MS)
    producer = client.create_producer(topic, batching_enabled=False)
    for count in (590, 100):
        producer.send_many(numbers(0, count))
        assert consumer.receive_arrow(600, WAIT_MS).num_rows == count
    producer.send_many(numbers(0, 590))
    assert values(consumer, 590) == numbers(0, 590)


def test_a_queue_that_becomes_smaller_is_filled_all_the_same(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    consumer = client.subscribe([topic], "s", max_total_receiver_queue_size_across_partitions=1000)
    core = consumer.core
    # As when more topics are found.
    monkeypatch.setattr(core.partitions, "all", 2 * core.partitions.all)
    assert core.window == 500
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send_many(numbers(0, 510))
    producer.send_many(numbers(510, 1005))
    assert values(consumer, 1005) == numbers(0, 1005)
    monkeypatch.undo()


@pytest.mark.parametrize("most", [1, 10])
def test_no_more_wait_than_the_total_queue_but_a_message_or_batch_of_each_partition(
    broker: Broker, client: Client, most: int
) -> None:
    topic = broker.topic(4)
    consumer = client.subscribe(
        topic, "s", initial_position=EARLIEST, max_total_receiver_queue_size_across_partitions=1
    )
    for index in range(4):
        producer = client.create_producer(f"{topic}-partition-{index}", batching_enabled=most > 1)
        producer.send_many(numbers(20 * index, 20 * index + 10))
        producer.send_many(numbers(20 * index + 10, 20 * index + 20))
    core = consumer.core

    def waiting() -> list[int]:
        return [core.queue.messages_of(partition.deliveries) for partition in core.partitions.all]

    left = set(numbers(0, 80))
    while left:
        wait_until(lambda: sum(waiting()) >= min(len(left), 1), what="something waits")
        assert max(waiting()) <= most, waiting()
        (value,) = values(consumer, 1, acknowledge=True)
        left.remove(value)


@pytest.mark.usefixtures("carriers_are_kept")  # what is sent on a new one goes in packets of its own
def test_credit_goes_with_the_acknowledgment_of_a_table(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ack_grouping_max_size=100)
    client.create_producer(topic).send_many(numbers(0, 1000))
    (partition,) = consumer.core.partitions.all
    wait_until(
        lambda: consumer.core.queue.messages_of(partition.deliveries) == 1000, what="all are in the queue"
    )
    sent: list[str] = []

    def spy(buffers: list[Any], only_on: Connection | None = None, *, waits: bool = False) -> bool:
        packets = [decode_packet(packet) for packet in whole_packets(b"".join(buffers))]
        sent.append(" and ".join(type(decode_request(packet)).__name__ for packet in packets))
        return send(buffers, only_on, waits=waits)

    send = partition.link.send
    monkeypatch.setattr(partition.link, "send", spy)
    table = consumer.receive_arrow(1000, WAIT_MS)
    assert table.num_rows == 1000
    consumer.acknowledge_arrow(table)
    # The first says that whole tables are wanted.
    assert [said for said in sent if said != "Ping"] == ["Credit", "Acknowledge and Credit"]


def test_queues_of_one_and_none_share_fairly(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    tiny = [
        broker.client().subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=size)
        for size in (0, 1)
    ]
    producer = client.create_producer(topic)
    for value in numbers(0, 6):
        producer.send(value)
    # The queue of one holds the first message; everything else goes to whoever asks.
    assert values(tiny[1], 1) == [b"000000"]
    first = tiny[0].receive()
    rest = values(tiny[1], 4)
    assert sorted([b"000000", first.data(), *rest]) == numbers(0, 6)


def test_index_acks_outlive_the_dispatcher(make_broker: Callable[..., Broker], assert_quiet: Quiet) -> None:
    broker = make_broker(acknowledgment_at_batch_index_level_enabled=True)
    topic, client = broker.topic(), broker.client()
    options: dict[str, Any] = {"batch_index_ack_enabled": True, "ack_receipt_enabled": True}
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, **options)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for value in numbers(0, 6):
        producer.send_async(value, None)
    producer.flush()
    messages = receive(consumer, 6)
    for index in (0, 2, 3):
        consumer.acknowledge(messages[index])
    client.shutdown()
    broker.cluster.kill(dispatcher_name(topic, "s", durable=True))
    other = broker.client()
    consumer = other.subscribe(topic, "s", ConsumerType.Shared, **options)
    assert values(consumer, 3) == [b"000001", b"000004", b"000005"]
    assert_quiet(consumer)
    assert broker.admin().topics.stats(topic)["subscriptions"]["s"]["unackedMessages"] == 3


def test_a_full_queue_is_not_told_of_new_messages_and_misses_none(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", receiver_queue_size=4)
    producer = client.create_producer(topic)
    for value in numbers(0, 10):
        producer.send(value)
    server: Any = broker.cluster.dispatcher_of(topic, "s").server
    wait_until(lambda: not server.subscriptions._arming.is_armed, what="nobody waits for entries")
    for value in numbers(10, 500):
        producer.send_async(value, None)
    producer.flush()
    assert values(consumer, 500, acknowledge=True) == numbers(0, 500)
    wait_until(lambda: bool(server.subscriptions._arming.is_armed), what="somebody waits again")
    producer.send(b"last")
    assert values(consumer, 1) == [b"last"]


@pytest.mark.parametrize("queue", [0, 1000])
def test_a_paused_listener_holds_nothing_back_from_a_seek(client: Client, broker: Broker, queue: int) -> None:
    topic = broker.topic()
    got: list[bytes] = []
    consumer = client.subscribe(
        topic, "s", message_listener=lambda _, message: got.append(message.data()), receiver_queue_size=queue
    )
    producer = client.create_producer(topic)
    producer.send(b"before")
    wait_until(lambda: got == [b"before"])
    consumer.pause_message_listener()
    producer.send(b"skipped")
    wait_until(lambda: broker.unacked(topic, "s") == [2], what="the message at the consumer")
    consumer.seek(MessageId.latest)
    producer.send(b"after")
    consumer.resume_message_listener()
    wait_until(lambda: b"after" in got)
    assert got == [b"before", b"after"]
