"""Failover over every carrier: who is active, and what a hand-over must not lose, reorder or hold up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.options.policies import ConsumerEventListener
from pulsar_ray.errors import ConsumerBusy
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, receive, values

Quiet = Callable[[Consumer], None]
FAILOVER = ConsumerType.Failover


def failover(client: Client, topic: str, name: str, **arguments: Any) -> Consumer:
    settings = {"initial_position": EARLIEST, "ack_receipt_enabled": True, **arguments}
    return client.subscribe(topic, "s", FAILOVER, consumer_name=name, **settings)


def take(consumer: Consumer, count: int) -> list[bytes]:
    """The values of the next messages, acknowledged durably."""
    got = receive(consumer, count)
    consumer.acknowledge_cumulative(got[-1])
    return [message.data() for message in got]


class Watch(ConsumerEventListener):
    """What a listener was told, in order, and in which thread."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.threads: set[str] = set()

    def became_active(self, consumer: Consumer, partition_id: int) -> None:
        self._note("active", consumer, partition_id)

    def became_inactive(self, consumer: Consumer, partition_id: int) -> None:
        self._note("inactive", consumer, partition_id)

    def _note(self, what: str, consumer: Consumer, partition_id: int) -> None:
        assert isinstance(consumer, Consumer)
        self.threads.add(threading.current_thread().name)
        self.told.append((what, partition_id))


def active_of(watches: dict[str, Watch], partition: int) -> list[str]:
    """Who thinks to be the active consumer of a partition."""
    found = []
    for name, watch in watches.items():
        told = [what for what, index in watch.told if index == partition]
        if told and told[-1] == "active":
            found.append(name)
    return found


def test_the_first_that_subscribed_is_active_and_the_next_takes_over_when_it_closes(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send_many(numbers(0, 10))
    first = failover(client, topic, "z")
    second = failover(client, topic, "a")
    third = failover(broker.client(), topic, "b")
    got = receive(first, 6)
    assert [message.data() for message in got] == numbers(0, 6)
    first.acknowledge(got[0])
    first.acknowledge(got[2])
    assert_quiet(second)
    first.close()
    assert_quiet(third)
    again = receive(second, 8)
    assert [message.data() for message in again] == [numbers(0, 10)[i] for i in (1, *range(3, 10))]
    assert {message.redelivery_count() for message in again} == {0}
    second.acknowledge_cumulative(again[-1])
    producer.send(b"more")
    assert values(second, 1) == [b"more"]
    second.close()
    assert values(third, 1) == [b"more"]


def test_the_next_takes_over_when_the_active_ones_session_is_lost(
    make_broker: Callable[..., Broker],
) -> None:
    # Over a lane its grace ends; over the tunnel, where nothing tells that it is gone, its lease.
    broker = make_broker(session_lease_seconds=5)
    client, topic = broker.client(), broker.topic()
    client.create_producer(topic).send_many(numbers(0, 3000))
    vanishing = broker.client()
    first = failover(vanishing, topic, "one")
    second = failover(client, topic, "two")
    first.acknowledge_cumulative(receive(first, 700)[499])
    vanishing.shutdown()
    assert values(second, 2500) == numbers(500, 3000)


def test_a_better_priority_level_takes_over_at_once_and_gives_back_when_it_leaves(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send_many(numbers(0, 2000))
    watch = Watch()
    low = failover(client, topic, "low", priority_level=5, consumer_event_listener=watch)
    assert take(low, 100) == numbers(0, 100)
    held = receive(low, 10)
    high = failover(broker.client(), topic, "high", priority_level=1)
    assert values(high, 1500) == numbers(100, 1600)
    wait_until(lambda: ("inactive", -1) in watch.told)  # what waits in the queue of "low" goes with the news
    assert_quiet(low)
    low.acknowledge(held)  # late, but true
    high.close()
    assert values(low, 1890) == numbers(110, 2000)
    producer.send(b"end")
    assert values(low, 1) == [b"end"]


def test_handing_over_again_and_again_under_load_loses_nothing_and_keeps_the_order(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    low = failover(client, topic, "low", priority_level=1, receiver_queue_size=100)
    got: list[bytes] = []
    for turn in range(6):
        producer.send_many(numbers(turn * 1000, turn * 1000 + 1000))
        got += take(low, 200)
        high = failover(client, topic, f"high{turn}", receiver_queue_size=50)
        got += take(high, 300)
        high.close()
    got += take(low, 3000)
    assert got == numbers(0, 6000)


def test_partitions_go_to_consumers_by_name_and_again_at_each_coming_and_going(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic(9)
    watches: dict[str, Watch] = {}
    consumers: dict[str, Consumer] = {}

    def join(name: str) -> None:
        watches[name] = Watch()
        consumers[name] = failover(client, topic, name, consumer_event_listener=watches[name])

    def agrees(names: str) -> bool:
        return all(active_of(watches, i) == [names[i % len(names)]] for i in range(9))

    for name, active in (("c", "c"), ("a", "ac"), ("b", "abc")):
        join(name)
        wait_until(lambda active=active: agrees(active))  # type: ignore[misc]
    consumers.pop("a").close()
    watches.pop("a")
    wait_until(lambda: agrees("bc"))
    assert all(len(watch.threads) == 1 for watch in watches.values())


def test_two_partitions_and_four_consumers_of_which_two_leave(broker: Broker, client: Client) -> None:
    topic = broker.topic(2)
    producer = client.create_producer(topic)
    watches = {name: Watch() for name in "abcd"}
    consumers = {
        name: failover(client, topic, name, consumer_event_listener=watch) for name, watch in watches.items()
    }
    wait_until(lambda: [active_of(watches, i) for i in (0, 1)] == [["a"], ["b"]])
    wait_until(lambda: all(len({index for _, index in w.told}) == 2 for w in watches.values()))
    for name in "ab":
        consumers[name].close()
        del watches[name]
    wait_until(lambda: [active_of(watches, i) for i in (0, 1)] == [["c"], ["d"]])
    for number in range(4):
        producer.send(b"%d" % number)
    got = {name: sorted(values(consumers[name], 2)) for name in "cd"}
    assert sorted(got["c"] + got["d"]) == [b"0", b"1", b"2", b"3"]


def test_listeners_hear_once_after_subscribing_and_then_of_changes(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    first, second = Watch(), Watch()
    one = failover(client, topic, "one", consumer_event_listener=first)
    wait_until(lambda: first.told == [("active", -1)])
    failover(client, topic, "two", consumer_event_listener=second)
    wait_until(lambda: second.told == [("inactive", -1)])
    one.close()
    wait_until(lambda: second.told == [("inactive", -1), ("active", -1)])
    assert first.told == [("active", -1)]
    alone = Watch()
    client.subscribe(topic, "exclusive", consumer_event_listener=alone)
    wait_until(lambda: alone.told == [("active", -1)])


def test_a_restarted_dispatcher_knows_the_order_of_subscribing_and_repeats_nothing(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    watches = {name: Watch() for name in "zya"}
    consumers = {
        name: failover(broker.client(), topic, name, consumer_event_listener=watch)
        for name, watch in watches.items()
    }
    producer.send_many(numbers(0, 20))
    assert values(consumers["z"], 10) == numbers(0, 10)
    for _ in range(2):
        broker.cluster.kill(f"{topic} -> s")
        producer.send(b"after")
    assert values(consumers["z"], 12) == [*numbers(10, 20), b"after", b"after"]
    assert_quiet(consumers["a"])
    assert watches["z"].told == [("active", -1)]
    assert watches["y"].told == watches["a"].told == [("inactive", -1)]
    consumers["z"].close()
    assert values(consumers["y"], 22)[-12:] == [*numbers(10, 20), b"after", b"after"]


def test_a_negative_acknowledgment_goes_back_in_order_also_with_a_full_queue(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    client.create_producer(topic).send_many(numbers(0, 300))
    active = failover(client, topic, "one", receiver_queue_size=10, negative_ack_redelivery_delay_ms=0)
    failover(client, topic, "two")
    got = receive(active, 5)
    active.negative_acknowledge(got[2])
    message = active.receive(WAIT_MS)
    while (message.data(), message.redelivery_count()) != (b"000002", 1):
        message = active.receive(WAIT_MS)
    assert values(active, 297) == numbers(3, 300)


def test_one_that_stands_by_may_ask_for_redelivery_and_seek(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    client.create_producer(topic).send_many(numbers(0, 30))
    active = failover(client, topic, "one")
    waiting = failover(client, topic, "two")
    assert values(active, 10) == numbers(0, 10)
    waiting.redeliver_unacknowledged_messages()
    assert_quiet(waiting)
    assert values(active, 20) == numbers(10, 30), "the active consumer's queue stays"
    waiting.seek(active.get_last_message_id())
    assert_quiet(active)
    active.close()
    assert_quiet(waiting)
    client.create_producer(topic).send(b"new")
    assert values(waiting, 1) == [b"new"]


def test_other_types_are_refused_while_failover_consumers_are_there(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    one = failover(client, topic, "one")
    for other in (ConsumerType.Exclusive, ConsumerType.Shared):
        with pytest.raises(ConsumerBusy):
            client.subscribe(topic, "s", other)
    one.close()
    client.subscribe(topic, "s", ConsumerType.Shared).close()
