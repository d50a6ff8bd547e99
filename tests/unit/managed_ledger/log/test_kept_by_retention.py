"""What retention keeps on the disk, and what it gives back, as time passes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.message_id import Position
from pulsar_ray.testing.manual_clock import ManualClock
from tests.stored_blocks import IDENTITY, MIB, append, block, change, open_log, settings

FIRST = IDENTITY.number << 31
MINUTE = 60_000
ENTRY = MIB // 2


class Topic:
    """A log with a ledger of 1 MiB, in two entries, for each minute that has passed.

    A ledger ends, and its age begins, when the next one does, a minute later.
    """

    def __init__(self, path: Path, minutes: int = -1, mbytes: int = -1) -> None:
        self.clock = ManualClock()
        self.clock.set_now(0)
        self.settings = settings(
            managed_ledger_max_entries_per_ledger=2,
            default_retention_time_in_minutes=minutes,
            default_retention_size_in_mb=mbytes,
        )
        self.log = open_log(path, 0, self.settings)
        self._seq = 0

    def pass_minutes(self, count: int) -> None:
        """Publish two entries at the end of each minute; the next one's first begins another ledger."""
        for _ in range(count):
            self.clock.advance(MINUTE)
            for _ in range(2):
                append(self.log, self._seq, now_ms=self.clock.now_ms(), size=ENTRY)
                self._seq += 1

    def keep(self, minutes: int, mbytes: int) -> None:
        """Let another retention hold from now on."""
        changed = self.settings.replace(
            default_retention_time_in_minutes=minutes, default_retention_size_in_mb=mbytes
        )
        self.log.policies.take(changed)

    def subscribe(self, at: str | Position = "earliest") -> int:
        name = f"s{self.log.changes.next_subscription_number}"
        number: int = change(self.log, self.log.changes.register(name, True, at)).number
        return number

    def consume(self, number: int, ledger: int) -> None:
        """Acknowledge up to the end of a ledger."""
        change(self.log, self.log.changes.move_hold(number, Position(FIRST + ledger, 1)))

    def trim(self) -> list[int]:
        """Trim; the ledgers that are left, which are those on the disk."""
        change(self.log, self.log.changes.trim(self.clock.now_ms()))
        return self.ledgers()

    def ledgers(self) -> list[int]:
        files = sorted(self.log.directory.glob("*.seg"))
        found = sorted({int(path.name.split("-")[0]) - FIRST for path in files})
        known = [ledger.ledger_id - FIRST for ledger in self.log.ledgers()]
        assert found == known, "no file is left of what is gone, and none is missing"
        assert sum(path.stat().st_size for path in files) <= len(known) * (MIB + MIB // 4)
        return found


@pytest.fixture
def made() -> Iterator[list[ManagedLedger]]:
    logs: list[ManagedLedger] = []
    yield logs
    for log in logs:
        log.close()


@pytest.fixture
def topic(tmp_path: Path, made: list[ManagedLedger]) -> Topic:
    """Ten ledgers, 0 to 8 of them closed, and one subscription that has consumed all of them."""
    topic = Topic(tmp_path)
    made.append(topic.log)
    topic.pass_minutes(10)
    topic.subscribe("latest")
    return topic


@pytest.mark.parametrize(
    ("minutes", "mbytes", "left"),
    [
        (-1, -1, range(10)),
        (0, 0, range(9, 10)),
        (3, -1, range(5, 10)),
        (-1, 4, range(6, 10)),
        (3, 100, range(5, 10)),
        (100, 4, range(6, 10)),
        (3, 2, range(8, 10)),
        (1, 100, range(7, 10)),
    ],
)
def test_data_is_kept_while_it_is_within_both_limits(
    topic: Topic, minutes: int, mbytes: int, left: range
) -> None:
    topic.keep(minutes, mbytes)
    assert topic.trim() == list(left)
    assert topic.trim() == list(left), "nothing more goes while no time passes"


def test_time_alone_gives_space_back(topic: Topic) -> None:
    topic.keep(5, -1)
    counts = []
    for _ in range(6):
        counts.append(len(topic.trim()))
        topic.clock.advance(MINUTE)
    assert counts == sorted(counts, reverse=True)
    assert counts[0] - counts[-1] == 5


def test_nothing_goes_from_the_middle_for_a_slow_subscription(topic: Topic) -> None:
    slow, half = topic.subscribe(), topic.subscribe()
    topic.keep(0, 0)
    topic.consume(half, 6)
    assert topic.trim() == list(range(10))
    topic.consume(slow, 2)
    assert topic.trim() == list(range(3, 10))
    topic.consume(slow, 7)
    assert topic.trim() == list(range(7, 10)), "the other one is the slowest by now"


def test_a_retention_below_the_backlog_keeps_the_backlog(topic: Topic) -> None:
    slow = topic.subscribe(Position(FIRST + 3, 1))
    topic.keep(1, 1)
    assert topic.trim() == list(range(4, 10))
    topic.clock.advance(100 * MINUTE)
    assert topic.trim() == list(range(4, 10))
    change(topic.log, topic.log.changes.remove_subscription(slow))
    assert topic.trim() == [9]


def test_what_the_broker_has_acknowledged_goes_as_what_was_consumed(topic: Topic) -> None:
    slow = topic.subscribe()
    topic.keep(0, 0)
    change(topic.log, topic.log.changes.expire([slow], Position(FIRST + 4, 1)))
    assert topic.trim() == list(range(5, 10))
    change(topic.log, topic.log.changes.expire([slow], topic.log.last_position))
    topic.keep(-1, 3)
    assert topic.trim() == list(range(7, 10)), "retention keeps it, though nobody will get it"


def test_a_lease_keeps_its_range_and_what_is_behind(topic: Topic) -> None:
    until_ms = topic.clock.now_ms() + 5 * MINUTE
    change(topic.log, topic.log.changes.grant_lease(Position(FIRST + 4, 0), Position(FIRST + 5, 1), until_ms))
    topic.keep(0, 0)
    assert topic.trim() == list(range(4, 10))
    topic.clock.advance(5 * MINUTE)
    assert topic.trim() == [9]


def test_truncating_keeps_nothing_that_was_acknowledged(topic: Topic) -> None:
    changes = topic.log.changes
    assert changes.has_ended(changes.end_log_soon())
    change(topic.log, changes.truncate(topic.clock.now_ms()))
    assert topic.ledgers() == []
    append(topic.log, 99, now_ms=topic.clock.now_ms())
    assert topic.log.last_position == Position(FIRST + 10, 0)


def test_truncating_ends_the_ledger_behind_an_append_that_is_under_way(topic: Topic) -> None:
    changes, log = topic.log.changes, topic.log
    pending: Any = log.begin_append([block(50)], topic.clock.now_ms())
    in_flight = pending.positions[0].ledger_id
    ended = changes.end_log_soon()
    assert not changes.has_ended(ended)
    pending.run()
    log.finish_append(pending)
    assert append(log, 51, now_ms=topic.clock.now_ms()).positions[0].ledger_id > in_flight
    assert changes.has_ended(ended)


def test_truncating_heeds_subscriptions_and_leases(topic: Topic) -> None:
    topic.subscribe(Position(FIRST + 7, 1))
    changes = topic.log.changes
    changes.has_ended(changes.end_log_soon())
    change(topic.log, changes.truncate(topic.clock.now_ms()))
    assert topic.ledgers() == [8, 9]


def test_a_log_that_nobody_has_subscribed_to_keeps_what_retention_says(
    tmp_path: Path, made: list[ManagedLedger]
) -> None:
    topic = Topic(tmp_path, minutes=3, mbytes=-1)
    made.append(topic.log)
    topic.pass_minutes(10)
    assert topic.trim() == list(range(5, 10))
