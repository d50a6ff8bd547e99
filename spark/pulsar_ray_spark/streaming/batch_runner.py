"""Reads a batch into a DataFrame, and hands that to the query's function."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pulsar_ray.clock import growing_pauses_s
from pulsar_ray.data.full_store import tried_while_full
from pulsar_ray.data.planning.plan import ReadRange
from pulsar_ray.errors import PulsarException, ServiceUnitNotReady
from pulsar_ray_spark.handover import release
from pulsar_ray_spark.reading import ReadFrame, read_ranges
from pulsar_ray_spark.running import check_runs, naming_a_stop, runs
from pulsar_ray_spark.streaming.planned_batch import PlannedBatch
from pulsar_ray_spark.streaming.query_topics import QueryTopics
from pulsar_ray_spark.value_form import AS_STORED, ValueForm

_log = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0


class BatchRunner:
    """Runs batches on a Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        topics: QueryTopics,
        columns: Sequence[str],
        values: ValueForm,
        function: Callable[[DataFrame, int], Any],
        values_of: Callable[[Sequence[ReadRange]], ValueForm] | None = None,
    ) -> None:
        """`values_of` tells anew for each batch how its values appear, if that can change."""
        self._spark = spark
        self._topics = topics
        self._columns = columns
        self._values = values
        self._function = function
        self._values_of = values_of or (lambda _: values)
        self._is_cancelled = threading.Event()

    def run(self, batch: PlannedBatch) -> int:
        """Call the function with a batch's rows and number; returns the count of rows.

        The rows' blocks are given up when it has returned or raised. A batch whose node is lost is read where
        another one has it, or once the node is back. Raises DataLost, SparkStopped, and the
        function's own error.
        """
        check_runs(self._spark)
        self._topics.wake_dispatchers(batch.ends)
        read = self._read(batch)
        try:
            with naming_a_stop(self._spark):
                self._function(self._typed(read.frame), batch.number)
        finally:
            self._release(read.frame)
        return read.messages

    def _read(self, batch: PlannedBatch) -> ReadFrame:
        """Read a batch where it lies, or elsewhere if its node is lost.

        Its positions are the same at the node that has taken the partition over.
        """
        pauses_s = growing_pauses_s(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            with ExitStack() as leases:
                try:
                    ranges = self._leased(batch, leases)
                except PulsarException as error:
                    if not error.retriable:
                        raise
                    failed = error.again()
                else:
                    try:
                        return self._read_ranges(ranges)
                    except ServiceUnitNotReady as error:
                        failed = error.again()
            # Behind the handler, as in `tried_while_full`.
            pause_s = next(pauses_s)
            _log.warning("batch %d is read again in %g s, after %s", batch.number, pause_s, failed)
            if self._pause(pause_s):
                raise failed

    def _leased(self, batch: PlannedBatch, leases: ExitStack) -> list[ReadRange]:
        ranges: list[ReadRange] = []
        for partition, (first, end) in sorted(batch.ranges.items()):
            ranges += leases.enter_context(self._topics.leased(partition, first, end))
        return ranges

    def _read_ranges(self, ranges: Sequence[ReadRange]) -> ReadFrame:
        values = self._values_of(ranges)
        columns = values.columns_to_read(self._columns)
        return tried_while_full(lambda: read_ranges(self._spark, ranges, columns, values=values), self._pause)

    def begin_jobs(self, group: str, description: str) -> None:
        """Put the Spark jobs of this thread into a group. Raises SparkStopped."""
        check_runs(self._spark)
        self._spark.sparkContext.setJobGroup(group, description, interruptOnCancel=True)

    def cancel_jobs(self, group: str) -> None:
        """Cancel the jobs of a group that run now.

        A batch that waits for room in Ray's object store is given up.
        """
        self._is_cancelled.set()
        if runs(self._spark):
            self._spark.sparkContext.cancelJobGroup(group)

    def _pause(self, seconds: float) -> bool:
        check_runs(self._spark)
        return self._is_cancelled.wait(seconds)

    def check_spark(self) -> None:
        """Raise SparkStopped if the session has ended."""
        check_runs(self._spark)

    def _typed(self, frame: DataFrame) -> DataFrame:
        return frame if self._values == AS_STORED else self._values.applied(frame, self._columns)

    def _release(self, frame: DataFrame) -> None:
        # With a session that has ended its blocks went too, and the error of the function says more.
        if runs(self._spark):
            release(frame)
