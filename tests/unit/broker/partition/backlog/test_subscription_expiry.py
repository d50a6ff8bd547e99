"""Subscriptions that nobody has used for long are deleted, by a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.partition.backlog.due_deletions import SubscriptionExpiry
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.sleeping_cursors import SleepingCursors
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorStore
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription, KnownConsumer
from pulsar_ray.model.message_id import EARLIEST
from pulsar_ray.testing.manual_clock import ManualClock
from tests.stored_blocks import abandon, append, change, open_log, settings

MINUTE_MS = 60_000


class Writer:
    """Writes a change in this thread."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def submit(self, pending: Any) -> None:
        if pending is not None:
            change(self._log, pending)

    async def durable(self, pending: Any) -> Any:
        self.submit(pending)


class Topic:
    """A log with subscriptions, of which those in `followed` are in use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.policies = PartitionPolicies(settings(subscription_expiration_time_minutes=5))
        self.followed: set[int] = set()
        self._open()
        append(self.log, 0)

    def _open(self) -> None:
        self.log = open_log(self.path)
        writer: Any = Writer(self.log)
        self.expiry = SubscriptionExpiry(
            self.log,
            writer,
            self.policies,
            self.clock,
            lambda: self.followed,
            SleepingCursors(Path(self.log.directory)),
        )

    def subscribe(self, name: str, *, durable: bool = True) -> int:
        number: int = change(self.log, self.log.changes.register(name, durable, "earliest")).number
        return number

    def park_consumer(self, number: int) -> None:
        """Leave a cursor behind as a dispatcher does that sleeps under its consumers."""
        directory = cursor_directory(Path(self.log.directory), number)
        store = CursorStore.create(directory, CursorSubscription("s"), EARLIEST)
        store.cursor.remember_consumer(KnownConsumer(1, "c", 0))
        flush = store.begin_flush()
        assert flush is not None
        flush.run()
        store.finish_flush(flush)
        store.close()

    def names(self) -> list[str]:
        return [subscription.name for subscription in self.log.changes.subscriptions()]

    def after(self, minutes: float) -> list[str]:
        """The subscriptions that are left after so many minutes awake."""
        self.expiry.tick()
        for _ in range(int(minutes * 10)):
            self.clock.advance(MINUTE_MS // 10)
            self.expiry.tick()
        return self.names()

    def sleep(self, minutes: float) -> None:
        """Sleep for so long: all dispatchers have left, and the next owner starts with what is stored."""
        self.followed = set()
        asyncio.run(self.expiry.settle())
        asyncio.run(self.expiry.leave())
        self.log.close()
        self.clock.advance(int(minutes * MINUTE_MS))
        self._open()

    def on_duty(self) -> list[str]:
        """The subscriptions that are left when the partition has been woken to look what is due."""
        asyncio.run(self.expiry.settle())
        return self.names()

    def crash(self) -> None:
        abandon(self.log)
        self._open()


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
    topic.policies.take(topic.policies.settings.replace(subscription_expiration_time_minutes=0))
    assert topic.after(1000) == ["s"]
    topic.policies.take(topic.policies.settings.replace(subscription_expiration_time_minutes=5))
    assert topic.after(4.9) == ["s"], "what was before the policy does not count"
    assert topic.after(0.2) == []


def test_a_policy_that_was_taken_away_leaves_no_time_behind(topic: Topic) -> None:
    topic.subscribe("s")
    topic.after(4)
    topic.policies.take(topic.policies.settings.replace(subscription_expiration_time_minutes=0))
    topic.after(0.1)
    topic.policies.take(topic.policies.settings.replace(subscription_expiration_time_minutes=5))
    topic.crash()
    assert topic.after(4.9) == ["s"]


def test_the_time_counts_on_while_the_topic_sleeps(topic: Topic) -> None:
    topic.subscribe("s")
    topic.after(0.5)
    topic.sleep(4.4)
    assert topic.on_duty() == ["s"]
    topic.sleep(0.2)
    assert topic.on_duty() == []


def test_the_time_counts_on_behind_a_crash(topic: Topic) -> None:
    topic.subscribe("s")
    assert topic.after(3) == ["s"]
    topic.crash()
    assert topic.after(1.9) == ["s"]
    assert topic.after(0.2) == []


def test_a_sleeping_topic_is_to_be_woken_when_its_first_subscription_expires(topic: Topic) -> None:
    topic.subscribe("s")
    began_ms = topic.clock.now_ms()
    topic.after(2)
    topic.subscribe("later")
    topic.sleep(0)
    due_ms = topic.expiry.next_due_ms()
    assert due_ms is not None
    assert began_ms + 5 * MINUTE_MS <= due_ms <= began_ms + 6 * MINUTE_MS
    topic.clock.advance(due_ms - topic.clock.now_ms())
    assert topic.on_duty() == ["later"]


def test_nothing_is_due_without_subscriptions_or_policy(topic: Topic) -> None:
    topic.sleep(0)
    assert topic.expiry.next_due_ms() is None
    topic.subscribe("s")
    topic.sleep(0)
    assert topic.expiry.next_due_ms() is not None
    topic.policies.take(topic.policies.settings.replace(subscription_expiration_time_minutes=0))
    assert topic.expiry.next_due_ms() is None


def test_a_subscription_whose_consumers_are_parked_stays(topic: Topic) -> None:
    number = topic.subscribe("s")
    topic.followed = {number}
    topic.after(1)
    topic.park_consumer(number)
    topic.sleep(1000)
    assert topic.on_duty() == ["s"]
    assert topic.expiry.next_due_ms() is None
    topic.sleep(1000)
    assert topic.on_duty() == ["s"]


def test_parked_consumers_that_do_not_come_back_when_the_topic_wakes_are_gone(topic: Topic) -> None:
    topic.park_consumer(topic.subscribe("s"))
    topic.sleep(1000)
    assert topic.after(1.1) == ["s"]
    topic.sleep(4)
    assert topic.on_duty() == []


def test_a_use_takes_the_time_of_a_sleep_back(topic: Topic) -> None:
    number = topic.subscribe("s")
    topic.sleep(4)
    topic.expiry.used(number)
    topic.followed = {number}
    topic.after(1)
    topic.sleep(4.5)
    assert topic.on_duty() == ["s"]
    topic.sleep(1)
    assert topic.on_duty() == []


def test_a_clock_that_jumps_while_the_topic_is_awake_deletes_nothing(topic: Topic) -> None:
    topic.subscribe("s")
    topic.after(2)
    topic.clock.set_now(topic.clock.now_ms() + 1000 * MINUTE_MS)
    assert topic.after(2.9) == ["s"]
    assert topic.after(0.2) == []
