"""Reads which Ray cluster `ray start` has noted on this machine, without loading Ray."""

from __future__ import annotations

import os
from pathlib import Path


def noted_cluster() -> str:
    """The address in the file that `ray start` leaves; "" without one.

    That Ray may have ended.
    """
    # Where Ray itself looks.
    directory = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108
    try:
        return (Path(directory) / "ray" / "ray_current_cluster").read_text().strip()
    except OSError:
        return ""
