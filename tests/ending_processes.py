"""Processes that may end while a test looks at them, and then have no name, no command and no files."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psutil


def is_gone(process: psutil.Process) -> bool:
    """Whether the process has ended; its parent may not have noticed yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def command_lines(processes: Iterable[psutil.Process]) -> dict[psutil.Process, str]:
    """The command lines of those processes that have not ended."""
    lines = {}
    for process in processes:
        # Also raised for one that has ended and whose parent has not noticed yet.
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            lines[process] = " ".join(process.cmdline())
    return lines


def kill(process: psutil.Process) -> None:
    """SIGKILL the process, unless it has ended."""
    with suppress(psutil.NoSuchProcess):
        process.kill()
