"""A log whose owner starts on a full disk: what is there can be read, and the rest comes with the space."""

from __future__ import annotations

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.message_id import Position
from pulsar_ray.testing.faulty_disk import FaultyDisk
from tests.stored_blocks import IDENTITY, abandon, append, block, change, open_log
from tests.unit.managed_ledger.log.test_log_recovery import entries

FIRST_LEDGER = IDENTITY.number << 31
REFUSED = [errno.ENOSPC] * 50


def manifests(path: Path) -> list[str]:
    return sorted(found.name for found in path.glob("manifest-*"))


def opened_on_full_disk(path: Path, call: str) -> tuple[ManagedLedger, FaultyDisk]:
    disk = FaultyDisk()
    disk.fail(call, *REFUSED)
    log = open_log(path, must_exist=True, disk=disk)
    assert not log.has_begun
    return log, disk


@pytest.mark.parametrize("call", ["writev", "rename"])
@pytest.mark.parametrize("closed", [False, True])
def test_stored_entries_are_read_and_appending_goes_on_with_the_space(
    tmp_path: Path, call: str, closed: bool
) -> None:
    log = open_log(tmp_path)
    append(log, 0, 1)
    change(log, log.changes.register("s", True, "earliest"))
    log.close() if closed else abandon(log)
    (before,) = manifests(tmp_path)
    log, disk = opened_on_full_disk(tmp_path, call)
    assert [seq for _, seq in entries(log)] == [0, 1]
    assert [s.name for s in log.changes.subscriptions()] == ["s"]
    for seq in (2, 3):
        with pytest.raises(OSError, match="No space"):
            append(log, seq)
    with pytest.raises(OSError, match="No space"):
        change(log, log.changes.register("t", True, "earliest"))
    assert manifests(tmp_path)[0] == before, "the one before holds until there is another one"
    disk.errors.clear()
    append(log, 4)
    abandon(log)
    again = open_log(tmp_path, must_exist=True)
    assert [seq for _, seq in entries(again)] == [0, 1, 4]
    assert [s.name for s in again.changes.subscriptions()] == ["s"]
    assert manifests(tmp_path) == ["manifest-3"]


def test_owners_that_never_had_space_change_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 0, 1)
    abandon(log)
    before = {
        path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name.endswith(("seg", "-1"))
    }
    for closed in (False, True, False):
        log, _ = opened_on_full_disk(tmp_path, "writev")
        assert [position for position, _ in entries(log)] == [Position(FIRST_LEDGER, n) for n in (0, 1)]
        log.close() if closed else abandon(log)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert [seq for _, seq in entries(open_log(tmp_path, must_exist=True))] == [0, 1]


def test_beginning_later_removes_what_is_deleted(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    append(log, 0)
    log.changes.end_log()
    disk.fail("unlink", *REFUSED)
    with pytest.raises(OSError, match="No space"):
        change(log, log.changes.trim(10**9))
    abandon(log)
    assert len(list(tmp_path.glob("*.seg"))) == 1
    log, disk = opened_on_full_disk(tmp_path, "writev")
    with pytest.raises(OSError, match="No space"):
        change(log, log.changes.begin_log())
    assert len(list(tmp_path.glob("*.seg"))) == 1
    disk.errors.clear()
    change(log, log.changes.begin_log())
    assert log.changes.begin_log() is None
    assert not list(tmp_path.glob("*.seg"))
    assert manifests(tmp_path) == ["manifest-2"]


def test_beginning_waits_for_an_append_that_is_under_way(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    abandon(log)
    log, disk = opened_on_full_disk(tmp_path, "writev")
    commit = log.begin_append([block(0)], 1000)
    assert log.changes.begin_log() is None
    log.fail_append(commit)
    disk.errors.clear()
    change(log, log.changes.begin_log())
    assert log.has_begun


@pytest.mark.parametrize("call", ["open", "writev", "pwrite", "fsync_dir"])
def test_a_new_log_is_refused_and_takes_the_next_try(tmp_path: Path, call: str) -> None:
    disk = FaultyDisk()
    disk.fail(call, *REFUSED)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            open_log(tmp_path / "new", disk=disk)
    disk.errors.clear()
    log = open_log(tmp_path / "new", disk=disk)
    assert log.has_begun
    append(log, 0)
    assert [seq for _, seq in entries(log)] == [0]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 512 KiB; skips where none may be mounted."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(tmp_path)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def fill(path: Path) -> None:
    """Leave no byte free."""
    with (path / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(bytes(4096)):
            pass


def test_a_real_disk_without_a_free_byte(small_disk: Path) -> None:
    log = open_log(small_disk / "log")
    append(log, 0, 1)
    abandon(log)
    fill(small_disk)
    log = open_log(small_disk / "log", must_exist=True)
    assert not log.has_begun
    assert [seq for _, seq in entries(log)] == [0, 1]
    with pytest.raises(OSError, match="No space"):
        append(log, 2)
    (small_disk / "filler").unlink()
    append(log, 3)
    abandon(log)
    assert [seq for _, seq in entries(open_log(small_disk / "log", must_exist=True))] == [0, 1, 3]
