"""Who is let in while a topic limits its consumers and subscriptions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsar_ray.broker.partition.attendance import Attendance
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.config import Settings
from pulsar_ray.errors import ConsumerBusy, InvalidConfiguration, NotAllowedError
from pulsar_ray.session.session_table import Session


class Topic:
    """Two dispatchers at a partition with `durable` subscriptions."""

    def __init__(self, durable: list[str] | None = None, **settings: Any) -> None:
        self.durable = durable or []
        self.policies = PartitionPolicies(Settings(**settings))
        self.attendance = Attendance("t", self.policies, lambda name: len({*self.durable} - {name}))
        self.dispatchers = [Session(number, f"follower-{number}", 0) for number in (1, 2)]

    def call(self, number: int, method: str, **arguments: Any) -> None:
        session = self.dispatchers[number]
        asyncio.run(self.attendance.call(session, method, arguments))

    def admit(
        self, dispatcher: int, consumers: int, readers: int = 0, *, is_new_reader: bool = False
    ) -> None:
        self.call(
            dispatcher,
            "admit_consumer",
            dispatcher=f"s{dispatcher}",
            consumers=consumers,
            readers=readers,
            is_new_reader=is_new_reader,
        )

    def report(self, dispatcher: int, consumers: int, readers: int = 0) -> None:
        self.call(
            dispatcher, "report_consumers", dispatcher=f"s{dispatcher}", consumers=consumers, readers=readers
        )


def test_the_consumers_of_all_dispatchers_count() -> None:
    topic = Topic(max_consumers_per_topic=3)
    topic.admit(0, 1)
    topic.admit(0, 2)
    topic.admit(1, 1)
    with pytest.raises(ConsumerBusy, match="has 3 consumers, and its policy max_consumers allows 3"):
        topic.admit(1, 2)
    topic.admit(1, 1)
    topic.report(0, 1)
    topic.admit(1, 2)


def test_a_question_that_comes_twice_counts_once() -> None:
    topic = Topic(max_consumers_per_topic=1)
    topic.admit(0, 1)
    topic.admit(0, 1)


def test_a_dispatcher_that_is_gone_has_no_consumers() -> None:
    topic = Topic(max_consumers_per_topic=1)
    topic.admit(0, 1)
    with pytest.raises(ConsumerBusy):
        topic.admit(1, 1)
    topic.attendance.forget(topic.dispatchers[0])
    topic.admit(1, 1)


def test_another_life_of_a_dispatcher_takes_its_place() -> None:
    topic = Topic(max_consumers_per_topic=1)
    topic.admit(0, 1)
    former, topic.dispatchers[0] = topic.dispatchers[0], Session(3, "follower-3", 0)
    topic.report(0, 0)
    topic.attendance.forget(former)
    topic.admit(1, 1)


def test_a_limit_counts_from_the_moment_it_changes() -> None:
    topic = Topic()
    topic.admit(0, 5)
    topic.policies.take(topic.policies.settings.replace(max_consumers_per_topic=5))
    with pytest.raises(ConsumerBusy):
        topic.admit(1, 1)
    topic.policies.take(topic.policies.settings.replace(max_consumers_per_topic=6))
    topic.admit(1, 1)


def test_readers_count_as_subscriptions() -> None:
    topic = Topic(["a", "b"], max_subscriptions_per_topic=4)
    topic.admit(0, 1, 1, is_new_reader=True)
    topic.admit(0, 2, 2, is_new_reader=True)
    with pytest.raises(NotAllowedError, match=r"has 4 subscriptions, readers counted.* allows 4"):
        topic.admit(0, 3, 3, is_new_reader=True)
    with pytest.raises(NotAllowedError):
        topic.call(1, "admit_subscription", name="c")
    topic.admit(0, 3, 2)
    topic.report(0, 1, 1)
    topic.call(1, "admit_subscription", name="c")
    topic.durable.append("c")
    topic.call(1, "admit_subscription", name="c")


def test_only_a_new_reader_is_refused_beyond_the_limit() -> None:
    topic = Topic(["a", "b", "c"], max_subscriptions_per_topic=1)
    topic.admit(0, 1)
    with pytest.raises(NotAllowedError):
        topic.admit(1, 1, 1, is_new_reader=True)


def test_arguments_that_cannot_be_are_refused() -> None:
    topic = Topic()
    assert not topic.attendance.answers("last_message")
    with pytest.raises(InvalidConfiguration):
        topic.call(0, "report_consumers", dispatcher="s", consumers="many", readers=0)
