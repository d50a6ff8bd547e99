"""Keep Ray's own messages out of the output of programs that are connected.

Their output is theirs to pipe.

Ray prints errors of its node processes into the standard output of every program that is connected, whether
the worker logs are turned on or not, and has no setting for that.
"""

from __future__ import annotations

import logging
from typing import Any

import ray

from pulsar_ray.transport.this_ray import ray_job

logger = logging.getLogger(__name__)

_OF_MANY_WORKERS = "worker processes have been started on node"
"""A partition or subscription is a process, and `max_active_actors` bounds them: no news to anybody."""

_joined: set[str] = set()


def quiet_ray_output() -> None:
    """Drop Ray's advice on the number of worker processes.

    May be called at any time, and again.

    Of a Ray that this package joined (`ray_was_joined`) all messages of that kind go to the log. Of one that
    the program joined by itself the others are printed as ever, worker logs above all.
    """
    worker: Any = ray._private.worker
    printer = getattr(worker, "print_to_stdstream", None)
    if printer is not None and not isinstance(printer, QuietPrinter):
        worker.print_to_stdstream = QuietPrinter(printer)


def ray_was_joined() -> None:
    """Say that this package called `ray.init`: nobody expects Ray to print anything."""
    _joined.add(ray_job())


class QuietPrinter:
    """Replaces the printer of Ray's error listener, and passes on the program's lines."""

    def __init__(self, printer: Any) -> None:
        self._printer = printer

    def __call__(self, data: dict[str, Any], *args: Any, **keywords: Any) -> None:
        """Print, log or drop one message, as `quiet_ray_output` says."""
        if data.get("pid") == "raylet":
            lines = [line for line in data.get("lines", ()) if _OF_MANY_WORKERS not in line]
            if ray_job() in _joined:
                for line in lines:
                    logger.warning("Ray: %s", line)
                return
            if not lines:
                return
            data = {**data, "lines": lines}
        self._printer(data, *args, **keywords)
