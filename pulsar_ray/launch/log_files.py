"""Finds the log files of the broker's actors, on every node and of former lives.

Ray names a worker's files after its id and process. As an actor begins in it, Ray writes its name into both,
so that the first bytes of a file tell whose it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pulsar_ray.closed_places import open_trusted_file
from pulsar_ray.errors import UntrustedPath
from pulsar_ray.launch.every_node import ask_other_nodes
from pulsar_ray.transport.this_ray import node_id, session_directory

HEAD_BYTES = 8192
"""Ray's lines come first: job, class and name of the actor."""
TAIL_BYTES = 256 << 10
"""Of each file at most so much is read for its last lines."""
MOST_FILES = 1000
"""So many files of a node at most are reported, those last written to."""
_MARK = ":actor_name:"
_STREAMS = ("out", "err")


@dataclass(frozen=True)
class ActorLog:
    """A file that an actor wrote or writes.

    `modified_s`: when it was last written to, in seconds since 1970. `tail`: its last lines, if asked for.
    """

    host: str
    path: str
    actor: str
    pid: int
    size_bytes: int
    modified_s: float
    tail: list[str] = field(default_factory=list)


def actors_of_topic(topic: str, subscription: str | None) -> str:
    """A pattern of the names of a topic's actors, or of one subscription's; all partitions."""
    rest = "[^\n]*" if subscription is None else re.escape(subscription)
    arrow = f" (?:->|=>|~>) {rest}"
    is_needed = "?" if subscription is None else ""
    return rf"{re.escape(topic)}(?:-partition-\d+)?(?:{arrow}){is_needed}"


OTHER_ACTORS = r"Controller|Store\([^\n]*\)"
"""The names of the actors that belong to no topic."""


def find_logs(names: str, tail_lines: int = 0) -> tuple[list[ActorLog], list[str]]:
    """The log files of actors whose names match, and the hosts that did not answer.

    Last written to last.
    """
    here = node_id()
    others, silent = ask_other_nodes(here, _logs_of_node, names, tail_lines)
    found = _logs_of_node(here, names, tail_lines)
    for of_node in others:
        found += of_node
    return sorted(found, key=lambda log: log.modified_s), silent


def _logs_of_node(_: str, names: str, tail_lines: int) -> list[ActorLog]:
    return logs_below(session_directory() / "logs", socket.gethostname(), names, tail_lines)


def logs_below(directory: Path, host: str, names: str, tail_lines: int) -> list[ActorLog]:
    """Those of one directory; files that go meanwhile are left out."""
    mark = re.compile(rf"(?:^|\n){_MARK}({names})\n".encode())
    found = []
    for entry in _worker_files(directory):
        with contextlib.suppress(OSError, UntrustedPath):
            path = Path(entry.path)
            match = mark.search(_head(path))
            if match is not None:
                state = entry.stat()
                found.append((state.st_mtime, state.st_size, path, match[1].decode(errors="replace")))
    found.sort(key=lambda log: log[0])
    logs = []
    for modified_s, size, path, actor in found[-MOST_FILES:]:
        with contextlib.suppress(OSError, UntrustedPath):
            tail = _last_lines(path, tail_lines) if tail_lines else []
            logs.append(ActorLog(host, str(path), actor, _pid(path), size, modified_s, tail))
    return logs


def _worker_files(directory: Path) -> Iterator[os.DirEntry[str]]:
    try:
        entries = os.scandir(directory)
    except OSError:
        return
    with entries:
        for entry in entries:
            stem, _, stream = entry.name.rpartition(".")
            if entry.name.startswith("worker-") and stem and stream in _STREAMS:
                yield entry


def _head(path: Path) -> bytes:
    with _opened(path) as file:
        return file.read(HEAD_BYTES)


def _opened(path: Path) -> BinaryIO:
    """Open a file that this user or root has written.

    Everybody may write in a directory of Ray's: a link may lead anywhere, a pipe wait for ever, another
    user's file say what that user likes. Raises UntrustedPath, OSError.
    """
    return open(open_trusted_file(path), "rb")


def _pid(path: Path) -> int:
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def _last_lines(path: Path, count: int) -> list[str]:
    with _opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        text = file.read(TAIL_BYTES)
    lines = text.decode(errors="replace").splitlines()
    if size > TAIL_BYTES:
        del lines[0]  # its beginning was not read
    return [line for line in lines if not _is_rays(line)][-count:]


def _is_rays(line: str) -> bool:
    """Whether a line is one with which Ray marks the file."""
    return line.startswith((_MARK, ":job_id:", ":task_name:"))
