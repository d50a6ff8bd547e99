"""Waiting for Ray's answers in threads that do not end with the program: none is inside Ray when that leaves.

Ray ends a process with exit code 1 if a thread of it is found in a call once Ray has shut down.
"""

from __future__ import annotations

import atexit
import threading
import time
from typing import Any

import ray
import ray.exceptions as ray_errors

from pulsar_ray.errors import AlreadyClosed

SLICE_S = 0.2
EXIT_DEADLINE_S = 5.0


class RayCalls:
    """A context for every use of Ray. At the process's end those inside are waited for, and nobody enters."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_ending = False

    def __enter__(self) -> None:
        with self._changed:
            if self._is_ending:
                raise AlreadyClosed("the program is ending")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def result(self, reference: Any, timeout_s: float) -> Any:
        """`ray.get` that gives up when the program ends. Raises what Ray raises, AlreadyClosed."""
        deadline = time.monotonic() + timeout_s
        while not self._is_ending:
            left = deadline - time.monotonic()
            try:
                return ray.get(reference, timeout=max(0.0, min(left, SLICE_S)))
            except ray_errors.GetTimeoutError:
                if left <= SLICE_S:
                    # Somebody has to take a late answer: an error that nobody took, Ray prints into the
                    # terminal.
                    reference.future()
                    raise
        raise AlreadyClosed("the program is ending")

    def end(self) -> None:
        """Called at exit, before Ray's own."""
        with self._changed:
            self._is_ending = True
            self._changed.wait_for(lambda: not self._inside, EXIT_DEADLINE_S)


RAY_CALLS = RayCalls()
# The last registered is called first, and Ray registered when it was imported.
atexit.register(RAY_CALLS.end)
