"""Run a query as Spark's StreamingQuery, by its trigger."""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, Protocol

from pulsar_ray.clock import Clock
from pulsar_ray.errors import InvalidConfiguration, PulsarException
from pulsar_ray_spark.errors import QueryFailed
from pulsar_ray_spark.rounds.running_rounds import RunningRounds
from pulsar_ray_spark.streaming.micro_batches import BatchRun, MicroBatches
from pulsar_ray_spark.streaming.planned_batch import BEGINNING, Place, QueryIdentity, is_behind

_UNITS_MS = {
    "millisecond": 1,
    "ms": 1,
    "second": 1000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
}
_INTERVAL = re.compile(r"\s*(\d+)\s*([a-z]+)\s*")


class Mode(Enum):
    """How a query goes on behind a batch."""

    PROCESSING_TIME = "ProcessingTime"
    ONCE = "OneTime"
    AVAILABLE_NOW = "AvailableNow"


@dataclass(frozen=True)
class Trigger:
    """A mode, and the time between batches; 0 is as soon as there are messages."""

    mode: Mode = Mode.PROCESSING_TIME
    interval_ms: int = 0

    @classmethod
    def from_arguments(
        cls,
        processing_time: str | float | timedelta | None,
        once: bool | None,
        available_now: bool | None,
    ) -> Trigger:
        """Make a trigger of exactly one argument. Raises InvalidConfiguration."""
        if sum(given is not None for given in (processing_time, once, available_now)) != 1:
            raise InvalidConfiguration(
                'give one of processing_time="10 seconds", once=True and available_now=True'
            )
        if processing_time is not None:
            return cls(interval_ms=_interval_ms(processing_time))
        if once is False or available_now is False:
            raise InvalidConfiguration("once and available_now can only be True: leave out what is not meant")
        return cls(Mode.ONCE if once else Mode.AVAILABLE_NOW)

    def next_ms(self, now_ms: int) -> int:
        """When the next trigger is due: at the next multiple of the interval."""
        if not self.interval_ms:
            return now_ms
        return now_ms // self.interval_ms * self.interval_ms + self.interval_ms


def _interval_ms(value: str | float | timedelta) -> int:
    if isinstance(value, timedelta):
        interval_ms: float = value / timedelta(milliseconds=1)
    elif isinstance(value, str):
        match = _INTERVAL.fullmatch(value.lower())
        unit = _UNITS_MS.get(match[2]) or _UNITS_MS.get(match[2].removesuffix("s")) if match else None
        interval_ms = int(match[1]) * unit if match and unit else -1
    elif isinstance(value, bool) or not isinstance(value, int | float):
        interval_ms = -1
    else:
        interval_ms = value * 1000
    if not 0 <= interval_ms < 2**53:
        raise InvalidConfiguration(
            f'processing_time={value!r}: give an interval as "10 seconds" or "500 milliseconds", '
            "a timedelta, or a number of seconds"
        )
    return int(interval_ms)


_log = logging.getLogger(__name__)
_IDLE_MS = 50
"""Between two looks for messages without an interval."""
_LOOK_MS = 500
"""Between two looks whether Spark still runs, while a query waits."""
_LONGEST_PAUSE_S = 10.0


class SparkJobs(Protocol):
    """The jobs of a query on its Spark session; see BatchRunner."""

    def begin_jobs(self, group: str, description: str) -> None: ...

    def cancel_jobs(self, group: str) -> None: ...

    def check_spark(self) -> None:
        """Raise SparkStopped if the session has ended."""


class StreamingQuery(RunningRounds):
    """Runs batches on a thread until it is stopped, fails, or has all there was.

    One batch at a time: a trigger that comes late runs at once, with all messages since. When the process
    dies the query goes on with the batch it was in, at the next start under its name.
    """

    def __init__(
        self,
        batches: MicroBatches,
        jobs: SparkJobs,
        trigger: Trigger,
        clock: Clock,
        close: Callable[[], None],
    ) -> None:
        self._batches = batches
        self._jobs = jobs
        self._trigger = trigger
        self._clock = clock
        self._close = close
        self._run_id = str(uuid.uuid4())
        self._committed = threading.Condition()
        self._former_ms: int | None = None
        self._reached: Mapping[str, Place] = batches.places
        self._error: QueryFailed | None = None
        self._status = {"message": "Initializing", "isDataAvailable": False, "isTriggerActive": False}
        super().__init__(f"query {self.name}", _LONGEST_PAUSE_S)

    @property
    def id(self) -> str:
        """The query's id, the same after each restart under its name."""
        return self._batches.identity.query_id

    @property
    def run_id(self) -> str:
        """The id of this run of the query."""
        return self._run_id

    @property
    def name(self) -> str:
        """The name under which the query goes on after a crash."""
        return self._batches.identity.name

    @property
    def status(self) -> dict[str, Any]:
        """`message`, in words, `isDataAvailable` and `isTriggerActive`."""
        return dict(self._status)

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """The last hundred batches of this run, as Spark describes them."""
        return super().recent_progress

    def exception(self) -> QueryFailed | None:
        """The error that ended the query, with its cause; None if there is none."""
        return self._error

    def process_all_available(self) -> None:
        """Wait until all messages that are stored now are committed. Raises QueryFailed.

        Returns at once if the query has been stopped. For tests: messages that come meanwhile do not count,
        but the trigger's interval does.
        """
        if self.is_active:
            ends = self._batches.ends()
            with self._committed:
                while self._thread.is_alive() and is_behind(self._reached, ends):
                    self._committed.wait(_LOOK_MS / 1000)
        self._raise_error()

    def stop(self) -> None:
        """End the query, and wait for that.

        Jobs of a batch under way are cancelled; that batch runs again at the next start. Called by the
        query's own function this returns at once, and the query ends behind the batch.
        """
        self._stopping.set()
        if threading.current_thread() is self._thread:
            return
        self._jobs.cancel_jobs(self._run_id)
        self._thread.join()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error.again() from self._error.__cause__

    # --- its thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._jobs.begin_jobs(self._run_id, self._title)
            if self._trigger.mode is Mode.PROCESSING_TIME:
                self._run_on()
            else:
                self._run_to(self._tried(self._batches.ends))
            self._tell("Stopped")
        except BaseException as error:  # noqa: BLE001 - given to whoever asks; sys.exit() ends a thread unseen
            if self._stopping.is_set():
                self._tell("Stopped")
            else:
                self._fail(error)
        finally:
            self._leave()
            with self._committed:
                self._committed.notify_all()

    def _leave(self) -> None:
        try:
            self._close()
        except Exception as error:  # noqa: BLE001 - all that is durable is stored, and the error of the query counts
            _log.warning("query %s left its broker with %s", self.name, error)

    def _fail(self, error: BaseException) -> None:
        text = str(error) if isinstance(error, PulsarException) else f"{type(error).__name__}: {error}"
        failed = QueryFailed(f"query {self.name!r} stopped at {text}")
        failed.__cause__ = error
        self._error = failed
        self._tell(f"Terminated with exception: {error}")
        _log.error("query %s failed", self.name, exc_info=error)

    def _run_on(self) -> None:
        while not self._stopping.is_set():
            began_ms = self._clock.now_ms()
            due_ms = self._trigger.next_ms(began_ms)
            if not self._run_trigger(self._tried(self._batches.ends), limited=True):
                due_ms = max(due_ms, began_ms + _IDLE_MS)
            self._wait_till(due_ms)

    def _run_to(self, ends: Mapping[str, Place]) -> None:
        """Run what the trigger means with the messages before `ends`."""
        limited = self._trigger.mode is Mode.AVAILABLE_NOW
        while not self._stopping.is_set() and self._run_trigger(ends, limited=limited):
            if not limited and not is_behind(self._batches.places, ends):
                return

    def _run_trigger(self, ends: Mapping[str, Place], *, limited: bool) -> bool:
        """Run a batch, if there are messages; whether there were."""
        began_ms = self._clock.now_ms()
        self._jobs.check_spark()
        self._tell("Getting offsets", active=True)
        batch = self._tried(lambda: self._batches.plan_next(ends, limited=limited))
        if batch is None:
            self._tell("Waiting for data to arrive")
            return False
        self._tell("Processing new data", available=True, active=True)
        done = self._batches.run(batch, ends, self._tried)
        self._progress.append(
            describe_progress(
                self._batches.identity, self._run_id, done, began_ms, self._former_ms, self._clock.now_ms()
            )
        )
        self._former_ms = began_ms
        self._reached = self._batches.places
        self._tell("Waiting for next trigger")
        with self._committed:
            self._committed.notify_all()
        return True

    def _wait_till(self, due_ms: int) -> None:
        while (left_ms := due_ms - self._clock.now_ms()) > 0 and not self._stopping.is_set():
            self._stopping.wait(min(left_ms, _LOOK_MS) / 1000)
            self._jobs.check_spark()

    def _pause(self, seconds: float) -> None:
        self._wait_till(self._clock.now_ms() + int(seconds * 1000))

    def _tell(self, message: str, *, available: bool = False, active: bool = False) -> None:
        self._status = {"message": message, "isDataAvailable": available, "isTriggerActive": active}


def describe_progress(
    identity: QueryIdentity, run_id: str, done: BatchRun, began_ms: int, former_ms: int | None, now_ms: int
) -> dict[str, Any]:
    """Describe a batch as Spark's `lastProgress` does.

    `began_ms` is the time of the trigger, `former_ms` of the one before. Rates are of rows per second: in
    since the former trigger, and processed while the batch ran.
    """
    took_ms = now_ms - began_ms
    rates = {
        "inputRowsPerSecond": _rate(done.rows, began_ms - former_ms) if former_ms is not None else 0.0,
        "processedRowsPerSecond": _rate(done.rows, took_ms),
    }
    starts = {name: first for name, (first, _) in done.batch.ranges.items()}
    return {
        "id": identity.query_id,
        "runId": run_id,
        "name": identity.name,
        "timestamp": _timestamp(began_ms),
        "batchId": done.batch.number,
        "numInputRows": done.rows,
        **rates,
        "durationMs": {**done.durations_ms, "triggerExecution": took_ms},
        "stateOperators": [],
        "sources": [
            {
                "description": f"Topics[{', '.join(identity.topics)}]",
                "startOffset": _offsets({**done.batch.places, **starts}),
                "endOffset": _offsets({**done.batch.places, **done.batch.ends}),
                "latestOffset": _offsets(done.latest),
                "numInputRows": done.rows,
                **rates,
            }
        ],
        "sink": {"description": "ForeachBatch", "numOutputRows": -1},
    }


def _rate(rows: int, took_ms: int) -> float:
    return rows * 1000 / max(took_ms, 1)


def _offsets(places: Mapping[str, Place]) -> dict[str, str]:
    return {name: "earliest" if place == BEGINNING else str(place) for name, place in sorted(places.items())}


def _timestamp(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms // 1000, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}Z"
