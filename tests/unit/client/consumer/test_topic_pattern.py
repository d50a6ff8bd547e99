"""Whole names, one namespace, and never the subscription's own retry and dead letter topics."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pulsar_ray.client.consumer.topic_pattern import TopicPattern
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.errors import InvalidTopicName
from pulsar_ray.model.enums import RegexSubscriptionMode

TOPICS = [
    "persistent://public/default/aa",
    "persistent://public/default/aab",
    "persistent://public/default/baa",
    "persistent://public/default/AA",
    "non-persistent://public/default/aac",
    "persistent://public/other/aa",
    "persistent://public/default/aa-s-DLQ",
    "persistent://public/default/aa-s-RETRY",
    "persistent://public/default/aa-other-DLQ",
]


def matching(pattern: str, flags: int = 0, **options: Any) -> list[str]:
    chosen = TopicPattern.of(
        ConsumerOptions(topic=re.compile(pattern, flags), subscription_name="s", **options)
    )
    return [topic.removeprefix("persistent://public/") for topic in TOPICS if chosen.matches(topic)]


@pytest.mark.parametrize(
    "prefix", ["", "public/default/", "persistent://public/default/", "non-persistent://public/default/"]
)
def test_a_pattern_means_whole_names_with_or_without_its_namespace(prefix: str) -> None:
    assert matching(f"{prefix}aa") == ["default/aa"]
    assert matching(f"{prefix}aa.*") == ["default/aa", "default/aab", "default/aa-other-DLQ"]


def test_another_namespace_and_flags() -> None:
    assert matching("public/other/.*") == ["other/aa"]
    assert matching("aa", re.IGNORECASE) == ["default/aa", "default/AA"]


def test_the_mode_decides_the_domain() -> None:
    mode = RegexSubscriptionMode.NonPersistentOnly
    assert matching("persistent://public/default/a.*", regex_subscription_mode=mode) == [TOPICS[4]]
    every = matching("aa[bc]", regex_subscription_mode=RegexSubscriptionMode.AllTopics)
    assert every == ["default/aab", TOPICS[4]]


def test_dead_letter_topics_that_were_given_a_name_do_not_match_either() -> None:
    policy = ConsumerDeadLetterPolicy(3, "aab", retry_letter_topic="public/default/aa")
    assert matching("a.*", dead_letter_policy=policy) == ["default/aa-other-DLQ"]


@pytest.mark.parametrize("pattern", ["public/.*/aa", ".*/default/aa", "default/aa", "persistent://aa.*"])
def test_patterns_that_name_no_single_namespace_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidTopicName, match=re.escape(repr(pattern))):
        matching(pattern)
