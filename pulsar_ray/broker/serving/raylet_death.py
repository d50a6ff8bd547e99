"""Ends the process of a broker actor with the raylet that started it."""

from __future__ import annotations

import os
import select
import threading

from pulsar_ray.kernel_calls import pidfd_open

_RAYLET_PID = "RAY_RAYLET_PID"
"""Ray tells its workers by this variable."""
_EXIT_CODE = 72


def end_with_raylet() -> None:
    """End this process as soon as its raylet has ended, reaped or not.

    Ray's own look takes a process that nobody has reaped for a living one. Where the first process of a
    container does not reap, an actor would stay behind for ever, and keep its data directory from the next
    broker.
    """
    pid = os.environ.get(_RAYLET_PID, "")
    if not pid.isdigit():
        return
    try:
        raylet = pidfd_open(int(pid))
    except OSError:  # gone, or of another PID namespace: Ray has to look
        return
    threading.Thread(target=_end_behind, args=(raylet,), name="raylet", daemon=True).start()


def _end_behind(process: int) -> None:
    waiter = select.poll()
    waiter.register(process, select.POLLIN)
    waiter.poll()
    # Nothing durable depends on an orderly end, and Ray would end this process now.
    os._exit(_EXIT_CODE)
