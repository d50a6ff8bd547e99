"""Repeat a harmless call until it succeeds or its deadline passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from pulsar_ray.errors import PulsarException

T = TypeVar("T")


def until(
    timeout_s: float,
    call: Callable[[float], T],
    *,
    again: tuple[type[PulsarException], ...],
    settled: Callable[[PulsarException], T | None] = lambda _: None,
    first_pause_s: float = 0.05,
    longest_pause_s: float = 1.0,
) -> T:
    """`call(seconds left)`, again after errors of the kinds in `again`; the last of them is raised at the
    deadline.

    What a repeat is refused with may say that the first call had been carried out and only its answer was
    lost: `settled` gives the answer then, or None.
    """
    deadline = time.monotonic() + timeout_s
    pause = first_pause_s
    is_repeat = False
    while True:
        left = deadline - time.monotonic()
        try:
            return call(max(left, 0.001))
        except again:
            if time.monotonic() + pause >= deadline:
                raise
            is_repeat = True
        except PulsarException as refused:
            answer = settled(refused) if is_repeat else None
            if answer is None:
                raise
            return answer
        time.sleep(pause)
        pause = min(2 * pause, longest_pause_s)
