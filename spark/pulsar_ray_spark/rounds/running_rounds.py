"""Run rounds on a thread of this process."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from pulsar_ray.clock import growing_pauses_s
from pulsar_ray.errors import PulsarException

_log = logging.getLogger(__name__)
_KEPT_PROGRESS = 100
_FIRST_PAUSE_S = 0.5

T = TypeVar("T")


class RunningRounds:
    """Runs rounds on a thread, and tells how far they are.

    The thread ends when it is stopped, fails, or has all there was.
    """

    def __init__(self, title: str, longest_pause_s: float) -> None:
        """Start the thread, which calls `_run`: all that needs has to be there."""
        self._title = title
        self._longest_pause_s = longest_pause_s
        self._stopping = threading.Event()
        self._progress: deque[dict[str, Any]] = deque(maxlen=_KEPT_PROGRESS)
        self._thread = threading.Thread(target=self._run, name=title, daemon=True)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        """Whether it has neither ended nor failed."""
        return self._thread.is_alive()

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """The last hundred rounds of this process that had messages."""
        return list(self._progress)

    @property
    def last_progress(self) -> dict[str, Any] | None:
        """The last of `recent_progress`, None before there is one."""
        recent = self.recent_progress
        return recent[-1] if recent else None

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended; whether it has. Raises its error."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._raise_error()
        return True

    def stop(self) -> None:
        """End behind the round under way, and wait for that."""
        self._stopping.set()
        self._thread.join()

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        raise NotImplementedError

    def _raise_error(self) -> None:
        raise NotImplementedError

    def _tell(self, message: str) -> None:
        """Take a message for the status."""
        raise NotImplementedError

    def _pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def _may_pass(self, error: Exception) -> bool:
        return isinstance(error, PulsarException) and error.retriable

    def _tried(self, step: Callable[[], T]) -> T:
        """Make a step, and again after errors that may pass, until this is stopped."""
        pauses_s = growing_pauses_s(_FIRST_PAUSE_S, self._longest_pause_s)
        while True:
            try:
                return step()
            except Exception as error:
                if self._stopping.is_set() or not self._may_pass(error):
                    raise
                self._tell(f"Trying again after {error}")
                _log.warning("%s tries again after %s", self._title, error)
            self._pause(next(pauses_s))
