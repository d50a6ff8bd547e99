"""Names of retry letter and dead letter topics, and the topics that messages in them belong to."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pulsar_ray.client.dead_letters.letters import LetterTopics
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.errors import InvalidConfiguration, InvalidTopicName
from pulsar_ray.model.enums import ConsumerType

T = "persistent://public/default/t"
U = "persistent://public/default/u"


def topics(topic: Any, dead: str | None = None, retry: str | None = None, **options: Any) -> LetterTopics:
    policy = ConsumerDeadLetterPolicy(3, dead, retry_letter_topic=retry)
    options = {"subscription_name": "s", "enable_retry": True, **options}
    return LetterTopics(
        ConsumerOptions.from_arguments(
            topic=topic, consumer_type=ConsumerType.Shared, dead_letter_policy=policy, **options
        )
    )


@pytest.mark.parametrize("topic", ["t", T, f"{T}-partition-2"])
def test_default_names_have_the_subscription_and_no_partition(topic: str) -> None:
    assert topics(topic).dead_letter_topic(T) == f"{T}-s-DLQ"
    assert topics(topic).retry_topic(f"{T}-partition-2") == f"{T}-s-RETRY"


def test_letters_of_a_topic_that_stores_nothing_are_stored() -> None:
    names = topics(T.replace("persistent", "non-persistent"))
    assert names.dead_letter_topic(T.replace("persistent", "non-persistent")) == f"{T}-s-DLQ"


def test_given_names_are_those_of_all_topics() -> None:
    names = topics(["t", "u"], "dead", "again")
    assert {names.dead_letter_topic(T), names.dead_letter_topic(U)} == {"persistent://public/default/dead"}
    assert names.retry_topic(U) == "persistent://public/default/again"


@pytest.mark.parametrize(
    ("topic", "received", "properties", "source"),
    [
        ("t", T, {}, T),
        ("t", f"{T}-partition-0", {}, T),
        ("t", f"{T}-s-RETRY", {}, T),
        ("t", f"{T}-s-RETRY-partition-1", {"REAL_TOPIC": U}, T),
        (["t", "u"], f"{U}-s-RETRY", {}, U),
        (["t", "u"], T, {"REAL_TOPIC": U}, T),
        (re.compile("public/default/.*"), f"{U}-s-RETRY", {"REAL_TOPIC": U}, U),
        (re.compile("public/default/.*"), U, {"REAL_TOPIC": T}, U),
    ],
)
def test_the_topic_that_a_message_belongs_to(
    topic: Any, received: str, properties: dict[str, str], source: str
) -> None:
    assert topics(topic).source_of(received, properties) == source


def test_in_a_given_retry_topic_of_several_the_property_tells_the_topic() -> None:
    names = topics(["t", "u"], None, "again")
    assert names.source_of("persistent://public/default/again", {"REAL_TOPIC": U}) == U


@pytest.mark.parametrize(
    "said", ["", "persistent://bad", "u", f"{T}-partition-0", "persistent://public/default/other"]
)
def test_in_a_retry_topic_only_a_topic_of_the_consumer_counts(said: str) -> None:
    again = "persistent://public/default/again"
    assert topics(["t", "u"], None, "again").source_of(again, {"REAL_TOPIC": said}) == again
    assert topics(["t", "u"]).source_of(f"{U}-s-RETRY", {"REAL_TOPIC": said}) == U
    assert topics(re.compile("public/default/.*")).source_of(f"{U}-s-RETRY", {"REAL_TOPIC": said}) == U


@pytest.mark.parametrize(
    ("topic", "retry", "received", "are_letters"),
    [
        ("t", None, T, False),
        ("t", None, f"{T}-s-RETRY-partition-1", True),
        ("t", "again", "persistent://public/default/again", True),
        (["t", "u"], None, U, False),
        (["t", "u"], None, f"{U}-s-RETRY", True),
        (["t", "u"], "again", "persistent://public/default/again", True),
        (re.compile("public/default/.*"), None, f"{U}-s-RETRY", True),
        (re.compile("public/default/.*"), "again", f"{U}-s-RETRY", False),
    ],
)
def test_only_retry_letter_topics_have_letters(
    topic: Any, retry: str | None, received: str, are_letters: bool
) -> None:
    assert topics(topic, None, retry).are_letters(received) is are_letters
    assert not topics(topic, None, retry, enable_retry=False).are_letters(received)


@pytest.mark.parametrize(
    ("dead", "retry"), [("t", None), ("u", None), (None, "t"), ("x", "x"), (f"{T}-partition-0", None)]
)
def test_messages_must_not_circle(dead: str | None, retry: str | None) -> None:
    with pytest.raises(InvalidConfiguration, match="give"):
        topics(["t", "u"], dead, retry)


def test_a_subscription_whose_name_makes_no_topic_needs_given_names() -> None:
    long = "s" * 40_000
    with pytest.raises(InvalidTopicName, match="dead_letter_policy"):
        topics("t", subscription_name=long)
    assert topics("t", "dead", "again", subscription_name=long).retry_topic(T).endswith("/again")
