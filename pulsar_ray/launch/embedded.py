"""The embedded broker of a data directory: one background process.

Programs find it through a record beside the data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from pulsar_ray.closed_places import make_closed_directory, open_own_file, read_trusted_file
from pulsar_ray.config import Settings
from pulsar_ray.errors import (
    BrokerPersistenceError,
    ConnectError,
    NotAllowedError,
    Timeout,
    UntrustedPath,
    error_from,
)
from pulsar_ray.kernel_calls import pidfd_open, pidfd_send_signal
from pulsar_ray.launch.listeners import is_loopback, split_address
from pulsar_ray.ledger.owner_lock import FileLock, start_time
from pulsar_ray.managed_ledger.store.store_directory import StoreDirectory, check_store_directory
from pulsar_ray.managed_ledger.store.store_identity import read_identity

RECORD = "standalone.json"
CLIENTS_LOCK = "clients.lock"
START_LOCK = "standalone.start"
LOG = "standalone.log"
FORMER_LOG = "standalone.log.1"
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 90.0
POLL_S = 0.02
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class EmbeddedRecord:
    """Where an embedded broker is reached, and the RAY_AUTH_MODE that joining processes must share."""

    address: str
    pid: int
    started: int | None
    """As `owner_lock.start_time` tells: the time of day may be set while the broker runs."""
    dashboard_url: str
    """Empty without a dashboard."""
    auth_mode: str

    def is_alive(self) -> bool:
        """Whether the process that wrote the record still runs.

        A process that only waits for its parent does not.
        """
        try:
            is_same = start_time(self.pid) == self.started
            return is_same and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    @property
    def open_to(self) -> str:
        """A warning of those who may run code as this user, without a token.

        "" if this Ray asks for one.
        """
        if self.auth_mode.lower() == "token":
            return ""
        host = (split_address(self.address) or ("", 0))[0]
        who = "every user of this machine" if is_loopback(host) else "whoever reaches the ports of its Ray"
        return (
            f"{who} may use this broker and run code as you: its Ray asks for no token, as Ray 2.52 or later "
            "does where RAY_AUTH_MODE is not set"
        )


def run_directory(data_dir: Path) -> Path:
    """Where these files lie; they are no data."""
    return data_dir / "run"


def read_record(data_dir: Path) -> EmbeddedRecord | None:
    """The record of a running embedded broker, None if none runs on this directory.

    A record that another user may have put there is none: it says whom to connect to, and whom to signal.
    """
    try:
        record = EmbeddedRecord(**json.loads(read_trusted_file(run_directory(data_dir) / RECORD)))
    except (OSError, ValueError, TypeError, UntrustedPath):
        return None
    return record if record.is_alive() else None


def has_stale_record(data_dir: Path) -> bool:
    """Whether a record was left by an embedded broker that has ended."""
    return (run_directory(data_dir) / RECORD).exists() and read_record(data_dir) is None


def write_record(data_dir: Path, address: str, dashboard_url: str) -> EmbeddedRecord:
    """Say where this process's broker is reached; appears whole or not at all."""
    started = start_time(os.getpid())
    auth_mode = os.environ.get("RAY_AUTH_MODE", "")
    record = EmbeddedRecord(address, os.getpid(), started, dashboard_url, auth_mode)
    staged = run_directory(data_dir) / f"{RECORD}.new"
    with open(staged, "w", opener=open_own_file) as file:
        json.dump(asdict(record), file)
    os.replace(staged, run_directory(data_dir) / RECORD)
    return record


def prepare_run_directory(data_dir: Path) -> None:
    """Make the directory of the embedded broker's files.

    Raises if something is wrong with the data directory, with nothing written; UntrustedPath if another user
    made one of the two; NotAllowedError if it is a store of a Ray cluster.
    """
    check_store_directory(data_dir)
    _refuse_cluster(data_dir)
    with _writing(data_dir):
        make_closed_directory(run_directory(data_dir))


def _refuse_cluster(data_dir: Path) -> None:
    """Raise NotAllowedError for a store of a Ray cluster.

    Its Ray may only be down just now. An embedded broker would hold the store when that Ray is back, and
    change a part of what belongs together.
    """
    with _writing(data_dir):
        identity = read_identity(data_dir)
    if identity is not None and identity.is_of_ray_cluster:
        where = f" with its catalog on {identity.catalog_host}" if identity.catalog_host else ""
        raise NotAllowedError(
            f"{data_dir} is a store of a Ray cluster{where}, which no embedded broker opens: start that Ray "
            "(`ray up`, or `ray start` and `pulsar-ray start`), or give another data directory. `pulsar-ray "
            "standalone --take-over` serves this one without its cluster from now on"
        )


def take_over(data_dir: Path) -> None:
    """Let embedded brokers serve a store of a Ray cluster that is no more.

    Raises DataDirectoryInUse while that cluster's broker runs.
    """
    check_store_directory(data_dir)
    with _writing(data_dir):
        identity = read_identity(data_dir)
        if identity is not None and identity.is_of_ray_cluster:
            held = StoreDirectory.open(data_dir, address="pulsar-ray standalone --take-over", create=False)
            try:
                held.change(dataclasses.replace(held.identity, is_of_ray_cluster=False))
            finally:
                held.close()


@contextlib.contextmanager
def _writing(data_dir: Path) -> Iterator[None]:
    """Raise BrokerPersistenceError where the disk takes nothing: read-only, full, or somebody else's."""
    try:
        yield
    except OSError as error:
        raise BrokerPersistenceError(f"{data_dir} cannot be used as data directory: {error}") from None


def remove_record(data_dir: Path) -> None:
    """The broker of this process is ending."""
    (run_directory(data_dir) / RECORD).unlink(missing_ok=True)


def ensure_embedded(settings: Settings) -> EmbeddedRecord:
    """Find the data directory's embedded broker, or start one and wait for it.

    Raises what is wrong with the directory, typed, or ConnectError with the end of its log.
    """
    data_dir = Path(settings.data_dir)
    if (record := read_record(data_dir)) is not None:
        return record
    prepare_run_directory(data_dir)
    with _writing(data_dir), StartLock(data_dir):
        if (record := read_record(data_dir)) is not None:
            return record
        return _start(data_dir, settings)


class StartLock:
    """Locks the start of a directory's embedded broker.

    A starting process holds the lock, and a broker from its end's beginning on.

    So nobody starts a second one beside a broker that is still writing its last. The kernel drops it with the
    process.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = run_directory(data_dir) / START_LOCK
        self._held: FileLock | None = None

    def acquire(self) -> None:
        """Wait for it; nothing happens if it is held already."""
        if self._held is None:
            self._held = _locked(self._path, fcntl.LOCK_EX)

    def release(self) -> None:
        """Let others start a broker."""
        held, self._held = self._held, None
        if held is not None:
            held.release()

    def __enter__(self) -> StartLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _start(data_dir: Path, settings: Settings) -> EmbeddedRecord:
    failure = run_directory(data_dir) / "standalone.failed"
    failure.unlink(missing_ok=True)
    given = run_directory(data_dir) / "standalone.settings"
    with open(given, "w", opener=open_own_file) as file:
        json.dump(asdict(settings), file)
    command = [sys.executable, "-m", "pulsar_ray.cli.standalone", str(given)]
    _say(f"starting a broker in {data_dir} ...")
    with contextlib.suppress(FileNotFoundError):
        os.replace(run_directory(data_dir) / LOG, run_directory(data_dir) / FORMER_LOG)
    with open(run_directory(data_dir) / LOG, "xb", opener=open_own_file) as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        record = _await_record(process, data_dir, failure)
        if record.open_to:
            _say(f"warning: {record.open_to}")
        # It may end before this process does: unreaped it would stay a zombie, which looks alive.
        threading.Thread(target=process.wait, name="pulsar-ray-reap", daemon=True).start()
        return record
    except BaseException:
        # Also Ctrl-C: nobody would know of a broker that comes up later.
        process.terminate()
        process.wait()
        raise


def _say(text: str) -> None:
    """Tell a user before a terminal; the start takes seconds and is silent otherwise."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _await_record(process: subprocess.Popen[bytes], data_dir: Path, failure: Path) -> EmbeddedRecord:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if (record := read_record(data_dir)) is not None:
            return record
        if process.poll() is not None:
            raise _failure(failure, data_dir, process.returncode)
        time.sleep(POLL_S)
    log = run_directory(data_dir) / LOG
    raise ConnectError(f"the embedded broker did not start within {START_TIMEOUT_S:.0f} s; see {log}")


def record_failure(data_dir: Path, error: Any) -> None:
    """Leave a typed error for whoever started this process."""
    text = json.dumps(
        [type(error).__name__, getattr(error, "text", str(error)), getattr(error, "details", {})]
    )
    with open(run_directory(data_dir) / "standalone.failed", "w", opener=open_own_file) as file:
        file.write(text)


def _failure(path: Path, data_dir: Path, code: int) -> Exception:
    try:
        return error_from(*json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        log = run_directory(data_dir) / LOG
        text = _TERMINAL_CODES.sub("", log.read_text(errors="replace"))
        lines = [line for line in text.splitlines() if line.strip()][-5:]
        said = f"{log} says: {' | '.join(lines)}" if lines else f"{log} says nothing"
        return ConnectError(f"the embedded broker ended at its start, {how}; {said}")


class ClientMark:
    """Marks a living client of the embedded broker: a shared lock of its process."""

    def __init__(self, data_dir: Path) -> None:
        self._held = _locked(run_directory(data_dir) / CLIENTS_LOCK, fcntl.LOCK_SH)

    def release(self) -> None:
        """Take the mark away: this client is gone."""
        self._held.release()


def _locked(path: Path, kind: int) -> FileLock:
    while True:
        fd = open_own_file(path, os.O_RDWR | os.O_CREAT)
        lock = FileLock(fd)
        try:
            fcntl.flock(fd, kind)
            if _is_at(path, fd):
                return lock
        except BaseException:
            lock.release()
            raise
        # Removed while this process waited for it: whoever comes now locks another file of that name.
        lock.release()


def _is_at(path: Path, fd: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    return False


def stop_embedded(data_dir: Path) -> EmbeddedRecord | None:
    """End a data directory's embedded broker and wait for it; None without one.

    It makes everything durable first. Raises Timeout if it does not end.
    """
    record = read_record(data_dir)
    if record is None:
        return None
    try:
        process = pidfd_open(record.pid)
    except ProcessLookupError:
        return record
    try:
        # Looked at once the pidfd is open, which names no other process of that pid from then on.
        if record.is_alive():
            _end_process(process, record.pid)
    finally:
        os.close(process)
    return record


def _end_process(process: int, pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        pidfd_send_signal(process, signal.SIGTERM)
    waiter = select.poll()
    waiter.register(process, select.POLLIN)
    if not waiter.poll(int(STOP_TIMEOUT_S * 1000)):
        raise Timeout(f"process {pid} did not end within {STOP_TIMEOUT_S:.0f} s")


def has_clients(data_dir: Path) -> bool:
    """Whether any process holds a ClientMark. Raises OSError if that cannot be looked up."""
    return not _without_clients(data_dir, lambda: None)


def withdraw_record(data_dir: Path) -> bool:
    """Take back the record unless there are clients; True if it is gone.

    Without the record no client joins any more. Raises OSError if that cannot be looked up, or not removed.
    """
    return _without_clients(data_dir, lambda: remove_record(data_dir))


def _without_clients(data_dir: Path, act: Callable[[], None]) -> bool:
    try:
        lock = _locked(run_directory(data_dir) / CLIENTS_LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        act()
    finally:
        lock.release()
    return True


def join_embedded(settings: Settings) -> tuple[EmbeddedRecord, ClientMark]:
    """Find or start the embedded broker, and mark this process as its client.

    The broker cannot end between the two.

    Raises what `ensure_embedded` raises.
    """
    data_dir = Path(settings.data_dir)
    while True:
        ensure_embedded(settings)
        with _writing(data_dir):
            mark = ClientMark(data_dir)
        # It may have ended of idleness just before; once marked, it stays.
        if (record := read_record(data_dir)) is not None:
            return record, mark
        mark.release()
