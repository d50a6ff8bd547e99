from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.errors import InvalidTopicName
from pulsar_ray.model.topic_name import TopicName, nearest_topic


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("my-topic", "persistent://public/default/my-topic"),
        ("a/b/c", "persistent://a/b/c"),
        ("persistent://public/default/my-topic", "persistent://public/default/my-topic"),
        ("non-persistent://t/n/x", "non-persistent://t/n/x"),
        ("persistent://Public/default/x", "persistent://Public/default/x"),
        ("persistent://public/default/a/b", "persistent://public/default/a/b"),
        *(
            (local, f"persistent://public/default/{local}")
            for local in ("a b", "täst", "a?b", "a*b", "a%2Fb", ".")
        ),
        *((local, f"persistent://public/default/{local}") for local in ("a:b", "a\nb", "x" * 300)),
        *((local, f"persistent://public/default/{local}") for local in ("x-partition-5", "__change_events")),
    ],
)
def test_accepted(name: str, full: str) -> None:
    topic = TopicName.parse(name)
    assert topic.full == str(topic) == full
    assert TopicName.parse(full) == topic
    assert pickle.loads(pickle.dumps(topic)) == topic


@pytest.mark.parametrize(
    "name",
    [
        "",
        "  ",
        "\t\n",
        "a/b",
        "a/b/c/d",
        "persistent://a/b",
        "persistent://public/default/",
        "persistent://public/default/ ",
        "persistent:///default/x",
        "persistent://public//x",
        "persistent://pub lic/default/x",
        "persistent://public/dé/x",
        "http://public/default/x",
        "Persistent://public/default/x",
        "://public/default/x",
        "persistent:/public/default/x",
        "-partition-1",
        " -partition-1",
        "a\0b",
        "a\ud800b",
        "x" * 2049,
        "é" * 1025,
    ],
)
def test_refused_with_value_and_remedy(name: str) -> None:
    with pytest.raises(InvalidTopicName) as raised:
        TopicName.parse(name)
    assert repr(name[:40])[:-1] in str(raised.value)
    assert "tenant/namespace/topic" in str(raised.value)


@pytest.mark.parametrize("name", [None, 5, b"topic", ["a"]])
def test_something_else_than_text_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match=r"Argument topic=.* must be a str"):
        TopicName.parse(name)


@pytest.mark.parametrize(
    ("name", "index", "whole"),
    [
        ("x-partition-0", 0, "persistent://public/default/x"),
        ("x-partition-12", 12, "persistent://public/default/x"),
        ("x-partition-1-partition-2", 2, "persistent://public/default/x-partition-1"),
        ("a\nb-partition-3", 3, "persistent://public/default/a\nb"),
        ("x", -1, "persistent://public/default/x"),
        ("x-partition-01", -1, "persistent://public/default/x-partition-01"),
        ("x-partition--1", -1, "persistent://public/default/x-partition--1"),
        ("x-partition-", -1, "persistent://public/default/x-partition-"),
        ("x-partition-1\n", -1, "persistent://public/default/x-partition-1\n"),
        ("x-partition-\u0661", -1, "persistent://public/default/x-partition-\u0661"),
        ("x-partition-2147483647", 2147483647, "persistent://public/default/x"),
        ("x-partition-2147483648", -1, "persistent://public/default/x-partition-2147483648"),
    ],
)
def test_partitions_are_recognised(name: str, index: int, whole: str) -> None:
    topic = TopicName.parse(name)
    assert topic.partition_index == index
    assert topic.is_partition == (index >= 0)
    assert topic.partitioned_full == whole


def test_partition_of_a_topic() -> None:
    topic = TopicName.parse("non-persistent://t/n/x")
    partition = topic.partition(3)
    assert partition.full == "non-persistent://t/n/x-partition-3"
    assert partition == TopicName.parse(partition.full)
    assert not partition.is_persistent
    assert partition.namespace_name == "t/n"
    for bad_base, bad_index in ((partition, 0), (topic, -1)):
        with pytest.raises(ValueError, match="has no partition"):
            bad_base.partition(bad_index)


@given(st.text())
def test_any_text_is_a_name_that_parses_back_or_is_refused(name: str) -> None:
    try:
        topic = TopicName.parse(name)
    except InvalidTopicName:
        return
    assert TopicName.parse(topic.full) == topic
    assert topic.full.encode().decode() == topic.full


@pytest.mark.parametrize(
    ("missing", "nearest"),
    [
        ("oders", "persistent://public/default/orders"),
        ("orders-partition-3", "persistent://public/default/orders"),
        ("trips", ""),
    ],
)
def test_a_missing_topic_has_a_nearest_one_among_few_and_many(missing: str, nearest: str) -> None:
    few = ["persistent://public/default/bills", "persistent://public/default/orders"]
    assert nearest_topic(TopicName.parse(missing), few) == nearest
    other_domain = TopicName.parse("non-persistent://public/default/orders")
    assert nearest_topic(other_domain, few) == "persistent://public/default/orders"
    many = sorted([*few, *(f"persistent://public/default/{number:06}" for number in range(5_000))])
    assert nearest_topic(TopicName.parse(missing), many) == nearest
