"""Checks now and then whether something has changed, while it is open."""

from __future__ import annotations

import logging
import threading

from pulsar_ray.errors import AlreadyClosed, PulsarException
from pulsar_ray.lane.io_thread import IoThread, TimerHandle

logger = logging.getLogger(__name__)


class PeriodicCheck:
    """Base of checks every `period_s` seconds, each in a thread of its own.

    A check may wait for the broker. A PulsarException of one is logged, unless the one
    before failed alike; AlreadyClosed ends them all.
    """

    def __init__(self, what: str, period_s: float) -> None:
        self._what = what
        self._period_s = period_s
        self._timer: TimerHandle | None = None
        self._one_at_a_time = threading.Lock()
        self._last_failure = ""
        self.is_stopped = False

    def start(self) -> None:
        """Look for the first time after one period; again behind `stop`, too."""
        self.is_stopped = False
        self._arm()

    def stop(self) -> None:
        """Look no more; a look under way attaches nothing more."""
        self.is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        """Stop behind a look that is under way."""
        with self._one_at_a_time:
            self.stop()

    def look(self) -> None:
        """Look now, behind a look that is under way. Raises the errors of looking."""
        with self._one_at_a_time:
            self._look()

    def _look(self) -> None:
        raise NotImplementedError

    @property
    def pause_s(self) -> float:
        """How long to wait before the next look."""
        return self._period_s

    def _arm(self) -> None:
        if not self.is_stopped:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = IoThread.get().call_later(self.pause_s, self._begin)

    def _begin(self) -> None:
        threading.Thread(target=self._run, name="pulsar-ray-topics", daemon=True).start()

    def _run(self) -> None:
        try:
            self.look()
            self._last_failure = ""
        except AlreadyClosed:
            self.stop()
        except PulsarException as error:
            if str(error) != self._last_failure:
                logger.warning("looking for %s failed: %s", self._what, error)
            self._last_failure = str(error)
        finally:
            self._arm()
