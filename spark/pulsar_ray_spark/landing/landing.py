"""A landing that runs, and how far it is."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from pulsar_ray.data.planning.plan import Bound
from pulsar_ray.errors import PulsarException
from pulsar_ray.model.position import Position
from pulsar_ray_spark.landing.round_runner import RoundProgress, RoundRunner

_log = logging.getLogger(__name__)
_KEPT_PROGRESS = 100
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


class Landing:
    """Lands rounds on a thread of this process.

    The thread ends when the landing is stopped, fails, or has all there was. When the process dies the
    landing goes on where it was with the next `land` of its name.
    """

    def __init__(
        self,
        name: str,
        open_runner: Callable[[contextlib.ExitStack], RoundRunner],
        start: Bound,
        interval_s: float | None,
    ) -> None:
        """Begin on a thread; without an interval the landing ends by itself.

        `open_runner` enters whatever it opens in the stack that it is given.
        """
        self._name = name
        self._open_runner = open_runner
        self._start = start
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._begun = threading.Event()
        self._progress: deque[RoundProgress] = deque(maxlen=_KEPT_PROGRESS)
        self._error: BaseException | None = None
        self._message = "Starting"
        self._thread = threading.Thread(target=self._run, name=f"landing {name}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """The name under which the landing goes on after a crash."""
        return self._name

    @property
    def is_active(self) -> bool:
        """Whether the landing has neither ended nor failed."""
        return self._thread.is_alive()

    @property
    def status(self) -> dict[str, Any]:
        """`message`, in words, and `is_active`."""
        return {"message": self._message, "is_active": self.is_active}

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """The last hundred rounds of this process that landed files.

        Each has round, files, messages, stored_bytes, duration_ms, timestamp_ms and positions by partition.
        """
        return [dataclasses.asdict(progress) for progress in list(self._progress)]

    @property
    def last_progress(self) -> dict[str, Any] | None:
        """The last of `recent_progress`, None before there is one."""
        recent = self.recent_progress
        return recent[-1] if recent else None

    def exception(self) -> BaseException | None:
        """The error that ended the landing, None if there is none."""
        return None if self.is_active else self._error

    def await_begin(self) -> None:
        """Wait until the folder is there, with all that a former process began.

        Raises the landing's error if that came first.
        """
        self._begun.wait()
        self._raise_error()

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the landing has ended; whether it has. Raises its error."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        self._raise_error()
        return True

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error.again() if isinstance(self._error, PulsarException) else self._error

    def stop(self) -> None:
        """End the landing behind the round under way, and wait for that."""
        self._stopping.set()
        self._thread.join()

    def __enter__(self) -> Landing:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            with contextlib.ExitStack() as opened:
                runner = self._tried(lambda: self._open_runner(opened))
                self._tried(lambda: runner.begin(self._start))
                self._begun.set()
                if self._interval_s is None:
                    self._land_to(runner, self._tried(runner.ends))
                else:
                    self._land_on(runner, self._interval_s)
            self._message = "Stopped" if self._stopping.is_set() else "Ended: everything is landed"
        except Exception as error:  # noqa: BLE001 - given to whoever asks
            self._error = error
            self._message = f"Failed: {error}"
            _log.error("landing %s failed: %s", self._name, error)
        finally:
            self._begun.set()

    def _land_to(self, runner: RoundRunner, ends: Mapping[str, Position]) -> None:
        """Land rounds until all messages before `ends` are there."""
        while not self._stopping.is_set() and self._tried(lambda: runner.land_next(ends)) is not None:
            pass

    def _land_on(self, runner: RoundRunner, interval_s: float) -> None:
        while not self._stopping.is_set():
            self._land_to(runner, self._tried(runner.ends))
            self._message = "Waiting for messages"
            self._stopping.wait(interval_s)

    def _tried(self, step: Callable[[], Any]) -> Any:
        """Make a step, and again after errors that may pass, until the landing is stopped."""
        pause_s = _FIRST_PAUSE_S
        while True:
            self._message = "Landing messages"
            try:
                result = step()
            except (PulsarException, OSError) as error:
                if self._stopping.is_set() or not _may_pass(error):
                    raise
                self._message = f"Trying again after {error}"
                _log.warning("landing %s tries again after %s", self._name, error)
            else:
                if isinstance(result, RoundProgress) and result.files:
                    self._progress.append(result)
                return result
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _may_pass(error: PulsarException | OSError) -> bool:
    """Whether the same step may succeed later: a disk was full, a store away."""
    if isinstance(error, PulsarException):
        return error.retriable
    return not isinstance(error, PermissionError | FileNotFoundError | FileExistsError | NotADirectoryError)
