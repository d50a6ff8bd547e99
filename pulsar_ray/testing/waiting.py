"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_POLL_S = 0.005


def wait_until(condition: Callable[[], T], timeout_s: float = 20.0, what: str = "") -> T:
    """The first true value of `condition()`. Raises AssertionError naming `what` at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what or condition}")
        time.sleep(_POLL_S)
    return value
