"""Subscriptions that nobody has used for long are deleted, by a manual clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.partition.backlog.subscription_expiry import SubscriptionExpiry
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.testing.manual_clock import ManualClock
from tests.stored_blocks import append, change, open_log, settings

MINUTE_MS = 60_000


class Writer:
    """Writes a change in this thread."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def submit(self, pending: Any) -> None:
        change(self._log, pending)


class Topic:
    """A log with subscriptions, of which those in `followed` are in use."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.log = open_log(path)
        append(self.log, 0)
        self.policies = PartitionPolicies.of(settings(subscription_expiration_time_minutes=5))
        self.followed: set[int] = set()
        writer: Any = Writer(self.log)
        self.expiry = SubscriptionExpiry(self.log, writer, self.policies, self.clock, lambda: self.followed)

    def subscribe(self, name: str, *, durable: bool = True) -> int:
        number: int = change(self.log, self.log.changes.register(name, durable, "earliest")).number
        return number

    def names(self) -> list[str]:
        return [subscription.name for subscription in self.log.changes.subscriptions()]

    def after(self, minutes: float) -> list[str]:
        """The subscriptions that are left after so many minutes."""
        self.expiry.tick()
        self.clock.advance(int(minutes * MINUTE_MS))
        self.expiry.tick()
        return self.names()


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    made = Topic(tmp_path)
    yield made
    made.log.close()


def test_what_nobody_uses_goes_and_what_somebody_uses_stays(topic: Topic) -> None:
    topic.subscribe("unused")
    topic.followed = {topic.subscribe("used")}
    topic.subscribe("reader", durable=False)
    assert topic.after(4.9) == ["unused", "used", "reader"]
    assert topic.after(0.1) == ["used", "reader"]


def test_the_time_counts_anew_after_each_use(topic: Topic) -> None:
    number = topic.subscribe("s")
    topic.after(4)
    topic.followed = {number}
    topic.after(100)
    topic.followed = set()
    assert topic.after(4.9) == ["s"]
    topic.expiry.used(number)
    assert topic.after(4.9) == ["s"], "its dispatcher was starting"
    assert topic.after(0.2) == []


def test_without_the_policy_nothing_is_counted(topic: Topic) -> None:
    topic.subscribe("s")
    topic.policies.subscription_expiration_minutes = 0
    assert topic.after(1000) == ["s"]
    topic.policies.subscription_expiration_minutes = 5
    assert topic.after(4.9) == ["s"], "what was before the policy does not count"
    assert topic.after(0.2) == []
