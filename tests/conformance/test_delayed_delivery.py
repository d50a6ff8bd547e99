"""Delayed messages over every carrier: when they come, to whom, and what they do not hold up."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pyarrow as pa
import pytest

from pulsar_ray.broker.subscription.served_subscription import ServedSubscription
from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import InvalidConfiguration, NotAllowedError, SubscriptionNotFound
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.stub_tracker import StubTracker
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import dispatcher_name
from tests.conformance.broker import WAIT_MS, Broker, numbers, values

Quiet = Callable[[Consumer], None]
LONG = timedelta(hours=1)
SHORT = timedelta(milliseconds=400)
DELAYING = (ConsumerType.Shared, ConsumerType.KeyShared)


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    """A broker that never delivers early."""
    return make_broker(is_delayed_delivery_deliver_at_time_strict=True)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def tracker(broker: Broker, topic: str, subscription: str) -> StubTracker:
    """The tracker of a subscription, which runs."""
    found = broker.cluster.tracker_of(topic, subscription)
    assert found is not None
    return found


def delayed(broker: Broker, topic: str, name: str = "s") -> int:
    """How many messages wait for their time, by the stats; -1 until the tracker has them."""
    server = broker.cluster.dispatcher_of(topic, name).server
    assert server is not None
    found: int = server.stats()["subscriptions"][name]["msgDelayed"]
    served = server.subscriptions.served[name]
    assert isinstance(served, ServedSubscription)
    is_known = not found or served.delayed().due_in_ms is not None
    return found if is_known else -1


@pytest.mark.parametrize("kind", DELAYING, ids=str)
@pytest.mark.parametrize("batching", [False, True])
def test_a_delayed_message_comes_when_it_is_due_and_holds_nothing_up(
    broker: Broker, client: Client, kind: ConsumerType, batching: bool, patience: int
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", kind)
    producer = client.create_producer(topic, batching_enabled=batching)
    due_ms = now_ms() + 700 * patience
    producer.send_async(b"later", None, partition_key="k", deliver_at=due_ms)
    producer.send(b"now", partition_key="k")
    assert values(consumer, 2) == [b"now", b"later"]
    assert now_ms() >= due_ms


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover], ids=str)
def test_other_subscriptions_get_delayed_messages_at_once_and_in_order(
    broker: Broker, client: Client, kind: ConsumerType
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", kind)
    producer = client.create_producer(topic)
    for value in numbers(0, 3):
        producer.send(value, deliver_after=LONG)
    assert values(consumer, 3) == numbers(0, 3)


@pytest.mark.parametrize("kind", DELAYING, ids=str)
def test_due_messages_come_in_the_order_of_their_times(
    broker: Broker, client: Client, kind: ConsumerType, patience: int
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", kind)
    producer = client.create_producer(topic)
    first = now_ms() + 500 * patience
    for place in (2, 0, 1):
        producer.send(b"%d" % place, deliver_at=first + 300 * place)
    assert values(consumer, 3) == [b"0", b"1", b"2"]


def test_without_strictness_messages_come_up_to_a_tick_early(
    make_broker: Callable[..., Broker], assert_quiet: Quiet
) -> None:
    broker = make_broker(delayed_delivery_tick_time_millis=3_600_000)
    client, topic = broker.client(), broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send(b"within a tick", deliver_after=timedelta(minutes=50))
    assert values(consumer, 1) == [b"within a tick"]
    producer.send(b"beyond", deliver_after=timedelta(minutes=70))
    assert_quiet(consumer)


def test_a_restarted_dispatcher_delivers_nothing_early_before_it_knows_the_policies(
    make_broker: Callable[..., Broker], assert_quiet: Quiet
) -> None:
    broker = make_broker(delayed_delivery_tick_time_millis=3_600_000)
    client, topic, policies = broker.client(), broker.topic(), broker.admin().topics.policies
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    policies.set(topic, "delayed_delivery", strict=True)
    client.create_producer(topic).send(b"x", deliver_after=timedelta(minutes=50))
    wait_until(lambda: delayed(broker, topic) == 1, what="it waits")
    broker.cluster.actors.withholds_policies = True
    broker.cluster.kill(f"{topic} -> s")
    assert_quiet(consumer)
    wait_until(lambda: delayed(broker, topic) == 1, what="it waits at the next dispatcher")
    assert_quiet(consumer)
    policies.set(topic, "delayed_delivery", strict=False)
    assert values(consumer, 1) == [b"x"]


@pytest.mark.parametrize(
    ("at", "after"),
    [(1, None), (0, None), (-5, None), (None, timedelta(0)), (None, timedelta(hours=-1))],
)
def test_times_in_the_past_mean_at_once(
    broker: Broker, client: Client, at: int | None, after: timedelta | None
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    client.create_producer(topic).send(b"now", deliver_at=at, deliver_after=after)
    assert values(consumer, 1) == [b"now"]


def test_many_at_once_can_be_delayed(
    broker: Broker, client: Client, assert_quiet: Quiet, patience: int
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    due_ms = now_ms() + 800 * patience
    producer.send_many(numbers(0, 500), deliver_at=due_ms)
    producer.send_arrow(pa.table({"value": numbers(500, 1000)}), deliver_at=due_ms)
    producer.send_many(numbers(1000, 1010), deliver_at=now_ms() + 3_600_000)
    producer.send(b"now")
    assert values(consumer, 1) == [b"now"]
    assert sorted(values(consumer, 1000, acknowledge=True)) == numbers(0, 1000)
    assert now_ms() >= due_ms
    assert_quiet(consumer)
    wait_until(lambda: delayed(broker, topic) == 10, what="ten messages wait")


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("way", ["list", "column"])
def test_each_of_many_can_have_a_time_of_its_own(
    broker: Broker, client: Client, assert_quiet: Quiet, batching: bool, way: str, patience: int
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=batching)
    first, much_later = now_ms() + 700 * patience, now_ms() + 3_600_000
    times = [None, first + 400, 0, first, -5, much_later, 1]
    sent = [b"now 0", b"second", b"now 1", b"first", b"now 2", b"much later", b"now 3"]
    if way == "list":
        producer.send_many(sent, deliver_at=times)
    else:
        producer.send_arrow(
            pa.table({"value": sent, "deliver_at": pa.array(times, pa.timestamp("ms", "UTC"))})
        )
    assert values(consumer, 4, acknowledge=True) == [b"now 0", b"now 1", b"now 2", b"now 3"]
    assert values(consumer, 1, acknowledge=True) == [b"first"]
    assert now_ms() >= first
    assert values(consumer, 1, acknowledge=True) == [b"second"]
    assert now_ms() >= first + 400
    assert_quiet(consumer)
    wait_until(lambda: delayed(broker, topic) == 1, what="one waits")


def test_delayed_rows_of_several_partitions_keep_their_keys_and_times(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=2)
    consumer = client.subscribe(topic, "s", ConsumerType.KeyShared)
    producer = client.create_producer(topic)
    due_ms = now_ms() + 600
    keys = [f"k{number % 5}" for number in range(200)]
    times = [due_ms if number % 2 else None for number in range(200)]
    producer.send_arrow(pa.table({"value": numbers(0, 200), "key": keys, "deliver_at": times}))
    early = [consumer.receive(WAIT_MS) for _ in range(100)]
    assert sorted(message.data() for message in early) == numbers(0, 200)[::2]
    late = [consumer.receive(WAIT_MS) for _ in range(100)]
    assert now_ms() >= due_ms
    assert {message.data(): message.partition_key() for message in early + late} == dict(
        zip(numbers(0, 200), keys, strict=True)
    )


def test_absurd_times_of_many_are_refused_before_anything_is_sent(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    microseconds = now_ms() * 1000
    for times in ([1, microseconds], ["soon", 1], [1, 1.5], [1, 2**63], [1], "ab", 1.5):
        with pytest.raises(ValueError, match="deliver_at"):
            producer.send_many([b"1", b"2"], deliver_at=times)  # type: ignore[arg-type]
    for column in ([1, microseconds], ["soon", "later"], [1.5, 2.5]):
        with pytest.raises(ValueError, match="deliver_at"):
            producer.send_arrow(pa.table({"value": [b"1", b"2"], "deliver_at": column}))
    with pytest.raises(ValueError, match="column or as an argument"):
        producer.send_arrow(pa.table({"value": [b"1"], "deliver_at": [1]}), deliver_at=1)
    with pytest.raises(ValueError, match="column deliver_at"):
        producer.send_arrow(pa.table({"value": [b"1"]}), deliver_at=[1])  # type: ignore[arg-type]
    assert_quiet(consumer)


def test_they_wait_for_each_subscription_and_survive_its_dispatcher_and_its_tracker(
    broker: Broker, client: Client, patience: int
) -> None:
    topic = broker.topic()
    consumers = {name: client.subscribe(topic, name, ConsumerType.Shared) for name in "ab"}
    producer = client.create_producer(topic)
    for value in numbers(0, 20):
        producer.send_async(value, None, deliver_after=timedelta(seconds=2) * patience)
    producer.send_async(b"much later", None, deliver_after=LONG)
    producer.flush()
    wait_until(lambda: [delayed(broker, topic, name) for name in "ab"] == [21, 21], what="all wait")
    broker.cluster.kill(dispatcher_name(topic, "a", True))
    tracker(broker, topic, "b").kill()
    for consumer in consumers.values():
        assert sorted(values(consumer, 20, acknowledge=True)) == numbers(0, 20)
    wait_until(lambda: [delayed(broker, topic, name) for name in "ab"] == [1, 1], what="one waits for each")


def test_a_killed_tracker_reads_all_ledgers_again_that_it_had_not_written(
    make_broker: Callable[..., Broker],
) -> None:
    small = {"managed_ledger_max_entries_per_ledger": 4, "managed_ledger_min_ledger_rollover_time_minutes": 0}
    broker = make_broker(is_delayed_delivery_deliver_at_time_strict=True, **small)
    topic, client = broker.topic(), broker.client()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    for value in numbers(0, 20):
        producer.send(value, deliver_after=LONG)
    wait_until(lambda: delayed(broker, topic) == 20, what="all wait")
    tracker(broker, topic, "s").kill()
    producer.send(b"soon", deliver_after=SHORT)
    assert values(consumer, 1, acknowledge=True) == [b"soon"]
    broker.cluster.override(topic, delayed_delivery_enabled=False)
    assert sorted(values(consumer, 20, acknowledge=True)) == numbers(0, 20)


def test_a_tracker_that_stands_still_holds_nothing_else_up_and_loses_nothing(
    broker: Broker, client: Client, patience: int
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send(b"first", deliver_after=LONG)
    wait_until(lambda: delayed(broker, topic) == 1, what="it waits")
    tracker(broker, topic, "s").freeze()
    producer.send(b"later", deliver_after=SHORT * patience)
    producer.send(b"now")
    assert values(consumer, 2) == [b"now", b"later"]


def test_acknowledging_before_they_are_due_skips_them(
    broker: Broker, client: Client, assert_quiet: Quiet, patience: int
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, ack_receipt_enabled=True)
    producer = client.create_producer(topic)
    first, second = (
        producer.send(value, deliver_after=timedelta(seconds=1) * patience) for value in (b"1", b"2")
    )
    wait_until(lambda: delayed(broker, topic) == 2, what="both wait")
    consumer.acknowledge(first)
    assert values(consumer, 1, acknowledge=True) == [b"2"]
    assert second > first
    assert_quiet(consumer)
    wait_until(lambda: delayed(broker, topic) == 0, what="none waits")


def test_a_seek_brings_delayed_messages_again_but_not_before_they_are_due(
    broker: Broker, client: Client, assert_quiet: Quiet, patience: int
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send(b"0")
    due_ms = now_ms() + 1200 * patience
    producer.send(b"soon", deliver_at=due_ms)
    producer.send(b"much later", deliver_after=LONG)
    assert values(consumer, 2, acknowledge=True) == [b"0", b"soon"]
    consumer.seek(MessageId.earliest)
    assert values(consumer, 2, acknowledge=True) == [b"0", b"soon"]
    assert_quiet(consumer)


def test_failed_delayed_messages_come_again_without_another_delay(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    producer = client.create_producer(topic)
    producer.send(b"x", deliver_after=SHORT)
    message = consumer.receive(WAIT_MS)
    assert message.redelivery_count() == 0
    consumer.negative_acknowledge(message)
    assert consumer.receive(WAIT_MS).redelivery_count() == 1


def test_the_next_type_of_consumers_decides_anew(broker: Broker, client: Client, assert_quiet: Quiet) -> None:
    topic = broker.topic()
    shared = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send(b"later", deliver_after=LONG)
    wait_until(lambda: delayed(broker, topic) == 1, what="it waits")
    shared.close()
    exclusive = client.subscribe(topic, "s", ConsumerType.Exclusive)
    assert values(exclusive, 1) == [b"later"]
    exclusive.close()
    again = client.subscribe(topic, "s", ConsumerType.KeyShared)
    assert_quiet(again)
    wait_until(lambda: delayed(broker, topic) == 1, what="it waits again")


def test_delays_can_be_switched_off_while_messages_wait(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send(b"0", deliver_after=LONG)
    wait_until(lambda: delayed(broker, topic) == 1, what="it waits")
    broker.cluster.override(topic, delayed_delivery_enabled=False)
    producer.send(b"1", deliver_after=LONG)
    assert sorted(values(consumer, 2, acknowledge=True)) == [b"0", b"1"]
    broker.cluster.override(topic, delayed_delivery_enabled=True)
    producer.send(b"2", deliver_after=LONG / 2)
    producer.send(b"3", deliver_after=SHORT)
    assert values(consumer, 1, acknowledge=True) == [b"3"]
    broker.cluster.kill(f"{topic} -> s")
    wait_until(lambda: delayed(broker, topic) == 1, what="it waits at the next dispatcher")
    assert_quiet(consumer)


def test_a_subscription_can_be_exact_where_its_topic_is_not(
    make_broker: Callable[..., Broker], assert_quiet: Quiet
) -> None:
    broker = make_broker(delayed_delivery_tick_time_millis=3_600_000)
    client, topic = broker.client(), broker.topic()
    exact = client.subscribe(
        topic, "exact", ConsumerType.Shared, subscription_properties={"delayed-delivery-strict": "true"}
    )
    early = client.subscribe(topic, "early", ConsumerType.Shared)
    client.create_producer(topic).send(b"x", deliver_after=timedelta(minutes=30))
    assert values(early, 1) == [b"x"]
    assert_quiet(exact)


def test_a_subscription_is_made_exact_and_inexact_while_messages_wait(
    make_broker: Callable[..., Broker], assert_quiet: Quiet
) -> None:
    broker = make_broker(delayed_delivery_tick_time_millis=3_600_000)
    client, topic, topics = broker.client(), broker.topic(), broker.admin().topics
    topics.create_subscription(topic, "s", properties={"team": "a"})
    topics.set_delayed_delivery_strict(topic, "s", True)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    client.create_producer(topic).send(b"x", deliver_after=timedelta(minutes=30))
    assert_quiet(consumer)
    broker.cluster.kill(dispatcher_name(topic, "s", True))
    assert_quiet(consumer)
    assert topics.stats(topic)["subscriptions"]["s"]["subscriptionProperties"] == {
        "team": "a",
        "delayed-delivery-strict": "true",
    }
    topics.set_delayed_delivery_strict(topic, "s", None)
    assert values(consumer, 1) == [b"x"]
    assert topics.stats(topic)["subscriptions"]["s"]["subscriptionProperties"] == {"team": "a"}


def test_a_switch_that_is_neither_on_nor_off_is_refused(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    wrong = {"delayed-delivery-strict": "yes"}
    with pytest.raises(InvalidConfiguration, match="'true' or 'false'"):
        topics.create_subscription(topic, "s", properties=wrong)
    with pytest.raises(InvalidConfiguration, match="'true' or 'false'"):
        client.subscribe(topic, "s", ConsumerType.Shared, subscription_properties=wrong)
    topics.create_subscription(topic, "s")
    with pytest.raises(InvalidConfiguration, match="'true' or 'false'"):
        topics.update_subscription_properties(topic, "s", wrong)
    with pytest.raises(ValueError, match="strict"):
        topics.set_delayed_delivery_strict(topic, "s", "true")  # type: ignore[arg-type]
    with pytest.raises(SubscriptionNotFound):
        topics.set_delayed_delivery_strict(topic, "another", True)


def test_an_administrator_is_told_that_messages_wait_for_their_time(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    client.subscribe(topic, "s", ConsumerType.Shared)
    client.create_producer(topic).send(b"x", deliver_after=LONG)
    wait_until(lambda: delayed(broker, topic) == 1, what="it waits")
    told = topics.why_blocked(topic, "s")
    assert "1 delayed messages wait for their time; the next is due in 3," in told["reason"]
    assert told["delayedMessages"] == 1
    assert 0 < told["delayedDueInMs"] <= 3_600_000


@pytest.mark.parametrize("batching", [False, True])
def test_messages_that_are_delayed_too_long_are_refused(
    broker: Broker, client: Client, batching: bool
) -> None:
    topic = broker.topic()
    broker.cluster.override(topic, delayed_delivery_max_delay_in_millis=60_000)
    producer = client.create_producer(topic, batching_enabled=batching)
    too_late = now_ms() + 3_600_000
    producer.send(b"in time", deliver_after=timedelta(seconds=60))
    for refused in (
        lambda: producer.send(b"x", deliver_after=LONG),
        lambda: producer.send(b"x", deliver_at=too_late),
        lambda: producer.send_async(b"x", None, deliver_at=too_late),
        lambda: producer.send_many([b"x", b"y"], deliver_at=[None, too_late]),
        lambda: producer.send_arrow(pa.table({"value": [b"x"], "deliver_at": [too_late]})),
    ):
        with pytest.raises(NotAllowedError, match="max_delivery_delay_in_millis"):
            refused()
    producer.send(b"at once")
    assert broker.stored(topic) == [b"in time", b"at once"]


def test_a_limit_of_delays_reaches_producers_that_are_open(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send(b"0", deliver_after=LONG)
    broker.cluster.override(topic, delayed_delivery_max_delay_in_millis=60_000)
    with pytest.raises(NotAllowedError):
        producer.send(b"1", deliver_after=LONG)
    broker.cluster.override(topic)
    wait_until(lambda: is_sent(producer, b"2"), what="the limit is lifted")
    assert broker.stored(topic) == [b"0", b"2"]


def is_sent(producer: Producer, value: bytes) -> bool:
    try:
        producer.send(value, deliver_after=LONG)
    except NotAllowedError:
        return False
    return True


def test_deleting_the_subscription_or_the_topic_ends_its_tracker(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    client.create_producer(topic).send(b"x", deliver_after=LONG)
    wait_until(lambda: delayed(broker, topic) == 1, what="it waits")
    consumer.unsubscribe()
    assert broker.cluster.tracker_names == []
    client.subscribe(topic, "other", ConsumerType.Shared)
    client.create_producer(topic).send(b"y", deliver_after=LONG)
    wait_until(lambda: delayed(broker, topic, "other") == 1, what="it waits for another subscription")
    broker.cluster.delete_topic(topic)
    assert broker.cluster.tracker_names == []


def test_a_topic_without_delayed_messages_has_no_tracker(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    client.create_producer(topic).send(b"x")
    assert values(consumer, 1) == [b"x"]
    assert broker.cluster.tracker_names == []


def test_due_messages_come_as_soon_as_a_small_queue_has_room(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=1)
    producer = client.create_producer(topic)
    producer.send_many(numbers(0, 20), deliver_at=now_ms() + 500)
    assert sorted(values(consumer, 20, acknowledge=True)) == numbers(0, 20)


def test_what_is_due_and_finds_no_room_is_delayed_no_more(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=2)
    producer = client.create_producer(topic)
    for value in numbers(0, 30):
        producer.send_async(value, None, deliver_after=SHORT)
    producer.send(b"much later", deliver_after=LONG)
    wait_until(lambda: delayed(broker, topic) == 1, what="one waits, and thirty are due")
    assert sorted(values(consumer, 30)) == numbers(0, 30)


def test_skipping_everything_skips_what_waits(
    broker: Broker, client: Client, assert_quiet: Quiet, patience: int
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    client.create_producer(topic).send(b"x", deliver_after=timedelta(seconds=1) * patience)
    wait_until(lambda: delayed(broker, topic) == 1, what="it waits")
    broker.admin().topics.skip_all(topic, "s")
    wait_until(lambda: delayed(broker, topic) == 0, what="it does not wait any more")
    assert_quiet(consumer)
