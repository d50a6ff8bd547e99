from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_ray import kernel_calls


def test_a_pidfd_names_one_process_to_its_end() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        descriptor = kernel_calls.pidfd_open(process.pid)
        assert not os.get_inheritable(descriptor)
        assert not select.select([descriptor], [], [], 0)[0]
        kernel_calls.pidfd_send_signal(descriptor, signal.SIGKILL)
        assert select.select([descriptor], [], [], 60)[0]
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        kernel_calls.pidfd_send_signal(descriptor, signal.SIGKILL)
    with pytest.raises(ProcessLookupError):
        kernel_calls.pidfd_open(process.pid)
    os.close(descriptor)


@pytest.mark.parametrize("pid", [0, -1])
def test_what_is_no_pid(pid: int) -> None:
    with pytest.raises(OSError) as failure:
        kernel_calls.pidfd_open(pid)
    assert failure.value.errno == errno.EINVAL


def test_two_directories_change_places_at_once(tmp_path: Path) -> None:
    first, second = tmp_path / "ä", tmp_path / "b"
    for place in (first, second):
        place.mkdir()
        (place / place.name).touch()
    kernel_calls.exchange(first, second)
    assert [path.name for path in first.iterdir()] == ["b"]
    assert [path.name for path in second.iterdir()] == ["ä"]
    with pytest.raises(FileNotFoundError):
        kernel_calls.exchange(first, tmp_path / "none")
    assert first.is_dir()


def test_sealed_memory_can_neither_shrink_nor_grow() -> None:
    descriptor = kernel_calls.memfd_create("ö", kernel_calls.MFD_CLOEXEC | kernel_calls.MFD_ALLOW_SEALING)
    assert not os.get_inheritable(descriptor)
    os.ftruncate(descriptor, 100)
    seals = kernel_calls.F_SEAL_SHRINK | kernel_calls.F_SEAL_GROW
    fcntl.fcntl(descriptor, kernel_calls.F_ADD_SEALS, seals)
    assert fcntl.fcntl(descriptor, kernel_calls.F_GET_SEALS) == seals
    for size in (99, 101):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    os.close(descriptor)


def test_memory_that_the_kernel_refuses() -> None:
    with pytest.raises(OSError) as failure:
        kernel_calls.memfd_create("x" * 1000)
    assert failure.value.errno == errno.EINVAL


def test_a_c_library_without_it_is_told_like_a_kernel_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_calls, "_libc", object())
    with pytest.raises(OSError) as failure:
        kernel_calls.memfd_create("memory")
    assert failure.value.errno == errno.ENOSYS
