"""Has this package compiled on a node whose environment keeps imports from doing so.

An actor is a process of its own, and would compile some two hundred modules at each start: half of its CPU
time (ADR 0108).
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path
from threading import Thread

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).parent.parent
_NICENESS = 10


def compile_later() -> None:
    """Compile in the background what is not compiled, if PYTHONDONTWRITEBYTECODE is set here.

    As an installation does, with or without it. Without it the first import writes its bytecode by itself.
    """
    if sys.dont_write_bytecode:
        Thread(target=compile_package, args=(PACKAGE,), name="compile", daemon=True).start()


def compile_package(directory: Path) -> None:
    """Compile what is not compiled below a directory, in a process of its own.

    Logs where it may not write.
    """
    if all(map(_is_compiled, directory.rglob("*.py"))):
        return
    if not os.access(directory, os.W_OK):
        logger.info(
            "each actor compiles this package at its start, for %s cannot be written and was installed "
            "without bytecode: run `python -m compileall %s` as its owner",
            directory,
            directory,
        )
        return
    command = [sys.executable, "-m", "compileall", "-q", str(directory)]
    subprocess.run(
        ["nice", "-n", str(_NICENESS), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def _is_compiled(source: Path) -> bool:
    try:
        return os.stat(cache_from_source(source)).st_mtime >= source.stat().st_mtime
    except OSError:
        return False
