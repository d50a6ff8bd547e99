"""The lock on a directory: flock on a file that names its holder.

The next owner kills the holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import time
import weakref
from pathlib import Path
from typing import Protocol

from pulsar_ray.errors import DataDirectoryInUse
from pulsar_ray.kernel_calls import pidfd_open, pidfd_send_signal

_TAKE_OVER_SECONDS = 10.0
_RETRY_SECONDS = 0.01
_RECORD_SIZE = 64


class HeldLock(Protocol):
    """A lock somebody holds."""

    def release(self) -> None: ...


class FileLock:
    """A flock of this process, which executed programs and forked children do not keep."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        _held_locks.add(self)

    def hold_alone(self) -> bool:
        """Make a shared lock exclusive; False, and as before, if others hold it."""
        if try_lock(self._fd):
            return True
        try_lock(self._fd, is_shared=True)
        return False

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_held_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _drop_locks_in_child() -> None:
    for lock in list(_held_locks):
        lock.release()


# A forked child shares the open file, and with it the lock: it would outlive its holder.
os.register_at_fork(after_in_child=_drop_locks_in_child)


def take_lock(path: Path) -> FileLock:
    """Take the lock of a directory; a process that holds it is killed.

    Raises DataDirectoryInUse if the holder is this very process, may not be killed, or does not go away in
    10 s.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + _TAKE_OVER_SECONDS
        while not try_lock(fd):
            holder = _read_holder(fd)
            if holder is not None and holder[0] == os.getpid():
                raise DataDirectoryInUse(f"{path} is held by this process already (pid {holder[0]})")
            if time.monotonic() > deadline:
                raise DataDirectoryInUse(f"{path} is held by {holder}, which does not end when killed")
            if holder is None or not _kill(path, *holder):
                # Between locking and naming itself, or just gone: both pass in a moment.
                time.sleep(_RETRY_SECONDS)
        _write_holder(fd)
        return FileLock(fd)
    except BaseException:
        os.close(fd)
        raise


def take_free_lock(path: Path) -> FileLock:
    """Take the lock of a directory that nobody owns. Raises DataDirectoryInUse if somebody does."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    if not try_lock(fd):
        holder = _read_holder(fd)
        os.close(fd)
        raise DataDirectoryInUse(f"{path} is held by process {holder[0] if holder else '?'}: stop its broker")
    _write_holder(fd)
    return FileLock(fd)


def try_lock(fd: int, is_shared: bool = False) -> bool:
    """Take or convert a flock if that is possible at once."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def start_time(pid: int) -> int | None:
    """Start time of a process in ticks since boot; None if gone.

    With its pid it names the process for good.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[19])


def _write_holder(fd: int) -> None:
    pid = os.getpid()
    record = f"{pid} {start_time(pid)}".encode()
    os.pwrite(fd, record.ljust(_RECORD_SIZE), 0)


def _read_holder(fd: int) -> tuple[int, int] | None:
    """Pid and start time of a lock file's holder; None if not written."""
    fields = os.pread(fd, _RECORD_SIZE, 0).split()
    try:
        return int(fields[0]), int(fields[1])
    except (IndexError, ValueError):
        return None


def _kill(path: Path, pid: int, started: int) -> bool:
    """Kill a process and wait for its end; False if there is none.

    The process is named by pid and start time.
    """
    try:
        process = pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # Compared after the pidfd is open: what it names can then no longer be another process of that pid.
        if start_time(pid) != started:
            return False
        try:
            pidfd_send_signal(process, signal.SIGKILL)
        except ProcessLookupError:
            return False
        except PermissionError as error:
            raise DataDirectoryInUse(f"{path} is held by process {pid}, which we may not kill") from error
        waiter = select.poll()
        waiter.register(process, select.POLLIN)
        waiter.poll(int(_TAKE_OVER_SECONDS * 1000))
        return True
    finally:
        with contextlib.suppress(OSError):
            os.close(process)
