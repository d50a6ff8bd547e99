"""A batch that finds Ray's object store full is read again, without Ray and Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_ray.data import full_store
from pulsar_ray.errors import ObjectStoreFull, WrongNode
from pulsar_ray.model.message_id import Position
from pulsar_ray_spark.streaming import batch_runner
from pulsar_ray_spark.streaming.batch_runner import BatchRunner
from pulsar_ray_spark.streaming.planned_batch import Place, PlannedBatch
from pulsar_ray_spark.value_form import AS_STORED

BATCH = PlannedBatch(3, {}, {"t": Place(Position(1, 1))})


class Topics:
    def __init__(self) -> None:
        self.leases = 0

    def wake_dispatchers(self, partitions: Any) -> None: ...

    @contextmanager
    def leased(self, *_: Any) -> Iterator[list[Any]]:
        self.leases += 1
        yield []


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What reads of the batch come to, one after the other: no room, or a frame."""
    outcomes: list[str] = []

    def read_ranges(*_: Any, **__: Any) -> Any:
        if (outcome := outcomes.pop(0)) == "full":
            raise ObjectStoreFull("full")
        if outcome == "lost":
            raise WrongNode("its node is gone")
        return SimpleNamespace(frame=outcome, messages=7)

    monkeypatch.setattr(batch_runner, "read_ranges", read_ranges)
    monkeypatch.setattr(batch_runner, "check_runs", lambda _: None)
    monkeypatch.setattr(batch_runner, "runs", lambda _: False)
    monkeypatch.setattr(full_store, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(batch_runner, "_FIRST_PAUSE_S", 0.001)
    return outcomes


def runner(given: list[tuple[Any, int]], topics: Any = None) -> BatchRunner:
    topics = topics or Topics()
    spark: Any = None
    return BatchRunner(spark, topics, ["value"], AS_STORED, lambda *batch: given.append(batch))


def test_a_batch_without_room_is_read_again_and_given_once(reads: list[str]) -> None:
    given: list[tuple[Any, int]] = []
    reads[:] = ["full", "full", "frame"]
    assert runner(given).run(BATCH) == 7
    assert given == [("frame", 3)]


def test_a_query_that_is_stopped_waits_for_no_room(reads: list[str]) -> None:
    given: list[tuple[Any, int]] = []
    reads[:] = ["full", "frame"]
    stopped = runner(given)
    stopped.cancel_jobs("query")
    with pytest.raises(ObjectStoreFull):
        stopped.run(BATCH)
    assert given == []


def test_a_batch_whose_node_is_lost_is_planned_and_read_again_and_given_once(reads: list[str]) -> None:
    given: list[tuple[Any, int]] = []
    topics = Topics()
    reads[:] = ["lost", "full", "lost", "frame"]
    batch = PlannedBatch(3, {"t": Place(Position(1, 0))}, {"t": Place(Position(1, 1))})
    assert runner(given, topics).run(batch) == 7
    assert given == [("frame", 3)]
    assert topics.leases == 3


def test_a_query_that_is_stopped_does_not_wait_for_a_lost_node(reads: list[str]) -> None:
    given: list[tuple[Any, int]] = []
    reads[:] = ["lost", "frame"]
    stopped = runner(given)
    stopped.cancel_jobs("query")
    with pytest.raises(WrongNode):
        stopped.run(BATCH)
    assert given == []
