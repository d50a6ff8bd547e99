"""Where this user's sockets lie on this machine, whatever Ray they belong to.

Ray makes the directories of its sessions writable for everybody, so that anybody could move what lies there
and put something else in its place. This one is below `/tmp`, whose sticky bit keeps others from moving it,
and its name is short, for a Unix socket's path has 107 bytes.
"""

from __future__ import annotations

import os
from pathlib import Path


def user_directory() -> Path:
    """The directory, which `make_closed_directory` makes and checks."""
    return Path(f"/tmp/pulsar-ray-{os.geteuid()}")  # noqa: S108 - it is closed, and checked before each use
