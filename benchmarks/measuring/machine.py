"""Describe the machine, with one fixed piece of Python work.

Two machines can be compared by it.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import psutil
import ray

from pulsar_ray import compiled

PYTHON_LOOP_STEPS = 2_000_000


def python_loop_s() -> float:
    """CPU seconds of a fixed loop in pure Python, the best of five."""
    return min(_loop() for _ in range(5))


def _loop() -> float:
    began = time.thread_time()
    state = 0
    for step in range(PYTHON_LOOP_STEPS):
        state = (state * 31 + step) & 0xFFFF
    return time.thread_time() - began


def describe(disk: Path) -> dict[str, Any]:
    """Cores, memory, file system, versions, load, and the fixed loop's time."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "file system": _file_system(disk),
        "python": platform.python_version(),
        "ray": ray.__version__,
        "pulsar_ray": compiled.describe(),
        "load before": round(os.getloadavg()[0], 1),
        "fixed python loop, s": round(python_loop_s(), 3),
    }


def _file_system(path: Path) -> str:
    mounts = [m for m in psutil.disk_partitions(all=True) if path.resolve().is_relative_to(m.mountpoint)]
    best = max(mounts, key=lambda mount: len(mount.mountpoint), default=None)
    return "unknown" if best is None else best.fstype
