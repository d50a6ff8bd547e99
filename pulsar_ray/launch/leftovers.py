"""Finds and removes things that ended embedded brokers have left on this machine."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from pulsar_ray.launch.embedded import START_TIMEOUT_S, has_stale_record, read_record, remove_record
from pulsar_ray.launch.ended_ray_sessions import clear_ended_sessions, ended_sessions
from pulsar_ray.launch.own_ray import ray_directory

STANDALONE = "pulsar_ray.cli.standalone"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Things that no running broker needs."""

    sessions: tuple[Path, ...]
    """Directories of embedded Rays that have ended; the newest one keeps its logs."""
    session_bytes: int
    has_stale_record: bool
    """Whether the data directory names an embedded broker that has ended."""
    lost_processes: tuple[int, ...]
    """Embedded brokers that serve, but whose data directory does not lead to them."""


def find_leftovers(data_dir: Path) -> Leftovers:
    """Look for what can go; changes nothing."""
    sessions = tuple(ended_sessions(Path(ray_directory())))
    size = sum(_bytes_below(path) for path in sessions)
    return Leftovers(sessions, size, has_stale_record(data_dir), tuple(_lost_processes()))


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


def _lost_processes() -> list[int]:
    lost = []
    for process in psutil.process_iter(["pid", "cmdline", "create_time", "uids"]):
        command = process.info["cmdline"] or []
        uids = process.info["uids"]
        if STANDALONE not in command or uids is None or uids.real != psutil.Process().uids().real:
            continue
        # Its settings lie in the `run` of its data directory.
        record = read_record(Path(command[-1]).parent.parent)
        is_starting = time.time() - process.info["create_time"] < START_TIMEOUT_S
        if not is_starting and (record is None or record.pid != process.info["pid"]):
            lost.append(int(process.info["pid"]))
    return lost
