"""Who was asked for just now is wanted."""

from __future__ import annotations

from pulsar_ray.broker.catalog.wanted_topics import WANTED_MS, WantedTopics


def test_a_topic_is_wanted_for_a_while_after_each_question() -> None:
    wanted = WantedTopics(-10 * WANTED_MS)
    assert not wanted.is_wanted("a", 0)
    wanted.asked(["a", "b"], 0)
    assert wanted.is_wanted("a", WANTED_MS)
    assert not wanted.is_wanted("a", WANTED_MS + 1)
    wanted.asked(["a"], WANTED_MS + 1)
    assert wanted.is_wanted("a", 2 * WANTED_MS)
    assert not wanted.is_wanted("b", 2 * WANTED_MS)


def test_after_a_start_everything_may_have_been_asked_for() -> None:
    wanted = WantedTopics(1_000)
    assert wanted.is_wanted("a", 1_000 + WANTED_MS)
    assert not wanted.is_wanted("a", 1_001 + WANTED_MS)


def test_only_the_last_while_is_kept() -> None:
    wanted = WantedTopics(0)
    for second in range(1_000):
        wanted.asked([f"t{second}"], second * 1_000)
    assert len(wanted._asked) == WANTED_MS // 1_000 + 1
