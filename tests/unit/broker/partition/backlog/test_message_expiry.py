"""Messages that are older than `message_ttl` are acknowledged for all subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.partition.backlog.expired_counts import EXPIRED_NOTE, ExpiredCounts
from pulsar_ray.broker.partition.backlog.message_expiry import MessageExpiry
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.sleeping_cursors import SleepingCursors
from pulsar_ray.managed_ledger.log.backlog_search import BacklogSearch
from pulsar_ray.model.message_id import Position
from pulsar_ray.testing.manual_clock import ManualClock
from tests.stored_blocks import IDENTITY, append, change, open_log, settings

FIRST = IDENTITY.number << 31
TTL_S = 60
TTL_MS = TTL_S * 1000


class Writer:
    """Writes a change in this thread."""

    def __init__(self, log: Any) -> None:
        self._log = log

    async def durable(self, pending: Any) -> Any:
        return change(self._log, pending)


class Topic:
    """A log of two entries to a ledger, a message each second from 0 s on."""

    def __init__(self, path: Path, messages: int) -> None:
        self.clock = ManualClock()
        self.clock.set_now(0)
        self.log = open_log(path, config=settings(managed_ledger_max_entries_per_ledger=2))
        self.policies = PartitionPolicies(settings(ttl_duration_default_in_seconds=TTL_S))
        self.expired: list[list[int]] = []
        self.followed: set[int] = set()
        self.cursors = SleepingCursors(path)
        self.counts = ExpiredCounts(self.log, self.cursors, lambda: self.followed, self.clock)
        self.expiry = MessageExpiry(
            self.log,
            Writer(self.log),  # type: ignore[arg-type]
            self.policies,
            self.clock,
            self._note,
            self.counts,
        )
        for seq in range(messages):
            self.publish(seq)
            self.clock.advance(1000)

    def _note(self, numbers: Sequence[int]) -> None:
        self.expired.append(list(numbers))
        for number in numbers:
            known = self.log.changes.subscription(number)
            assert known is not None
            self.cursors.moved(number, known.expired)

    def publish(self, seq: int) -> None:
        now_ms = self.clock.now_ms()
        append(self.log, seq, now_ms=now_ms, publish_ms=now_ms)

    def subscribe(self, name: str, at: str | Position = "earliest", *, durable: bool = True) -> int:
        number: int = change(self.log, self.log.changes.register(name, durable, at)).number
        return number

    def hold(self, number: int) -> Position:
        known = self.log.changes.subscription(number)
        assert known is not None
        return known.hold

    def run(self) -> None:
        asyncio.run(self.expiry.run())

    def next_due_ms(self) -> int | None:
        return asyncio.run(self.expiry.next_due_ms())


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    made = Topic(tmp_path, 6)
    yield made
    made.log.close()


def test_old_messages_expire_for_everybody_who_has_not_come_so_far(topic: Topic) -> None:
    slow, half = topic.subscribe("slow"), topic.subscribe("half", Position(FIRST + 1, 0))
    fast, reader = topic.subscribe("fast", "latest"), topic.subscribe("reader", durable=False)
    topic.clock.set_now(TTL_MS)
    topic.run()
    assert topic.expired == [], "the first one is just as old as it may be"
    topic.clock.set_now(TTL_MS + 3001)
    assert topic.expiry.is_due()
    topic.run()
    assert topic.expired == [[slow, half]]
    assert topic.hold(slow) == topic.hold(half) == Position(FIRST + 1, 1)
    assert topic.hold(fast) == topic.log.last_position
    assert topic.hold(reader) == Position(FIRST, -1), "a reader is not expired"
    assert not topic.expiry.is_due()


def test_everything_expires_and_what_comes_later_in_its_time(topic: Topic) -> None:
    number = topic.subscribe("s")
    topic.clock.set_now(10 * TTL_MS)
    topic.run()
    assert topic.hold(number) == topic.log.last_position
    assert not topic.expiry.is_due()
    topic.publish(6)
    topic.run()
    assert topic.hold(number) < topic.log.last_position
    topic.clock.advance(TTL_MS + 1)
    assert topic.expiry.is_due()
    topic.run()
    assert topic.hold(number) == topic.log.last_position


def test_a_subscription_that_goes_back_is_expired_without_another_search(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = topic.subscribe("s")
    topic.clock.set_now(TTL_MS + 2001)
    topic.run()
    end = topic.hold(number)
    change(topic.log, topic.log.changes.seek(number, Position(FIRST, -1)))
    assert topic.expiry.is_due()
    monkeypatch.delattr(BacklogSearch, "run")
    topic.run()
    assert topic.hold(number) == end


def test_without_a_policy_nothing_expires(topic: Topic) -> None:
    number = topic.subscribe("s")
    topic.policies.take(settings())
    topic.clock.set_now(10 * TTL_MS)
    assert not topic.expiry.is_due()
    topic.run()
    assert topic.hold(number) == Position(FIRST, -1)
    assert topic.next_due_ms() is None
    topic.policies.take(settings(ttl_duration_default_in_seconds=1))
    topic.run()
    assert topic.hold(number) == topic.log.last_position


def test_a_partition_that_sleeps_is_woken_for_the_next_message(topic: Topic) -> None:
    assert topic.next_due_ms() is None, "nobody has a backlog"
    topic.subscribe("s", Position(FIRST + 1, 0))
    due_ms = topic.next_due_ms()
    assert due_ms is not None
    assert due_ms > 3000 + TTL_MS
    topic.clock.set_now(due_ms)
    topic.run()
    assert topic.expired, "by then there is something to do"
    assert topic.next_due_ms() is None


def test_a_clock_that_is_set_back_expires_nothing_more(topic: Topic) -> None:
    number = topic.subscribe("s")
    topic.clock.set_now(TTL_MS + 1001)
    topic.run()
    end = topic.hold(number)
    topic.clock.set_now(0)
    topic.run()
    assert topic.hold(number) == end


def test_what_expires_for_a_subscription_without_a_dispatcher_is_counted_and_outlasts_a_sleep(
    topic: Topic,
) -> None:
    unread, read = topic.subscribe("unread"), topic.subscribe("read")
    topic.followed = {read}
    topic.clock.advance(TTL_MS - 3000)
    topic.run()
    first = topic.counts.describe(unread)
    assert first["totalMsgExpired"] == 3
    assert first["lastExpireTimestamp"] == topic.clock.now_ms()
    topic.publish(6)
    topic.clock.advance(2000)
    topic.run()
    assert topic.counts.describe(unread)["totalMsgExpired"] == 5
    nothing = {"totalMsgExpired": 0, "lastExpireTimestamp": 0}
    assert topic.counts.describe(read) == nothing, "its dispatcher counts"
    topic.counts.write()
    again = ExpiredCounts(topic.log, topic.cursors, set, topic.clock)
    assert again.describe(unread) == topic.counts.describe(unread)
    note = Path(topic.log.directory) / EXPIRED_NOTE
    note.write_bytes(b"[[1")
    assert ExpiredCounts(topic.log, topic.cursors, set, topic.clock).describe(unread) == nothing
