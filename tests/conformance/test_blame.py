"""A message that ends whoever gets it is found, over every carrier; its neighbours are not blamed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer import partition_deliveries
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import Timeout
from pulsar_ray.model.enums import ConsumerType
from tests.conformance.broker import EARLIEST, Broker, numbers, receive, send_batch

Make = Callable[..., Broker]
POISON = b"000005"
COUNT = 8
WAYS = [
    (ConsumerType.Shared, "receive"),
    (ConsumerType.Shared, "batch_receive"),
    (ConsumerType.Failover, "receive_arrow"),
    (ConsumerType.KeyShared, "batch_receive"),
]


@pytest.fixture
def broker(make_broker: Make) -> Broker:
    # Over a lane its grace ends a client's session; over the tunnel, where nothing tells, its lease.
    return make_broker(reattach_grace_seconds=0.3, session_lease_seconds=3)


@pytest.fixture(params=["seen", "reported"])
def progress(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the dispatcher sees how much a client hands over, or has to be told."""
    if request.param == "reported":
        monkeypatch.setattr(partition_deliveries, "new_counter", lambda: None)
    name: str = request.param
    return name


def failures(messages: list[Message]) -> list[tuple[bytes, int]]:
    return sorted((message.data(), message.failures) for message in messages)


def subscribe(client: Client, topic: str, kind: ConsumerType) -> Consumer:
    # An acknowledgment on its way as its client is shut down may be lost.
    return client.subscribe(
        topic, "s", kind, initial_position=EARLIEST, ack_grouping_time_ms=0, ack_receipt_enabled=True
    )


def test_the_one_message_that_a_consumer_had_in_hand_has_failed(broker: Broker) -> None:
    topic = broker.topic()
    client = broker.client()
    subscribe(client, topic, ConsumerType.Shared).close()
    client.create_producer(topic).send_many(numbers(0, 3))
    dying = broker.client()
    receive(subscribe(dying, topic, ConsumerType.Shared), 1)
    dying.shutdown()
    again = subscribe(client, topic, ConsumerType.Shared)
    others = receive(again, 2)
    assert failures(others) == [(b"000001", 0), (b"000002", 0)]
    for message in others:
        again.acknowledge(message)
    assert failures(receive(again, 1)) == [(b"000000", 1)]


def test_a_failure_that_waits_as_its_client_is_shut_down_counts_as_a_crash(broker: Broker) -> None:
    topic = broker.topic()
    client = broker.client()
    subscribe(client, topic, ConsumerType.Shared).close()
    client.create_producer(topic).send_many(numbers(0, 2))
    dying = broker.client()
    consumer = dying.subscribe(
        topic, "s", ConsumerType.Shared, ack_grouping_time_ms=0, negative_ack_redelivery_delay_ms=60_000
    )
    consumer.negative_acknowledge(consumer.receive(20_000))
    dying.shutdown()
    again = subscribe(client, topic, ConsumerType.Shared)
    other = again.receive(20_000)
    assert (other.data(), other.failures) == (b"000001", 0)
    again.acknowledge(other)
    assert failures(receive(again, 1)) == [(b"000000", 1)]


def work(broker: Broker, topic: str, kind: ConsumerType, done: dict[bytes, int], how: str) -> int | None:
    """A process that takes what it is given in hand; returns the poison's failures once it has any.

    None if it was ended by the poison.
    """
    client = broker.client()
    consumer = subscribe(client, topic, kind)
    while True:
        if how == "receive":
            messages = [consumer.receive(20_000)]
        elif how == "batch_receive":
            messages = list(consumer.batch_receive())
        else:
            try:
                table = consumer.receive_arrow(timeout_millis=20_000)
            except Timeout:
                raise AssertionError(f"nothing more came behind {sorted(done)}") from None
            if POISON in table["value"].to_pylist():
                # The counts of a batch are those of its entry: the row's own are with the received message.
                failed = max(table["redelivery_count"].to_pylist())
                if failed and table.num_rows == 1:
                    client.close()
                    return int(failed)
                client.shutdown()
                return None
            done.update(dict.fromkeys(table["value"].to_pylist(), 0))
            consumer.acknowledge_arrow(table)
            continue
        if any(message.data() == POISON for message in messages):
            (poison,) = (message for message in messages if message.data() == POISON)
            if poison.failures:
                client.close()
                return poison.failures
            client.shutdown()
            return None
        for message in messages:
            done[message.data()] = message.failures
            consumer.acknowledge(message)


@pytest.mark.parametrize(("kind", "how"), WAYS, ids=str)
def test_halves_find_the_poison_in_few_crashes(
    broker: Broker, transport: str, kind: ConsumerType, how: str, progress: str
) -> None:
    if transport not in ("socket", "tcp") and (kind, how) != WAYS[1]:
        pytest.skip("each crash takes a lease to be noticed over the tunnel: one way will do")
    topic = broker.topic()
    client = broker.client()
    subscribe(client, topic, kind).close()
    client.create_producer(topic).send_many(numbers(0, COUNT))
    done: dict[bytes, int] = {}
    crashes = 0
    while (failed := work(broker, topic, kind, done, how)) is None:
        crashes += 1
        if crashes == 2 and progress == "reported":
            # Before it has noticed this crash, or after: a crash that nobody saw counts for nothing.
            broker.cluster.kill(f"{topic} -> s")
        assert crashes < 20, "never found"
    assert failed == 1
    assert not any(done.values()), "a neighbour was blamed"
    if progress == "seen":
        assert crashes <= 1 + math.log2(COUNT), f"{crashes} crashes"


def test_messages_of_a_batch_are_tried_in_parts_and_the_entry_is_acknowledged(broker: Broker) -> None:
    topic = broker.topic()
    client = broker.client()
    subscribe(client, topic, ConsumerType.Shared).close()
    send_batch(client, topic, numbers(0, COUNT))
    done: dict[bytes, int] = {}
    crashes = 0
    while work(broker, topic, ConsumerType.Shared, done, "batch_receive") is None:
        crashes += 1
        assert crashes < 20, "never found"
    consumer = subscribe(client, topic, ConsumerType.Shared)
    (poison,) = receive(consumer, 1)
    assert (poison.data(), poison.failures) == (POISON, 1)
    consumer.acknowledge(poison)
    consumer.close()
    with broker.admin() as admin:
        assert admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0
    assert set(done) == set(numbers(0, COUNT)) - {POISON}
    assert not any(done.values()), "a neighbour was blamed"


def test_closing_blames_nobody(broker: Broker) -> None:
    topic = broker.topic()
    client = broker.client()
    for _ in range(3):
        consumer = subscribe(client, topic, ConsumerType.Shared)
        if not _:
            client.create_producer(topic).send(b"x")
        assert failures(receive(consumer, 1)) == [(b"x", 0)]
        consumer.close()


@pytest.mark.parametrize("at_once", [7, 100])
def test_a_program_that_acknowledges_up_to_now_and_then_gets_everything_behind_crashes(
    broker: Broker, transport: str, at_once: int
) -> None:
    """Suspects wait for no acknowledgment that comes only behind more messages."""
    if transport != "socket":
        pytest.skip("the same over every carrier, and patience takes its seconds")
    topic, count, kind = broker.topic(), 40, ConsumerType.Failover
    client = broker.client()
    subscribe(client, topic, kind).close()
    send_batch(client, topic, numbers(0, 20))
    send_batch(client, topic, numbers(20, count))
    for in_hand in (20, 15):
        dying = broker.client()
        receive(subscribe(dying, topic, kind), in_hand)
        dying.shutdown()
    consumer = subscribe(client, topic, kind)
    got: list[bytes] = []
    while len(got) < count:
        message = consumer.receive(20_000)
        got.append(message.data())
        if len(got) % at_once == 0 or len(got) == count:
            consumer.acknowledge_cumulative(message)
    assert got == numbers(0, count)
    consumer.close()
    with broker.admin() as admin:
        assert admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0
