"""A landing that runs, and how far it is."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pulsar_ray.data.planning.plan import Bound
from pulsar_ray.errors import PulsarException
from pulsar_ray.model.message_id import Position
from pulsar_ray_spark.landing.round_runner import RoundProgress, RoundRunner
from pulsar_ray_spark.rounds.running_rounds import RunningRounds

_log = logging.getLogger(__name__)
_LONGEST_PAUSE_S = 30.0

T = TypeVar("T")


class Landing(RunningRounds):
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
        self._begun = threading.Event()
        self._error: BaseException | None = None
        self._message = "Starting"
        super().__init__(f"landing {name}", _LONGEST_PAUSE_S)

    @property
    def name(self) -> str:
        """The name under which the landing goes on after a crash."""
        return self._name

    @property
    def status(self) -> dict[str, Any]:
        """`message`, in words, and `is_active`."""
        return {"message": self._message, "is_active": self.is_active}

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """The last hundred rounds of this process that landed files.

        Each has round, files, messages, stored_bytes, duration_ms, timestamp_ms and positions by partition.
        """
        return super().recent_progress

    def exception(self) -> BaseException | None:
        """The error that ended the landing, None if there is none."""
        return None if self.is_active else self._error

    def await_begin(self) -> None:
        """Wait until the folder is there, with all that a former process began.

        Raises the landing's error if that came first.
        """
        try:
            self._begun.wait()
        except BaseException:
            # Interrupted: nobody has the handle, to stop it by.
            self.stop()
            raise
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error.again() if isinstance(self._error, PulsarException) else self._error

    def _run(self) -> None:
        try:
            with contextlib.ExitStack() as opened:
                runner = self._tried(lambda: self._open_runner(opened))
                self._land(lambda: runner.begin(self._start))
                self._begun.set()
                if self._interval_s is None:
                    self._land_to(runner, self._tried(runner.ends))
                else:
                    self._land_on(runner, self._interval_s)
            self._message = "Stopped" if self._stopping.is_set() else "Ended: everything is landed"
        except Exception as error:  # noqa: BLE001 - given to whoever asks
            if self._stopping.is_set() and self._may_pass(error):
                self._message = "Stopped"
                return
            self._error = error
            self._message = f"Failed: {error}"
            _log.error("landing %s failed: %s", self._name, error)
        finally:
            self._begun.set()

    def _land_to(self, runner: RoundRunner, ends: Mapping[str, Position]) -> None:
        """Land rounds until all messages before `ends` are there."""
        while not self._stopping.is_set() and self._land(lambda: runner.land_next(ends)):
            pass

    def _land_on(self, runner: RoundRunner, interval_s: float) -> None:
        while not self._stopping.is_set():
            self._land_to(runner, self._tried(runner.ends))
            self._tell("Waiting for messages")
            self._pause(interval_s)

    def _land(self, step: Callable[[], RoundProgress | None]) -> bool:
        """Land a round, if there is one; whether there was."""
        done = self._tried(step)
        if done is not None and done.files:
            self._progress.append(dataclasses.asdict(done))
        return done is not None

    def _tried(self, step: Callable[[], T]) -> T:
        def begun() -> T:
            self._tell("Landing messages")
            return step()

        return super()._tried(begun)

    def _tell(self, message: str) -> None:
        self._message = message

    def _may_pass(self, error: Exception) -> bool:
        """Whether the same step may succeed later: a disk was full, a store away."""
        if isinstance(error, OSError):
            lasting = PermissionError | FileNotFoundError | FileExistsError | NotADirectoryError
            return not isinstance(error, lasting)
        return super()._may_pass(error)
