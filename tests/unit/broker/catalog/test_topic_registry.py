from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.config import Settings
from pulsar_ray.errors import NotAllowedError, TopicNotFound
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.actor_names import dispatcher_name

TOPIC = TopicName.parse("t")


@pytest.fixture
def topics(tmp_path: Path) -> TopicRegistry:
    return open_on(tmp_path)


def running_stores() -> tuple[str, ...]:
    return ("a", "b", "c")


def open_on(directory: Path) -> TopicRegistry:
    path = directory / "meta.sqlite"
    catalog = Catalog(path) if path.exists() else Catalog.make(path, "cluster", "first")[0]
    return TopicRegistry(catalog, Settings(data_dir=str(directory)))


def indexes(topics: TopicRegistry) -> list[int]:
    rows = topics.resolve(TOPIC, create=False, stores=running_stores)
    return [row.partition_index for row in rows]


def test_what_is_prepared_is_known_to_nobody_until_it_is_added(topics: TopicRegistry, tmp_path: Path) -> None:
    topics.create(TOPIC, 2, running_stores)
    prepared = topics.prepare_partitions(TOPIC, 5, running_stores)
    assert [row.partition_index for row in prepared] == [2, 3, 4]
    assert {row.store_id for row in prepared} == {"a", "b", "c"}, "the emptiest stores take turns"
    assert indexes(topics) == [0, 1]
    assert topics.topics("public/default") == [(TOPIC.full, 2)]
    topics.catalog.close()
    topics = open_on(tmp_path)
    assert topics.prepare_partitions(TOPIC, 5, running_stores) == prepared
    topics.add_partitions(TOPIC, 5)
    topics.catalog.close()
    assert indexes(open_on(tmp_path)) == [0, 1, 2, 3, 4]


def test_steps_that_come_twice_or_late_change_nothing(topics: TopicRegistry) -> None:
    topics.create(TOPIC, 1, running_stores)
    small = topics.prepare_partitions(TOPIC, 2, running_stores)
    large = topics.prepare_partitions(TOPIC, 4, running_stores)
    assert large[:1] == small
    topics.add_partitions(TOPIC, 4)
    topics.add_partitions(TOPIC, 2)
    topics.add_partitions(TOPIC, 4)
    assert indexes(topics) == [0, 1, 2, 3]
    assert len({row.number for row in topics.rows_of(TOPIC)}) == 4


def test_a_topic_that_is_deleted_while_it_grows_is_gone_with_all_of_it(topics: TopicRegistry) -> None:
    topics.create(TOPIC, 1, running_stores)
    topics.prepare_partitions(TOPIC, 3, running_stores)
    assert len(topics.rows_of(TOPIC)) == 3
    topics.forget(TOPIC)
    with pytest.raises(TopicNotFound):
        topics.add_partitions(TOPIC, 3)
    topics.create(TOPIC, 1, running_stores)
    with pytest.raises(TopicNotFound, match="deleted while it grew"):
        topics.add_partitions(TOPIC, 3)
    assert indexes(topics) == [0]


def test_a_name_that_is_taken_leaves_the_topic_as_it_was(topics: TopicRegistry) -> None:
    topics.resolve(TOPIC.partition(2), create=True, stores=running_stores)
    topics.create(TOPIC, 1, running_stores)
    for attempt in range(2):
        with pytest.raises(NotAllowedError, match="cannot have partition 2"):
            topics.prepare_partitions(TOPIC, 4, running_stores)
        assert len(topics.rows_of(TOPIC)) == 1, attempt
    topics.forget(TOPIC)
    with pytest.raises(NotAllowedError, match="cannot have partition 2"):
        topics.create(TOPIC, 3, running_stores)


def test_only_partitioned_topics_grow(topics: TopicRegistry) -> None:
    plain, passing = TopicName.parse("plain"), TopicName.parse("non-persistent://public/default/passing")
    for name in (plain, passing):
        topics.create(name, 0, running_stores)
        with pytest.raises(NotAllowedError, match="not partitioned"):
            topics.prepare_partitions(name, 2, running_stores)
    with pytest.raises(TopicNotFound):
        topics.prepare_partitions(TOPIC, 2, running_stores)


def test_a_catalog_that_is_rebuilt_knows_what_was_prepared_and_not_added(
    topics: TopicRegistry, tmp_path: Path
) -> None:
    topics.create(TOPIC, 2, running_stores)
    old = topics.rows_of(TOPIC)
    to_come = topics.prepare_partitions(TOPIC, 4, running_stores)
    lost = TopicName.parse("lost")
    topics.create(lost, 1, running_stores)
    orphan = topics.prepare_partitions(lost, 2, running_stores)
    topics.catalog.close()
    (tmp_path / "meta.sqlite").unlink()
    topics = open_on(tmp_path)
    # What is to come may be read before the rest; of the topic `lost` nothing else is left.
    found = [replace(row, has_ledger=True) for row in (*orphan, *reversed(to_come), *old)]
    topics.catalog.restore(found, {row.number for row in (*orphan, *to_come)})
    assert topics.topics("public/default") == [(TOPIC.full, 2)]
    assert indexes(topics) == [0, 1]
    assert [row.number for row in topics.prepare_partitions(TOPIC, 5, running_stores)] == [
        *(row.number for row in to_come),
        orphan[0].number + 1,
    ]
    topics.add_partitions(TOPIC, 5)
    assert indexes(topics) == [0, 1, 2, 3, 4]
    topics.create(lost, 2, running_stores)
    assert [row.partition_index for row in topics.rows_of(lost)] == [0, 1]


PASSING = TopicName.parse("non-persistent://public/default/np")
DISPATCHER = dispatcher_name(PASSING.full, "s", durable=True)


def may_create(topics: TopicRegistry, *, asked: bool = False, was_open: bool = False) -> bool:
    row = topics.partition(PASSING)
    assert row is not None
    return topics.may_create_subscription(row, DISPATCHER, asked=asked, was_open=was_open)


@pytest.mark.parametrize("name", ["np", "np-partition-0"])
def test_a_lost_topic_that_no_file_knows_begins_anew_unless_it_was_deleted(
    topics: TopicRegistry, name: str
) -> None:
    topic = TopicName.parse(f"non-persistent://public/default/{name}")
    topics.begin_again(topic)
    assert topics.is_known(topic)
    topics.forget(topic)
    topics.begin_again(topic)
    assert not topics.is_known(topic)
    topics.resolve(topic, create=True, stores=running_stores)
    topics.unstored.discard(topic.full)
    topics.begin_again(topic)
    assert topics.is_known(topic), "it was made anew since, and lost again"


def test_what_files_know_or_the_broker_refuses_does_not_begin_anew(
    topics: TopicRegistry, tmp_path: Path
) -> None:
    partitioned = TopicName.parse("non-persistent://public/default/parts")
    topics.create(partitioned, 2, running_stores)
    for name in (TOPIC, partitioned, TopicName.parse(f"{partitioned.full}-partition-7")):
        topics.begin_again(name)
    assert topics.topics("public/default") == [(partitioned.full, 2)]
    off = TopicRegistry(topics.catalog, Settings(data_dir=str(tmp_path), enable_non_persistent_topics=False))
    with pytest.raises(NotAllowedError, match="enable_non_persistent_topics"):
        off.begin_again(PASSING)
    assert not off.is_known(PASSING)


def test_a_lost_subscription_begins_anew_for_its_consumers_unless_it_was_deleted(
    topics: TopicRegistry,
) -> None:
    topics.begin_again(PASSING)
    assert not may_create(topics), "an administrator's look makes none"
    assert may_create(topics, was_open=True)
    topics.subscription_ended(PASSING, DISPATCHER)
    assert not may_create(topics, was_open=True)
    assert may_create(topics, asked=True)
    assert may_create(topics, was_open=True), "somebody has subscribed anew"


def test_subscriptions_of_stored_topics_are_not_remembered(topics: TopicRegistry) -> None:
    topics.create(TOPIC, 0, running_stores)
    row = topics.partition(TOPIC)
    assert row is not None
    name = dispatcher_name(TOPIC.full, "s", durable=True)
    topics.subscription_ended(TOPIC, name)
    assert name not in topics.ended
    assert not topics.may_create_subscription(row, name, asked=False, was_open=True)
    assert topics.may_create_subscription(row, name, asked=True, was_open=False)
