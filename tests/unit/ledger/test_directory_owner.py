"""Ownership of a directory: epochs, the lock, killing the holder, and refusals."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray.errors import CorruptData, DataDirectoryInUse, Fenced, NetworkFileSystem, WrongNode
from pulsar_ray.ledger.directory_owner import DirectoryOwner
from pulsar_ray.ledger.disk import file_system_type, mount_type, require_local_file_system
from pulsar_ray.ledger.owner_lock import start_time, take_lock

_HOLDER = """
import sys, time
from pathlib import Path
from pulsar_ray.ledger.directory_owner import DirectoryOwner
owner = DirectoryOwner.open(Path(sys.argv[1]), create=True)
print("held", owner.epoch, flush=True)
sys.stdin.read()
"""


class GrantingLock:
    """A lock that is granted while somebody holds it."""

    def release(self) -> None:
        pass


def grant(_path: Path) -> GrantingLock:
    return GrantingLock()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path / "d")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"held")
    yield process
    process.kill()
    process.communicate()


def test_each_open_raises_the_epoch_and_fences_the_former_owner(tmp_path: Path) -> None:
    first = DirectoryOwner.open(tmp_path / "a" / "b", create=True, acquire_lock=grant)
    first.check()
    second = DirectoryOwner.open(tmp_path / "a" / "b", create=False, acquire_lock=grant)
    assert second.epoch == first.epoch + 1
    with pytest.raises(Fenced):
        first.check()
    second.check()
    third = DirectoryOwner.open(tmp_path / "a" / "b", create=False, acquire_lock=grant)
    for former in (first, second):
        assert former.is_fenced
    third.check()
    third.close()
    with pytest.raises(Fenced):
        third.check()


def test_a_missing_directory_is_never_created_when_expected(tmp_path: Path) -> None:
    with pytest.raises(WrongNode):
        DirectoryOwner.open(tmp_path / "gone", create=False)
    assert not (tmp_path / "gone").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(WrongNode):
        DirectoryOwner.open(tmp_path / "empty", create=False)
    assert list((tmp_path / "empty").iterdir()) == []


def test_this_process_does_not_take_a_directory_twice(tmp_path: Path) -> None:
    owner = DirectoryOwner.open(tmp_path, create=True)
    with pytest.raises(DataDirectoryInUse, match=str(os.getpid())):
        DirectoryOwner.open(tmp_path, create=True)
    owner.check()
    owner.close()
    DirectoryOwner.open(tmp_path, create=True).close()


@pytest.mark.parametrize("slot", [0, 4096])
def test_one_damaged_epoch_slot_never_brings_an_epoch_back(tmp_path: Path, slot: int) -> None:
    for _ in range(3):
        owner = DirectoryOwner.open(tmp_path, create=True)
        (tmp_path / f"manifest-{owner.epoch}").touch()
        owner.close()
    content = bytearray((tmp_path / "epoch").read_bytes())
    content[slot + 9] ^= 0x40
    (tmp_path / "epoch").write_bytes(content)
    again = DirectoryOwner.open(tmp_path, create=False)
    assert again.epoch == 4
    again.close()


def test_an_epoch_file_that_was_cut_is_mended_or_is_corruption(tmp_path: Path) -> None:
    for size in (4096, 30, 24):
        DirectoryOwner.open(tmp_path, create=True).close()
        owner = DirectoryOwner.open(tmp_path, create=True)
        owner.close()
        epoch_path = tmp_path / "epoch"
        epoch_path.write_bytes(epoch_path.read_bytes()[:size])
        again = DirectoryOwner.open(tmp_path, create=False)
        again.check()
        again.close()
    epoch_path.write_bytes(b"")
    with pytest.raises(CorruptData):
        DirectoryOwner.open(tmp_path, create=False)


def test_two_damaged_epoch_slots_are_corruption(tmp_path: Path) -> None:
    DirectoryOwner.open(tmp_path, create=True).close()
    content = bytearray((tmp_path / "epoch").read_bytes())
    content[3] ^= 1
    content[4096 + 3] ^= 1
    (tmp_path / "epoch").write_bytes(content)
    with pytest.raises(CorruptData):
        DirectoryOwner.open(tmp_path, create=False)


def test_a_torn_epoch_write_fences_the_former_owner(tmp_path: Path) -> None:
    owner = DirectoryOwner.open(tmp_path, create=True)
    before = (tmp_path / "epoch").read_bytes()
    successor = DirectoryOwner.open(tmp_path, create=False, acquire_lock=grant)
    after = (tmp_path / "epoch").read_bytes()
    changed = [i for i in range(len(before)) if before[i] != after[i]]
    assert len({i // 4096 for i in changed}) == 1, "a bump writes one slot"
    owner.close()
    successor.close()


@pytest.mark.parametrize("stopped", [False, True])
def test_the_holder_is_killed_also_when_it_is_stopped(
    tmp_path: Path, holder: subprocess.Popen[bytes], stopped: bool
) -> None:
    if stopped:
        holder.send_signal(signal.SIGSTOP)
    owner = DirectoryOwner.open(tmp_path / "d", create=False)
    assert owner.epoch == 2
    assert holder.wait(10) == -signal.SIGKILL
    owner.close()


def test_only_the_process_that_wrote_its_name_is_killed(tmp_path: Path) -> None:
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    started = start_time(bystander.pid)
    assert started is not None
    (tmp_path / "owner.lock").write_text(f"{bystander.pid} {started - 1}".ljust(64))
    lock = take_lock(tmp_path / "owner.lock")
    lock.release()
    assert bystander.poll() is None
    bystander.communicate()


def test_programs_started_and_children_forked_do_not_keep_the_lock(tmp_path: Path) -> None:
    owner = DirectoryOwner.open(tmp_path, create=True)
    started = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, close_fds=False
    )
    read_end, write_end = os.pipe()
    forked = os.fork()
    if forked == 0:
        os.write(write_end, b"x")
        signal.pause()
        os._exit(0)
    try:
        # Not select(), which refuses the high numbers that files have in a process of many tests.
        poll = select.poll()
        poll.register(read_end, select.POLLIN)
        assert poll.poll(10_000)
        owner.close()
        DirectoryOwner.open(tmp_path, create=True).close()
    finally:
        os.kill(forked, signal.SIGKILL)
        os.waitpid(forked, 0)
        started.communicate()
        os.close(read_end)
        os.close(write_end)


def test_network_file_systems_are_refused(tmp_path: Path) -> None:
    require_local_file_system(tmp_path)
    with pytest.raises(NetworkFileSystem, match="NFS"):
        require_local_file_system(tmp_path, probe=lambda _path: 0x6969)
    fuse = 0x65735546
    with pytest.raises(NetworkFileSystem, match=r"fuse\.sshfs"):
        require_local_file_system(tmp_path, probe=lambda _p: fuse, probe_mount=lambda _p: "fuse.sshfs")
    require_local_file_system(tmp_path, probe=lambda _p: fuse, probe_mount=lambda _p: "fuseblk")


def test_file_systems_are_recognised(tmp_path: Path) -> None:
    assert file_system_type(Path("/proc")) == 0x9FA0
    assert mount_type(Path("/proc/self")) == "proc"
    with pytest.raises(FileNotFoundError):
        file_system_type(tmp_path / "missing")


def test_a_directory_that_is_deleted_or_replaced_is_noticed(tmp_path: Path) -> None:
    owner = DirectoryOwner.open(tmp_path / "1", create=True)
    owner.check_present()
    (tmp_path / "1").rename(tmp_path / "moved")
    with pytest.raises(WrongNode, match="was deleted or replaced"):
        owner.check_present()
    DirectoryOwner.open(tmp_path / "1", create=True).close()
    with pytest.raises(WrongNode, match="was deleted or replaced"):
        owner.check_present()
    owner.close()
