"""What the broker has acknowledged for subscriptions: durable, final, and taken back by a seek alone."""

from __future__ import annotations

from pathlib import Path

from pulsar_ray.managed_ledger.log.commit import run_together
from pulsar_ray.managed_ledger.log.ledger_policies import Retention
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Subscription
from pulsar_ray.model.message_id import LATEST, Position
from tests.stored_blocks import IDENTITY, abandon, append, change, open_log, settings

FIRST = IDENTITY.number << 31
TWO_A_LEDGER = settings(managed_ledger_max_entries_per_ledger=2)


def log_of(path: Path, count: int) -> ManagedLedger:
    log = open_log(path, config=TWO_A_LEDGER)
    for seq in range(count):
        append(log, seq, now_ms=1000 + seq)
    return log


def known(log: ManagedLedger, number: int) -> Subscription:
    subscription = log.changes.subscription(number)
    assert subscription is not None
    return subscription


def test_expired_is_a_hold_that_outlasts_a_crash(tmp_path: Path) -> None:
    log = log_of(tmp_path, 6)
    slow = change(log, log.changes.register("slow", True, "earliest")).number
    fast = change(log, log.changes.register("fast", True, "latest")).number
    reader = change(log, log.changes.register("reader", False, "earliest")).number
    expire = log.changes.expire([slow, fast, reader, 99], Position(FIRST + 1, 0))
    assert change(log, expire) == [slow], "those that are farther, or hold nothing, are left alone"
    assert log.changes.expire([slow, fast], Position(FIRST + 1, 0)) is None
    assert log.changes.expire([slow], Position(FIRST, 1)) is None, "it never goes back"
    abandon(log)
    again = open_log(tmp_path, config=TWO_A_LEDGER)
    assert known(again, slow).hold == known(again, slow).expired == Position(FIRST + 1, 0)
    again.close()
    again = open_log(tmp_path, config=TWO_A_LEDGER)
    assert known(again, slow).expired == Position(FIRST + 1, 0), "a manifest that begins anew has it, too"
    assert change(again, again.changes.trim(9_000, Retention(0, 0))) == [FIRST]


def test_a_late_report_of_a_dispatcher_takes_nothing_back(tmp_path: Path) -> None:
    log = log_of(tmp_path, 6)
    number = change(log, log.changes.register("s", True, "earliest")).number
    change(log, log.changes.expire([number], Position(FIRST + 1, 1)))
    change(log, log.changes.move_hold(number, Position(FIRST, 0)))
    assert known(log, number).hold == Position(FIRST + 1, 1)
    change(log, log.changes.move_hold(number, Position(FIRST + 2, 0)))
    assert known(log, number).hold == Position(FIRST + 2, 0)


def test_a_late_report_that_is_under_way_holds_nothing_that_was_truncated(tmp_path: Path) -> None:
    log = log_of(tmp_path, 6)
    number = change(log, log.changes.register("s", True, "earliest")).number
    log.changes.has_ended(log.changes.end_log_soon())
    expire = log.changes.expire([number], Position(FIRST + 2, 1))
    late = log.changes.move_hold(number, Position(FIRST, 0))
    change(log, expire)
    assert change(log, log.changes.truncate(9_000)) == [FIRST, FIRST + 1, FIRST + 2]
    change(log, late)
    assert known(log, number).hold == Position(FIRST + 2, 1)


def test_a_seek_that_is_under_way_is_heeded_when_the_log_is_truncated(tmp_path: Path) -> None:
    log = log_of(tmp_path, 6)
    number = change(log, log.changes.register("s", True, "earliest")).number
    change(log, log.changes.expire([number], Position(FIRST + 2, 1)))
    seek = log.changes.seek(number, Position(FIRST, 0))
    assert log.changes.truncate(9_000) is None
    change(log, seek)


def test_a_seek_takes_back_what_has_expired(tmp_path: Path) -> None:
    log = log_of(tmp_path, 6)
    number = change(log, log.changes.register("s", True, "earliest")).number
    change(log, log.changes.expire([number], Position(FIRST + 2, 0)))
    assert change(log, log.changes.seek(number, Position(FIRST, 0))) == Position(FIRST, 0)
    assert known(log, number).hold == Position(FIRST, 0)
    abandon(log)
    again = open_log(tmp_path, config=TWO_A_LEDGER)
    assert known(again, number).hold == Position(FIRST, 0)


def test_of_an_expiry_and_a_seek_under_way_together_the_later_counts(tmp_path: Path) -> None:
    log = log_of(tmp_path, 6)
    number = change(log, log.changes.register("s", True, "earliest")).number
    expire = log.changes.expire([number], Position(FIRST + 2, 0))
    assert expire is not None
    seek = log.changes.seek(number, Position(FIRST, 1))
    run_together([expire, seek])
    log.changes.finish(expire)
    log.changes.finish(seek)
    assert known(log, number).hold == Position(FIRST, 1)
    seek = log.changes.seek(number, Position(FIRST, 0))
    expire = log.changes.expire([number], LATEST)
    assert expire is not None
    run_together([seek, expire])
    log.changes.finish(seek)
    log.changes.finish(expire)
    assert known(log, number).hold == log.last_position


def test_the_entry_before_a_position(tmp_path: Path) -> None:
    log = log_of(tmp_path, 4)
    assert log.changes.entry_before(Position(FIRST, 1)) == Position(FIRST, 0)
    assert log.changes.entry_before(Position(FIRST + 1, 0)) == Position(FIRST, 1)
    assert log.changes.entry_before(Position(FIRST, 0)) == Position(FIRST, -1)
    assert log.changes.entry_before(log.last_position.next()) == log.last_position
