"""Repeats a harmless call until it succeeds or its deadline passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pulsar_ray.clock import growing_pauses_s
from pulsar_ray.errors import PulsarException, WrongNode


def until(
    timeout_s: float,
    call: Callable[[float], Any],
    *,
    again: tuple[type[PulsarException], ...],
    was_done: Callable[[PulsarException], bool] = lambda _: False,
    first_pause_s: float = 0.05,
    longest_pause_s: float = 1.0,
) -> Any:
    """Make `call(seconds left)`, again after errors of the kinds in `again`.

    The last of them is raised at the deadline. WrongNode, of a node that is away for nobody knows how long,
    is raised at once.

    A repeat may be refused because the first call had been carried out and only its answer was lost:
    `was_done` tells by the refusal. The answer is None then.
    """
    deadline = time.monotonic() + timeout_s
    pauses_s = growing_pauses_s(first_pause_s, longest_pause_s)
    is_repeat = False
    while True:
        left, pause = deadline - time.monotonic(), next(pauses_s)
        try:
            return call(max(left, 0.001))
        except again as error:
            if isinstance(error, WrongNode) or time.monotonic() + pause >= deadline:
                raise
            is_repeat = True
        except PulsarException as refused:
            if is_repeat and was_done(refused):
                return None
            raise
        time.sleep(pause)
