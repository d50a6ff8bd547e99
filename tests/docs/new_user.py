"""A machine as a new user has it, for programs that are run as they would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 480
QUICK_JVMS = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For programs that start Spark for a few seconds: its JVMs spend them compiling and collecting else."""


@contextmanager
def new_environment(directory: Path) -> Iterator[dict[str, str]]:
    """Variables with which no Ray and no broker is found, and data goes below `directory`.

    The broker that is started meanwhile is stopped at the end.
    """
    foreign = ("PULSAR_RAY", "RAY")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    variables |= {
        "PULSAR_RAY_DATA_DIR": str(directory / "data"),
        # Where `auto` looks for a Ray that runs: those of other tests do not count.
        "RAY_TMPDIR": str(directory),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "120",
        **QUICK_JVMS,
    }
    try:
        yield variables
    finally:
        subprocess.run(["pulsar-ray", "stop"], env=variables, capture_output=True, timeout=120, check=False)


def run_example(name: str, environment: dict[str, str], directory: Path) -> list[str]:
    """The lines an example prints, without Ray's own: most of them are on stderr.

    AssertionError with all of its output if it fails.
    """
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "(raylet)" not in line]
