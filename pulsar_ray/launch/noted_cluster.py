"""Reads which Ray cluster is meant where none is named, without loading Ray."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from pulsar_ray.closed_places import open_own_file
from pulsar_ray.errors import UntrustedPath

LONGEST_NOTE = 1024


def environment_cluster() -> str:
    """The address in RAY_ADDRESS; "" without one.

    "auto" is none: with that Ray itself would look, and takes any process that calls itself a Ray's for one.
    """
    given = os.environ.get("RAY_ADDRESS", "")
    return "" if given == "auto" else given


def note_file() -> Path:
    """Where Ray itself looks for the cluster that runs here."""
    directory = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108
    return Path(directory) / "ray" / "ray_current_cluster"


def noted_cluster() -> str:
    """The address in the file that `ray start` leaves; "" without one.

    That Ray may have ended. A file that another user than this one and root has written, or may write to, is
    warned of and not believed: whoever listens at the address would be sent this user's token. Ray makes the
    directory for everybody to write, so that others may take such a file away, and put an old one of ours
    there: who listens has to be looked at as well.
    """
    path = note_file()
    try:
        with open(open_own_file(path, os.O_RDONLY, is_from_root=True), encoding="utf-8") as file:
            return file.read(LONGEST_NOTE).strip()
    except UntrustedPath as error:
        warnings.warn(
            f"the Ray cluster that {path} names is not used, since somebody else may have written that: "
            f"{error.text}. If you trust that cluster, set RAY_ADDRESS to its address",
            stacklevel=2,
        )
    except (OSError, ValueError):
        return ""
    return ""
