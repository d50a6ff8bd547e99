"""Messages that are deleted while they wait in a receiver queue are passed over, over every carrier."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import Timeout
from pulsar_ray.ledger.reader import SegmentGone
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, QUIET_MS, WAIT_MS, Broker
from tests.conformance.consumer_forms import FormedConsumer, Forms
from tests.conformance.test_backlog_quotas import EVICTION, limit

MakeBroker = Callable[..., Broker]
QUEUE = 20
SENT = 2 * QUEUE
LEDGER = 4
"""Entries of a ledger."""
FORMS = ("threads", "asyncio")
CALLS = ("receive", "receive_arrow", "batch_receive")


@pytest.fixture
def broker(make_broker: MakeBroker, transport: str) -> Broker:
    if transport == "sleepy":
        pytest.skip("a dispatcher that slept has nothing on its way")
    return make_broker(
        retention_check_interval_in_seconds=1,
        managed_ledger_max_entries_per_ledger=LEDGER,
        managed_ledger_min_ledger_rollover_time_minutes=0,
    )


@pytest.fixture(params=FORMS)
def forms(request: pytest.FixtureRequest, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forms]:
    made = Forms(broker, request.param, monkeypatch)
    yield made
    made.close()


def payload(number: int) -> bytes:
    return b"%04d" % number * 250


def send(broker: Broker, topic: str, first: int, end: int) -> None:
    producer = broker.client().create_producer(topic, batching_enabled=False)
    for number in range(first, end):
        producer.send(payload(number))
    producer.close()


def waits(core: ConsumerCore, count: int = QUEUE) -> None:
    """Return once so many messages wait in the queue."""
    wait_until(
        lambda: sum(delivery.rows.bit_count() for delivery in core.queue.deliveries) >= count,
        what="the queue is full",
    )


def truncate(broker: Broker, topic: str) -> None:
    broker.admin().topics.truncate(topic)


def expire(broker: Broker, topic: str) -> None:
    broker.cluster.override(topic, ttl_duration_default_in_seconds=1)
    # The last ledger is open.
    wait_until(lambda: len(broker.stored(topic)) <= LEDGER, what="what has expired is deleted")
    wait_until(
        lambda: broker.admin().topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0,
        what="all expires",
    )
    broker.cluster.override(topic)


def evict(broker: Broker, topic: str) -> None:
    limit(broker, topic, EVICTION, 10 * 1000)
    wait_until(lambda: len(broker.stored(topic)) <= 9 + LEDGER, what="what was evicted is deleted")
    broker.cluster.override(topic)


WAYS = (*((truncate, call) for call in CALLS), (expire, "receive"), (evict, "receive_arrow"))


def values_by(consumer: FormedConsumer, call: str) -> list[bytes]:
    """The values of the next call, acknowledged."""
    if call == "receive":
        message: Message = consumer.receive(WAIT_MS)
        consumer.acknowledge(message)
        return [message.data()]
    if call == "receive_arrow":
        table = consumer.receive_arrow(7, WAIT_MS)
        consumer.acknowledge_arrow(table)
        return [bytes(value) for value in table["value"].to_pylist()]
    batch = consumer.batch_receive()
    consumer.acknowledge(batch)
    return [message.data() for message in batch]


def check(got: list[bytes], left: set[bytes | None], kept: list[bytes], broker: Broker) -> None:
    """All that was sent afterwards came, in order, behind what was `left`.

    Who was sent the bytes before may have more.
    """
    numbers = [int(value[:4]) for value in got]
    assert numbers == sorted(set(numbers)), "in order, and each once"
    assert got[-len(kept) :] == kept
    if broker.transport in ("socket", "ray"):
        assert set(got[: -len(kept)]) <= left


@pytest.mark.parametrize(("delete", "call"), WAYS)
def test_receiving_goes_on_with_what_is_kept(
    broker: Broker, forms: Forms, delete: Callable[[Broker, str], None], call: str
) -> None:
    topic = broker.topic()
    consumer = forms.subscribe(topic, "s", receiver_queue_size=QUEUE)
    send(broker, topic, 0, SENT)
    waits(consumer.core)
    delete(broker, topic)
    left = set(broker.stored(topic))
    # More than the queue holds: the permits of what was passed over have to come back.
    send(broker, topic, SENT, 2 * SENT)
    kept = [payload(number) for number in range(SENT, 2 * SENT)]
    got: list[bytes] = []
    while not got or got[-1] != kept[-1]:
        got += values_by(consumer, call)
    check(got, left, kept, broker)
    with pytest.raises(Timeout):
        consumer.receive(QUIET_MS)
    wait_until(
        lambda: broker.admin().topics.stats(topic)["subscriptions"]["s"]["unackedMessages"] == 0,
        what="nothing is held",
    )


def test_a_listener_goes_on_with_what_is_kept(broker: Broker) -> None:
    topic = broker.topic()
    got: list[bytes] = []
    may_go_on = threading.Event()

    def listen(consumer: Any, message: Message) -> None:
        may_go_on.wait(60)
        got.append(message.data())
        consumer.acknowledge(message)

    client = broker.client()
    consumer = client.subscribe(topic, "s", receiver_queue_size=QUEUE, message_listener=listen)
    send(broker, topic, 0, SENT)
    waits(consumer.core, QUEUE - 2)
    truncate(broker, topic)
    # The listener has the first one, so the file of that is open.
    left = {*map(payload, range(LEDGER)), *broker.stored(topic)}
    may_go_on.set()
    send(broker, topic, SENT, 2 * SENT)
    kept = [payload(number) for number in range(SENT, 2 * SENT)]
    wait_until(lambda: got and got[-1] == kept[-1], what="the last one")
    check(got, left, kept, broker)


def test_has_message_available_does_not_count_what_is_deleted(broker: Broker) -> None:
    topic, client = broker.topic(), broker.client()
    consumer = client.subscribe(topic, "s", receiver_queue_size=QUEUE)
    send(broker, topic, 0, QUEUE)
    waits(consumer.core)
    assert consumer.has_message_available()
    truncate(broker, topic)
    if broker.transport in ("socket", "ray"):
        wait_until(lambda: not consumer.has_message_available(), what="nothing is there")
    send(broker, topic, QUEUE, QUEUE + 1)
    wait_until(consumer.has_message_available, what="the next one")


@pytest.mark.parametrize("mode", ["durable", "reader"])
def test_a_file_that_is_lost_raises(broker: Broker, mode: str) -> None:
    if broker.transport not in ("socket", "ray"):
        pytest.skip("the dispatcher reads the files, and stands before one that is lost")
    topic, client = broker.topic(), broker.client()
    send(broker, topic, 0, 3 * LEDGER)
    consumer: Any
    if mode == "durable":
        consumer = client.subscribe(topic, "s", initial_position=EARLIEST, receiver_queue_size=QUEUE)
        core, take = consumer.core, consumer.receive
    else:
        consumer = client.create_reader(topic, MessageId.earliest, receiver_queue_size=QUEUE)
        core, take = consumer._consumer.core, consumer.read_next
    waits(core, 3 * LEDGER)
    lost = sorted(broker._directory.rglob("*.seg"))[1]
    lost.rename(lost.with_suffix(".away"))
    got: list[int] = []
    missing = 0
    while len(got) + missing < 3 * LEDGER:
        try:
            got.append(int(take(WAIT_MS).data()[:4]))
        except SegmentGone:
            missing += 1
    assert missing == LEDGER
    assert got == [*range(LEDGER), *range(2 * LEDGER, 3 * LEDGER)]


def test_what_failed_and_is_deleted_does_not_come_again(broker: Broker) -> None:
    topic, client = broker.topic(), broker.client()
    consumer = client.subscribe(
        topic, "s", ConsumerType.Shared, receiver_queue_size=QUEUE, negative_ack_redelivery_delay_ms=100
    )
    send(broker, topic, 0, QUEUE)
    waits(consumer.core)
    failed = consumer.receive(WAIT_MS)
    truncate(broker, topic)
    consumer.negative_acknowledge(failed)
    consumer.redeliver_unacknowledged_messages()
    send(broker, topic, QUEUE, QUEUE + SENT)
    got = [int(consumer.receive(WAIT_MS).data()[:4]) for _ in range(SENT)]
    assert got == list(range(QUEUE, QUEUE + SENT))
