"""Ctrl-C where it does no harm."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class Interrupt:
    """While entered, Ctrl-C raises KeyboardInterrupt only in `check` or while `is_waiting`.

    So it cannot come between two steps that belong together, as printing and acknowledging. A second Ctrl-C
    raises wherever it comes.
    """

    def __init__(self) -> None:
        self.is_waiting = False
        self._asked = False
        self._before: Any = None

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_waiting or self._asked:
            raise KeyboardInterrupt
        self._asked = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C came."""
        if self._asked:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)
