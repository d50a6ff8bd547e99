"""Receiving over every carrier: queues, futures, listeners, batches, readers of one topic side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.options.policies import ConsumerBatchReceivePolicy
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import AlreadyClosed, ConsumerBusy, InvalidConfiguration, Timeout
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, values

Quiet = Callable[[Consumer], None]
FUTURE_S = WAIT_MS / 1000


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.fails_on = b""

    def __call__(self, consumer: Consumer, message: Message) -> None:
        self.values.append(message.data())
        consumer.acknowledge(message)
        if message.data() == self.fails_on:
            raise RuntimeError("of the application's own")


@pytest.mark.parametrize("queue", [0, 1, 2, 1000])
@pytest.mark.parametrize("batching", [False, True])
def test_every_queue_size_delivers_everything_in_order(
    broker: Broker, client: Client, queue: int, batching: bool
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, batching_enabled=batching, batching_max_messages=7)
    consumer = client.subscribe(topic, "s", receiver_queue_size=queue)
    for value in numbers(0, 40):
        producer.send_async(value, None)
    producer.flush()
    got = []
    for _ in range(40):
        message = consumer.receive() if queue == 0 else consumer.receive(WAIT_MS)
        got.append(message.data())
        consumer.acknowledge(message)
    assert got == numbers(0, 40)


def test_a_queue_of_zero_takes_nothing_before_somebody_waits(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    idle = client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=0)
    for value in numbers(0, 10):
        producer.send(value)
    other = broker.client().subscribe(topic, "s", ConsumerType.Shared)
    assert values(other, 10, acknowledge=True) == numbers(0, 10)
    producer.send(b"eleven")
    other.close()
    assert idle.receive().data() == b"eleven"
    with pytest.raises(InvalidConfiguration):
        idle.receive(100)
    for partitions in (1, 2):
        with pytest.raises(InvalidConfiguration):
            client.subscribe(broker.topic(partitions), "s", receiver_queue_size=0)


def test_the_receiver_queue_bounds_what_is_prefetched(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    greedy = client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=5)
    for value in numbers(0, 40):
        producer.send(value)
    wait_until(lambda: broker.unacked(topic, "s") == [5], what="a full queue")
    other = broker.client().subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=50)
    assert len(values(other, 35)) == 35
    assert values(greedy, 5) == numbers(0, 5)


def test_receive_times_out_and_refuses_wrong_timeouts(broker: Broker, client: Client) -> None:
    consumer = client.subscribe(broker.topic(), "s")
    for timeout_ms in (0, 1, -1, 30):
        with pytest.raises(Timeout):
            consumer.receive(timeout_ms)
    with pytest.raises(ValueError, match="timeout_millis"):
        consumer.receive(1.5)  # type: ignore[arg-type]


def test_receive_async_gives_messages_in_the_order_of_the_calls(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    futures = [consumer.receive_async() for _ in range(5)]
    assert futures[1].cancel()
    for value in numbers(0, 6):
        producer.send(value)
    del futures[1]
    assert [future.result(FUTURE_S).data() for future in futures] == numbers(0, 4)
    assert consumer.receive_async().result(FUTURE_S).data() == b"000004"
    assert consumer.receive(WAIT_MS).data() == b"000005"
    waiting = consumer.receive_async()
    with pytest.raises((FutureTimeout, TimeoutError)):
        waiting.result(0.05)
    consumer.close()
    with pytest.raises(AlreadyClosed):
        waiting.result(FUTURE_S)


def test_receive_async_works_with_a_queue_of_zero(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", receiver_queue_size=0)
    futures = [consumer.receive_async() for _ in range(3)]
    for value in numbers(0, 3):
        producer.send(value)
    assert [future.result(FUTURE_S).data() for future in futures] == numbers(0, 3)


def test_a_queue_of_zero_gets_one_message_for_each_that_was_asked_for(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=0)
    for value in numbers(0, 10):
        producer.send(value)
    first = [consumer.receive(), consumer.receive_async().result(FUTURE_S), consumer.receive()]
    assert [message.data() for message in first] == numbers(0, 3)
    futures = [consumer.receive_async() for _ in range(2)]
    assert [future.result(FUTURE_S).data() for future in futures] == numbers(3, 5)
    other = broker.client().subscribe(topic, "s", ConsumerType.Shared)
    assert values(other, 5) == numbers(5, 10)


def test_batch_receive_returns_at_its_count(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", batch_receive_policy=ConsumerBatchReceivePolicy(10, -1, -1))
    for value in numbers(0, 25):
        producer.send_async(value, None)
    producer.flush()
    first, second = consumer.batch_receive(), consumer.batch_receive()
    assert [message.data() for message in first] == numbers(0, 10)
    assert [message.data() for message in second] == numbers(10, 20)
    assert (len(first), first[3].data(), first[-1].data()) == (10, b"000003", b"000009")
    consumer.acknowledge(first)
    consumer.acknowledge(second[5:])
    consumer.close()
    again = client.subscribe(topic, "s")
    assert values(again, 10) == [*numbers(10, 15), *numbers(20, 25)]


def test_batch_receive_returns_at_its_bytes_and_at_its_timeout(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", batch_receive_policy=ConsumerBatchReceivePolicy(-1, 3000, 300))
    assert len(consumer.batch_receive()) == 0
    for number in range(7):
        producer.send(b"%d" % number * 1000)
    counts: list[int] = []
    while sum(counts) < 7:
        counts.append(len(consumer.batch_receive()))
    assert counts[0] == 3
    by_default = client.subscribe(topic, "d", initial_position=EARLIEST)
    got: list[bytes] = []
    while len(got) < 7:
        got += [message.data() for message in by_default.batch_receive()]
    assert got == [b"%d" % number * 1000 for number in range(7)]


def test_a_message_above_the_bytes_of_a_batch_comes_alone_and_at_once(broker: Broker, client: Client) -> None:
    topic, sizes = broker.topic(), [100, 100, 5000, 100, 100, 900, 900, 900]
    consumer = client.subscribe(topic, "s", batch_receive_policy=ConsumerBatchReceivePolicy(-1, 1000, -1))
    producer = client.create_producer(topic)
    for size in sizes:
        producer.send(bytes(size))
    got: list[list[int]] = []
    # Without a timeout a batch that is not full would be waited for without end.
    while sum(map(len, got)) < len(sizes) - 1:
        got.append([len(message.data()) for message in consumer.batch_receive()])
    assert got[:2] == [[100, 100], [5000]]
    assert all(sum(batch) <= 1000 for batch in got[2:])


def test_single_receives_and_batches_mix(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.create_producer(topic).send_many(numbers(0, 30))
    consumer = client.subscribe(
        topic, "s", initial_position=EARLIEST, batch_receive_policy=ConsumerBatchReceivePolicy(7, -1, -1)
    )
    got = values(consumer, 3)
    got += [message.data() for message in consumer.batch_receive()]
    got += values(consumer, 2)
    got += consumer.receive_arrow(5, WAIT_MS).column("value").to_pylist()
    got.append(consumer.receive_async().result(FUTURE_S).data())
    got += values(consumer, 30 - len(got))
    assert got == numbers(0, 30)


def test_a_listener_gets_everything_in_order_and_may_raise(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    heard = Heard()
    heard.fails_on = b"000003"
    consumer = client.subscribe(topic, "s", message_listener=heard)
    for value in numbers(0, 20):
        producer.send(value)
    wait_until(lambda: len(heard.values) == 20, what="the listener has all")
    assert heard.values == numbers(0, 20)
    forbidden: list[Callable[[], Any]] = [
        consumer.receive, consumer.batch_receive, consumer.receive_async, consumer.receive_arrow
    ]  # fmt: skip
    for call in forbidden:
        with pytest.raises(InvalidConfiguration):
            call()


def test_a_paused_listener_waits_and_goes_on(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    heard = Heard()
    consumer = client.subscribe(topic, "s", message_listener=heard, start_paused=True)
    producer.send(b"0")
    assert heard.values == []
    consumer.resume_message_listener()
    wait_until(lambda: heard.values == [b"0"], what="the listener goes on")
    consumer.pause_message_listener()
    producer.send(b"1")
    producer.send(b"2")
    assert heard.values == [b"0"]
    consumer.resume_message_listener()
    wait_until(lambda: heard.values == [b"0", b"1", b"2"], what="the listener goes on")
    plain = client.subscribe(topic, "plain")
    for call in (plain.pause_message_listener, plain.resume_message_listener):
        with pytest.raises(InvalidConfiguration):
            call()


def test_a_listener_may_close_its_consumer(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    closed = threading.Event()

    def listener(consumer: Consumer, message: Message) -> None:
        consumer.acknowledge(message)
        consumer.close()
        closed.set()

    client.subscribe(topic, "s", message_listener=listener)
    producer = client.create_producer(topic)
    producer.send(b"last")
    producer.send(b"for the next")
    assert closed.wait(20)
    assert values(client.subscribe(topic, "s"), 1) == [b"for the next"]


def test_a_shared_subscription_spreads_over_its_consumers(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    heard = [Heard(), Heard(), Heard()]
    for each in heard:
        broker.client().subscribe(
            topic, "s", ConsumerType.Shared, message_listener=each, receiver_queue_size=20
        )
    for value in numbers(0, 120):
        producer.send(value)
    wait_until(lambda: sum(len(each.values) for each in heard) >= 120, what="all were heard")
    assert sorted(value for each in heard for value in each.values) == numbers(0, 120)
    assert all(each.values for each in heard)
    assert all(each.values == sorted(each.values) for each in heard)


def test_better_priority_levels_are_served_first(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    levels = [
        broker.client().subscribe(
            topic, "s", ConsumerType.Shared, receiver_queue_size=10, priority_level=level
        )
        for level in (0, 1, 0)
    ]
    producer = client.create_producer(topic)
    producer.send_many(numbers(0, 25))
    wait_until(lambda: sum(broker.unacked(topic, "s")) == 25, what="everything is prefetched")
    assert broker.unacked(topic, "s") == [10, 5, 10]
    assert (
        sum(len(values(consumer, count)) for consumer, count in zip(levels, (10, 5, 10), strict=True)) == 25
    )


def test_subscriptions_exclude_each_other_as_their_type_says(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    exclusive = client.subscribe(topic, "s")
    for consumer_type in (ConsumerType.Exclusive, ConsumerType.Shared):
        with pytest.raises(ConsumerBusy):
            broker.client().subscribe(topic, "s", consumer_type)
    exclusive.close()
    shared = broker.client().subscribe(topic, "s", ConsumerType.Shared)
    broker.client().subscribe(topic, "s", ConsumerType.Shared)
    with pytest.raises(ConsumerBusy):
        client.subscribe(topic, "s")
    shared.close()


def test_a_partition_that_is_taken_lets_go_of_the_others(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=3)
    taken = client.subscribe(f"{topic}-partition-1", "s")
    with pytest.raises(ConsumerBusy):
        broker.client().subscribe(topic, "s")
    for index in (0, 2):
        client.subscribe(f"{topic}-partition-{index}", "s").close()
    taken.close()
    broker.client().subscribe(topic, "s")


def test_unacked_limits_stop_dispatch_until_acknowledged(
    make_broker: Callable[..., Broker], assert_quiet: Quiet
) -> None:
    broker = make_broker(max_unacked_messages_per_consumer=10)
    client, topic = broker.client(), broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, ack_receipt_enabled=True)
    producer = client.create_producer(topic)
    for value in numbers(0, 20):
        producer.send(value)
    got = [consumer.receive(WAIT_MS) for _ in range(10)]
    assert_quiet(consumer)
    for message in got[:5]:
        consumer.acknowledge(message)
    assert values(consumer, 5) == numbers(10, 15)
    assert_quiet(consumer)


def test_a_client_of_another_name_sees_its_own_consumer_names(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    named = client.subscribe(topic, "s", consumer_name="me")
    assert (named.consumer_name(), named.subscription_name(), named.topic()) == ("me", "s", topic)
    unnamed = client.subscribe(topic, "other")
    assert len(unnamed.consumer_name()) == 10
    int(unnamed.consumer_name(), 16)
    wait_until(unnamed.is_connected, what="the connection, which a faulty carrier may lose")
