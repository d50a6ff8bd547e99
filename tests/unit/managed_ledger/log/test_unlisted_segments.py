"""A manifest that lost the record of a segment: what was confirmed there stays and is served."""

from __future__ import annotations

from pathlib import Path

from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.message_id import EARLIEST, Position
from tests.stored_blocks import abandon, append, open_log, settings
from tests.unit.managed_ledger.log.test_log_recovery import FIRST_LEDGER, copies, entries

SECOND_LEDGER = FIRST_LEDGER + 1


def manifest_of(log: ManagedLedger) -> Path:
    return log.directory / f"manifest-{log.epoch}"


def two_ledgers(path: Path) -> tuple[Path, int]:
    """A log left as by kill -9 with three frames in each of two ledgers.

    Its manifest, and how long that was while it named one.
    """
    log = open_log(path)
    for seq in range(3):
        append(log, seq)
    named_one = manifest_of(log).stat().st_size
    log.changes.end_log()
    for seq in range(3, 6):
        append(log, seq)
    abandon(log)
    return manifest_of(log), named_one


def test_one_flipped_bit_in_the_last_record_loses_no_segment(tmp_path: Path) -> None:
    manifest, named_one = two_ledgers(tmp_path / "log")
    content = manifest.read_bytes()
    places = range(named_one, len(content), 3)
    for place, directory in zip(places, copies(tmp_path / "log"), strict=False):
        damaged = content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :]
        (directory / manifest.name).write_bytes(damaged)
        log = open_log(directory)
        assert [seq for _, seq in entries(log)] == list(range(6)), f"byte {place}"
        assert log.last_position == Position(SECOND_LEDGER, 2)
        abandon(log)


def test_a_manifest_cut_anywhere_loses_no_confirmed_segment(tmp_path: Path) -> None:
    manifest, named_one = two_ledgers(tmp_path / "log")
    log = open_log(tmp_path / "empty")
    begun = manifest_of(log).stat().st_size
    abandon(log)
    content = manifest.read_bytes()
    cuts = [begun, begun + 5, named_one - 1, named_one, named_one + 1, len(content) - 1]
    for size, directory in zip(cuts, copies(tmp_path / "log"), strict=False):
        (directory / manifest.name).write_bytes(content[:size])
        log = open_log(directory)
        assert [seq for _, seq in entries(log)] == list(range(6)), f"cut at {size}"
        assert log.corruptions == []
        abandon(log)


def test_a_next_segment_is_taken_in_behind_the_one_that_it_follows(tmp_path: Path) -> None:
    config = settings(segment_size_bytes=64 * 1024)
    log = open_log(tmp_path / "log", config=config)
    append(log, 0, size=40_000)
    size = manifest_of(log).stat().st_size
    append(log, 1, size=40_000)
    append(log, 2, size=10_000)
    assert [segment.segment_index for segment in log.segments()] == [0, 1]
    abandon(log)
    content = manifest_of(log).read_bytes()
    for lost, directory in zip((size, size + 9), copies(tmp_path / "log"), strict=False):
        (directory / manifest_of(log).name).write_bytes(content[:lost])
        again = open_log(directory, config=config)
        assert [seq for _, seq in entries(again)] == [0, 1, 2]
        assert [segment.first_entry_id for segment in again.segments()] == [0, 1]
        abandon(again)


def test_a_first_write_that_nobody_was_promised_still_goes(tmp_path: Path) -> None:
    """Its file has one frame and no record: the manifest is whole without it."""
    log = open_log(tmp_path)
    size = manifest_of(log).stat().st_size
    append(log, 0)
    segment = log.segments()[0].path
    abandon(log)
    manifest_of(log).write_bytes(manifest_of(log).read_bytes()[:size])
    again = open_log(tmp_path)
    assert again.last_position == EARLIEST
    assert not segment.exists()


def test_files_of_another_owner_are_not_taken_in(tmp_path: Path) -> None:
    """A former owner may have written them behind the look of its successor."""
    log = open_log(tmp_path)
    append(log, 0)
    append(log, 1)
    segment = log.segments()[0].path
    late = segment.read_bytes()
    abandon(log)
    log = open_log(tmp_path)
    abandon(log)
    # A copy that says to be of a later ledger, by the former owner's epoch.
    manifest_of(log).write_bytes(manifest_of(log).read_bytes() + b"torn")
    (tmp_path / f"{SECOND_LEDGER}-0.seg").write_bytes(late)
    again = open_log(tmp_path)
    assert [seq for _, seq in entries(again)] == [0, 1]
