"""Remove the copies of Ray's Java library that Spark's JVMs unpack.

The JVMs leave them on this machine.

A JVM that joins Ray as a driver does (Spark's driver and RayDP's app master) unpacks 41 MB into a new
directory /tmp/ray/<milliseconds>, wherever Ray has its own, loads the library from there once, and never
removes it. Executors use the one in the directory of the Ray session.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from pulsar_ray.closed_places import open_trusted_directory, remove_tree
from pulsar_ray.errors import UntrustedPath

UNPACKING_S = 600.0
"""A library that nobody has loaded may be one that is being unpacked."""
_RAY_DIRECTORY = Path("/tmp/ray")  # noqa: S108 - Ray's Java has it in its code
_CONTENT = {"file_lock", "libcore_worker_library_java.so", "libcore_worker_library_java.dylib"}


def remove_java_libraries(ray_directory: Path = _RAY_DIRECTORY) -> None:
    """Remove this user's copies that no JVM needs any more.

    A loaded copy's file is not needed, nor is that of a killed JVM.
    """
    # Everybody may write in Ray's directory: what lies there is looked at and removed through descriptors.
    with suppress(OSError, UntrustedPath):
        top = open_trusted_directory(ray_directory)
        try:
            _remove_unneeded(ray_directory, top)
        finally:
            os.close(top)


def _remove_unneeded(ray_directory: Path, top: int) -> None:
    # Another session of this user may remove the same ones at the same time.
    copies: dict[str, float] = {}
    for name in os.listdir(top):
        if name.isdigit():
            with suppress(OSError, UntrustedPath):
                copies[name] = _age_s(name, top)
    if not copies:
        return
    loaded = set(_loaded_from())
    for name, age_s in copies.items():
        if ray_directory / name in loaded or age_s > UNPACKING_S:
            remove_tree(name, top)


def _age_s(name: str, top: int) -> float:
    """Return how long ago a copy was written to.

    Raises UntrustedPath if it is none of this user's, OSError.
    """
    directory = open_trusted_directory(name, dir_fd=top)
    try:
        files = os.listdir(directory)
        found = os.fstat(directory)
        if found.st_uid != os.geteuid() or not set(files) <= _CONTENT:
            raise UntrustedPath(f"{name} is no copy of this user's")
        parts = [os.stat(file, dir_fd=directory, follow_symlinks=False) for file in files]
        return time.time() - max(part.st_mtime for part in (found, *parts))
    finally:
        os.close(directory)


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
