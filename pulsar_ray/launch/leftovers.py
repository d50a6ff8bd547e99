"""Finds and removes things that ended embedded brokers have left on this machine."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from pulsar_ray.launch.embedded import START_TIMEOUT_S, has_stale_record, read_record, remove_record
from pulsar_ray.launch.rays.ended_ray_sessions import clear_ended_sessions, ended_sessions
from pulsar_ray.launch.rays.own_ray import ray_directory

STANDALONE = "pulsar_ray.cli.standalone"


@dataclass(frozen=True, slots=True)
class LostBroker:
    """An embedded broker that runs, but that its data directory does not lead to."""

    pid: int
    data_dir: str
    has_directory: bool
    """Whether its data directory is still there."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Things that no running broker needs."""

    sessions: tuple[Path, ...]
    """Directories of embedded Rays that have ended; the newest one keeps its logs."""
    session_bytes: int
    has_stale_record: bool
    """Whether the data directory names an embedded broker that has ended."""
    lost_brokers: tuple[LostBroker, ...]


def find_leftovers(data_dir: Path) -> Leftovers:
    """Look for what can go; changes nothing."""
    sessions = tuple(ended_sessions(Path(ray_directory())))
    size = sum(_bytes_below(path) for path in sessions)
    return Leftovers(sessions, size, has_stale_record(data_dir), tuple(_lost_brokers()))


def clear_leftovers(data_dir: Path, found: Leftovers) -> None:
    """Remove the directories and the record; processes are left to whoever knows what they are."""
    if found.sessions:
        clear_ended_sessions(Path(ray_directory()))
    if found.has_stale_record and has_stale_record(data_dir):
        remove_record(data_dir)


def _bytes_below(path: Path) -> int:
    total = 0
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.lstat().st_size
    return total


def _lost_brokers() -> list[LostBroker]:
    lost = []
    own_user = psutil.Process().uids().real
    for process in psutil.process_iter(["pid", "cmdline", "create_time", "uids"]):
        command = process.info["cmdline"] or []
        uids = process.info["uids"]
        if STANDALONE not in command or uids is None or uids.real != own_user:
            continue
        # Its settings lie in the `run` of its data directory.
        directory = Path(command[-1]).parent.parent
        record = read_record(directory)
        # One that starts has no record yet, but the directory in which it was told its settings.
        is_starting = directory.is_dir() and time.time() - process.info["create_time"] < START_TIMEOUT_S
        if not is_starting and (record is None or record.pid != process.info["pid"]):
            lost.append(LostBroker(int(process.info["pid"]), str(directory), directory.is_dir()))
    return lost
