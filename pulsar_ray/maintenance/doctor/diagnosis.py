"""Decides from measurements what is wrong with a machine, with remedies.

Every function looks at one thing, and returns one finding for each that it has an opinion on: `ok` ones, too,
for a doctor says what has been looked at.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from pulsar_ray.broker.health.disk_level import REMEDY, DiskLevel, judge_disk
from pulsar_ray.broker.health.finding import ERROR, WARNING, Finding
from pulsar_ray.config import GIB, MIB, Settings
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.maintenance.doctor.machine import (
    DiskFacts,
    LimitFacts,
    MemoryFacts,
    PortFacts,
    RayDoor,
    VersionFacts,
)

OK = "ok"
SLOW_FSYNC_MS = 20.0
VERY_SLOW_FSYNC_MS = 100.0
FEW_FILES = 4096
FILES_PER_ACTOR = 12
"""A partition has a few files and sockets open, and each client two more."""
PROCESSES_PER_ACTOR = 60
"""Threads count: Ray and Arrow begin some dozens in each process."""
BYTES_PER_ACTOR = 80 * MIB
LEAST_SHARED_MEMORY = GIB // 2
MOST_SECONDS_AHEAD = 2.0
_OF_RAY = re.compile(r"\bgcs_server\b|\braylet\b|\bray::|\bray-dashboard|/ray/dashboard/")
_RAY_PORT_OPTIONS = {
    6379: ("`ray start --head` does not start", "--port"),
    8265: ("Ray's dashboard takes the next free one", "--dashboard-port"),
    52365: ("Ray's dashboard shows no logs of this node", "--dashboard-agent-listen-port"),
}
"""By port: the consequence of its being taken, and the option for another one."""
OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 13)
OLDEST_RAY, NEWEST_RAY = (2, 31), (2, 60)
OLDEST_PYARROW, NEWEST_PYARROW = (14, 0), (26, 99)


def _found(severity: str, subject: str, reason: str, remedy: str = "") -> Finding:
    return Finding(severity, "machine", subject, "", reason, remedy)


def diagnose_disk(facts: DiskFacts, settings: Settings) -> list[Finding]:
    """Look at room, kind and speed of the data directory's disk."""
    found = [_place(facts), _room(facts, settings)]
    if facts.network:
        found.append(_found(ERROR, "disk", facts.network, "set `data_dir` to a directory of a local disk"))
    if facts.memory:
        reason = f"{facts.path} is on {facts.memory}, which keeps everything in memory: a reboot loses it all"
        found.append(_found(WARNING, "disk", reason, "set `data_dir` to a directory of a disk"))
    if facts.fsync_ms:
        found.append(_fsync(facts))
    return found


def _place(facts: DiskFacts) -> Finding:
    if facts.obstacle:
        remedy = "set `data_dir` to a directory, or to where one can be made"
        return _found(ERROR, "data directory", f"{facts.path} {facts.obstacle}", remedy)
    if not facts.is_writable:
        return _found(
            ERROR,
            "data directory",
            f"{facts.path} cannot be written by this user",
            "give the directory to the user that Ray runs as, or set `data_dir` to another one",
        )
    if not facts.exists:
        return _found(OK, "data directory", f"{facts.path} is not there yet and can be made")
    return _found(OK, "data directory", f"{facts.path} can be written")


def _room(facts: DiskFacts, settings: Settings) -> Finding:
    state = judge_disk(facts.free_bytes, facts.total_bytes, settings)
    if state.level is DiskLevel.OK:
        return _found(OK, "disk", f"{facts.free_bytes:,} of {facts.total_bytes:,} bytes are free")
    return _found(ERROR if state.level is DiskLevel.LOW else WARNING, "disk", state.reason, REMEDY)


def _fsync(facts: DiskFacts) -> Finding:
    median, slowest = facts.median_fsync_ms, max(facts.fsync_ms)
    reason = f"a durable write takes {median:.1f} ms in the middle and {slowest:.1f} ms at most"
    if median < SLOW_FSYNC_MS:
        return _found(OK, "disk speed", reason)
    return _found(
        ERROR if median >= VERY_SLOW_FSYNC_MS else WARNING,
        "disk speed",
        f"{reason}: every single send waits for one",
        "use an SSD, keep others off this disk, and look at it with `iostat -x 1`",
    )


def diagnose_clock(is_synchronized: bool | None, disk: DiskFacts) -> list[Finding]:
    """Look whether the time of day can be believed."""
    found = []
    if disk.newest_file_s > MOST_SECONDS_AHEAD:
        found.append(
            _found(
                ERROR,
                "clock",
                f"the data directory has files dated {disk.newest_file_s:,.0f} s from now: time was put back",
                "set the clock right; until then delayed messages come late and nothing expires",
            )
        )
    if is_synchronized is False:
        reason = "the kernel does not take its clock for synchronized"
        found.append(_found(WARNING, "clock", reason, "run chrony or systemd-timesyncd on every node"))
    elif not found:
        said = "is synchronized" if is_synchronized else "does not say whether it is synchronized"
        found.append(_found(OK, "clock", f"the clock {said}"))
    return found


def diagnose_limits(facts: LimitFacts, actors: int) -> list[Finding]:
    """Look whether as many partitions and subscriptions can run as `max_active_actors` allows."""
    found = [
        _limit("open files", facts.files, max(FEW_FILES, FILES_PER_ACTOR * 16), "`ulimit -Hn`"),
        _limit("processes", facts.processes, PROCESSES_PER_ACTOR * actors, "`ulimit -u`"),
    ]
    if facts.pids_of_container >= 0:
        needed = PROCESSES_PER_ACTOR * actors
        found.append(_limit("processes of the container", facts.pids_of_container, needed, "its pids limit"))
    return found


def _limit(what: str, limit: int, needed: int, setting: str) -> Finding:
    if limit < 0:
        return _found(OK, what, "no limit")
    if limit >= needed:
        return _found(OK, what, f"{limit:,} may be there")
    return _found(
        WARNING,
        what,
        f"{limit:,} may be there, and a broker at its limits wants {needed:,}",
        f"raise {setting} where Ray is started, or lower `max_active_actors`",
    )


def diagnose_memory(facts: MemoryFacts, settings: Settings) -> list[Finding]:
    """Look whether memory is there for what `max_active_actors` lets run."""
    actors = settings.active_actor_limit(facts.total_bytes)
    needed = actors * BYTES_PER_ACTOR
    room = facts.available_bytes // BYTES_PER_ACTOR
    what = f"max_active_actors lets {actors:,} partitions and subscriptions run"
    if settings.max_active_actors == 0:
        reason = "max_active_actors is 0, no limit: Ray's memory monitor ends processes when memory is short"
        first = _found(WARNING, "memory", reason, "set `max_active_actors` to -1, or to a number")
    elif needed > facts.total_bytes and settings.max_active_actors > 0:
        reason = f"{what}, which takes {needed:,} bytes of {facts.total_bytes:,}"
        remedy = f"set it to {facts.total_bytes // BYTES_PER_ACTOR} or less, or to -1"
        first = _found(WARNING, "memory", reason, remedy)
    else:
        first = _found(OK, "memory", f"{what}, and {facts.total_bytes:,} bytes of memory are there")
    found = [first]
    if room < min(actors, 8):
        reason = f"{facts.available_bytes:,} bytes are free, room for {room} partitions and subscriptions"
        found.append(_found(WARNING, "memory", reason, "end other programs, or use a larger machine"))
    if facts.shared_memory_free_bytes < LEAST_SHARED_MEMORY:
        reason = f"{facts.shared_memory_free_bytes:,} bytes are free, where Ray keeps its objects"
        found.append(_found(WARNING, "shared memory", reason, "give the container more (`--shm-size`)"))
    return found


def diagnose_versions(facts: VersionFacts) -> list[Finding]:
    """Look whether pulsar_ray was made for what is installed."""
    if facts.system != "Linux":
        return [_found(ERROR, "system", f"this is {facts.system or 'unknown'}", "use Linux")]
    return [
        _version("Python", facts.python, OLDEST_PYTHON, NEWEST_PYTHON),
        _version("Ray", facts.ray, OLDEST_RAY, NEWEST_RAY),
        _version("pyarrow", facts.pyarrow, OLDEST_PYARROW, NEWEST_PYARROW),
    ]


def diagnose_modules(described: str) -> list[Finding]:
    """Tell which of this package's modules run compiled."""
    return [_found(OK, "pulsar_ray", described)]


def _version(what: str, installed: str, oldest: tuple[int, int], newest: tuple[int, int]) -> Finding:
    found = re.match(r"(\d+)\.(\d+)", installed)
    low, high = (".".join(map(str, each)) for each in (oldest, newest))
    if not installed or found is None:
        return _found(ERROR, what, "is not installed", f"install {what} {low} or later")
    number = int(found[1]), int(found[2])
    if number < oldest:
        return _found(ERROR, what, f"{installed} is older than {low}", f"install {what} {low} or later")
    if number > newest:
        return _found(WARNING, what, f"{installed} is newer than {high}, which was tried last", f"try {high}")
    return _found(OK, what, installed)


def diagnose_ports(settings: Settings, taken: int, looked_at: int, actors: int) -> list[Finding]:
    """Look whether `tcp_port_range` has ports for all actors, where it is set."""
    first, last = settings.tcp_ports()
    if not first:
        return [_found(OK, "ports", "actors listen on any free port")]
    there = last - first + 1
    free = looked_at - taken
    reason = f"tcp_port_range {first}-{last} has {there:,} ports, of {looked_at:,} tried {free:,} are free"
    if there < actors:
        remedy = f"give at least {actors:,} ports, one for each partition and subscription of a node"
        return [_found(WARNING, "ports", f"{reason}, for {actors:,} actors", remedy)]
    if not free:
        remedy = "end what listens there, or give another range"
        return [_found(ERROR, "ports", f"{reason}: clients of other nodes get the slow way only", remedy)]
    return [_found(OK, "ports", reason)]


def diagnose_ray_ports(ports: Sequence[PortFacts]) -> list[Finding]:
    """Look whether others than Ray have the ports that `ray start` takes by default."""
    found = []
    for facts in ports:
        if facts.is_free or _OF_RAY.search(facts.command):
            continue
        consequence, option = _RAY_PORT_OPTIONS[facts.port]
        holder = facts.holder or "another user's process"
        reason = f"{facts.port} is taken by {holder}: {consequence}"
        found.append(_found(WARNING, "ports", reason, f"end it, or give `ray start` another `{option}`"))
    if found:
        return found
    used = ", ".join(str(facts.port) for facts in ports if not facts.is_free)
    said = f"Ray has {used}" if used else "those that Ray takes are free"
    return [_found(OK, "ports", said)]


def diagnose_ray_doors(doors: Sequence[RayDoor], open_token_file: str) -> list[Finding]:
    """Look who else may run code as the user of a Ray."""
    found = []
    for door in doors:
        if door.asks_for_token:
            continue
        is_here = all(host.removeprefix("::ffff:").startswith("127.") or host == "::1" for host in door.hosts)
        where = "every user of this machine" if is_here else "whoever reaches the ports of this machine"
        reason = f"{where} may run code as {door.user}: the Ray of process {door.pid} asks for no token"
        remedy = (
            "start it again with RAY_AUTH_MODE=token (Ray 2.52 or later), after `ray get-auth-token "
            "--generate`; until then keep others away from its ports"
        )
        found.append(_found(WARNING, "access", reason, remedy))
    if open_token_file:
        reason = f"other users may read or change {open_token_file}, the token for Ray"
        closing = f"chmod 600 {shlex.quote(open_token_file)}"
        remedy = f"`{closing}`; if anybody else uses this machine, make another token"
        found.append(_found(WARNING, "access", reason, remedy))
    if found:
        return found
    said = "every Ray of this user that runs here asks for a token" if doors else "no Ray of this user runs"
    return [_found(OK, "access", said)]


def diagnose_java(java: str | None, error: str) -> list[Finding]:
    """Look at the Java of Spark; `java` is None without Spark."""
    if java is None:
        return [_found(OK, "Java", "not needed: the Spark package is not installed")]
    if error:
        return [_found(WARNING, "Java", f"{error}", "only Spark needs it")]
    return [_found(OK, "Java", java)]


def diagnose_leftovers(
    data_dir: str,
    sessions: int,
    session_bytes: int,
    lost_brokers: Sequence[tuple[int, str, bool]],
    *,
    has_stale_record: bool,
) -> list[Finding]:
    """Look at what ended brokers have left, and at brokers that nobody finds any more.

    `lost_brokers`: pid and data directory of each, and whether that is still there.
    """
    found = []
    if sessions:
        reason = f"{sessions} directories of ended embedded brokers take {session_bytes:,} bytes"
        found.append(_found(WARNING, "leftovers", reason, "remove them with --fix"))
    if has_stale_record:
        reason = f"{data_dir} names an embedded broker that has ended without a word"
        found.append(_found(WARNING, "leftovers", reason, "remove the record with --fix"))
    for pid, directory, is_there in lost_brokers:
        why = "which does not lead to it" if is_there else "which is gone"
        reason = f"process {pid} is an embedded broker of {directory}, {why}"
        found.append(_found(WARNING, "leftovers", reason, f"end it with `kill {pid}`"))
    return found or [_found(OK, "leftovers", "none")]


def diagnose_broker(data_dir: str, is_served: bool, problem: str) -> list[Finding]:
    """Look whether the broker whose store the data directory is has a controller that answers.

    `problem`: what the store says of a controller that does not, or why the store itself does not answer.
    """
    if problem:
        remedy = "bring that node up; `pulsar-ray health` says what works meanwhile"
        return [_found(ERROR, "broker", problem, remedy)]
    served = "is served, and its controller answers" if is_served else "is served by nobody now"
    return [_found(OK, "broker", f"{data_dir} {served}")]


def diagnose_settings(error: InvalidConfiguration | None) -> list[Finding]:
    """Look whether the settings that a broker would start with are valid."""
    if error is None:
        return [_found(OK, "settings", "are valid")]
    return [_found(ERROR, "settings", str(error), "correct them where they are given")]
