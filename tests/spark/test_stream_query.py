"""A query's thread: triggers, status, ends and errors, on a broker in this process, without Spark."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.clock import SystemClock
from pulsar_ray.errors import NotConnected
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray_spark.errors import QueryFailed, SparkStopped
from pulsar_ray_spark.streaming.batch_limits import BatchLimits
from pulsar_ray_spark.streaming.planned_batch import PlannedBatch
from pulsar_ray_spark.streaming.query import Mode, StreamingQuery, Trigger
from tests.conformance.broker import Broker
from tests.spark.streamer import Streamer, numbered, publish_to

WAIT_S = 60


class Jobs:
    """A Spark session's, as far as a query knows it."""

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.cancelled = threading.Event()
        self.is_stopped = False

    def begin_jobs(self, group: str, description: str) -> None:
        self.groups.append(description)

    def cancel_jobs(self, group: str) -> None:
        self.cancelled.set()

    def check_spark(self) -> None:
        if self.is_stopped:
            raise SparkStopped("stopped")


class Queries:
    """Starts queries on a topic; `before` is called with each batch before it is in the sink."""

    def __init__(self, broker: Broker) -> None:
        self.topic = broker.topic()
        self.streamer = Streamer(broker, self.topic)
        self.jobs = Jobs()
        self.before: Callable[[PlannedBatch], None] = lambda _: None
        self._client: Client = broker.client()
        self._started: list[StreamingQuery] = []

    def publish(self, *bounds: int) -> None:
        publish_to(self._client, self.topic, numbered(*bounds))

    def start(self, trigger: Trigger) -> StreamingQuery:
        with ExitStack() as stack:
            batches, _ = self.streamer.opened(stack)
            run = batches._run

            def function(batch: PlannedBatch) -> int:
                self.before(batch)
                return run(batch)

            batches._run = function
            batches.begin("earliest")
            query = StreamingQuery(batches, self.jobs, trigger, SystemClock(), stack.pop_all().close)
        self._started.append(query)
        return query

    def stop(self) -> None:
        for query in self._started:
            query.stop()


@pytest.fixture
def queries(tmp_path: Path) -> Iterator[Queries]:
    broker = Broker(tmp_path / "data", "socket", 1)
    queries = Queries(broker)
    yield queries
    queries.stop()
    broker.close()


AVAILABLE_NOW, ONCE = Trigger(Mode.AVAILABLE_NOW), Trigger(Mode.ONCE)


def test_available_now_ends_with_the_messages_of_its_start_in_batches_within_limits(queries: Queries) -> None:
    queries.streamer.limits = BatchLimits(10)
    queries.publish(25)
    queries.before = lambda batch: queries.publish(100, 105) if batch.number == 0 else None
    query = queries.start(AVAILABLE_NOW)
    assert query.await_termination(WAIT_S)
    assert [progress["numInputRows"] for progress in query.recent_progress] == [10, 10, 5]
    assert queries.streamer.values() == numbered(25)
    assert query.status == {"message": "Stopped", "isDataAvailable": False, "isTriggerActive": False}
    assert query.last_progress == query.recent_progress[-1]
    assert queries.jobs.groups == ["query q"]
    assert (query.is_active, query.exception()) == (False, None)


def test_once_is_one_batch_whatever_the_limits(queries: Queries) -> None:
    queries.streamer.limits = BatchLimits(10)
    queries.publish(25)
    assert queries.start(ONCE).await_termination(WAIT_S)
    assert queries.start(ONCE).await_termination(WAIT_S)
    assert list(queries.streamer.sink) == [0]
    assert queries.streamer.values() == numbered(25)


@pytest.mark.parametrize("interval_ms", [0, 50])
def test_a_running_query_takes_all_that_comes(queries: Queries, interval_ms: int) -> None:
    query = queries.start(Trigger(interval_ms=interval_ms))
    for first in (0, 10, 20):
        queries.publish(first, first + 10)
        query.process_all_available()
        assert queries.streamer.values() == numbered(first + 10)
        assert query.last_progress is not None
        assert query.last_progress["batchId"] == max(queries.streamer.sink)
    assert query.is_active
    assert query.await_termination(0) is False
    query.stop()
    query.stop()
    query.process_all_available()
    assert query.await_termination() is True


def test_an_error_of_the_function_ends_the_query_and_its_batch_comes_again(queries: Queries) -> None:
    queries.publish(10)

    def fail(_: PlannedBatch) -> None:
        raise ValueError("no more")

    queries.before = fail
    query = queries.start(Trigger())
    with pytest.raises(QueryFailed, match="query 'q' stopped at ValueError: no more") as raised:
        query.await_termination(WAIT_S)
    assert isinstance(raised.value.__cause__, ValueError)
    assert isinstance(query.exception(), QueryFailed)
    assert query.status["message"] == "Terminated with exception: no more"
    with pytest.raises(QueryFailed):
        query.process_all_available()
    queries.before = lambda _: None
    queries.publish(10, 20)
    again = queries.start(AVAILABLE_NOW)
    assert again.await_termination(WAIT_S)
    assert [progress["numInputRows"] for progress in again.recent_progress] == [10, 10]
    assert [progress["batchId"] for progress in again.recent_progress] == [0, 1]
    assert again.id == query.id
    assert again.run_id != query.run_id


def test_a_function_that_exits_is_no_good_end(queries: Queries) -> None:
    queries.publish(10)

    def leave(_: PlannedBatch) -> None:
        sys.exit(3)

    queries.before = leave
    with pytest.raises(QueryFailed, match="stopped at SystemExit: 3"):
        queries.start(AVAILABLE_NOW).await_termination(WAIT_S)


def test_a_session_that_is_stopped_ends_a_query_that_waits(queries: Queries) -> None:
    query = queries.start(Trigger(interval_ms=3_600_000))
    wait_until(lambda: query.status["message"] == "Waiting for data to arrive", what="the first trigger")
    queries.jobs.is_stopped = True
    with pytest.raises(QueryFailed, match="SparkStopped"):
        query.await_termination(WAIT_S)


def test_stopping_cancels_the_jobs_of_a_batch_which_comes_again(queries: Queries) -> None:
    queries.publish(10)
    began = threading.Event()

    def until_cancelled(_: PlannedBatch) -> None:
        began.set()
        assert queries.jobs.cancelled.wait(WAIT_S)
        raise RuntimeError("job cancelled")

    queries.before = until_cancelled
    query = queries.start(Trigger())
    assert began.wait(WAIT_S)
    query.stop()
    assert query.exception() is None
    assert queries.streamer.values() == []
    queries.before = lambda _: None
    assert queries.start(ONCE).await_termination(WAIT_S)
    assert queries.streamer.values() == numbered(10)


def test_a_function_may_stop_its_query(queries: Queries) -> None:
    queries.publish(10)
    running: list[StreamingQuery] = []
    known = threading.Event()

    def stop(_: PlannedBatch) -> None:
        assert known.wait(WAIT_S)
        running[0].stop()

    queries.before = stop
    running.append(queries.start(Trigger()))
    known.set()
    assert running[0].await_termination(WAIT_S)
    assert queries.streamer.values() == numbered(10)


def test_errors_that_may_pass_are_waited_for(queries: Queries, monkeypatch: pytest.MonkeyPatch) -> None:
    query = queries.start(Trigger())
    real, failures = query._batches.ends, iter([NotConnected("away"), None])

    def ends() -> object:
        if (failure := next(failures, None)) is not None:
            raise failure
        return real()

    monkeypatch.setattr(query._batches, "ends", ends)
    queries.publish(10)
    wait_until(lambda: queries.streamer.values() == numbered(10), what="the batch")
    assert query.is_active


def test_a_batch_that_cannot_be_committed_just_now_is_committed_later_and_not_run_again(
    queries: Queries, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    queries.before = lambda batch: ran.append(batch.number)
    query = queries.start(Trigger())
    rounds = query._batches._rounds
    real, failures = rounds.commit, [NotConnected("away")]

    def commit() -> None:
        if failures:
            raise failures.pop()
        real()

    monkeypatch.setattr(rounds, "commit", commit)
    queries.publish(10)
    query.process_all_available()
    assert (ran, failures, query.is_active) == ([0], [], True)
