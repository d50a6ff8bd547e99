"""Remove the copies of Ray's Java library that Spark's JVMs unpack.

The JVMs leave them on this machine.

A JVM that joins Ray as a driver does (Spark's driver and RayDP's app master) unpacks 41 MB into a new
directory /tmp/ray/<milliseconds>, wherever Ray has its own, loads the library from there once, and never
removes it. Executors use the one in the directory of the Ray session.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

UNPACKING_S = 600.0
"""A library that nobody has loaded may be one that is being unpacked."""
_RAY_DIRECTORY = Path("/tmp/ray")  # noqa: S108 - Ray's Java has it in its code
_CONTENT = {"file_lock", "libcore_worker_library_java.so", "libcore_worker_library_java.dylib"}


def remove_java_libraries(ray_directory: Path = _RAY_DIRECTORY) -> None:
    """Remove this user's copies that no JVM needs any more.

    A loaded copy's file is not needed, nor is that of a killed JVM.
    """
    # Another session of this user may remove the same ones at the same time.
    copies: list[tuple[Path, float]] = []
    for path in ray_directory.glob("[0-9]*"):
        with suppress(OSError):
            if _is_ours(path):
                copies.append((path, _age_s(path)))
    if not copies:
        return
    loaded = set(_loaded_from())
    for path, age_s in copies:
        if path in loaded or age_s > UNPACKING_S:
            shutil.rmtree(path, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    return (
        path.name.isdigit()
        and path.is_dir()
        and not path.is_symlink()
        and path.stat().st_uid == os.getuid()
        and {child.name for child in path.iterdir()} <= _CONTENT
    )


def _age_s(path: Path) -> float:
    return time.time() - max(part.stat().st_mtime for part in (path, *path.iterdir()))


def _loaded_from() -> Iterator[Path]:
    """The directories of what this machine's processes have mapped of these libraries."""
    for pid in psutil.pids():
        try:
            mappings = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape")
        except OSError:
            continue  # ended, another user's, or no Linux
        for line in mappings.splitlines():
            if "libcore_worker_library_java" in line:
                yield Path(line.split(maxsplit=5)[5]).parent
