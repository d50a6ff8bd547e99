"""Topics that no file knows."""

from __future__ import annotations

import pytest

from pulsar_ray.broker.catalog.unstored_topics import EndedNames, UnstoredTopics, check_enabled
from pulsar_ray.config import Settings
from pulsar_ray.errors import NotAllowedError
from pulsar_ray.model.topic_name import TopicName

TOPIC = "non-persistent://public/default/t"


def test_they_are_known_until_they_are_deleted() -> None:
    topics = UnstoredTopics()
    assert topics.find(TOPIC) == []
    (row,) = topics.add(TOPIC)
    assert (row.name, row.partition_index) == (TOPIC, -1)
    assert topics.find(TOPIC) == [row]
    assert topics.names("public/default") == [TOPIC]
    assert topics.names("public/default2") == []
    topics.discard(TOPIC)
    topics.discard(TOPIC)
    assert topics.find(TOPIC) == []


def test_the_names_that_ended_last_are_remembered() -> None:
    ended = EndedNames(limit=2)
    for name in ("a", "b", "a", "c"):
        ended.add(name)
    assert [name in ended for name in ("a", "b", "c")] == [True, False, True]
    ended.discard("a")
    ended.discard("never there")
    ended.add("d")
    assert [name in ended for name in ("a", "c", "d")] == [False, True, True]


def test_the_switch_refuses_them_alone() -> None:
    off = Settings(enable_non_persistent_topics=False)
    check_enabled(TopicName.parse("t"), off)
    check_enabled(TopicName.parse(TOPIC), Settings())
    with pytest.raises(NotAllowedError, match="enable_non_persistent_topics"):
        check_enabled(TopicName.parse(TOPIC), off)
