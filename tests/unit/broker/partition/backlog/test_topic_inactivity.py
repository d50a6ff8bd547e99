"""For how long nobody has used a topic, by a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.partition.backlog.due_deletions import CAUGHT_UP, REPORT_AGAIN_MS, TopicInactivity
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.sleeping_cursors import SleepingCursors
from pulsar_ray.testing.manual_clock import ManualClock
from tests.stored_blocks import abandon, append, change, open_log, settings
from tests.unit.broker.partition.backlog.test_subscription_expiry import Topic as SubscribedTopic
from tests.unit.broker.partition.backlog.test_subscription_expiry import Writer

SECOND_MS = 1_000
LIMIT_S = 300


class Topic(SubscribedTopic):
    """A log whose topic is deleted when nobody has used it for 300 s."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.policies = PartitionPolicies(
            settings(
                broker_delete_inactive_topics_enabled=True,
                broker_delete_inactive_topics_max_inactive_duration_seconds=LIMIT_S,
            )
        )
        self.followed: set[int] = set()
        self.uses = 0
        self.producers = 0
        self.reports = 0
        self._open()
        append(self.log, 0)

    def _open(self) -> None:
        self.log = open_log(self.path)
        writer: Any = Writer(self.log)
        self.inactivity = TopicInactivity(
            self.log,
            writer,
            self.policies,
            self.clock,
            lambda: self.uses,
            lambda: self.producers > 0,
            lambda: self.followed,
            SleepingCursors(Path(self.log.directory)),
            self._report,
        )

    def _report(self) -> None:
        self.reports += 1

    def is_over_after(self, seconds: float) -> bool:
        """Whether it may be deleted after so many seconds awake."""
        self.inactivity.tick()
        for _ in range(int(seconds)):
            self.clock.advance(SECOND_MS)
            self.inactivity.tick()
        return self.inactivity.is_over()

    def sleep(self, minutes: float) -> None:
        """Sleep for so long: dispatchers have left, and producers are parked or gone."""
        self.followed = set()
        asyncio.run(self.inactivity.leave())
        self.due_ms = self.inactivity.next_due_ms()
        self.log.close()
        self.producers = self.uses = 0
        self.clock.advance(int(minutes * 60_000))
        self._open()

    def acknowledge_all(self, number: int) -> None:
        change(self.log, self.log.changes.move_hold(number, self.log.last_position))


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    made = Topic(tmp_path)
    yield made
    made.log.close()


def test_a_topic_without_subscriptions_is_reported_once_its_time_is_over(topic: Topic) -> None:
    assert not topic.is_over_after(LIMIT_S - 1)
    assert topic.reports == 0
    assert topic.is_over_after(1)
    assert topic.reports == 1
    assert topic.is_over_after(REPORT_AGAIN_MS // SECOND_MS)
    assert topic.reports == 2, "it is there still, so the report was lost or refused"


def test_nothing_is_counted_without_the_policy(topic: Topic) -> None:
    topic.policies.inactive_delete_mode = ""
    assert not topic.is_over_after(10 * LIMIT_S)
    topic.sleep(60)
    assert topic.due_ms is None
    topic.policies.inactive_delete_mode = "delete_when_no_subscriptions"
    assert not topic.is_over_after(LIMIT_S - 1), "what was before the policy does not count"


@pytest.mark.parametrize("mode", ["delete_when_no_subscriptions", CAUGHT_UP])
def test_producers_and_dispatchers_and_each_short_use_begin_the_time_anew(topic: Topic, mode: str) -> None:
    topic.policies.inactive_delete_mode = mode
    topic.producers = 1
    assert not topic.is_over_after(2 * LIMIT_S)
    topic.producers = 0
    assert not topic.is_over_after(LIMIT_S - 1)
    topic.followed = {7}
    assert not topic.is_over_after(2 * LIMIT_S), "a reader's dispatcher runs"
    topic.followed = set()
    assert not topic.is_over_after(LIMIT_S - 1)
    topic.uses += 1
    assert not topic.inactivity.is_over()
    assert not topic.is_over_after(LIMIT_S - 1), "somebody came and went within a second"
    assert topic.is_over_after(1)


def test_a_subscription_keeps_a_topic_or_only_its_backlog_does(topic: Topic) -> None:
    number = topic.subscribe("s")
    assert not topic.is_over_after(2 * LIMIT_S)
    topic.acknowledge_all(number)
    assert not topic.is_over_after(2 * LIMIT_S), "it is there"
    topic.policies.inactive_delete_mode = CAUGHT_UP
    assert not topic.is_over_after(LIMIT_S - 1)
    assert topic.is_over_after(1)
    append(topic.log, 1)
    assert not topic.inactivity.is_over()
    topic.acknowledge_all(number)
    assert not topic.is_over_after(LIMIT_S - 1)
    assert topic.is_over_after(1)


def test_retention_keeps_a_topic_for_longer(topic: Topic) -> None:
    topic.policies.retention_ms = 2 * LIMIT_S * SECOND_MS
    assert not topic.is_over_after(2 * LIMIT_S - 1)
    assert topic.is_over_after(1)
    topic.policies.retention_ms = -60_000
    assert not topic.is_over_after(100 * LIMIT_S)


def test_the_time_goes_on_asleep(topic: Topic) -> None:
    assert not topic.is_over_after(30)
    topic.sleep(4)
    now_ms = topic.clock.now_ms()
    assert topic.due_ms is not None
    assert now_ms + 30_000 <= topic.due_ms <= now_ms + 60_000, "a tenth later than the time is over"
    assert not topic.is_over_after(29)
    assert topic.is_over_after(1)


def test_the_time_goes_on_over_crashes_once_it_has_lasted_for_a_minute(topic: Topic) -> None:
    topic.is_over_after(59)
    topic.crash()
    topic.is_over_after(60)
    topic.crash()
    assert not topic.is_over_after(LIMIT_S - 61)
    assert topic.is_over_after(1)


def test_a_use_takes_the_note_back(topic: Topic) -> None:
    topic.is_over_after(LIMIT_S - 10)
    topic.producers = 1
    topic.is_over_after(1)
    topic.producers = 0
    topic.crash()
    assert not topic.is_over_after(LIMIT_S - 1)


def test_a_topic_whose_producers_are_parked_is_used_as_long_as_it_sleeps(topic: Topic) -> None:
    topic.producers = 1
    topic.sleep(60 * 24)
    assert topic.due_ms is None
    assert not topic.inactivity.is_over()
    assert not topic.is_over_after(LIMIT_S - 1)


def test_a_topic_whose_consumers_are_parked_is_used_as_long_as_it_sleeps(topic: Topic) -> None:
    topic.policies.inactive_delete_mode = CAUGHT_UP
    number = topic.subscribe("s")
    topic.park_consumer(number)
    topic.acknowledge_all(number)
    topic.is_over_after(100)
    topic.sleep(60 * 24)
    assert topic.due_ms is None
    assert not topic.inactivity.is_over()


def test_what_crashed_and_came_back_late_counts_the_time_away(topic: Topic) -> None:
    topic.is_over_after(61)
    abandon(topic.log)
    topic.clock.advance(LIMIT_S * SECOND_MS)
    topic._open()
    assert topic.inactivity.is_over()


@pytest.mark.parametrize("has_policy", [True, False])
def test_parked_producers_speak_for_a_topic_that_starts_without_them(topic: Topic, has_policy: bool) -> None:
    mode = topic.policies.inactive_delete_mode
    topic.policies.inactive_delete_mode = mode if has_policy else ""
    topic.producers = 1
    assert not topic.is_over_after(5)
    topic.sleep(60)
    assert topic.due_ms is None
    topic.policies.inactive_delete_mode = mode
    # It starts for something else than a client, more than once, and sleeps again.
    for _ in range(2):
        assert not topic.is_over_after(10 * LIMIT_S)
        topic.sleep(60)
        assert topic.due_ms is None
    topic.uses += 1
    assert not topic.is_over_after(LIMIT_S - 1)
    assert topic.is_over_after(1), "they came back, and left"
    topic.sleep(60)
    assert topic.is_over_after(0)
