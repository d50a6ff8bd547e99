"""Timers of a link and its endpoints.

They run on the process's I/O thread, or on an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol


class Timers(Protocol):
    """Runs callbacks in one place, from any thread; `IoThread` is one, `LoopTimers` the other."""

    @property
    def is_current(self) -> bool:
        """Whether the caller runs there itself."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run after what runs there now."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> object:
        """Run in `delay_s` seconds or a little later."""


class LoopTimers:
    """Timers of an event loop; once that is closed nothing runs any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @property
    def is_current(self) -> bool:
        """True on the thread that runs the loop."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run in the loop's next turn."""
        with suppress(RuntimeError):  # the loop is closed
            if self.is_current:
                self._loop.call_soon(callback)
            else:
                self._loop.call_soon_threadsafe(callback)

    def run(self, callback: Callable[[], None]) -> None:
        """Run at once if this is the loop's thread, otherwise soon."""
        if self.is_current:
            callback()
        else:
            self.call_soon(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Run in `delay_s` seconds or a little later."""
        if self.is_current:
            self._loop.call_later(delay_s, callback)
        else:
            self.call_soon(lambda: self.call_later(delay_s, callback))
