"""Whole names, one namespace, and never the subscription's own retry and dead letter topics."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.client.consumer.topic_pattern import TopicPattern
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.data.planning.plan import as_topics
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


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*", "(a*)*b", "(.*a){20}", "(?:a?){60}a{60}"])
def test_no_name_holds_up_who_looks_for_topics(pattern: str) -> None:
    """Python's own engine takes years for each of them."""
    chosen = TopicPattern(re.compile(pattern))
    for name in ("a" * 59 + "!", "a" * 200 + "b" + "a" * 59):
        assert not chosen.matches(f"persistent://public/default/{name}!")


UNKNOWN = [
    (r"(?!test-).+", "(?!"),
    (r"a(?=b).*", "(?="),
    (r"(?<=a)b", "(?<"),
    (r"(a)\1", r"\1"),
    (r"(?P<x>a)(?P=x)", "(?P="),
    (r"a\Z", r"\Z"),
    (r"(?#why)a", "(?#"),
    (r"a{2000}", "{2000}"),
    (r"a{,3}", "{,3}"),
    ("(?x) a  b", "re.VERBOSE"),
]


@pytest.mark.parametrize(("pattern", "found"), UNKNOWN)
def test_what_needs_more_than_one_pass_is_refused_by_its_name(pattern: str, found: str) -> None:
    with pytest.raises(InvalidTopicName) as raised:
        matching(pattern)
    assert found in raised.value.text
    assert repr(pattern) in raised.value.text
    with pytest.raises(InvalidTopicName, match=re.escape(found)):
        as_topics(re.compile(pattern))


ATOMS = st.sampled_from(
    ["a", "b", "A", "-", ".", "[ab]", "[^a-b]", r"\w", r"\d", "x{2}", r"\{,3}", r"\.", "é"]
)


@given(
    st.recursive(
        ATOMS,
        lambda inner: st.one_of(
            inner.map(lambda one: f"(?:{one})*"),
            inner.map(lambda one: f"({one})?"),
            inner.map(lambda one: f"(?:{one}){{1,3}}?"),
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map("|".join).map("(?:{})".format),
        ),
        max_leaves=8,
    ),
    st.text("abA-x.1é{,3}\n", max_size=6).map("n{}".format),
    st.sampled_from([0, re.IGNORECASE, re.DOTALL, re.MULTILINE, re.IGNORECASE | re.DOTALL]),
)
def test_a_pattern_matches_what_it_matches_in_python(pattern: str, name: str, flags: int) -> None:
    expected = re.compile(f"n{pattern}", flags | re.ASCII)
    found = TopicPattern(re.compile(f"n{pattern}", flags)).matches(f"persistent://public/default/{name}")
    # With re.ASCII Python tells upper case from lower case in ASCII alone.
    assert found == (expected.fullmatch(name) is not None)
