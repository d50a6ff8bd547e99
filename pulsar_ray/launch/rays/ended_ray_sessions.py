"""The directories of embedded Rays that have ended.

The logs of the newest are kept, everything else goes.

Ray leaves a directory for each session, in which everybody may write, and never removes one. So it is opened
once, without following a link, and everything below is looked at and removed through the descriptor: whatever
is put in its place meanwhile is left alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from pulsar_ray.closed_places import open_trusted_directory, remove_tree
from pulsar_ray.errors import UntrustedPath
from pulsar_ray.lane.address import is_abandoned

STARTING_S = 3600.0
"""A session without a socket may be one that comes up."""
BEGINNING_S = 60.0
_KEPT = "logs"


def clear_ended_sessions(directory: Path, ended: Path | None = None) -> None:
    """Remove old sessions of this user's embedded Rays; running ones are left alone.

    `ended` is known to have.
    """
    with _unless_untrusted(), _opened(directory) as top:
        sessions = _ended(top, "" if ended is None else ended.name)
        for name in sessions[:-1]:
            remove_tree(name, top)
        for name in sessions[-1:]:
            with _unless_untrusted(), _opened(name, top) as session:
                for child in _removable(session):
                    remove_tree(child, session)


def ended_sessions(directory: Path) -> list[Path]:
    """List those of which `clear_ended_sessions` would remove something."""
    found: list[str] = []
    with _unless_untrusted(), _opened(directory) as top:
        found = _ended(top, "")
        for name in found[-1:]:
            with _unless_untrusted(), _opened(name, top) as session:
                if not _removable(session):
                    found.remove(name)
    return [directory / name for name in found]


def _removable(session: int) -> list[str]:
    return [name for name in os.listdir(session) if name != _KEPT]


def _ended(top: int, known: str) -> list[str]:
    """The names of sessions of this user that have ended, the newest last."""
    found = []
    for name in sorted(os.listdir(top)):
        if name.startswith("session_"):
            with _unless_untrusted(), _opened(name, top) as session:
                if os.fstat(session).st_uid == os.geteuid() and (name == known or _has_ended(session)):
                    found.append(name)
    return found


def _has_ended(session: int) -> bool:
    """Whether no raylet listens for its workers any more, in whatever container."""
    age_s = time.time() - os.fstat(session).st_mtime
    try:
        with _opened("sockets", session) as sockets:
            # The path of a socket is short this way, and leads nowhere else.
            raylets = [
                f"/proc/self/fd/{sockets}/{name}" for name in os.listdir(sockets) if name.startswith("raylet")
            ]
            return all(map(is_abandoned, raylets)) if raylets else age_s > STARTING_S
    except FileNotFoundError:
        return age_s > BEGINNING_S


@contextlib.contextmanager
def _opened(path: Path | str, dir_fd: int | None = None) -> Iterator[int]:
    descriptor = open_trusted_directory(path, dir_fd=dir_fd)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _unless_untrusted() -> contextlib.suppress:
    """Pass over what is gone, or somebody else's."""
    return contextlib.suppress(OSError, UntrustedPath)
