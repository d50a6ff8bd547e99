"""Cutting lost entries out: the directory is whole, all other entries stay where they were."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_ray.errors import CorruptData
from pulsar_ray.format.block import CHUNK, verify_block
from pulsar_ray.ledger.reader import SegmentReader, frame_blocks
from pulsar_ray.maintenance.repair import repair_directory
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.model.message_id import Position
from tests.stored_blocks import abandon, append
from tests.stored_directory import MESSAGES, StoredTopic, make_directory
from tests.unit.maintenance.test_repair import NOW_MS, spoil_all
from tests.unit.maintenance.test_verify import FIRST_FRAME, cut, flip, frame_length, lose_manifest


def sound_entries(path: Path) -> dict[int, bytes]:
    """The bytes of each block that is whole and no placeholder, by its first entry."""
    found = {}
    # A write that nobody was promised may stand at the end.
    with SegmentReader(path) as reader, contextlib.suppress(CorruptData):
        for offset, frame in reader.frames(FIRST_FRAME, reader.size()):
            content = reader.read(offset, frame.total_length)
            at, entry = frame.header_length, frame.first_entry_id
            for block in frame_blocks(content, frame):
                verify_block(content, at, block)
                if not block.flags & CHUNK:
                    found[entry] = content[at : at + block.total_length]
                at += block.total_length
                entry += block.entries
    return found


def spoil_a_header(topic: StoredTopic) -> None:
    flip(topic.segment, FIRST_FRAME + 2 * frame_length(topic) + 20)


def spoil_a_block(topic: StoredTopic) -> None:
    flip(topic.segment, FIRST_FRAME + 2 * frame_length(topic) + 150)


def spoil_two(topic: StoredTopic) -> None:
    spoil_a_block(topic)
    flip(topic.segment, FIRST_FRAME + 3 * frame_length(topic) + 1)


def cut_it(topic: StoredTopic) -> None:
    cut(topic.segment, FIRST_FRAME + 3 * frame_length(topic) + 50)


def lose_it(topic: StoredTopic) -> None:
    topic.segment.unlink()


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize(
    ("spoil", "left"),
    [
        (spoil_a_header, {0, 3, 9, 12, 15, 18, 21}),
        (spoil_a_block, {0, 3, 9, 12, 15, 18, 21}),
        (spoil_two, {0, 3, 12, 15, 18, 21}),
        (cut_it, {0, 3, 6}),
        (lose_it, set()),
    ],
)
def test_other_entries_keep_their_bytes_and_positions(
    tmp_path: Path, spoil: Callable[[StoredTopic], None], left: set[int], is_closed: bool
) -> None:
    orders, bills = make_directory(tmp_path, is_closed=is_closed)
    before = sound_entries(orders.segment)
    spoil(orders)
    lost = verify_directory(tmp_path).lost_entries
    assert repair_directory(tmp_path, NOW_MS, is_dry_run=False).left.lost_entries == lost
    report = repair_directory(tmp_path, NOW_MS, is_dry_run=False, cuts_damaged=True)
    assert report.left.damages == []
    assert sound_entries(orders.segment) == {entry: before[entry] for entry in left}
    # Of an open ledger that was cut only acknowledgments tell how long it was.
    is_short = not is_closed and spoil in (cut_it, lose_it)
    last = MESSAGES - 4 if is_short else MESSAGES - 1
    log = orders.open()
    assert log.corruptions == []
    assert log.last_position == Position(orders.ledger_id, last)
    append(log, MESSAGES, incarnation=9)
    abandon(log)
    log = orders.open()
    assert log.last_position == Position(orders.ledger_id + 1, 0)
    log.close()
    assert verify_directory(tmp_path).damages == []
    assert len(sound_entries(bills.segment)) == MESSAGES // 3


def test_the_damaged_file_is_kept(tmp_path: Path) -> None:
    orders, _ = make_directory(tmp_path)
    spoil_a_block(orders)
    damaged = orders.segment.read_bytes()
    report = repair_directory(tmp_path, NOW_MS, is_dry_run=False, cuts_damaged=True)
    assert report.kept is not None
    assert (report.kept / orders.segment.relative_to(tmp_path)).read_bytes() == damaged
    assert "6 to" in str(report.repairs[-1])
    assert "3 entries are cut out" in str(report.repairs[-1])


def test_a_cut_that_was_broken_off_is_done_again(tmp_path: Path) -> None:
    """The segment is replaced, and the manifest still has the former end."""
    orders, _ = make_directory(tmp_path, is_closed=True)
    before = sound_entries(orders.segment)
    manifest = orders.manifest()
    content = manifest.read_bytes()
    spoil_a_block(orders)
    repair_directory(tmp_path, NOW_MS, is_dry_run=False, cuts_damaged=True)
    orders.manifest().unlink()
    manifest.write_bytes(content)
    report = repair_directory(tmp_path, NOW_MS, is_dry_run=False, cuts_damaged=True)
    assert report.left.damages == []
    del before[6]
    assert sound_entries(orders.segment) == before


def test_a_ledger_that_is_lost_with_its_record_is_cut_too(tmp_path: Path) -> None:
    """All that tells of it is its acknowledgments."""
    orders, bills = make_directory(tmp_path)
    spoil_all(orders)
    lose_manifest(bills)
    bills.segment.unlink()
    report = repair_directory(tmp_path, NOW_MS, is_dry_run=False, cuts_damaged=True)
    assert report.left.damages == []
    log = bills.open()
    assert log.last_position >= Position(bills.ledger_id, MESSAGES - 4)
    log.close()
