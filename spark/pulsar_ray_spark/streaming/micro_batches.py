"""The batches of a query, one after the other: plan, run, commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from pulsar_ray.clock import Clock
from pulsar_ray.data.planning.plan import Bound
from pulsar_ray.errors import PulsarException
from pulsar_ray_spark.rounds.durable_rounds import DurableRounds, RecordLog
from pulsar_ray_spark.streaming.batch_limits import BatchLimits, Measured, ends_within
from pulsar_ray_spark.streaming.planned_batch import (
    BEGINNING,
    Place,
    PlannedBatch,
    QueryIdentity,
    decode_batch,
    encode_batch,
)

_log = logging.getLogger(__name__)


class BatchTopics(Protocol):
    """The topics of a query at the broker; see QueryTopics."""

    def places(self, start: Bound) -> dict[str, Place]:
        """The places that a bound stands for now, of each partition; held from now on."""

    def ends(self, known: Iterable[str]) -> dict[str, Place]:
        """The place behind the last message of each partition that there is now."""

    def measure(
        self, partition: str, first: Place, end: Place, messages: int, stored_bytes: int, takes_one: bool
    ) -> Measured:
        """Where so many messages end."""

    def acknowledge(self, places: Mapping[str, Place]) -> None:
        """Give up all messages before these places, durably."""


@dataclass(frozen=True)
class BatchRun:
    """A batch that was run and committed."""

    batch: PlannedBatch
    rows: int
    latest: Mapping[str, Place]
    """Where the partitions ended when the batch was planned."""
    durations_ms: Mapping[str, int]
    """By the names that Spark uses."""


class MicroBatches:
    """Runs the batches of a query, and keeps its state; see DurableRounds.

    `run` reads a batch, hands it to the query's function, and returns the number of rows.
    """

    def __init__(
        self,
        identity: QueryIdentity,
        topics: BatchTopics,
        log: RecordLog,
        run: Callable[[PlannedBatch], int],
        limits: BatchLimits,
        clock: Clock,
    ) -> None:
        self._identity = identity
        self._topics = topics
        self._run = run
        self._limits = limits
        self._clock = clock
        self._rounds = DurableRounds(
            log,
            lambda batch: encode_batch(self._identity, batch),
            topics.acknowledge,
            PlannedBatch(-1),
            stores_commits=True,
        )
        self._durations_ms: dict[str, int] = {}

    @property
    def identity(self) -> QueryIdentity:
        """The query's, with the id that was given when it was begun."""
        return self._identity

    @property
    def places(self) -> Mapping[str, Place]:
        """The next message of each partition, behind all that is committed."""
        return self._rounds.last.places

    def begin(self, start: Bound) -> None:
        """Go on where former processes were; a new query begins at `start`, durably.

        Raises QueryMismatch if the query was begun with other topics.
        """
        if not self._rounds.resume(self._decoded):
            first = PlannedBatch(-1, self._topics.places(start))
            self._rounds.begin(first, releases=start != "earliest")
        self._release()

    def ends(self) -> dict[str, Place]:
        """The place behind the last message of each partition that there is now."""
        return self._topics.ends(self.places)

    def plan_next(self, ends: Mapping[str, Place], *, limited: bool = True) -> PlannedBatch | None:
        """Plan the batch to run next, durably; None if there are no messages.

        A batch that was planned and not committed comes first. A new one has messages before `ends`, within
        the limits unless they are off.
        """
        self._durations_ms = {}
        if (pending := self._rounds.pending) is not None:
            return pending
        last = self._rounds.last
        ranges = {
            name: (first, end)
            for name, end in ends.items()
            if end > (first := last.places.get(name, BEGINNING))
        }
        with self._timed("queryPlanning"):
            limits = self._limits if limited else BatchLimits()
            planned = ends_within(limits, ranges, self._topics.measure, last.number + 1)
        if not planned:
            return None
        with self._timed("walCommit"):
            return self._rounds.plan(last.next(planned))

    def run(
        self,
        batch: PlannedBatch,
        latest: Mapping[str, Place],
        tried: Callable[[Callable[[], None]], None] = lambda step: step(),
    ) -> BatchRun:
        """Run the planned batch, and commit it, durably.

        `tried` makes the commit, again after errors that may pass. An error of the function is raised as it
        is, and leaves the batch to be run again. Positions that cannot be acknowledged just now are with the
        next batch.
        """
        with self._timed("addBatch"):
            rows = self._run(batch)
        with self._timed("commitOffsets"):
            tried(self._rounds.commit)
            self._release()
        return BatchRun(batch, rows, latest, dict(self._durations_ms))

    def _decoded(self, record: bytes) -> PlannedBatch:
        identity, last = decode_batch(record)
        self._identity.check(identity)
        self._identity = identity
        return last

    def _release(self) -> None:
        try:
            self._rounds.release()
        except PulsarException as error:
            if not error.retriable:
                raise
            _log.warning("query %s acknowledges later, after %s", self._identity.name, error)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began_ms = self._clock.monotonic_ms()
        yield
        self._durations_ms[name] = self._clock.monotonic_ms() - began_ms
