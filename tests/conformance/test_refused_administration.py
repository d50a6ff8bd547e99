"""Calls that concern several partitions or topics: one that is refused by any of them has changed none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.broker.subscription.log.partition_link import PartitionLink
from pulsar_ray.client.client import Client
from pulsar_ray.client.endpoint.wake_poll import POLL_S
from pulsar_ray.errors import (
    BrokerMetadataError,
    ConsumerBusy,
    NotAllowedError,
    PulsarException,
    SessionLost,
    WrongNode,
)
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, Broker, numbers, values
from tests.conformance.event_loop import on_a_loop
from tests.conformance.test_parked import park


def backlogs(broker: Broker, topic: str, subscription: str) -> list[int]:
    """The backlog of each partition; -1 where the subscription is not."""
    topics = broker.admin().topics
    stats = [topics.stats(f"{topic}-partition-{index}") for index in range(2)]
    return [each["subscriptions"].get(subscription, {"msgBacklog": -1})["msgBacklog"] for each in stats]


def publish_to_both(client: Client, topic: str, count: int) -> None:
    for index in range(2):
        producer = client.create_producer(f"{topic}-partition-{index}")
        for value in numbers(0, count):
            producer.send(value)
        producer.close()


@pytest.mark.parametrize("is_asleep", [False, True])
def test_a_refused_unsubscribe_leaves_the_subscription_on_every_partition(
    broker: Broker, client: Client, is_asleep: bool
) -> None:
    topic, topics = broker.topic(partitions=2), broker.admin().topics
    topics.create_subscription(topic, "s")
    publish_to_both(client, topic, 10)
    part = f"{topic}-partition-1"
    idle = client.subscribe(part, "s", ConsumerType.Shared, consumer_name="idler")
    assert values(idle, 10, acknowledge=True) == numbers(0, 10)
    wait_until(lambda: backlogs(broker, topic, "s") == [10, 0], what="acknowledgments")
    if is_asleep:
        park(broker, part, idle)
    with pytest.raises(NotAllowedError, match=rf"'s' of {part} .*\(idler\).*force"):
        topics.unsubscribe(topic, "s")
    assert backlogs(broker, topic, "s") == [10, 0]
    idle.close()
    topics.unsubscribe(topic, "s")
    assert backlogs(broker, topic, "s") == [-1, -1]


@pytest.mark.parametrize("is_asleep", [False, True])
def test_a_refused_unsubscribe_of_a_consumer_leaves_the_subscription_on_every_partition(
    broker: Broker, client: Client, is_asleep: bool
) -> None:
    topic = broker.topic(partitions=2)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    part = f"{topic}-partition-1"
    other = broker.client().subscribe(part, "s", ConsumerType.Shared, consumer_name="idler")
    if is_asleep:
        park(broker, [f"{topic}-partition-0", part], consumer, other)
    with pytest.raises(BrokerMetadataError, match=rf"idler.*'s' of {part}"):
        consumer.unsubscribe()
    assert backlogs(broker, topic, "s") == [0, 0]
    other.close()
    consumer.unsubscribe()
    assert backlogs(broker, topic, "s") == [-1, -1]


def test_a_subscription_is_created_on_all_partitions_or_on_none(broker: Broker, client: Client) -> None:
    topic, topics = broker.topic(partitions=2), broker.admin().topics
    topics.create_subscription(f"{topic}-partition-1", "only here")
    topics.policies.set(topic, "max_subscriptions_per_topic", 1)
    with pytest.raises(NotAllowedError, match=rf"{topic}-partition-1 has 1 subscriptions"):
        topics.create_subscription(topic, "s")
    assert backlogs(broker, topic, "s") == [-1, -1]
    topics.policies.set(topic, "max_subscriptions_per_topic", 2)
    topics.create_subscription(topic, "s")
    assert backlogs(broker, topic, "s") == [0, 0]


CHANGES: dict[str, Callable[[Any, str], Any]] = {
    "skip_all": lambda topics, topic: topics.skip_all(topic, "s"),
    "expire_messages": lambda topics, topic: topics.expire_messages(topic, "s", 0),
    "expire_all": lambda topics, topic: topics.expire_messages_all_subscriptions(topic, 0),
    "reset_cursor": lambda topics, topic: topics.reset_cursor(topic, "s", "latest"),
    "update_properties": lambda topics, topic: topics.update_subscription_properties(topic, "s", {"a": "b"}),
    "create_subscription": lambda topics, topic: topics.create_subscription(topic, "t"),
    "unsubscribe": lambda topics, topic: topics.unsubscribe(topic, "s"),
    "truncate": lambda topics, topic: topics.truncate(topic),
    "terminate": lambda topics, topic: topics.terminate_partitioned_topic(topic),
    "delete": lambda topics, topic: topics.delete(topic),
    "forget_producers": lambda topics, topic: topics.forget_producers(topic, "mine"),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_what_cannot_reach_every_partition_changes_none(broker: Broker, client: Client, change: str) -> None:
    topic, topics = broker.topic(partitions=2), broker.admin().topics
    topics.policies.set(topic, "deduplication", True)
    topics.create_subscription(topic, "s")
    for index in range(2):
        producer = client.create_producer(f"{topic}-partition-{index}", producer_name=f"mine-{index}")
        for value in numbers(0, 5):
            producer.send(value)
        producer.close()
    part, away = f"{topic}-partition-0", f"{topic}-partition-1"
    broker.cluster.take_away(away)
    known = topics.producer_sequence_ids(part, "mine")
    with pytest.raises(WrongNode, match=re.escape(away)):
        CHANGES[change](topics, topic)
    assert topics.producer_sequence_ids(part, "mine") == known
    stats = topics.stats(part)
    assert stats["subscriptions"]["s"]["msgBacklog"] == 5
    assert stats["subscriptions"]["s"]["subscriptionProperties"] == {}
    assert list(stats["subscriptions"]) == ["s"]
    producer = client.create_producer(part)
    producer.send(b"not terminated")
    producer.close()
    broker.cluster.bring_back(away)
    CHANGES[change](topics, topic)


def subscribe(broker: Broker, selected: Any) -> None:
    broker.client().subscribe(selected, "s").close()


async def subscribe_on_a_loop(broker: Broker, selected: Any, **options: Any) -> None:
    async with broker.asyncio_client() as client:
        await client.subscribe(selected, "s", **options)


SUBSCRIBES: dict[tuple[str, str], Callable[[Broker, str, list[str]], None]] = {
    ("list", "sync"): lambda broker, whole, several: subscribe(broker, several),
    ("pattern", "sync"): lambda broker, whole, several: subscribe(broker, re.compile(whole)),
    ("partitions", "sync"): lambda broker, whole, several: subscribe(broker, whole),
    ("list", "asyncio"): lambda broker, whole, several: on_a_loop(subscribe_on_a_loop)(broker, several),
    ("pattern", "asyncio"): lambda broker, whole, several: on_a_loop(subscribe_on_a_loop)(
        broker, whole, is_pattern_topic=True
    ),
    ("partitions", "asyncio"): lambda broker, whole, several: on_a_loop(subscribe_on_a_loop)(broker, whole),
}
"""Subscribe to the partitions of a topic, to several topics, or to those that match."""


@pytest.mark.parametrize("form", ["sync", "asyncio"])
@pytest.mark.parametrize("kind", ["list", "pattern", "partitions"])
def test_a_refused_subscribe_leaves_no_subscription_behind(
    broker: Broker, client: Client, kind: str, form: str
) -> None:
    topics = broker.admin().topics
    if kind == "partitions":
        whole = broker.topic(partitions=2)
        first, second = (f"{whole}-partition-{index}" for index in range(2))
    else:
        first, second = sorted(broker.topic() for _ in range(2))
        namespace = first.rpartition("/")[0]
        whole = f"{namespace}/({'|'.join(each.rpartition('/')[2] for each in (first, second))})"
    third = broker.topic()
    holder = client.subscribe(second, "s", consumer_name="holder")
    topics.create_subscription(third, "s")

    with pytest.raises(ConsumerBusy):
        SUBSCRIBES[kind, form](broker, whole, [first, third, second])
    assert topics.subscriptions(first) == []
    # What was there before stays.
    assert topics.subscriptions(second) == topics.subscriptions(third) == ["s"]
    holder.close()
    SUBSCRIBES[kind, form](broker, whole, [first, third, second])
    assert topics.subscriptions(first) == ["s"]


@pytest.fixture
def lost_registrations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The subscriptions of which dispatchers have not heard, the first time, that they are registered."""
    lost: list[str] = []
    call_once = PartitionLink.call_once

    async def lose_first(link: PartitionLink, method: str, arguments: dict[str, Any]) -> Any:
        answer = await call_once(link, method, arguments)
        if method == "register_subscription" and (where := f"{link._topic} {arguments['name']}") not in lost:
            lost.append(where)
            raise SessionLost("the answer was lost")
        return answer

    monkeypatch.setattr(PartitionLink, "call_once", lose_first)
    return lost


def test_a_refused_subscribe_undoes_a_registration_whose_answer_was_lost(
    broker: Broker, client: Client, lost_registrations: list[str]
) -> None:
    first, second = sorted(broker.topic() for _ in range(2))
    holder = client.subscribe(second, "s")
    with pytest.raises(ConsumerBusy):
        subscribe(broker, [first, second])
    assert f"{first} s" in lost_registrations
    topics = broker.admin().topics
    assert topics.subscriptions(first) == []
    # What an administrator has made stays, whoever registers it then.
    topics.create_subscription(first, "s")
    lost_registrations.clear()
    with pytest.raises(ConsumerBusy):
        subscribe(broker, [first, second])
    assert f"{first} s" in lost_registrations
    assert topics.subscriptions(first) == ["s"]
    holder.close()


def test_nothing_is_undone_where_the_dispatcher_could_not_begin(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, call = broker.topic(), broker.cluster.call
    asked: list[Any] = []
    client.subscribe(topic, "s")
    broker.cluster.override(topic, max_subscriptions_per_topic=1)

    def noted(address: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        asked.extend(arguments[:1])
        return call(address, method, *arguments, timeout_s=timeout_s)

    monkeypatch.setattr(broker.cluster, "call", noted)
    with pytest.raises(NotAllowedError, match="max_subscriptions_per_topic"):
        client.subscribe(topic, "another")
    assert asked.count("undo") <= 1, "who is refused does not wait for an actor that is gone"


def test_a_refused_subscribe_keeps_a_new_subscription_that_others_use(broker: Broker, client: Client) -> None:
    """Another consumer that came just then has the subscription, which both had made."""
    first, second = sorted(broker.topic() for _ in range(2))
    client.subscribe(second, "s")
    other = broker.client().subscribe(first, "s", ConsumerType.Shared)
    with pytest.raises(ConsumerBusy):
        client.subscribe([first, second], "s", ConsumerType.Shared)
    client.create_producer(first).send(b"kept")
    assert values(other, 1) == [b"kept"]


def test_a_consumer_of_a_type_that_its_topic_refuses_leaves_no_subscription(
    broker: Broker, client: Client
) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    topics.policies.set(topic, "subscription_types_enabled", "Exclusive")
    with pytest.raises(NotAllowedError, match="subscription_types_enabled"):
        client.subscribe(topic, "s", ConsumerType.Shared, initial_position=EARLIEST)
    assert topics.subscriptions(topic) == []


@pytest.mark.parametrize("is_asleep", [False, True])
def test_a_refused_delete_names_who_is_connected_and_where(
    broker: Broker, client: Client, is_asleep: bool
) -> None:
    topic, topics = broker.topic(partitions=2), broker.admin().topics
    part = f"{topic}-partition-1"
    producer = None if is_asleep else client.create_producer(part, producer_name="writer")
    consumer = client.subscribe(part, "s", consumer_name="idler")
    if is_asleep:
        park(broker, part, consumer)
        wait_until(lambda: broker.cluster.waiting_clients(part), what="a client that waits")
    who = "a consumer of 's'" if is_asleep else "consumer 'idler' of 's'"
    with pytest.raises(NotAllowedError, match=rf"{who} on {part}.*force") as refused:
        topics.delete(topic)
    if producer is not None:
        assert f"producer 'writer' on {part}" in str(refused.value)
        producer.close()
    assert backlogs(broker, topic, "s") == [-1, 0]
    consumer.close()
    wait_until(lambda: _is_deleted(topics, topic), what="nobody uses it")


@pytest.mark.parametrize("kind", ["consumer", "reader"])
def test_a_parked_handle_that_is_closed_keeps_its_topic_no_longer(
    broker: Broker, client: Client, kind: str
) -> None:
    topic, topics = broker.topic(), broker.admin().topics
    reader = client.create_reader(topic, MessageId.earliest) if kind == "reader" else None
    consumer = reader._consumer if reader is not None else client.subscribe(topic, "s")
    park(broker, topic, consumer)
    wait_until(lambda: broker.cluster.waiting_clients(topic), what="a client that waits")
    (reader or consumer).close()
    # Sooner than the client's call at the controller would end by itself.
    wait_until(lambda: _is_deleted(topics, topic), POLL_S / 2, "nobody uses it")


def _is_deleted(topics: Any, topic: str) -> bool:
    try:
        topics.delete(topic)
    except PulsarException:
        return False
    return True
