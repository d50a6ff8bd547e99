"""The slowest subscription's backlog against its topic's quota, by a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.partition.backlog.backlog_quota import UNLIMITED, BacklogQuota
from pulsar_ray.broker.partition.backlog.expired_counts import ExpiredCounts
from pulsar_ray.broker.partition.backlog.message_expiry import MessageExpiry
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.sleeping_cursors import SleepingCursors
from pulsar_ray.errors import (
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    PulsarException,
)
from pulsar_ray.managed_ledger.log.backlog_search import BacklogFront, BacklogSearch
from pulsar_ray.model.message_id import Position
from pulsar_ray.testing.manual_clock import ManualClock
from tests.stored_blocks import IDENTITY, append, change, open_log, settings
from tests.unit.broker.partition.backlog.test_message_expiry import Writer

FIRST = IDENTITY.number << 31
LIMIT = 5_000


class Topic:
    """A log of a message of about a kilobyte each second from 0 s on."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.clock = ManualClock()
        self.clock.set_now(0)
        self.loop = loop
        self.log = open_log(path, config=settings(managed_ledger_max_entries_per_ledger=4))
        self.policies = PartitionPolicies(settings())
        self.told: list[PulsarException | None] = []
        self.is_certain = True
        self.tasks: list[Any] = []
        expiry = MessageExpiry(
            self.log,
            Writer(self.log),  # type: ignore[arg-type]
            self.policies,
            self.clock,
            lambda _: None,
            ExpiredCounts(self.log, SleepingCursors(path), set, self.clock),
        )
        self.quota = BacklogQuota(
            self.log,
            self.policies,
            self.clock,
            loop,
            self._spawn,
            self._settle,
            expiry.expire_before,
            self.told.append,
            lambda: self.is_certain,
        )
        self._seq = 0

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(self.loop.create_task(work))

    async def _settle(self) -> None: ...

    def limit(self, policy: str, *, size: int = LIMIT, seconds: int = -1) -> None:
        self.policies.backlog_policy = policy
        self.policies.backlog_limit_bytes = size
        self.policies.backlog_limit_ms = seconds * 1000
        self.quota.settings_changed()

    def publish(self, count: int = 1) -> None:
        for _ in range(count):
            now_ms = self.clock.now_ms()
            append(self.log, self._seq, now_ms=now_ms, publish_ms=now_ms, size=900)
            self._seq += 1
            self.clock.advance(1000)

    def subscribe(self, name: str, at: str | Position = "earliest", *, durable: bool = True) -> int:
        number: int = change(self.log, self.log.changes.register(name, durable, at)).number
        return number

    def move(self, number: int, position: Position) -> None:
        change(self.log, self.log.changes.move_hold(number, position))

    def look(self) -> PulsarException | None:
        self.loop.run_until_complete(self.quota.look())
        return self.quota.refusal

    def publish_within(self, most: int = 100) -> int:
        """Publish while there is room; the number of messages."""
        for count in range(most):
            if self.quota.room_bytes() <= 0 and self.look() is not None:
                return count
            self.publish()
        return most

    def hold(self, number: int) -> Position:
        known = self.log.changes.subscription(number)
        assert known is not None
        return known.hold


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    loop = asyncio.new_event_loop()
    made = Topic(tmp_path, loop)
    yield made
    loop.close()
    made.log.close()


def test_without_a_quota_nothing_is_measured(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic.subscribe("slow")
    monkeypatch.setattr(topic.log, "begin_backlog", None)
    topic.publish(20)
    assert topic.quota.room_bytes() == UNLIMITED
    assert topic.look() is None
    assert not topic.quota.is_due()


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("producer_request_hold", ProducerBlockedQuotaExceededError),
        ("producer_exception", ProducerBlockedQuotaExceededException),
    ],
)
def test_a_size_is_kept_to_one_message(topic: Topic, policy: str, error: type[PulsarException]) -> None:
    topic.subscribe("slow")
    topic.subscribe("fast")
    topic.limit(policy)
    sent = topic.publish_within()
    refusal = topic.quota.refusal
    assert sent == 5
    assert isinstance(refusal, error)
    assert "'slow'" in refusal.text
    assert f"limit_size is {LIMIT}" in refusal.text
    assert topic.told == [refusal]
    assert topic.quota.room_bytes() == 0


def test_it_ends_once_the_slowest_has_moved(topic: Topic) -> None:
    slow = topic.subscribe("slow")
    topic.limit("producer_exception")
    topic.publish_within()
    assert not topic.quota.is_due()
    topic.move(slow, Position(FIRST, 1))
    assert topic.quota.is_due()
    assert topic.look() is None
    assert topic.told[-1] is None
    assert topic.publish_within() == 2


def test_what_consumers_keep_up_with_is_not_read_for_each_message(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = topic.subscribe("fast")
    topic.limit("producer_exception")
    searches: list[Any] = []
    run = BacklogSearch.run

    def counted(search: BacklogSearch, *arguments: Any) -> BacklogFront:
        searches.append(search)
        return run(search, *arguments)

    monkeypatch.setattr(BacklogSearch, "run", counted)
    for _ in range(50):
        assert topic.publish_within(1) == 1
        topic.move(fast, topic.log.last_position)
    assert not searches, "an empty backlog needs no reading"
    for _ in range(50):
        before = topic.log.last_position
        assert topic.publish_within(1) == 1
        topic.move(fast, before)
    assert len(searches) < 15


def test_a_subscription_behind_what_was_measured_counts_at_once(topic: Topic) -> None:
    topic.subscribe("fast", "latest")
    topic.limit("producer_exception")
    topic.publish(2)
    topic.look()
    topic.publish(1)
    assert topic.quota.room_bytes() > 0
    fast = topic.subscribe("fast")
    topic.move(fast, topic.log.last_position)
    topic.publish(6)
    topic.look()
    topic.move(fast, topic.log.last_position)
    assert topic.look() is None
    topic.subscribe("late", Position(FIRST, 0))
    assert topic.quota.room_bytes() == 0
    refusal = topic.look()
    assert refusal is not None
    assert "'late'" in refusal.text


def test_an_age_is_that_of_the_oldest_message_of_the_slowest(topic: Topic) -> None:
    slow = topic.subscribe("slow")
    topic.limit("producer_exception", size=-1, seconds=3)
    topic.publish(3)
    assert topic.look() is None
    topic.clock.advance(1)
    assert topic.quota.is_due()
    refusal = topic.look()
    assert refusal is not None
    assert "limit_time is 3 seconds" in refusal.text
    topic.move(slow, Position(FIRST, 0))
    assert topic.look() is None, "the next one is a second younger"


def test_without_durable_subscriptions_there_is_no_backlog(topic: Topic) -> None:
    topic.subscribe("reader", durable=False)
    topic.limit("producer_exception", seconds=1)
    assert topic.publish_within(50) == 50


def test_one_message_may_be_larger_than_the_quota(topic: Topic) -> None:
    slow = topic.subscribe("slow")
    topic.limit("producer_exception", size=10)
    assert topic.publish_within() == 1
    topic.move(slow, topic.log.last_position)
    assert topic.look() is None
    assert topic.publish_within() == 1


def test_an_eviction_moves_only_those_that_are_behind(topic: Topic) -> None:
    slow, fast = topic.subscribe("slow"), topic.subscribe("fast")
    topic.publish(10)
    topic.move(fast, Position(FIRST + 2, 0))
    topic.limit("consumer_backlog_eviction")
    assert topic.look() is None
    # Four messages of about 1,050 bytes are the most within nine tenths of 5,000.
    assert topic.hold(slow) == Position(FIRST + 1, 1)
    assert topic.hold(fast) == Position(FIRST + 2, 0)
    assert topic.publish_within(20) == 20
    assert topic.hold(slow) > Position(FIRST + 4, 3)


def test_an_eviction_by_age_leaves_what_is_younger(topic: Topic) -> None:
    slow = topic.subscribe("slow")
    topic.publish(10)
    topic.limit("consumer_backlog_eviction", size=-1, seconds=5)
    assert topic.look() is None
    assert topic.hold(slow) == Position(FIRST + 1, 1), "4,500 ms are left"
    topic.clock.advance(500)
    assert not topic.quota.is_due()
    topic.clock.advance(2000)
    assert topic.quota.is_due()
    topic.look()
    assert topic.hold(slow) > Position(FIRST + 1, 1)


def test_a_partition_that_sleeps_is_to_evict_by_age(topic: Topic) -> None:
    topic.subscribe("slow")
    topic.publish(1)
    due = topic.quota.next_due_ms
    assert topic.loop.run_until_complete(due()) is None
    topic.limit("producer_exception", seconds=60)
    assert topic.loop.run_until_complete(due()) is None, "nothing is evicted"
    topic.limit("consumer_backlog_eviction", seconds=600)
    assert topic.loop.run_until_complete(due()) == 660_000


def test_nothing_is_done_while_policies_are_not_known_for_certain(topic: Topic) -> None:
    slow = topic.subscribe("slow")
    topic.publish(10)
    topic.is_certain = False
    topic.limit("consumer_backlog_eviction")
    assert topic.look() is None
    assert topic.hold(slow) < Position(FIRST, 0)
    assert topic.quota.room_bytes() == UNLIMITED


def test_another_quota_is_heeded_at_once(topic: Topic) -> None:
    topic.subscribe("slow")
    topic.limit("producer_exception")
    topic.publish_within()
    topic.limit("producer_exception", size=LIMIT * 2)
    assert topic.told[-1] is None
    assert topic.publish_within() == 5
    topic.limit("producer_request_hold", size=LIMIT)
    assert isinstance(topic.look(), ProducerBlockedQuotaExceededError)
