"""Policies of a topic that change while its clients are connected, over every carrier."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import pytest

from pulsar_ray.broker.partition.publishing.publish_gate import PublishThrottle
from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import ConsumerBusy, MessageTooBig, NotAllowedError, ProducerBusy, Timeout
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport import endpoint
from pulsar_ray.transport.actor_names import dispatcher_name, partition_name
from tests.conformance.broker import Broker, keyed_numbers, numbers, values
from tests.conformance.non_persistent import wait_for_permits

T = TypeVar("T")
MakeBroker = Callable[..., Broker]


@pytest.fixture
def awake(transport: str) -> None:
    """For what is looked up in running actors, or counted by them."""
    if transport == "sleepy":
        pytest.skip("only actors that are awake count")


@pytest.mark.usefixtures("awake")
def test_rollover_and_retention_change_while_a_topic_runs(make_broker: MakeBroker) -> None:
    broker = make_broker(retention_check_interval_in_seconds=1, default_retention_time_in_minutes=-1)
    client, topic = broker.client(), broker.topic()
    consumer = client.subscribe(topic, "s", ack_receipt_enabled=True)
    producer = client.create_producer(topic)
    broker.cluster.override(
        topic, managed_ledger_max_entries_per_ledger=2, managed_ledger_min_ledger_rollover_time_minutes=0
    )
    ids = [producer.send(value) for value in numbers(0, 6)]
    assert len({message_id.ledger_id() for message_id in ids}) == 3
    assert values(consumer, 6, acknowledge=True) == numbers(0, 6)
    assert broker.first_stored(topic) == (ids[0].ledger_id(), 0), "kept for ever"
    broker.cluster.override(topic, default_retention_time_in_minutes=0)
    wait_until(
        lambda: broker.first_stored(topic) == (ids[4].ledger_id(), 0), what="consumed ledgers are gone"
    )
    more = [producer.send(value) for value in numbers(6, 16)]
    assert len({message_id.ledger_id() for message_id in more}) == 1, "the broker's rollover holds again"


@pytest.mark.usefixtures("awake")
def test_a_raised_limit_of_unacknowledged_messages_lets_more_out(client: Client, broker: Broker) -> None:
    topic = broker.topic()
    broker.cluster.override(topic, max_unacked_messages_per_consumer=5)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    for value in numbers(0, 30):
        producer.send(value)
    wait_until(lambda: broker.unacked(topic, "s") == [5], what="the limit is reached")
    broker.cluster.override(topic, max_unacked_messages_per_subscription=12)
    wait_until(lambda: broker.unacked(topic, "s") == [12], what="the other limit is reached")
    broker.cluster.kill(broker.cluster.dispatcher_of(topic, "s").address)
    wait_until(lambda: broker.unacked(topic, "s") == [12], what="the restarted dispatcher has the limit")
    broker.cluster.override(topic)
    assert values(consumer, 30) == numbers(0, 30)


# --- how many may connect -------------------------------------------------------------------------


@pytest.fixture(params=["persistent", "non-persistent"])
def any_topic(request: pytest.FixtureRequest, broker: Broker) -> str:
    return f"{request.param}://public/default/limits"


def consuming(
    client: Client, broker: Broker, topic: str, consumer_type: ConsumerType = ConsumerType.Exclusive
) -> Consumer:
    """A consumer that gets what is published from now on."""
    consumer = client.subscribe(topic, "s", consumer_type)
    if not topic.startswith("persistent"):
        wait_for_permits(broker, topic, "s")
    return consumer


def test_producers_beyond_their_limit_are_refused(client: Client, broker: Broker, any_topic: str) -> None:
    open_before = [client.create_producer(any_topic) for _ in range(3)]
    broker.cluster.override(any_topic, max_producers_per_topic=2)
    for producer in open_before:
        producer.send(b"goes on")
    open_before.pop().close()
    with pytest.raises(ProducerBusy, match=r"2 producers.*policy max_producers allows 2"):
        broker.client().create_producer(any_topic)
    open_before.pop().close()
    open_before.append(broker.client().create_producer(any_topic))
    broker.cluster.kill(partition_name(any_topic))
    for producer in open_before:
        producer.send(b"is let in again")
    with pytest.raises(ProducerBusy):
        client.create_producer(any_topic)
    broker.cluster.override(any_topic, max_producers_per_topic=3)
    client.create_producer(any_topic).send(b"has room now")


def test_a_limit_disconnects_no_producer_when_its_partition_restarts(client: Client, broker: Broker) -> None:
    topic = broker.topic()
    producers = [client.create_producer(topic) for _ in range(3)]
    broker.cluster.override(topic, max_producers_per_topic=1)
    broker.cluster.kill(partition_name(topic))
    for producer in producers:
        producer.send(b"goes on")
    with pytest.raises(ProducerBusy):
        broker.client().create_producer(topic)


def opened(open_one: Callable[[], T]) -> T:
    """What is opened in the place of another; the partition hears of that from another dispatcher."""

    def try_once() -> T | None:
        with suppress(ConsumerBusy):
            return open_one()
        return None

    found = wait_until(try_once, what="a place")
    assert found is not None
    return found


@pytest.mark.usefixtures("awake")
def test_consumers_of_all_subscriptions_count(client: Client, broker: Broker, any_topic: str) -> None:
    # Before they come: those that are there already count only once their dispatchers have reported.
    broker.cluster.override(any_topic, max_consumers_per_topic=4)
    consumers = [client.subscribe(any_topic, name, ConsumerType.Shared) for name in "aab"]
    reader = broker.client().create_reader(any_topic, MessageId.latest)
    for name in "abc":
        with pytest.raises(ConsumerBusy, match=r"4 consumers.*policy max_consumers allows 4"):
            client.subscribe(any_topic, name, ConsumerType.Shared)
    with pytest.raises(ConsumerBusy):
        client.create_reader(any_topic, MessageId.latest)
    consumers.pop(0).close()
    consumers.append(opened(lambda: client.subscribe(any_topic, "c", ConsumerType.Shared)))
    reader.close()
    opened(lambda: client.create_reader(any_topic, MessageId.latest))
    with pytest.raises(ConsumerBusy):
        client.subscribe(any_topic, "b", ConsumerType.Shared)
    broker.cluster.override(any_topic)
    client.subscribe(any_topic, "b", ConsumerType.Shared)


@pytest.mark.usefixtures("awake")
def test_consumers_of_one_subscription_count(client: Client, broker: Broker, any_topic: str) -> None:
    broker.cluster.override(any_topic, max_consumers_per_subscription=2)
    consumers = [client.subscribe(any_topic, "s", ConsumerType.KeyShared) for _ in range(2)]
    with pytest.raises(ConsumerBusy, match=r"2 consumers.*policy max_consumers_per_subscription"):
        client.subscribe(any_topic, "s", ConsumerType.KeyShared)
    client.subscribe(any_topic, "other", ConsumerType.KeyShared)
    broker.cluster.override(any_topic, max_consumers_per_subscription=1)
    broker.cluster.kill(broker.cluster.dispatcher_of(any_topic, "s").address)
    producer = client.create_producer(any_topic)
    if any_topic.startswith("persistent"):
        for number in range(20):
            producer.send(b"%06d" % number, partition_key=str(number))
        assert sorted(value for _, _, value in keyed_numbers(consumers, 20)) == list(range(20))
    consumers.pop().close()
    with pytest.raises(ConsumerBusy):
        client.subscribe(any_topic, "s", ConsumerType.KeyShared)
    consumers.pop().close()
    client.subscribe(any_topic, "s", ConsumerType.KeyShared)


@pytest.mark.usefixtures("awake")
def test_subscriptions_count_and_readers_with_them(client: Client, broker: Broker, any_topic: str) -> None:
    client.subscribe(any_topic, "a")
    broker.cluster.override(any_topic, max_subscriptions_per_topic=2)
    reader = client.create_reader(any_topic, MessageId.latest)
    with pytest.raises(NotAllowedError, match=r"2 subscriptions.*policy max_subscriptions_per_topic"):
        client.subscribe(any_topic, "b")
    with pytest.raises(NotAllowedError):
        client.create_reader(any_topic, MessageId.latest)
    reader.close()

    def with_a_place_for(subscription: str) -> Consumer | None:
        try:
            return client.subscribe(any_topic, subscription)
        except NotAllowedError:
            return None

    # A report to the partition that is lost is made again within a second.
    consumer = wait_until(lambda: with_a_place_for("b"), what="the place of the reader")
    assert consumer is not None
    with pytest.raises(NotAllowedError):
        client.create_reader(any_topic, MessageId.latest)
    broker.cluster.kill(broker.cluster.dispatcher_of(any_topic, "b").address)
    broker.cluster.override(any_topic, max_subscriptions_per_topic=1)
    with pytest.raises(NotAllowedError):
        client.subscribe(any_topic, "c")
    consumer.unsubscribe()
    broker.cluster.override(any_topic, max_subscriptions_per_topic=2)
    wait_until(lambda: with_a_place_for("c"), what="the place of the subscription that was deleted")


@pytest.mark.usefixtures("awake")
def test_limits_below_what_is_there_take_no_place_when_everything_restarts(
    client: Client, broker: Broker
) -> None:
    topic = broker.topic()
    consumers = [client.subscribe(topic, name, ConsumerType.Shared) for name in "aab"]
    reader = client.create_reader(topic, MessageId.latest)
    limits = ("max_subscriptions_per_topic", "max_consumers_per_topic", "max_consumers_per_subscription")
    broker.cluster.override(topic, **dict.fromkeys(limits, 1))
    for address in [name for name in broker.cluster.addresses if topic in name]:
        broker.cluster.kill(address)
    producer = client.create_producer(topic)
    for value in numbers(0, 20):
        producer.send(value)
    assert sorted(value for _, _, value in keyed_numbers(consumers[:2], 20)) == list(range(20))
    assert values(consumers[2], 20) == [reader.read_next(20_000).data() for _ in range(20)] == numbers(0, 20)
    with pytest.raises(NotAllowedError):
        client.subscribe(topic, "c")
    with pytest.raises(ConsumerBusy):
        client.subscribe(topic, "a", ConsumerType.Shared)
    with pytest.raises((ConsumerBusy, NotAllowedError)):
        client.create_reader(topic, MessageId.latest)


def test_types_that_are_not_allowed_are_refused(client: Client, broker: Broker, any_topic: str) -> None:
    shared = consuming(client, broker, any_topic, ConsumerType.Shared)
    broker.cluster.override(any_topic, subscription_types_enabled="Failover,Key_Shared")
    producer = client.create_producer(any_topic)
    producer.send(b"000001")
    assert values(shared, 1) == [b"000001"]
    for kind in (ConsumerType.Shared, ConsumerType.Exclusive):
        with pytest.raises(NotAllowedError, match="subscription_types_enabled allows Failover, Key_Shared"):
            client.subscribe(any_topic, "other", kind)
    with pytest.raises(NotAllowedError, match="no Exclusive subscriptions"):
        client.create_reader(any_topic, MessageId.latest)
    client.subscribe(any_topic, "other", ConsumerType.KeyShared)
    broker.cluster.override(any_topic, subscription_types_enabled="Shared")
    client.subscribe(any_topic, "third", ConsumerType.Shared)


# --- the size of a message ------------------------------------------------------------------------


def test_a_lowered_size_refuses_the_next_larger_message(
    client: Client, broker: Broker, any_topic: str
) -> None:
    producer = client.create_producer(any_topic)
    producer.send(bytes(2000))
    broker.cluster.override(any_topic, max_message_size=1000)
    for _ in range(2):
        with pytest.raises(MessageTooBig, match="policy"):
            producer.send(bytes(2000))
        producer.send(bytes(1000))
    broker.cluster.override(any_topic, max_message_size=3000)
    wait_until(lambda: is_taken(producer, bytes(3000)), what="the larger limit is known")
    with pytest.raises(MessageTooBig):
        producer.send(bytes(3001))


def is_taken(producer: Producer, value: bytes) -> bool:
    try:
        producer.send(value)
    except MessageTooBig:
        return False
    return True


@pytest.mark.parametrize("batching", [False, True])
def test_a_lowered_size_refuses_no_message_that_is_small_enough(
    client: Client, broker: Broker, batching: bool
) -> None:
    topic = broker.topic()
    producer = client.create_producer(
        topic, batching_enabled=batching, block_if_queue_full=True, batching_max_publish_delay_ms=5
    )
    results: list[str] = []
    sent = [b"%06d" % number * 20 for number in range(2000)]
    for number, value in enumerate(sent):
        producer.send_async(value, lambda result, _: results.append(result.name))
        if number in (500, 1000):
            broker.cluster.override(topic, max_message_size=4000 if number == 500 else 150)
    producer.flush()
    assert results == ["Ok"] * len(sent)
    assert broker.stored(topic) == sent
    with pytest.raises(MessageTooBig):
        producer.send(bytes(200))


def test_a_producer_learns_of_a_size_that_changed_while_it_was_away(client: Client, broker: Broker) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send(b"x")
    broker.cluster.kill(partition_name(topic), keep_down=True)
    broker.cluster.override(topic, max_message_size=10)
    broker.cluster.allow(partition_name(topic))
    producer.send(b"small")
    with pytest.raises(MessageTooBig):
        producer.send(bytes(11))


# --- rates ----------------------------------------------------------------------------------------


def throttle_of(broker: Broker, topic: str) -> PublishThrottle:
    if topic.startswith("persistent"):
        server: Any = broker.cluster.partition(topic).server
        throttle: PublishThrottle = server._parts.throttle
    else:
        server = broker.cluster.non_persistent_partition(topic).server
        throttle = server._throttle
    return throttle


@pytest.mark.usefixtures("carriers_are_kept")
def test_a_slowed_producer_loses_nothing_and_goes_on_when_the_rate_is_gone(
    client: Client, broker: Broker, any_topic: str
) -> None:
    consumer = consuming(client, broker, any_topic)
    producer = broker.client().create_producer(any_topic)
    producer.send(b"000000")
    broker.cluster.override(any_topic, max_publish_rate_per_topic_in_messages=1)
    confirmed: list[bytes] = []

    def send() -> None:
        for value in numbers(1, 40):
            producer.send(value)
            confirmed.append(value)

    sender = threading.Thread(target=send)
    sender.start()
    wait_until(lambda: throttle_of(broker, any_topic).is_slowing, what="the producer is slowed down")
    assert len(confirmed) < 30, "at one a second"
    broker.cluster.override(any_topic)
    assert values(consumer, 40) == numbers(0, 40)
    sender.join()
    assert confirmed == numbers(1, 40)


@pytest.mark.usefixtures("carriers_are_kept")
def test_a_rate_of_bytes_slows_down_as_well(client: Client, broker: Broker, any_topic: str) -> None:
    broker.cluster.override(any_topic, max_publish_rate_per_topic_in_bytes=20_000)
    consumer = consuming(client, broker, any_topic)
    producer = client.create_producer(any_topic)
    sent = [bytes([number]) * 10_000 for number in range(5)]
    for value in sent:
        producer.send(value)
    assert values(consumer, 5) == sent
    assert throttle_of(broker, any_topic).is_slowing


@pytest.mark.usefixtures("carriers_are_kept")
def test_a_restarted_partition_keeps_the_rate(client: Client, broker: Broker) -> None:
    topic = broker.topic()
    # So slow that the producer waits for as long as this test looks, until the rate is gone.
    broker.cluster.override(topic, max_publish_rate_per_topic_in_messages=1)
    producer = client.create_producer(topic)

    def send_too_fast(first: int) -> None:
        for value in numbers(first, first + 60):
            producer.send_async(value, None)
        wait_until(lambda: throttle_of(broker, topic).is_slowing, what="the producer is slowed down")

    send_too_fast(0)
    broker.cluster.kill(partition_name(topic))
    send_too_fast(60)
    broker.cluster.override(topic)
    producer.flush()
    assert broker.stored(topic) == numbers(0, 120)


def test_a_producer_that_waits_for_long_keeps_its_connection(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_broker(session_lease_seconds=2)
    if broker.transport not in ("socket", "ray"):
        pytest.skip("enough for this")
    monkeypatch.setattr(endpoint, "PING_INTERVAL_S", 0.3)
    monkeypatch.setattr(endpoint, "SILENCE_S", 2.0)
    topic, client = broker.topic(), broker.client()
    producer = client.create_producer(topic)
    broker.cluster.override(topic, max_publish_rate_per_topic_in_messages=1)
    producer.send_many(numbers(0, 5))
    sessions = list(broker.cluster.partition(topic).host.sessions)
    attachments = [session.attachment for session in sessions]
    producer.send(b"000005")
    assert broker.cluster.silent == []
    assert [session.attachment for session in sessions] == attachments
    assert not any(session.is_ended for session in sessions)
    assert broker.stored(topic) == numbers(0, 6)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.KeyShared])
def test_a_dispatch_rate_slows_deliveries_down(client: Client, broker: Broker, kind: ConsumerType) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", kind)
    unlimited = client.subscribe(topic, "other")
    broker.cluster.override(topic, dispatch_throttling_rate_per_subscription_in_msg=3)
    producer = client.create_producer(topic)
    for value in numbers(0, 60):
        producer.send_async(value, None)
    got = values(consumer, 4)
    assert broker.served(topic, "s").core.blocks.waiting_messages > 0
    broker.cluster.override(topic)
    got += values(consumer, 56)
    assert sorted(got) == numbers(0, 60)
    if kind is ConsumerType.Exclusive:
        assert got == numbers(0, 60)
    assert values(unlimited, 60) == numbers(0, 60)


def test_random_changes_under_load_lose_nothing(client: Client, broker: Broker) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed of the changes: {seed}")
    draw = random.Random(seed)
    topic, count = broker.topic(), 3000
    consumers = [broker.client().subscribe(topic, "s", ConsumerType.Shared) for _ in range(2)]
    producers = [
        broker.client().create_producer(topic, batching_enabled=batching, block_if_queue_full=True)
        for batching in (False, True)
    ]
    choices: dict[str, tuple[int | str, ...]] = {
        "max_publish_rate_per_topic_in_messages": (2000, 9000),
        "max_publish_rate_per_topic_in_bytes": (100_000, 400_000),
        "dispatch_throttling_rate_per_subscription_in_msg": (2000, 9000),
        "dispatch_throttling_rate_per_subscription_in_byte": (100_000, 500_000),
        "max_unacked_messages_per_consumer": (1, 50),
        "max_unacked_messages_per_subscription": (2, 70),
        "max_message_size": (100, 3000),
        "managed_ledger_max_entries_per_ledger": (10, 100),
        "max_producers_per_topic": (1,),
        "max_consumers_per_subscription": (1,),
        "subscription_types_enabled": ("Exclusive",),
    }

    def send(number: int) -> None:
        for value in numbers(0, count):
            producers[number].send_async(b"%d:%s" % (number, value), None)
        producers[number].flush()

    got: list[bytes] = []

    def take(consumer: Consumer) -> None:
        while len(set(got)) < 2 * count:
            with suppress(Timeout):
                message = consumer.receive(100)
                got.append(message.data())
                consumer.acknowledge(message)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(2)]
    threads += [threading.Thread(target=take, args=(consumer,)) for consumer in consumers]
    for thread in threads:
        thread.start()
    for step in range(25):
        chosen = draw.sample(sorted(choices), draw.randrange(5))
        broker.cluster.override(topic, **{name: draw.choice(choices[name]) for name in chosen})
        wait_until(lambda done=200 * step: len(set(got)) >= done, what="messages arrive")  # type: ignore[misc]
        if step == 12:
            broker.cluster.kill(draw.choice([partition_name(topic), dispatcher_name(topic, "s", True)]))
    broker.cluster.override(topic)
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    expected = [[b"%d:%s" % (number, value) for value in numbers(0, count)] for number in range(2)]
    stored = broker.stored(topic)
    assert [[v for v in stored if v is not None and v.startswith(b"%d:" % n)] for n in range(2)] == expected
    assert set(got) == {*expected[0], *expected[1]}
