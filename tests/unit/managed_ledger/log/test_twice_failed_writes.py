"""Blocks whose write and whose one retry failed: stored once at most, whatever a crash finds."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from pulsar_ray.managed_ledger.log.producer_incarnations import New
from pulsar_ray.testing.faulty_disk import FaultyDisk
from tests.stored_blocks import abandon, append, change, open_log
from tests.unit.managed_ledger.log.test_log_recovery import entries


@pytest.mark.parametrize("bad_syncs", [(0, errno.EIO), (errno.EIO,)])
@pytest.mark.parametrize("is_torn", [True, False])
@pytest.mark.parametrize("is_first_of_ledger", [True, False])
def test_a_crash_behind_a_failed_retry_finds_one_copy_at_most(
    tmp_path: Path, is_first_of_ledger: bool, is_torn: bool, bad_syncs: tuple[int, ...]
) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    stored = [] if is_first_of_ledger else [0]
    for seq in stored:
        append(log, seq)
    disk.fail("fdatasync")
    with pytest.raises(OSError, match="Input/output"):
        append(log, len(stored))
    disk.fail("fdatasync", *bad_syncs)  # of the manifest or of the new ledger, whichever comes first
    with pytest.raises(OSError, match="Input/output"):
        append(log, len(stored))
    assert log.incarnations.classify(5, len(stored), 1) == New()
    if is_torn:
        manifest = log.directory / f"manifest-{log.epoch}"
        with manifest.open("ab") as file:
            file.write(b"the beginning of a record")
    abandon(log)
    again = open_log(tmp_path)
    assert [seq for _, seq in entries(again)] in (stored, [*stored, len(stored)])


def test_nothing_is_written_before_the_manifest_has_taken_the_end(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    append(log, 0)
    disk.fail("fdatasync", *[errno.EIO] * 4)
    for _ in range(4):
        with pytest.raises(OSError, match="Input/output"):
            append(log, 1)
    assert len(list(tmp_path.glob("*.seg"))) == 1
    append(log, 1)
    abandon(log)
    assert [seq for _, seq in entries(open_log(tmp_path))] == [0, 1]


def test_an_end_that_a_failed_trimming_would_have_written_comes_first(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    change(log, log.changes.register("s", True, "earliest"))
    append(log, 0)
    disk.fail("writev")
    with pytest.raises(OSError, match="Input/output"):
        append(log, 1)
    trim = log.changes.trim(1000)
    assert trim is not None
    disk.fail("fdatasync")
    with pytest.raises(OSError, match="Input/output"):
        trim.run()
    # The append is begun before anybody knows that the trimming failed.
    with pytest.raises(OSError, match="end of the ledger before"):
        append(log, 1)
    log.changes.fail(trim)
    append(log, 1)
    abandon(log)
    assert [seq for _, seq in entries(open_log(tmp_path))] == [0, 1]
