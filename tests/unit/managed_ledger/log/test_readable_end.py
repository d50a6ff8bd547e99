"""The readable end of a log: what is read of it ends there, also where more is durable."""

from __future__ import annotations

from pathlib import Path

from pulsar_ray.managed_ledger.log.commit import LogEnd
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.message_id import EARLIEST
from tests.stored_blocks import append, block, change, open_log, settings


def append_unseen(log: ManagedLedger, seq: int, publish_ms: int = 0) -> LogEnd:
    """Append a block, and let nobody see it."""
    commit = log.begin_append([block(seq, publish_ms=publish_ms)], 1000)
    commit.run()
    return log.finish_append(commit).end


def test_nothing_of_a_new_log_is_seen_before_it_is_shown(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    end = append_unseen(log, 0)
    assert log.last_position == end.position
    assert log.readable_position == EARLIEST
    assert log.segments() == []
    assert log.last_message()["position"] == list(EARLIEST)
    log.show(end)
    assert log.readable_position == end.position
    assert log.segments()[-1].last_entry_id == 0
    log.close()


def test_segments_end_at_the_readable_end(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    shown = append(log, 0).end
    before = log.segments()
    later = append_unseen(log, 1)
    assert log.segments() == before
    assert before[-1].end_offset == shown.end_offset
    log.show(shown)
    assert log.segments() == before, "an end that is shown already changes nothing"
    log.show(later)
    assert log.segments()[-1].end_offset == later.end_offset
    log.show(shown)
    assert log.readable_position == later.position, "an earlier end hides nothing again"
    log.close()


def test_a_segment_that_nobody_may_see_yet_comes_with_a_new_version(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=settings(managed_ledger_max_entries_per_ledger=1))
    append(log, 0)
    version, known = log.state.segments_version, log.segments()
    unseen = append_unseen(log, 1)
    assert unseen.position.ledger_id > known[-1].ledger_id
    assert log.segments() == known
    told = log.state.segments_version
    log.show(unseen)
    assert log.state.segments_version > told >= version
    assert [segment.ledger_id for segment in log.segments()] == [
        known[-1].ledger_id,
        unseen.position.ledger_id,
    ]
    log.close()


def test_searches_subscriptions_and_seeks_stop_at_the_readable_end(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    shown = append(log, 0, publish_ms=5).end.position
    unseen = append_unseen(log, 1, publish_ms=10)
    assert log.begin_position_at_time(5).run() == shown
    assert log.begin_position_at_time(10).run() == shown.next(), "as if it were not published yet"
    assert change(log, log.changes.register("latest", True, "latest")).hold == shown
    assert log.changes.clamp(unseen.position) == shown
    assert log.begin_backlog(unseen.position).run().stored_ms is None
    log.show(unseen)
    assert log.begin_position_at_time(10).run() == unseen.position
    assert log.changes.clamp(unseen.position) == unseen.position
    log.close()


def test_a_log_that_is_opened_again_shows_all_that_is_durable(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 0)
    unseen = append_unseen(log, 1)
    log.close()
    log = open_log(tmp_path)
    assert log.readable_position == unseen.position
    assert log.segments()[-1].last_entry_id == unseen.position.entry_id
    newer = append_unseen(log, 2)
    assert log.segments()[-1].ledger_id == unseen.position.ledger_id
    log.show(newer)
    assert log.segments()[-1].ledger_id == newer.position.ledger_id
    log.close()
