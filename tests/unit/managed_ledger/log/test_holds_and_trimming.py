"""Subscriptions with their holds, leases, retention, and the files that trimming removes."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.errors import SubscriptionNotFound
from pulsar_ray.managed_ledger.log.commit import run_together
from pulsar_ray.managed_ledger.log.ledger_policies import Retention, ledgers_to_trim
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.manifest.manifest import LedgerInfo
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Compacted, Lease
from pulsar_ray.model.message_id import EARLIEST, LATEST, Position
from pulsar_ray.testing.faulty_disk import FaultyDisk
from tests.stored_blocks import IDENTITY, MIB, abandon, append, block, change, open_log, settings

FIRST = IDENTITY.number << 31
NONE = Retention(0, 0)
TWO_A_LEDGER = settings(managed_ledger_max_entries_per_ledger=2)


def log_of(path: Path, count: int, **options: Any) -> ManagedLedger:
    """Entries 0.. in ledgers of two."""
    log = open_log(path, config=TWO_A_LEDGER, **options)
    for seq in range(count):
        append(log, seq, now_ms=1000 + seq)
    return log


def ledger_ids(log: ManagedLedger) -> list[int]:
    return sorted({int(path.name.split("-")[0]) - FIRST for path in log.directory.glob("*.seg")})


def test_a_subscription_starts_where_it_says_and_survives(tmp_path: Path) -> None:
    log = log_of(tmp_path, 3)
    latest = change(log, log.changes.register("latest", True, "latest", {"a": "b"}))
    earliest = change(log, log.changes.register("earliest", True, "earliest"))
    given = change(log, log.changes.register("given", False, Position(FIRST, 0)))
    assert latest.hold == Position(FIRST + 1, 0)
    assert earliest.hold == Position(FIRST, -1)
    assert given.hold == Position(FIRST, 0)
    assert [s.number for s in (latest, earliest, given)] == [1, 2, 3]
    abandon(log)
    again = open_log(tmp_path, config=TWO_A_LEDGER)
    assert again.changes.subscriptions() == [latest, earliest, given]
    assert again.changes.find_subscription("latest", True) == latest
    assert again.changes.find_subscription("latest", False) is None
    assert latest.properties == {"a": "b"}
    other = change(again, again.changes.register("latest", False, "latest"))
    assert other.number == 4, "durable and non-durable ones of a name are two"


def test_registering_twice_gives_the_same_subscription(tmp_path: Path) -> None:
    log = log_of(tmp_path, 1)
    first = log.changes.register("s", True, "latest")
    second = log.changes.register("s", True, "earliest")
    run_together([first, second])
    assert log.changes.finish(first) == log.changes.finish(second)
    assert change(log, log.changes.register("s", True, "earliest")) == first.result
    assert len(log.changes.subscriptions()) == 1


def test_latest_is_fixed_while_an_append_is_under_way(tmp_path: Path) -> None:
    log = log_of(tmp_path, 1)
    commit = log.begin_append([block(1)], 1000)
    pending = log.changes.register("s", True, "latest")
    commit.run()
    log.finish_append(commit)
    assert change(log, pending).hold == Position(FIRST, 0), "what was not confirmed yet will be seen"


def test_on_an_empty_log_everything_to_come_is_held(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=TWO_A_LEDGER)
    assert change(log, log.changes.register("a", True, "latest")).hold == EARLIEST
    assert change(log, log.changes.register("b", True, "earliest")).hold == EARLIEST
    for seq in range(3):
        append(log, seq)
    assert log.changes.trim(10_000, NONE) is None


def test_holds_move_within_what_is_there(tmp_path: Path) -> None:
    log = log_of(tmp_path, 6)
    number = change(log, log.changes.register("s", True, "earliest")).number
    assert change(log, log.changes.move_hold(number, Position(FIRST + 1, 1))) == Position(FIRST + 1, 1)
    assert change(log, log.changes.trim(9_000, NONE)) == [FIRST, FIRST + 1]
    assert log.first_position == Position(FIRST + 2, 0)
    assert change(log, log.changes.move_hold(number, EARLIEST)) == Position(FIRST + 2, -1)
    assert change(log, log.changes.move_hold(number, LATEST)) == log.last_position
    with pytest.raises(SubscriptionNotFound):
        log.changes.move_hold(99, LATEST)
    change(log, log.changes.remove_subscription(number))
    assert not log.changes.has_subscription(number)
    assert log.changes.subscriptions() == []


def test_a_hold_that_moves_while_its_subscription_is_removed_changes_nothing(tmp_path: Path) -> None:
    log = log_of(tmp_path, 3)
    number = change(log, log.changes.register("s", True, "latest")).number
    removing, moving = log.changes.remove_subscription(number), log.changes.move_hold(number, LATEST)
    run_together([removing, moving])
    log.changes.finish(removing)
    log.changes.finish(moving)
    assert log.changes.subscriptions() == []
    abandon(log)
    assert open_log(tmp_path, config=TWO_A_LEDGER).changes.subscriptions() == []


def test_the_slowest_durable_hold_decides(tmp_path: Path) -> None:
    log = log_of(tmp_path, 8)
    fast = change(log, log.changes.register("fast", True, "latest")).number
    slow = change(log, log.changes.register("slow", True, "earliest")).number
    change(log, log.changes.register("reader", False, "earliest"))
    assert log.changes.trim(9_000, NONE) is None
    change(log, log.changes.move_hold(slow, Position(FIRST + 1, 0)))
    assert change(log, log.changes.trim(9_000, NONE)) == [FIRST]
    assert ledger_ids(log) == [1, 2, 3]
    change(log, log.changes.remove_subscription(slow))
    assert change(log, log.changes.trim(9_000, NONE)) == [FIRST + 1, FIRST + 2]
    assert ledger_ids(log) == [3]
    assert [segment.ledger_id for segment in log.segments()] == [FIRST + 3]
    del fast


def test_the_last_entry_that_was_trimmed_stays_known(tmp_path: Path) -> None:
    log = log_of(tmp_path, 8)
    number = change(log, log.changes.register("s", True, "latest")).number
    assert log.trimmed_position == EARLIEST
    change(log, log.changes.trim(9_000, NONE))
    assert log.trimmed_position == Position(FIRST + 2, 1)
    for _ in range(2):  # of the records at first, then of the snapshot
        abandon(log)
        log = open_log(tmp_path, config=TWO_A_LEDGER)
        assert log.trimmed_position == Position(FIRST + 2, 1)
    change(log, log.changes.remove_subscription(number))


def test_a_hold_that_is_being_lowered_or_registered_is_respected_at_once(tmp_path: Path) -> None:
    log = log_of(tmp_path, 6)
    number = change(log, log.changes.register("s", True, "latest")).number
    lowering = log.changes.move_hold(number, Position(FIRST + 1, 0))
    trim = log.changes.trim(9_000, NONE)
    assert trim is not None
    assert trim.result == [FIRST]
    # The deletion has begun, so a later seek is not sent there.
    seek = log.changes.move_hold(number, EARLIEST)
    assert seek.result == Position(FIRST + 1, -1)
    registering = log.changes.register("t", True, "earliest")
    assert registering.result.hold == Position(FIRST + 1, -1)
    assert log.changes.trim(9_000, NONE) is None, "no ledger is deleted twice"
    for pending in (lowering, trim, seek, registering):
        change(log, pending)


def test_a_raised_hold_counts_only_when_it_is_durable(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = log_of(tmp_path, 6, disk=disk)
    number = change(log, log.changes.register("s", True, "earliest")).number
    raising = log.changes.move_hold(number, LATEST)
    assert log.changes.trim(9_000, NONE) is None
    disk.fail("fdatasync")
    with pytest.raises(OSError, match="Input/output"):
        change(log, raising)
    assert log.changes.trim(9_000, NONE) is None


def test_leases_hold_ledgers_until_they_expire(tmp_path: Path) -> None:
    log = log_of(tmp_path, 8)
    lease = change(log, log.changes.grant_lease(Position(FIRST + 1, 0), Position(FIRST + 1, 1), 20_000))
    assert change(log, log.changes.trim(9_000, NONE)) == [FIRST]
    assert log.changes.trim(19_999, NONE) is None
    abandon(log)
    log = open_log(tmp_path, config=TWO_A_LEDGER, now_ms=2000)
    assert log.changes.leases() == [Lease(lease, FIRST + 1, FIRST + 1, 20_000)]
    renewed = change(
        log, log.changes.grant_lease(Position(FIRST + 1, 0), Position(FIRST + 1, 1), 30_000, lease)
    )
    assert renewed == lease
    assert log.changes.trim(20_000, NONE) is None
    assert change(log, log.changes.trim(30_000, NONE)) == [FIRST + 1, FIRST + 2, FIRST + 3]
    assert log.changes.leases() == []
    other = change(log, log.changes.grant_lease(EARLIEST, LATEST, 90_000))
    assert other == lease + 1
    change(log, log.changes.release_lease(other))
    assert log.changes.leases() == []


def test_retention_keeps_what_is_within_both_limits() -> None:
    ledgers = [LedgerInfo(i, 0, [], 9, MIB, 1000 * (i + 1)) for i in range(5)]

    def gone(time_ms: int, size_bytes: int, now_ms: int = 10_000) -> int:
        going = ledgers_to_trim(ledgers, 0, [], [], Retention(time_ms, size_bytes), now_ms)
        assert going == ledgers[: len(going)]
        return len(going)

    assert gone(0, 0) == 5
    assert gone(-1, -1) == 0
    assert gone(-1, 2 * MIB) == 3
    assert gone(-1, 100 * MIB) == 0
    assert gone(7_500, -1) == 2
    assert gone(7_500, 1 * MIB) == 4
    assert gone(7_500, 100 * MIB) == 2
    assert Retention.from_settings(
        settings(default_retention_time_in_minutes=2, default_retention_size_in_mb=-1)
    ) == Retention(120_000, -1)


def test_positions_survive_when_everything_is_trimmed(tmp_path: Path) -> None:
    log = log_of(tmp_path, 4)
    abandon(log)
    log = open_log(tmp_path, config=TWO_A_LEDGER)
    assert change(log, log.changes.trim(9_000, NONE)) == [FIRST, FIRST + 1]
    assert log.segments() == []
    for _ in range(2):
        assert log.last_position == Position(FIRST + 1, 1)
        assert log.first_position == Position(FIRST + 1, 2)
        assert log.last_message()["batch_size"] == 0
        assert log.begin_position_at_time(0).run() == Position(FIRST + 1, 2)
        abandon(log)
        log = open_log(tmp_path, config=TWO_A_LEDGER)
    assert append(log, 4).positions == [Position(FIRST + 2, 0)]


def test_an_idle_open_ledger_that_is_consumed_is_closed_and_goes(tmp_path: Path) -> None:
    log = log_of(tmp_path, 1)
    number = change(log, log.changes.register("s", True, "earliest")).number
    assert log.changes.trim(100_000, NONE) is None
    change(log, log.changes.move_hold(number, LATEST))
    assert log.changes.trim(60_000, NONE) is None, "not idle yet"
    assert change(log, log.changes.trim(100_000, NONE)) == []
    assert change(log, log.changes.trim(200_000, NONE)) == [FIRST]
    assert ledger_ids(log) == []
    append(log, 1, now_ms=200_001)
    abandon(log)
    again = open_log(tmp_path, config=TWO_A_LEDGER)
    assert [segment.ledger_id for segment in again.segments()] == [FIRST + 1]


def test_only_recorded_deletions_are_carried_out(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = log_of(tmp_path, 4, disk=disk)
    disk.fail("fdatasync", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        change(log, log.changes.trim(9_000, NONE))
    assert ledger_ids(log) == [0, 1]
    assert disk.calls[-1] == "fdatasync", "nothing is unlinked after the record failed"
    change(log, log.changes.trim(9_000, NONE))
    assert ledger_ids(log) == [1]


def test_a_deletion_that_a_crash_interrupted_is_completed(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = log_of(tmp_path, 6, disk=disk)
    disk.fail("unlink", 0, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        change(log, log.changes.trim(9_000, NONE))
    assert len(ledger_ids(log)) == 2
    abandon(log)
    again = open_log(tmp_path, config=TWO_A_LEDGER)
    assert ledger_ids(again) == [2]
    assert again.first_position == Position(FIRST + 2, 0)


def test_many_changes_do_not_make_the_manifest_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_ray.managed_ledger.log.log_state._COMPACT_ABOVE_BYTES", 2_000)
    log = log_of(tmp_path, 2)
    number = change(log, log.changes.register("s", True, "earliest")).number
    largest = 0
    for i in range(300):
        change(log, log.changes.move_hold(number, Position(FIRST, i % 2)))
        (manifest,) = tmp_path.glob("manifest-*")
        largest = max(largest, manifest.stat().st_size)
    assert 2_000 < largest < 4_000
    abandon(log)
    again = open_log(tmp_path, config=TWO_A_LEDGER)
    assert again.changes.subscriptions()[0].hold == Position(FIRST, 1)


def test_a_rewrite_keeps_changes_that_ran_but_are_not_finished(tmp_path: Path) -> None:
    log = log_of(tmp_path, 2)
    first = log.changes.register("first", True, "earliest")
    first.run()
    log._files.log.close()  # as after a failed write: the next change rewrites the manifest
    second = log.changes.register("second", True, "earliest")
    second.run()
    log.changes.finish(first)
    log.changes.finish(second)
    abandon(log)
    again = open_log(tmp_path, config=TWO_A_LEDGER)
    assert [s.name for s in again.changes.subscriptions()] == ["first", "second"]


def test_a_new_log_keeps_its_first_messages_for_those_who_look_for_it(tmp_path: Path) -> None:
    grace = settings(managed_ledger_max_entries_per_ledger=2, new_topic_retention_seconds=120)
    log = open_log(tmp_path, config=grace)
    for seq in range(6):
        append(log, seq, now_ms=1000 + seq)
    number = change(log, log.changes.register("quick", True, "earliest")).number
    change(log, log.changes.move_hold(number, Position(FIRST + 1, 1)))
    abandon(log)
    log = open_log(tmp_path, config=grace, now_ms=90_000)
    assert log.changes.trim(120_999, NONE) is None, "consumed, and new, also after a restart"
    assert change(log, log.changes.trim(121_000, NONE)) == [FIRST, FIRST + 1]
    append(log, 6, now_ms=121_001)
    append(log, 7, now_ms=121_002)
    change(log, log.changes.move_hold(number, LATEST))
    assert change(log, log.changes.trim(121_500, NONE)) == [FIRST + 2], (
        "nothing is kept longer by what came later"
    )


def test_a_new_log_that_falls_asleep_keeps_what_somebody_may_want(tmp_path: Path) -> None:
    grace = settings(managed_ledger_max_entries_per_ledger=2, new_topic_retention_seconds=120)
    log = open_log(tmp_path, config=grace)
    for seq in range(4):
        append(log, seq, now_ms=1000 + seq)
    change(log, log.changes.trim(5_000, NONE, is_leaving=True))
    assert ledger_ids(log) == [0, 1], "nobody has subscribed yet"
    number = change(log, log.changes.register("quick", True, "earliest")).number
    change(log, log.changes.move_hold(number, LATEST))
    change(log, log.changes.trim(6_000, NONE, is_leaving=True))
    assert ledger_ids(log) == [], "all who know it have consumed it, and it is woken for nothing"


def test_readers_of_a_compacted_log_keep_what_they_have_not_come_by(tmp_path: Path) -> None:
    log = log_of(tmp_path, 7)
    behind = [Position(FIRST, 1)]
    log.changes.needed_behind = lambda: behind
    form = Compacted(1, FIRST + 2, 1, [], (-1, -1, -1, 0), 0, 6, 0, 0)
    change(log, log.changes.take_compacted(form))
    assert change(log, log.changes.trim(9_000, NONE)) == [FIRST]
    behind.clear()
    assert change(log, log.changes.trim(9_000, NONE)) == [FIRST + 1, FIRST + 2]
