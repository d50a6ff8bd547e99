"""Appending: positions, frames, rollover, and what a failed write leaves."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from pulsar_ray.errors import Fenced
from pulsar_ray.format.block import verify_block
from pulsar_ray.format.frame import parse_frame_header
from pulsar_ray.format.metadata import BlockMetadata, ChunkInfo
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.managed_ledger.log.commit import OpenLedger
from pulsar_ray.managed_ledger.log.ledger_policies import RolloverPolicy
from pulsar_ray.managed_ledger.log.producer_incarnations import InFlight, New, Repeat
from pulsar_ray.model.message_id import EARLIEST, Position
from pulsar_ray.testing.faulty_disk import FaultyDisk
from tests.stored_blocks import (
    IDENTITY,
    MIB,
    abandon,
    append,
    append_blocks,
    block,
    change,
    open_log,
    settings,
)
from tests.unit.ledger.test_directory_owner import grant
from tests.unit.managed_ledger.log.test_log_recovery import entries

FIRST_LEDGER = IDENTITY.number << 31


def test_blocks_of_one_commit_are_one_frame_stored_verbatim(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    blocks = [block(0), block(1, rows=3), block(4, size=10_000)]
    result = append_blocks(log, blocks)
    assert result.positions == [Position(FIRST_LEDGER, n) for n in (0, 1, 4)]
    [(ledger_id, segment_index, offset, encoded)] = result.frames
    frame = parse_frame_header(encoded)
    [segment] = log.segments()
    assert (ledger_id, segment_index, offset) == (segment.ledger_id, segment.segment_index, 4096)
    assert segment.end_offset == offset + frame.total_length == segment.path.stat().st_size
    assert (frame.epoch, frame.durable_entry_id, frame.last_entry_id) == (1, -1, 4)
    with SegmentReader(segment.path) as reader:
        at = offset + frame.header_length
        for header, buffers in blocks:
            stored = reader.read_block(at, header.total_length)
            assert stored == b"".join(bytes(buffer) for buffer in buffers)
            verify_block(stored, 0, header)
            at += header.total_length
    assert log.last_message() == {"position": [FIRST_LEDGER, 4], "batch_size": 0}
    second = parse_frame_header(append(log, 5).frames[0][3])
    assert second.durable_entry_id == 4


def test_the_frame_of_delayed_and_chunked_blocks_says_so(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    chunk = ChunkInfo("p-1", 0, 2, 100)
    marked = [
        append_blocks(log, [block(0), block(1, metadata=BlockMetadata(deliver_at=77))]),
        append_blocks(log, [block(2, metadata=BlockMetadata(chunk=chunk))]),
        append_blocks(log, [block(3), block(4, rows=2)]),
    ]
    frames = [parse_frame_header(result.frames[0][3]) for result in marked]
    assert [frame.holds_marked_blocks for frame in frames] == [True, True, False]


def test_nothing_counts_before_it_is_finished(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    commit = log.begin_append([block(0)], 1000)
    assert log.incarnations.classify(5, 0, 1) == InFlight()
    commit.run()
    assert log.last_position == EARLIEST
    assert log.segments() == []
    with pytest.raises(RuntimeError):
        log.begin_append([block(1)], 1000)
    log.finish_append(commit)
    assert log.incarnations.classify(5, 0, 1) == Repeat(Position(FIRST_LEDGER, 0))
    assert log.state.segments_version == 1


def test_one_write_and_one_sync_per_commit_and_no_copy(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    append(log, 0)
    disk.calls.clear()
    commit = log.begin_append([block(1, size=MIB)], 1000)
    payload = block(1, size=MIB)[1]
    assert len(commit.buffers) == 1 + len(payload)
    assert all(isinstance(buffer, bytes) for buffer in commit.buffers)
    commit.run()
    log.finish_append(commit)
    assert disk.calls == ["writev", "fdatasync"]


def test_policy_is_pulsars() -> None:
    policy = RolloverPolicy(max_entries=10, max_bytes=100, min_ms=50, max_ms=500, segment_bytes=1)

    def is_full(entries: int, size_bytes: int, age_ms: int) -> bool:
        ledger = OpenLedger(1, 2_000_000)
        ledger.next_entry_id, ledger.size_bytes = entries, size_bytes
        return ledger.is_full(policy, 2_000_000 + age_ms)

    assert not is_full(entries=0, size_bytes=0, age_ms=10_000)
    assert not is_full(entries=99, size_bytes=999, age_ms=49)
    assert is_full(entries=10, size_bytes=1, age_ms=50)
    assert is_full(entries=1, size_bytes=100, age_ms=50)
    assert not is_full(entries=9, size_bytes=99, age_ms=499)
    assert is_full(entries=1, size_bytes=1, age_ms=500)
    # The clock was set back since the ledger was begun: it ends all the same.
    assert is_full(entries=10, size_bytes=1, age_ms=-1_000_000)
    assert not is_full(entries=9, size_bytes=99, age_ms=-1_000_000)
    from_settings = RolloverPolicy.from_settings(settings(managed_ledger_max_size_per_ledger_mbytes=3))
    assert from_settings.max_bytes == 3 * MIB


def test_ledgers_roll_by_entries_size_and_time(tmp_path: Path) -> None:
    config = settings(
        managed_ledger_max_entries_per_ledger=3,
        managed_ledger_max_size_per_ledger_mbytes=1,
        managed_ledger_max_ledger_rollover_time_minutes=10,
    )
    log = open_log(tmp_path, config=config)
    seen = [append(log, seq).positions[0] for seq in range(4)]
    assert [at.ledger_id - FIRST_LEDGER for at in seen] == [0, 0, 0, 1]
    assert [at.entry_id for at in seen] == [0, 1, 2, 0]
    assert append(log, 4, size=MIB).positions == [Position(FIRST_LEDGER + 1, 1)]
    assert append(log, 5).positions == [Position(FIRST_LEDGER + 2, 0)]
    assert append(log, 6, now_ms=600_999).positions == [Position(FIRST_LEDGER + 2, 1)]
    assert append(log, 7, now_ms=601_000).positions == [Position(FIRST_LEDGER + 3, 0)]
    assert [seq for _, seq in entries(log)] == list(range(8))
    infos = log.ledgers()
    assert [info.is_open for info in infos] == [False, False, False, True]
    assert [info.last_entry_id for info in infos[:3]] == [2, 1, 1]


def test_the_minimum_time_comes_first(tmp_path: Path) -> None:
    config = settings(
        managed_ledger_min_ledger_rollover_time_minutes=10, managed_ledger_max_entries_per_ledger=1
    )
    log = open_log(tmp_path, config=config)
    append(log, 0, now_ms=0)
    assert append(log, 1, now_ms=599_999).positions == [Position(FIRST_LEDGER, 1)]
    assert append(log, 2, now_ms=600_000).positions == [Position(FIRST_LEDGER + 1, 0)]


def test_segments_end_at_their_size_within_a_ledger(tmp_path: Path) -> None:
    config = settings(segment_size_bytes=64 * 1024)
    log = open_log(tmp_path, config=config)
    for seq in range(10):
        append(log, seq, size=30_000)
    append(log, 10, size=200_000)
    append(log, 11)
    segments = log.segments()
    assert {segment.ledger_id for segment in segments} == {FIRST_LEDGER}
    assert [segment.segment_index for segment in segments] == list(range(len(segments)))
    assert [segment.first_entry_id for segment in segments] == [0, 2, 4, 6, 8, 10, 11]
    assert not any(any(segment.path.read_bytes()[segment.end_offset :]) for segment in segments)
    assert all(segment.end_offset <= 64 * 1024 for segment in segments if segment.first_entry_id != 10)
    abandon(log)
    again = open_log(tmp_path, config=config)
    assert again.segments() == segments
    assert again.ledgers()[0].size_bytes == sum(segment.end_offset for segment in segments)


@pytest.mark.parametrize("call", ["writev", "fdatasync"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_write_ends_the_ledger_at_its_durable_end(tmp_path: Path, call: str, code: int) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    append(log, 0)
    [before] = log.segments()
    disk.fail(call, code)
    with pytest.raises(OSError, match=r"No space|Input/output"):
        append(log, 1)
    assert log.last_position == Position(FIRST_LEDGER, 0)
    assert log.segments() == [before]
    assert log.incarnations.classify(5, 1, 1) == New()
    disk.calls.clear()
    assert append(log, 1).positions == [Position(FIRST_LEDGER + 1, 0)]
    ends, frame = disk.calls[:2], disk.calls[2:5]
    assert ends == ["writev", "fdatasync"], "the manifest ends the failed file first"
    assert frame == ["open", "writev", "fdatasync"], "the failed file is not touched again"
    for _ in range(2):
        assert [seq for _, seq in entries(log)] == [0, 1]
        abandon(log)
        log = open_log(tmp_path)
        assert log.corruptions == []
        assert log.incarnations.classify(5, 1, 1) == Repeat(Position(FIRST_LEDGER + 1, 0))


@pytest.mark.parametrize("call", ["open", "writev", "fdatasync", "fsync_dir", "manifest"])
@pytest.mark.parametrize("failures", [1, 3])
def test_a_new_ledger_that_cannot_begin_is_tried_under_another_id(
    tmp_path: Path, call: str, failures: int
) -> None:
    disk = FaultyDisk()
    config = settings(managed_ledger_max_entries_per_ledger=1)
    log = open_log(tmp_path, config=config, disk=disk)
    append(log, 0)
    for _ in range(failures):
        if call == "manifest":
            disk.fail("fdatasync", 0, errno.EIO)
        else:
            disk.fail(call)
        with pytest.raises(OSError, match="Input/output"):
            append(log, 1)
        assert log.last_position == Position(FIRST_LEDGER, 0)
        disk.errors.clear()
    positions = append(log, 1).positions
    assert positions == [Position(FIRST_LEDGER + 1 + failures, 0)]
    assert [seq for _, seq in entries(log)] == [0, 1]
    abandon(log)
    again = open_log(tmp_path, config=config)
    assert [seq for _, seq in entries(again)] == [0, 1]
    assert again.last_position == positions[0]
    assert again.corruptions == []


def test_a_crash_right_after_a_failed_write_may_keep_or_lose_what_was_not_confirmed(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    append(log, 0)
    disk.fail("fdatasync")
    with pytest.raises(OSError, match="Input/output"):
        append(log, 1)
    abandon(log)
    again = open_log(tmp_path)
    assert [seq for _, seq in entries(again)] == [0, 1]
    assert again.incarnations.classify(5, 1, 1) == Repeat(Position(FIRST_LEDGER, 1)), (
        "so it is not stored twice"
    )


def test_a_failed_segment_roll_ends_the_ledger(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, config=settings(segment_size_bytes=64 * 1024), disk=disk)
    append(log, 0, size=40_000)
    disk.fail("fdatasync")
    with pytest.raises(OSError, match="Input/output"):
        append(log, 1, size=40_000)
    assert append(log, 1, size=40_000).positions == [Position(FIRST_LEDGER + 1, 0)]
    abandon(log)
    assert [seq for _, seq in entries(open_log(tmp_path))] == [0, 1]


def test_short_writes_are_continued(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    disk.short_write_bytes = 1000
    append(log, 0, size=10_000)
    assert [seq for _, seq in entries(log)] == [0]


def test_a_failed_checkpoint_fails_no_message(tmp_path: Path) -> None:
    disk = FaultyDisk()
    config = settings(index_checkpoint_entries=2)
    log = open_log(tmp_path, config=config, disk=disk)
    append(log, 0)
    append(log, 1)
    disk.fail("writev", 0, errno.ENOSPC)
    append(log, 2)
    # The manifest cannot be appended to any more: it is rewritten whole with the next change.
    subscription = change(log, log.changes.register("s", True, "earliest"))
    append(log, 3)
    abandon(log)
    again = open_log(tmp_path, config=config)
    assert [seq for _, seq in entries(again)] == [0, 1, 2, 3]
    assert again.changes.subscriptions() == [subscription]
    assert again.incarnations.classify(5, 4, 1) == New()


def test_a_manifest_that_broke_is_rewritten_when_a_ledger_begins(tmp_path: Path) -> None:
    disk = FaultyDisk()
    config = settings(index_checkpoint_entries=2, managed_ledger_max_entries_per_ledger=3)
    log = open_log(tmp_path, config=config, disk=disk)
    append(log, 0)
    append(log, 1)
    disk.fail("writev", 0, errno.ENOSPC)
    append(log, 2)
    append(log, 3)
    abandon(log)
    again = open_log(tmp_path, config=config)
    assert [seq for _, seq in entries(again)] == [0, 1, 2, 3]


def test_a_fenced_owner_confirms_nothing(tmp_path: Path) -> None:
    former = open_log(tmp_path, acquire_lock=grant)
    append(former, 0)
    successor = open_log(tmp_path, acquire_lock=grant)
    with pytest.raises(Fenced):
        append(former, 1)
    with pytest.raises(Fenced):
        former.check_owner()
    with pytest.raises(Fenced):
        change(former, former.changes.register("late", True, "latest"))
    append(successor, 1)
    assert [seq for _, seq in entries(successor)] == [0, 1]
    abandon(successor)
    third = open_log(tmp_path)
    assert [seq for _, seq in entries(third)] == [0, 1]
    assert third.corruptions == []
    assert third.changes.subscriptions() == []
