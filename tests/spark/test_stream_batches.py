"""Batches of a stream on a broker in this process, without Ray and Spark."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path

import pytest

from pulsar_ray.data.planning.plan import Bound
from pulsar_ray.errors import DataLost, NotConnected, TopicNotFound
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray_spark.errors import QueryInUse, QueryMismatch
from pulsar_ray_spark.streaming.batch_limits import BatchLimits
from pulsar_ray_spark.streaming.query_topics import forget_query, plan_topic, subscription_of
from tests.conformance.broker import Broker
from tests.spark.streamer import NAME, Killed, Killer, Streamer, make_anew, numbered, publish_to


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data", "socket", 1)
    yield broker
    broker.close()


Publish = Callable[[str, Iterable[str]], None]


@pytest.fixture
def publish(broker: Broker) -> Publish:
    return partial(publish_to, broker.client())


def test_batches_have_all_messages_in_order_within_their_limits(broker: Broker, publish: Publish) -> None:
    topic = broker.topic()
    streamer = Streamer(broker, topic)
    streamer.limits = BatchLimits(10)
    assert streamer.stream() == 0
    publish(topic, numbered(35))
    assert streamer.stream() == 4
    assert [len(values) for values in streamer.sink.values()] == [10, 10, 10, 5]
    publish(topic, numbered(35, 37))
    assert streamer.stream("latest") == 1
    assert streamer.values() == numbered(37)
    assert list(streamer.sink) == [0, 1, 2, 3, 4]
    assert [run.rows for run in streamer.runs] == [10, 10, 10, 5, 2]
    assert streamer.backlog(topic) == 0


def test_a_batch_is_shared_among_partitions(broker: Broker, publish: Publish) -> None:
    topic = broker.topic(partitions=3)
    streamer = Streamer(broker, topic)
    streamer.limits = BatchLimits(12)
    publish(topic, numbered(120))
    assert streamer.stream() == 10
    assert Counter(streamer.values()) == Counter(numbered(120))
    assert [len(run.batch.ends) for run in streamer.runs[:3]] == [3, 3, 3]


def test_each_batch_has_the_same_rows_once_wherever_the_process_ends(
    broker: Broker, publish: Publish
) -> None:
    moment, ended = 0, True
    while ended:
        moment += 1
        topic = broker.topic(partitions=2)
        streamer = Streamer(broker, topic)
        streamer.limits = BatchLimits(25)
        publish(topic, numbered(40))
        ended = False
        for later in (numbered(40, 60), numbered(60, 70)):
            try:
                streamer.stream(killer=Killer(moment))
            except Killed:
                ended = True
            publish(topic, later)
            if ended:
                streamer.stream()
        streamer.stream()
        assert Counter(streamer.values()) == Counter(numbered(70)), moment
        assert list(streamer.sink) == list(range(len(streamer.sink)))
        broker.admin().topics.delete(plan_topic(NAME), force=True)
    assert moment > 8


def test_positions_that_cannot_be_acknowledged_are_with_the_next_batch(
    broker: Broker, publish: Publish
) -> None:
    topic = broker.topic()
    streamer = Streamer(broker, topic)
    with ExitStack() as stack:
        batches, topics = streamer.opened(stack)
        batches.begin("earliest")
        publish(topic, numbered(10))
        topics.broken = 1
        assert streamer.drain(batches) == 1
        assert streamer.backlog(topic) > 0
        publish(topic, numbered(10, 20))
        assert streamer.drain(batches) == 1
    assert streamer.backlog(topic) == 0
    assert streamer.values() == numbered(20)


def test_a_query_runs_once_at_a_time(broker: Broker, publish: Publish) -> None:
    topic = broker.topic()
    streamer = Streamer(broker, topic)
    with ExitStack() as stack:
        streamer.opened(stack)
        with pytest.raises(QueryInUse, match="query 'q' runs already, here or in"):
            streamer.stream()
    assert streamer.stream() == 0


def test_plans_do_not_expire_with_the_messages_of_their_namespace(broker: Broker) -> None:
    streamer = Streamer(broker, broker.topic())
    streamer.admin.namespaces.policies.set("public/default", "message_ttl", 60)
    streamer.stream()
    applied = streamer.admin.topics.policies.get(plan_topic(NAME), "message_ttl")
    assert applied.value == {"message_ttl": 0}


def test_a_query_that_is_forgotten_leaves_nothing_and_begins_anew(broker: Broker, publish: Publish) -> None:
    topic = broker.topic(partitions=2)
    streamer = Streamer(broker, topic)
    publish(topic, numbered(20))
    streamer.stream()
    client, admin = broker.client(), streamer.admin
    with ExitStack() as stack:
        streamer.opened(stack)
        with pytest.raises(QueryInUse):
            forget_query(client, admin, NAME)
    admin.topics.unsubscribe(f"{topic}-partition-1", subscription_of(NAME), force=True)
    for _ in range(2):
        forget_query(client, admin, NAME)
        assert admin.topics.list() == [topic]
        assert admin.topics.subscriptions(topic) == []
    streamer.sink.clear()
    assert streamer.stream() == 1
    assert Counter(streamer.sink[0]) == Counter(numbered(20))


def test_a_query_of_other_topics_is_refused(broker: Broker, publish: Publish) -> None:
    streamer = Streamer(broker, broker.topic())
    streamer.stream()
    streamer.topics = [broker.topic()]
    with pytest.raises(QueryMismatch, match=r"drop_query\('q'\)"):
        streamer.stream()


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_the_start_counts_once(broker: Broker, publish: Publish, start: Bound) -> None:
    topic = broker.topic()
    publish(topic, numbered(10))
    streamer = Streamer(broker, topic)
    streamer.stream(start)
    publish(topic, numbered(10, 20))
    streamer.stream("latest")
    assert streamer.values() == numbered(0 if start == "earliest" else 10, 20)


def test_topics_and_partitions_that_come_later_are_taken_from_their_start(
    broker: Broker, publish: Publish
) -> None:
    first = broker.topic(partitions=1)
    streamer = Streamer(broker, re.compile("persistent://public/default/(t[0-9]+|late)"))
    publish(first, numbered(10))
    streamer.stream()
    broker.admin().topics.update_partitioned_topic(first, 3)
    publish(first, numbered(10, 40))
    publish("late", numbered(40, 50))
    streamer.stream("latest")
    assert Counter(streamer.values()) == Counter(numbered(50))


def test_messages_of_a_topic_that_comes_later_are_held_before_they_are_planned(
    broker: Broker, publish: Publish
) -> None:
    streamer = Streamer(broker, re.compile("persistent://public/default/(t[0-9]+|late)"))
    publish(broker.topic(), numbered(10))
    streamer.stream()
    publish("late", numbered(10, 20))
    # Behind the acknowledgment of the start, before the plan is stored.
    with pytest.raises(Killed):
        streamer.stream(killer=Killer(2))
    assert broker.admin().topics.subscriptions("late") == [subscription_of(NAME)]


def test_a_topic_that_is_deleted_is_left_out_once_it_is_read(broker: Broker, publish: Publish) -> None:
    topics = [broker.topic(), broker.topic()]
    streamer = Streamer(broker, re.compile(r"persistent://public/default/t\d+"))
    for number, topic in enumerate(topics):
        publish(topic, numbered(number * 10, number * 10 + 10))
    streamer.stream()
    broker.admin().topics.delete(topics[0], force=True)
    publish(topics[1], numbered(20, 30))
    streamer.stream()
    assert Counter(streamer.values()) == Counter(numbered(30))


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_listed_topic_that_is_deleted_ends_a_query_unless_messages_may_be_lost(
    broker: Broker, publish: Publish, is_planned: bool
) -> None:
    """As the official source of Kafka's topics does; the error names topic, query and the way out."""
    topics, admin = [broker.topic(), broker.topic(2)], broker.admin().topics
    streamer = Streamer(broker, topics)
    for number, topic in enumerate(topics):
        publish(topic, numbered(number * 10, number * 10 + 10))
    streamer.stream()
    for number, topic in enumerate(topics):
        publish(topic, numbered(20 + number * 10, 30 + number * 10))
    if is_planned:
        with pytest.raises(Killed):
            streamer.stream(killer=Killer(2))
    admin.delete(topics[1], force=True)
    near = broker.topic()
    for _ in range(2):
        with pytest.raises(DataLost, match=f"{topics[1]}.* was deleted") as raised:
            streamer.stream()
        assert repr(subscription_of(NAME)) in raised.value.text
        assert "fail_on_data_loss=False" in raised.value.text
        assert near not in raised.value.text
    streamer.may_lose = True
    streamer.stream()
    streamer.stream()
    assert Counter(streamer.values()) == Counter(numbered(30))
    admin.create_topic(topics[1])
    admin.create_subscription(topics[1], "keep")
    publish(topics[1], numbered(40, 45))
    streamer.stream()
    assert Counter(streamer.values()) == Counter([*numbered(30), *numbered(40, 45)])


@pytest.mark.parametrize("limits", [BatchLimits(), BatchLimits(messages=4)])
@pytest.mark.parametrize("may_lose", [False, True])
def test_a_listed_topic_that_is_deleted_while_a_query_runs_to_the_ends_that_it_saw(
    broker: Broker, publish: Publish, limits: BatchLimits, may_lose: bool
) -> None:
    topics = [broker.topic(), broker.topic()]
    streamer = Streamer(broker, topics)
    streamer.limits, streamer.may_lose = limits, may_lose
    for number, topic in enumerate(topics):
        publish(topic, numbered(number * 10, number * 10 + 10))
    with ExitStack() as stack:
        batches, _ = streamer.opened(stack)
        batches.begin("earliest")
        ends = batches.ends()
        broker.admin().topics.delete(topics[1], force=True)
        with nullcontext() if may_lose else pytest.raises(DataLost, match=f"{topics[1]} was deleted"):
            while (batch := batches.plan_next(ends)) is not None:
                batches.run(batch, ends)
    assert streamer.values() == (numbered(10) if may_lose else [])


def test_a_topic_that_was_never_there_is_named(broker: Broker) -> None:
    with pytest.raises(TopicNotFound, match="nowhere"):
        Streamer(broker, "nowhere").stream()


def test_messages_that_are_trimmed_under_a_query_end_it_unless_they_may(tmp_path: Path) -> None:
    broker = Broker(
        tmp_path,
        "socket",
        1,
        retention_check_interval_in_seconds=1,
        managed_ledger_max_entries_per_ledger=10,
        managed_ledger_min_ledger_rollover_time_minutes=0,
        new_topic_retention_seconds=0,
    )
    topic = broker.topic()
    producer = broker.client().create_producer(topic)
    streamer = Streamer(broker, topic)
    producer.send(b"m0")
    streamer.stream()
    ids = [producer.send(value.encode()) for value in numbered(1, 25)]
    broker.admin().topics.skip_all(topic, subscription_of(NAME))
    wait_until(lambda: broker.first_stored(topic) == (ids[-1].ledger_id(), 0), what="the rest is trimmed")
    with pytest.raises(DataLost, match=f"{ids[0].ledger_id()}:1 to"):
        streamer.stream()
    streamer.may_lose = True
    streamer.stream()
    assert streamer.values() == [*numbered(1), *numbered(20, 25)]
    broker.close()


@pytest.mark.parametrize("is_planned", [False, True])
@pytest.mark.parametrize("is_empty", [False, True])
def test_a_topic_that_is_replaced_under_a_query_ends_it_unless_messages_may_be_lost(
    broker: Broker, publish: Publish, is_empty: bool, is_planned: bool
) -> None:
    """Its messages behind the last batch were never read, those of a planned batch included."""
    topic, topics = broker.topic(), broker.admin().topics
    streamer = Streamer(broker, topic)
    read = [] if is_empty else numbered(5)
    publish(topic, read)
    streamer.stream()
    publish(topic, numbered(5, 10))
    if is_planned:
        with pytest.raises(Killed):
            streamer.stream(killer=Killer(2))
    make_anew(topics, topic, 0)
    publish(topic, numbered(10, 15))
    for _ in range(2):
        with pytest.raises(DataLost, match=f"{topic}.*made anew since"):
            streamer.stream()
    streamer.may_lose = True
    streamer.stream()
    streamer.may_lose = False
    publish(topic, numbered(15, 20))
    streamer.stream()
    assert streamer.values() == [*read, *numbered(10, 20)]
    assert streamer.backlog(topic) == 0


@pytest.mark.parametrize("is_planned", [False, True])
@pytest.mark.parametrize(("before", "after"), [(0, 1), (0, 2), (2, 0), (3, 2)])
def test_a_topic_that_is_made_anew_with_other_partitions_ends_a_query_unless_messages_may_be_lost(
    broker: Broker, publish: Publish, before: int, after: int, is_planned: bool
) -> None:
    topic, topics = broker.topic(before), broker.admin().topics
    streamer = Streamer(broker, topic)
    publish(topic, numbered(9))
    streamer.stream()
    publish(topic, numbered(9, 30))
    if is_planned:
        with pytest.raises(Killed):
            streamer.stream(killer=Killer(2))
    make_anew(topics, topic, after)
    publish(topic, numbered(30, 40))
    for _ in range(2):
        with pytest.raises(DataLost, match=f"{topic}.* was deleted|{topic}.*made anew since"):
            streamer.stream()
    streamer.may_lose = True
    streamer.stream()
    assert Counter(streamer.values()) == Counter([*numbered(9), *numbered(30, 40)])
    forget_query(broker.client(), streamer.admin, NAME)
    assert topics.subscriptions(topic) == ["keep"]


def test_a_query_goes_on_though_former_plans_cannot_be_given_up(
    broker: Broker, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_ray_spark.rounds.plan_log._APPENDS_PER_TRIM", 1)
    topic = broker.topic()
    streamer = Streamer(broker, topic)

    def away(*_: object) -> None:
        raise NotConnected("away for a moment")

    monkeypatch.setattr(type(streamer.admin.topics), "reset_cursor", away)
    publish(topic, numbered(10))
    assert streamer.stream() == 1
