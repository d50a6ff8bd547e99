"""The record log: snapshot and changes, torn ends, corruption, failed writes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pulsar_ray.errors import CorruptData, Fenced
from pulsar_ray.ledger.directory_owner import DirectoryOwner
from pulsar_ray.ledger.record_log import RecordLog, read_log
from pulsar_ray.testing.faulty_disk import FaultyDisk
from tests.unit.ledger.test_directory_owner import grant

SNAPSHOT = [(1, ["a", 1]), (1, ["b", 2])]


def start(path: Path, disk: FaultyDisk | None = None) -> tuple[DirectoryOwner, RecordLog]:
    owner = DirectoryOwner.open(path, create=True, acquire_lock=grant)
    log = RecordLog(owner, "manifest", disk or FaultyDisk())
    log.rewrite(SNAPSHOT)
    return owner, log


def records(path: Path) -> list[tuple[int, object]]:
    content = read_log(path, "manifest")
    assert content is not None
    return content.records


def test_snapshot_and_changes_come_back(tmp_path: Path) -> None:
    assert read_log(tmp_path, "manifest") is None
    _, log = start(tmp_path)
    log.append([(2, "x"), (3, {"k": [1, 2]})])
    log.append([(2, "y")], sync=False)
    assert records(tmp_path) == [*SNAPSHOT, (2, "x"), (3, {"k": [1, 2]}), (2, "y")]
    assert log.size > log.snapshot_size


def test_a_new_epoch_starts_a_new_file_and_removes_the_older_ones(tmp_path: Path) -> None:
    _, former = start(tmp_path)
    _, log = start(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("manifest-*")) == [log.path.name]
    with pytest.raises(Fenced):
        former.append([(2, "late")])
    assert records(tmp_path) == SNAPSHOT


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_what_a_former_owner_could_not_finish_takes_no_room_for_ever(tmp_path: Path, code: int) -> None:
    _, former = start(tmp_path, disk := FaultyDisk())
    disk.fail("fdatasync", code)
    with pytest.raises(OSError, match=os.strerror(code)):
        former.rewrite(SNAPSHOT * 100)
    former.close()
    (tmp_path / "manifesto-9.new").touch()
    _, log = start(tmp_path)
    left = {path.name for path in tmp_path.glob("manifest*")}
    assert left == {log.path.name, "manifesto-9.new"}


def test_a_former_owner_that_rewrites_late_is_not_read(tmp_path: Path) -> None:
    _, former = start(tmp_path)
    _, log = start(tmp_path)
    log.append([(2, "x")])
    with pytest.raises(Fenced):
        former.rewrite([(1, "late")])
    assert records(tmp_path) == [*SNAPSHOT, (2, "x")]


def test_every_torn_last_write_is_left_out(tmp_path: Path) -> None:
    _, log = start(tmp_path)
    log.append([(2, "kept")])
    end = log.size
    log.append([(2, "torn"), (2, "torn too")])
    content = log.path.read_bytes()
    for cut in range(end, len(content)):
        log.path.write_bytes(content[:cut])
        back = records(tmp_path)
        assert back[:3] == [*SNAPSHOT, (2, "kept")]
        assert len(back) < 5
    for i in range(end, len(content)):
        log.path.write_bytes(content[:i] + bytes([content[i] ^ 0x10]) + content[i + 1 :])
        assert records(tmp_path)[:3] == [*SNAPSHOT, (2, "kept")]


def test_damage_anywhere_before_the_last_write_is_corruption(tmp_path: Path) -> None:
    _, log = start(tmp_path)
    log.append([(2, "one")])
    end = log.size
    log.append([(2, "two")])
    content = log.path.read_bytes()
    for i in range(end):
        log.path.write_bytes(content[:i] + bytes([content[i] ^ 0x10]) + content[i + 1 :])
        with pytest.raises(CorruptData) as caught:
            read_log(tmp_path, "manifest")
        assert caught.value.path == str(log.path)
        assert caught.value.offset <= i


def test_a_cut_snapshot_is_corruption(tmp_path: Path) -> None:
    _, log = start(tmp_path)
    content = log.path.read_bytes()
    for cut in range(len(content)):
        log.path.write_bytes(content[:cut])
        with pytest.raises(CorruptData):
            read_log(tmp_path, "manifest")


@pytest.mark.parametrize("call", ["writev", "fdatasync"])
def test_after_a_failed_append_only_a_rewrite_goes_on(tmp_path: Path, call: str) -> None:
    disk = FaultyDisk()
    _, log = start(tmp_path, disk)
    disk.fail(call, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        log.append([(2, "x")])
    assert log.is_broken
    with pytest.raises(OSError, match="rewritten"):
        log.append([(2, "y")])
    log.rewrite([(1, "all")])
    log.append([(2, "z")])
    assert records(tmp_path) == [(1, "all"), (2, "z")]


@pytest.mark.parametrize("call", ["open", "writev", "fdatasync", "rename"])
def test_a_failed_rewrite_leaves_the_log_as_it_was(tmp_path: Path, call: str) -> None:
    disk = FaultyDisk()
    _, log = start(tmp_path, disk)
    log.append([(2, "x")])
    disk.fail(call)
    with pytest.raises(OSError, match="Input/output"):
        log.rewrite([(1, "never")])
    log.append([(2, "y")])
    assert records(tmp_path) == [*SNAPSHOT, (2, "x"), (2, "y")]


def test_a_rewritten_log_has_a_name_that_none_had_before(tmp_path: Path) -> None:
    _, log = start(tmp_path)
    names = {log.path.name}
    before = {log.path.name: log.path.read_bytes()}
    for turn in range(12):
        log.append([(2, turn)])
        log.rewrite([(1, turn)])
        assert log.path.name not in names
        names.add(log.path.name)
        assert [path.name for path in tmp_path.glob("manifest-*")] == [log.path.name]
    assert records(tmp_path) == [(1, 11)]
    (tmp_path / "manifest-1").write_bytes(before["manifest-1"])
    assert records(tmp_path) == [(1, 11)], "the newest counts, by number and not by letter"


def test_behind_a_rename_that_may_not_be_durable_nothing_goes_into_the_former_file(tmp_path: Path) -> None:
    disk = FaultyDisk()
    _, log = start(tmp_path, disk)
    disk.fail("fsync_dir")
    with pytest.raises(OSError, match="Input/output"):
        log.rewrite([(1, "perhaps")])
    with pytest.raises(OSError, match="rewritten"):
        log.append([(2, "x")])
    log.rewrite([(1, "all")])
    log.append([(2, "y")])
    assert records(tmp_path) == [(1, "all"), (2, "y")]


def test_space_is_reserved_ahead_and_may_be_refused(tmp_path: Path) -> None:
    disk = FaultyDisk()
    _, log = start(tmp_path, disk)
    assert disk.calls.count("reserve") == 1
    log.append([(2, "x")])
    assert disk.calls.count("reserve") == 1
    disk.fail("reserve", errno.ENOSPC)
    log.append([(2, "y" * 300_000)])
    assert records(tmp_path)[-1] == (2, "y" * 300_000)
