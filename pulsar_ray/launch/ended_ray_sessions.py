"""The directories of embedded Rays that have ended.

The logs of the newest are kept, everything else goes.

Ray leaves a directory for each session and never removes one.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from pathlib import Path

STARTING_S = 3600.0
"""A session without a socket may be one that comes up."""
BEGINNING_S = 60.0


def clear_ended_sessions(directory: Path, ended: Path | None = None) -> None:
    """Remove old sessions of this user's embedded Rays; running ones are left alone.

    `ended` is known to have.
    """
    sessions = _ended(directory, ended)
    for path in sessions[:-1]:
        shutil.rmtree(path, ignore_errors=True)
    for path in sessions[-1:]:
        for child in path.iterdir():
            if child.name == "logs":
                continue
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child, ignore_errors=True)
            else:
                child.unlink(missing_ok=True)


def ended_sessions(directory: Path) -> list[Path]:
    """List those of which `clear_ended_sessions` would remove something."""
    sessions = _ended(directory, None)
    last = sessions[-1:]
    return [*sessions[:-1], *(path for path in last if {child.name for child in path.iterdir()} - {"logs"})]


def _ended(directory: Path, ended: Path | None) -> list[Path]:
    return sorted(
        path for path in directory.glob("session_*") if _is_ours(path) and (path == ended or _has_ended(path))
    )


def _is_ours(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid()


def _has_ended(session: Path) -> bool:
    """Whether no raylet listens for its workers any more, in whatever container."""
    age_s = time.time() - session.stat().st_mtime
    try:
        names = list((session / "sockets").iterdir())
    except FileNotFoundError:
        return age_s > BEGINNING_S
    raylets = [path for path in names if path.name.startswith("raylet")]
    return all(map(_is_refused, raylets)) if raylets else age_s > STARTING_S


def _is_refused(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
