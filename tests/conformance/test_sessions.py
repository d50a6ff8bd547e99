"""Sessions over every carrier: order, exactly once in the log, and what reconnecting must not change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import Result, Timeout
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, receive, values

Quiet = Callable[[Consumer], None]


def dispatcher(topic: str, subscription: str = "s") -> str:
    return f"{topic} -> {subscription}"


class Outcomes:
    """Send callbacks: value -> (result, id), in the order they came."""

    def __init__(self) -> None:
        self.results: list[tuple[bytes, Any, MessageId]] = []

    def of(self, value: bytes) -> Callable[[Any, MessageId], None]:
        return lambda result, message_id: self.results.append((value, result, message_id))

    @property
    def confirmed(self) -> list[bytes]:
        return [value for value, result, _ in self.results if result == Result.Ok]


def send_all(producer: Producer, sent: list[bytes], outcomes: Outcomes) -> None:
    for value in sent:
        producer.send_async(value, outcomes.of(value))


def test_what_is_sent_is_received_in_order_with_the_id_that_send_returned(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    ids = [producer.send(value) for value in numbers(0, 20)]
    messages = receive(consumer, 20)
    assert [message.data() for message in messages] == numbers(0, 20)
    assert [message.message_id() for message in messages] == ids
    assert ids == sorted(set(ids))
    assert {message.topic_name() for message in messages} == {topic}
    assert [message.redelivery_count() for message in messages] == [0] * 20
    assert broker.stored(topic) == numbers(0, 20)


def test_callbacks_come_in_order_with_the_ids_that_are_received(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    outcomes = Outcomes()
    send_all(producer, numbers(0, 500), outcomes)
    producer.flush()
    assert outcomes.confirmed == numbers(0, 500)
    messages = receive(consumer, 500)
    assert [(m.data(), m.message_id()) for m in messages] == [(v, i) for v, _, i in outcomes.results]


def test_a_new_subscription_starts_at_latest_or_earliest(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send(b"old")
    latest = client.subscribe(topic, "latest")
    earliest = client.subscribe(topic, "earliest", initial_position=EARLIEST)
    producer.send(b"new")
    assert values(latest, 1) == [b"new"]
    assert values(earliest, 2) == [b"old", b"new"]
    assert_quiet(latest)


def test_several_producers_and_consumers_share_a_client(broker: Broker, client: Client) -> None:
    topic, other = broker.topic(), broker.topic()
    producers = [client.create_producer(topic) for _ in range(3)]
    assert len({producer.producer_name() for producer in producers}) == 3
    consumers = [client.subscribe(topic, f"s{i}") for i in range(3)]
    elsewhere = client.subscribe(other, "s")
    client.create_producer(other).send(b"other")
    for number, producer in enumerate(producers):
        producer.send(b"%d" % number)
    for consumer in consumers:
        assert sorted(values(consumer, 3)) == [b"0", b"1", b"2"]
    assert values(elsewhere, 1) == [b"other"]


def test_many_threads_send_on_one_producer_and_keep_their_own_order(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, max_pending_messages=0)

    def send(thread: int) -> None:
        for number in range(50):
            producer.send(b"%d-%03d" % (thread, number))

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    stored = broker.stored(topic)
    assert len(stored) == 300
    for index in range(6):
        own = [value for value in stored if value is not None and value.startswith(b"%d-" % index)]
        assert own == [b"%d-%03d" % (index, number) for number in range(50)]


def test_cut_connections_lose_nothing_repeat_nothing_and_keep_the_order(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, max_pending_messages=0)
    consumer = client.subscribe(topic, "s", receiver_queue_size=50)
    outcomes = Outcomes()
    got: list[bytes] = []
    for turn in range(10):
        send_all(producer, numbers(turn * 100, turn * 100 + 100), outcomes)
        broker.cluster.cut_lanes(topic)
        got += values(consumer, 50, acknowledge=True)
        broker.cluster.cut_lanes(dispatcher(topic))
    producer.flush()
    got += values(consumer, 500)
    assert got == numbers(0, 1000)
    assert outcomes.confirmed == numbers(0, 1000)
    assert broker.stored(topic) == numbers(0, 1000)


def test_a_killed_partition_keeps_every_confirmed_message_once_and_in_order(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, max_pending_messages=0)
    consumer = client.subscribe(topic, "s")
    outcomes = Outcomes()
    for turn in range(5):
        send_all(producer, numbers(turn * 200, turn * 200 + 200), outcomes)
        broker.cluster.kill(topic)
    producer.flush()
    assert outcomes.confirmed == numbers(0, 1000)
    assert broker.stored(topic) == numbers(0, 1000)
    messages = receive(consumer, 1000)
    assert [message.data() for message in messages] == numbers(0, 1000)
    assert [message.message_id() for message in messages] == [
        message_id for _, _, message_id in outcomes.results
    ]


def test_a_resend_after_the_partitions_death_is_answered_from_the_log(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send(b"first")
    # The write is durable, but the partition dies before the receipt: the resend must find it.
    partition = broker.cluster.partition(topic)
    assert partition.server is not None
    durable = threading.Event()
    partition.server.intake._on_durable = lambda _: durable.set()
    outcomes = Outcomes()
    producer.send_async(b"second", outcomes.of(b"second"))
    assert durable.wait(20)
    broker.cluster.kill(topic)
    producer.flush()
    assert outcomes.confirmed == [b"second"]
    assert broker.stored(topic) == [b"first", b"second"]
    entries = [entry for _, entry, _ in broker.stored_blocks(topic)]
    assert outcomes.results[0][2].entry_id() == entries[1]


def test_what_is_sent_again_from_before_checkpoints_is_answered_with_its_id(
    make_broker: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(index_checkpoint_entries=1)
    client, topic = broker.client(), broker.topic()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1)
    producer.send(b"first")
    partition = broker.cluster.partition(topic)
    assert partition.server is not None
    ledger = partition.server.ledger
    # So that no receipt is sent.
    monkeypatch.setattr(partition.server.producers, "current", lambda _: None)
    outcomes = Outcomes()
    for value in numbers(0, 12):
        before = ledger.last_position
        producer.send_async(value, outcomes.of(value))
        wait_until(lambda: ledger.last_position > before, what="it is stored")  # noqa: B023
    broker.cluster.kill(topic)
    producer.flush()
    assert outcomes.confirmed == numbers(0, 12)
    stored = [(ledger_id, entry_id) for ledger_id, entry_id, _ in broker.stored_blocks(topic)]
    assert [(each.ledger_id(), each.entry_id()) for _, _, each in outcomes.results] == stored[1:]


def test_a_consumer_whose_dispatcher_alone_died_sees_no_duplicate(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, max_pending_messages=0)
    consumer = client.subscribe(topic, "s", receiver_queue_size=20)
    got: list[bytes] = []
    for turn in range(6):
        for value in numbers(turn * 40, turn * 40 + 40):
            producer.send_async(value, None)
        # Some are acknowledged, some are held by the application, some wait in the queue.
        got += values(consumer, 10, acknowledge=True)
        got += values(consumer, 10)
        broker.cluster.kill(dispatcher(topic))
    got += values(consumer, 240 - len(got))
    assert got == numbers(0, 240)
    assert_quiet(consumer)


def test_no_duplicate_on_a_shared_subscription_whose_dispatcher_died(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumers = [
        client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=10),
        broker.client().subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=10),
    ]
    producer = client.create_producer(topic)
    for value in numbers(0, 60):
        producer.send(value)
    got = values(consumers[0], 5) + values(consumers[1], 5)
    broker.cluster.kill(dispatcher(topic))
    wait_until(lambda: all(c.is_connected() for c in consumers), what="both consumers are back")
    while len(got) < 60:
        for consumer in consumers:
            try:
                got.append(consumer.receive(300).data())
            except Timeout:
                continue
    assert sorted(got) == numbers(0, 60)
    for consumer in consumers:
        assert_quiet(consumer)


def test_no_ack_confirmed_by_receipt_is_redelivered_after_any_death(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", ack_receipt_enabled=True)
    for value in numbers(0, 30):
        producer.send(value)
    for message in receive(consumer, 20):
        if message.data() != b"000003":
            consumer.acknowledge(message)
    broker.restart(kill=True)
    again = broker.client().subscribe(topic, "s")
    assert values(again, 11) == [b"000003", *numbers(20, 30)]
    assert_quiet(again)


def test_acks_before_close_are_durable(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    for value in numbers(0, 10):
        producer.send(value)
    values(consumer, 5, acknowledge=True)
    consumer.close()
    producer.close()
    broker.restart(kill=True)
    again = broker.client().subscribe(topic, "s")
    assert values(again, 5) == numbers(5, 10)
    assert_quiet(again)


def test_a_send_timeout_starts_a_new_incarnation_and_leaves_no_gap(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, send_timeout_millis=400)
    producer.send(b"before")
    broker.cluster.kill(topic, keep_down=True)
    outcomes = Outcomes()
    producer.send_async(b"lost async", outcomes.of(b"lost async"))
    with pytest.raises(Timeout):
        producer.send(b"lost")
    wait_until(lambda: outcomes.results, what="the pending message failed")
    assert outcomes.results[0][1] == Result.Timeout
    broker.cluster.allow(topic)
    wait_until(producer.is_connected, what="the producer is back")
    for value in (b"after", b"and after"):
        producer.send(value)
    assert broker.stored(topic) == [b"before", b"after", b"and after"]
    headers = [block.header for _, _, block in broker.stored_blocks(topic)]
    assert headers[0].incarnation != headers[1].incarnation == headers[2].incarnation
    assert [header.entry_seq for header in headers[1:]] == [0, 1]


def test_a_broker_killed_and_started_again_has_everything_confirmed(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    for value in numbers(0, 100):
        producer.send_async(value, None)
    producer.flush()
    broker.restart(kill=True)
    client = broker.client()
    client.create_producer(topic).send(b"later")
    consumer = client.subscribe(topic, "new", initial_position=EARLIEST)
    assert values(consumer, 101) == [*numbers(0, 100), b"later"]


def test_a_partitioned_topic_delivers_each_partition_in_order(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=3)
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{index}" for index in range(3)]
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    for number in range(90):
        producer.send_async(b"%d" % number, None, partition_key=str(number % 7))
    producer.flush()
    got = receive(consumer, 90)
    assert sorted(int(message.data()) for message in got) == list(range(90))
    assert {message.message_id().partition() for message in got} == {0, 1, 2}
    for key in range(7):
        of_key = [m for m in got if m.partition_key() == str(key)]
        assert [int(m.data()) for m in of_key] == list(range(key, 90, 7))
        assert len({m.topic_name() for m in of_key}) == 1


def test_partitions_of_a_topic_die_one_after_the_other_under_load(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=2)
    producer = client.create_producer(topic, max_pending_messages=0)
    consumer = client.subscribe(topic, "s")
    outcomes = Outcomes()
    for turn in range(4):
        send_all(producer, numbers(turn * 50, turn * 50 + 50), outcomes)
        broker.cluster.kill(f"{topic}-partition-{turn % 2}")
        broker.cluster.kill(dispatcher(f"{topic}-partition-{(turn + 1) % 2}"))
    producer.flush()
    assert sorted(outcomes.confirmed) == numbers(0, 200)
    got = receive(consumer, 200)
    for partition in range(2):
        stored = broker.stored(f"{topic}-partition-{partition}")
        assert [m.data() for m in got if m.message_id().partition() == partition] == stored
        assert stored == sorted(set(stored), key=stored.index)
    assert sorted(message.data() for message in got) == numbers(0, 200)


def test_a_new_exclusive_consumer_gets_what_the_closed_one_left(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    first = client.subscribe(topic, "s")
    for value in numbers(0, 6):
        producer.send(value)
    messages = receive(first, 4)
    first.acknowledge(messages[1])
    first.close()
    second = client.subscribe(topic, "s")
    again = receive(second, 5)
    assert [message.data() for message in again] == [b"000000", *numbers(2, 6)]
    assert [message.redelivery_count() for message in again] == [0] * 5


def test_a_waiting_receive_is_served_over_reconnects(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(consumer.receive(WAIT_MS).data()))
    thread.start()
    broker.cluster.kill(dispatcher(topic))
    broker.cluster.kill(topic)
    producer.send(b"at last")
    thread.join(30)
    assert got == [b"at last"]


@pytest.mark.parametrize("batching", [False, True])
def test_a_disconnected_producers_queue_stays_bounded(broker: Broker, client: Client, batching: bool) -> None:
    topic = broker.topic()
    producer = client.create_producer(
        topic, max_pending_messages=10, batching_enabled=batching, batching_max_messages=2
    )
    broker.cluster.kill(topic, keep_down=True)
    wait_until(lambda: not producer.is_connected(), what="the loss was noticed")
    outcomes = Outcomes()
    send_all(producer, [b"%06d" % number + bytes(1 << 20) for number in range(15)], outcomes)
    assert [result for _, result, _ in outcomes.results] == [Result.ProducerQueueIsFull] * 5
    broker.cluster.allow(topic)
    producer.flush()
    assert [(value or b"")[:6] for value in broker.stored(topic)] == numbers(0, 10)
