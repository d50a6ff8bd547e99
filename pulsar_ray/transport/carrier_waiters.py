"""Lets threads wait for an event or for another carrier, whichever comes first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class WakeableEvent(Protocol):
    """An event that its waiting threads can be woken from, although it is not set."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None, unless: Callable[[], bool] | None = None) -> bool:
        """Block until it is set or woken; not at all if `unless` is true."""

    def wake(self) -> None:
        """Let the waiting threads look again. Takes locks for moments only."""


class CarrierWaiters:
    """Knows the events that threads wait for while nobody reads a carrier for them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: list[WakeableEvent] = []

    def wait(self, event: WakeableEvent, timeout: float, has_changed: Callable[[], bool]) -> None:
        """Wait until `event` is set or `has_changed`, of which `wake_all` must follow."""
        with self._lock:
            self._events.append(event)
        try:
            event.wait(timeout, has_changed)
        finally:
            with self._lock:
                self._events.remove(event)

    def wake_all(self) -> None:
        """Let all threads look at the carrier again. Called without locks, behind the change."""
        with self._lock:
            events = list(self._events)
        for event in events:
            event.wake()
