"""Measures this machine for `pulsar-ray doctor`.

It writes nothing but a few bytes into a file without a name, which is gone when it is closed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import socket
import stat
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from pulsar_ray.errors import NetworkFileSystem
from pulsar_ray.ledger.disk import mount_type, require_local_file_system

FSYNCS = 15
MOST_FSYNC_S = 3.0
"""No more of them begin after so long."""
PROBED_PORTS = 2000
RAY_PORTS = (6379, 8265, 52365)
"""Ray's defaults: of its GCS, its dashboard, and the agent of a node."""
PID_LIMITS = (Path("/sys/fs/cgroup/pids.max"), Path("/sys/fs/cgroup/pids/pids.max"))
_CLOCK_UNSYNCHRONIZED = 5  # TIME_ERROR of adjtimex(2)
_TIMEX_BYTES = 512
_IN_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The disk of the data directory, or of the next directory above."""

    path: str
    exists: bool
    is_writable: bool
    free_bytes: int
    total_bytes: int
    network: str = ""
    """Why two machines could write there; empty for a local disk."""
    memory: str = ""
    """The file system, if it keeps everything in memory."""
    obstacle: str = ""
    """Why no directory can be there; empty if one is, or can be made."""
    fsync_ms: tuple[float, ...] = ()
    """How long small durable writes took; none if nothing can be written."""
    newest_file_s: float = 0.0
    """How far the newest file is dated in the future, or 0."""

    @property
    def median_fsync_ms(self) -> float:
        """The median of the durable writes."""
        return statistics.median(self.fsync_ms) if self.fsync_ms else 0.0


@dataclass(frozen=True, slots=True)
class LimitFacts:
    """The limits of this user's processes; -1 stands for none, or an unknown one."""

    files: int
    processes: int
    pids_of_container: int


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Memory in bytes, as far as a container lets this machine have it."""

    total_bytes: int
    available_bytes: int
    shared_memory_free_bytes: int


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """Versions as their packages say; "" for one that is not installed."""

    python: str
    ray: str
    pyarrow: str
    system: str


def measure_disk(directory: Path) -> DiskFacts:
    """Measure the disk of a directory, which need not be there."""
    place = directory
    # A path that cannot be looked at is no directory: it has an obstacle, and is measured above.
    while not os.path.isdir(place):
        place = place.parent
    room = os.statvfs(place)
    network = ""
    try:
        require_local_file_system(place)
    except NetworkFileSystem as error:
        network = str(error)
    mounted_as = mount_type(place)
    is_writable = os.access(place, os.W_OK | os.X_OK)
    return DiskFacts(
        str(directory),
        place == directory,
        is_writable,
        room.f_bavail * room.f_frsize,
        room.f_blocks * room.f_frsize,
        network,
        mounted_as if mounted_as in _IN_MEMORY else "",
        _obstacle(directory),
        _durable_writes(place) if is_writable else (),
        _seconds_ahead(directory),
    )


def _obstacle(directory: Path) -> str:
    try:
        mode = os.stat(directory).st_mode
    except FileNotFoundError:
        return "is a link that leads nowhere" if os.path.islink(directory) else ""
    except OSError as error:
        return f"cannot be a directory: {error.strerror}"
    return "" if stat.S_ISDIR(mode) else "is no directory"


def _durable_writes(directory: Path) -> tuple[float, ...]:
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:  # a file system without nameless files, or one that is full
        return ()
    took: list[float] = []
    try:
        end = time.perf_counter() + MOST_FSYNC_S
        while len(took) < FSYNCS and time.perf_counter() < end:
            os.write(fd, bytes(4096))
            began = time.perf_counter()
            os.fdatasync(fd)
            took.append(1000 * (time.perf_counter() - began))
    except OSError:
        return ()
    finally:
        os.close(fd)
    return tuple(took)


def _seconds_ahead(directory: Path) -> float:
    """How far the newest of the broker's files is dated after now."""
    newest = 0.0
    for path in (directory / "store.json", directory / "meta.sqlite", directory / "p"):
        try:
            newest = max(newest, path.stat().st_mtime)
        except OSError:
            continue
    return max(0.0, newest - time.time())


def is_clock_synchronized() -> bool | None:
    """Whether the kernel holds its clock for synchronized; None if it does not say."""
    libc = ctypes.CDLL(None, use_errno=True)
    state = int(libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    return None if state < 0 else state != _CLOCK_UNSYNCHRONIZED


def measure_limits() -> LimitFacts:
    """Read the limits that processes started from here have."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    pids = -1
    for path in PID_LIMITS:
        try:
            pids = int(path.read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue
    no_limit = resource.RLIM_INFINITY
    return LimitFacts(
        -1 if files == no_limit else files,
        -1 if processes == no_limit or os.geteuid() == 0 else processes,
        pids,
    )


def shared_memory_free_bytes() -> int:
    """The free part of /dev/shm, where Ray keeps its objects; 0 without one."""
    try:
        room = os.statvfs("/dev/shm")  # noqa: S108 - only looked at
    except OSError:
        return 0
    return room.f_bavail * room.f_frsize


def measure_versions() -> VersionFacts:
    """Read the versions that are installed, without importing anything."""
    return VersionFacts(platform.python_version(), _version("ray"), _version("pyarrow"), platform.system())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def taken_ports(first: int, last: int) -> tuple[int, int]:
    """Count the ports of a range that are taken, and those tried."""
    ports = range(first, min(last, first + PROBED_PORTS - 1) + 1)
    return sum(not _is_free(port) for port in ports), len(ports)


@dataclass(frozen=True, slots=True)
class PortFacts:
    """A port that Ray takes by default.

    `holder` names the process that has it, "" for one that may not be looked at. `command` is the holder's
    command line, which may have secrets in it and is not to be shown.
    """

    port: int
    is_free: bool
    holder: str = ""
    command: str = ""


def measure_ray_ports() -> list[PortFacts]:
    """Look which of Ray's usual ports are taken, and by whom."""
    taken = [port for port in RAY_PORTS if not _is_free(port)]
    holders = _listeners() if taken else {}
    return [PortFacts(port, port not in taken, *holders.get(port, ("", ""))) for port in RAY_PORTS]


def _listeners() -> dict[int, tuple[str, str]]:
    """Names and command lines of the listeners that this user may see, by port."""
    found: dict[int, tuple[str, str]] = {}
    for process in psutil.process_iter():
        try:
            for _, port in _listening(process):
                named = f"{process.name()} (process {process.pid})"
                found[port] = named, " ".join(process.cmdline())
        except (psutil.Error, OSError):
            continue
    return found


def _listening(process: psutil.Process) -> Iterator[tuple[str, int]]:
    """Addresses and ports where a process listens. Raises psutil.Error."""
    # Before version 6 of psutil the method had another name.
    look = getattr(process, "net_connections", None) or process.connections
    for connection in look(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN:
            yield connection.laddr.ip, connection.laddr.port


@dataclass(frozen=True, slots=True)
class RayDoor:
    """A Ray that began on this machine, by its GCS server.

    It is this user's, or anybody's if this is root. `hosts` are the addresses that it listens at;
    `asks_for_token` as its environment has it.
    """

    pid: int
    user: str
    hosts: tuple[str, ...]
    asks_for_token: bool


def measure_ray_doors() -> list[RayDoor]:
    """Look where the Rays listen that began here, and whether they ask for a token."""
    doors = []
    for process in psutil.process_iter():
        try:
            if process.name() == "gcs_server":
                hosts = {host for host, _ in _listening(process)}
                mode = process.environ().get("RAY_AUTH_MODE", "")
                user = process.username()
                doors.append(RayDoor(process.pid, user, tuple(sorted(hosts)), mode.lower() == "token"))
        except (psutil.Error, OSError):
            continue
    return doors


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
