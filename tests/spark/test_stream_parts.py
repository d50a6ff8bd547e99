"""The parts of a stream that know neither a broker nor Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from datetime import timedelta

import pytest

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.message_id import EARLIEST, Position
from pulsar_ray_spark.errors import QueryFailed, QueryInUse, QueryMismatch
from pulsar_ray_spark.streaming.batch_limits import BatchLimits, Measured, ends_within
from pulsar_ray_spark.streaming.micro_batches import BatchRun
from pulsar_ray_spark.streaming.planned_batch import (
    BEGINNING,
    Place,
    PlannedBatch,
    QueryIdentity,
    decode_batch,
    encode_batch,
)
from pulsar_ray_spark.streaming.query import Mode, Trigger, describe_progress

IDENTITY = QueryIdentity("q", "id-1", ("persistent://public/default/t",))


def at(entry_id: int, batch_index: int = 0) -> Place:
    return Place(Position(5, entry_id), batch_index)


@pytest.mark.parametrize(
    ("given", "interval_ms"),
    [
        ("10 seconds", 10_000),
        ("1 second", 1000),
        (" 500 milliseconds ", 500),
        ("250ms", 250),
        ("2 Minutes", 120_000),
        (timedelta(hours=1), 3_600_000),
        (0.2, 200),
        (0, 0),
    ],
)
def test_intervals(given: str | float | timedelta, interval_ms: int) -> None:
    assert Trigger.from_arguments(given, None, None) == Trigger(Mode.PROCESSING_TIME, interval_ms)


@pytest.mark.parametrize(
    "given", ["soon", "-1 seconds", "", "10 parsecs", "5 m", -1, True, float("inf"), [1]]
)
def test_anything_else_is_no_interval(given: str | float) -> None:
    with pytest.raises(InvalidConfiguration, match="give an interval"):
        Trigger.from_arguments(given, None, None)


def test_a_trigger_is_one_of_three() -> None:
    assert Trigger.from_arguments(None, True, None).mode is Mode.ONCE
    assert Trigger.from_arguments(None, None, True).mode is Mode.AVAILABLE_NOW
    for wrong in ((None, None, None), (1, True, None), (None, True, True), (None, False, None)):
        with pytest.raises(InvalidConfiguration):
            Trigger.from_arguments(*wrong)


def test_triggers_are_at_multiples_of_the_interval_and_late_ones_at_once() -> None:
    trigger = Trigger(interval_ms=1000)
    assert [trigger.next_ms(now_ms) for now_ms in (10_000, 10_001, 10_999)] == [11_000] * 3
    assert Trigger().next_ms(10_001) == 10_001


def test_a_stored_batch_comes_back_with_the_querys_identity() -> None:
    batch = PlannedBatch(7, {"a": BEGINNING, "b": at(3, 2)}, {"b": at(9)})
    assert decode_batch(encode_batch(IDENTITY, batch)) == (IDENTITY, batch)
    assert not batch.is_committed
    assert batch.ranges == {"b": (at(3, 2), at(9))}
    committed = batch.committed()
    assert committed == PlannedBatch(7, {"a": BEGINNING, "b": at(9)})
    assert committed.is_committed
    assert committed.next({"new": at(1)}).ranges == {"new": (BEGINNING, at(1))}


@pytest.mark.parametrize("record", [b"", b"{}", b"[1]", b"\xff", b'{"version": 1}'])
def test_a_record_of_somebody_else_is_refused(record: bytes) -> None:
    with pytest.raises(QueryMismatch, match="which is none: take another name"):
        decode_batch(record)


def test_a_later_version_is_refused() -> None:
    record = json.loads(encode_batch(IDENTITY, PlannedBatch(0)))
    with pytest.raises(QueryMismatch, match="version 2, which a later pulsar_ray wrote"):
        decode_batch(json.dumps({**record, "version": 2}).encode())


def test_other_topics_are_refused_with_both_and_a_remedy() -> None:
    other = QueryIdentity("q", "id-2", ("pattern:orders-.*",))
    with pytest.raises(QueryMismatch, match=r"begun with topics .*default/t.*orders-.*drop_query\('q'\)"):
        other.check(IDENTITY)


@pytest.mark.parametrize("kind", [QueryMismatch, QueryInUse, QueryFailed])
def test_errors_cross_processes(kind: type[Exception]) -> None:
    restored = pickle.loads(pickle.dumps(kind("why")))
    assert type(restored) is kind
    assert str(restored) == str(kind("why"))


class Entries:
    """Partitions of messages of some sizes, at entries 0, 1, 2..."""

    def __init__(self, **sizes: list[int]) -> None:
        self.sizes = sizes
        self.asked = 0

    @property
    def ranges(self) -> dict[str, tuple[Place, Place]]:
        return {name: (at(0), at(len(sizes))) for name, sizes in self.sizes.items()}

    def measure(
        self, partition: str, first: Place, end: Place, messages: int, stored_bytes: int, takes_one: bool
    ) -> Measured:
        assert messages > 0
        assert stored_bytes > 0
        self.asked += 1
        sizes = self.sizes[partition][max(first.position.entry_id, 0) : end.position.entry_id]
        count = size = 0
        while count < min(messages, len(sizes)):
            if size + sizes[count] > stored_bytes and not (takes_one and not count):
                break
            size += sizes[count]
            count += 1
        return Measured(at(max(first.position.entry_id, 0) + count), count, size)

    def taken(self, ends: Mapping[str, Place]) -> dict[str, int]:
        return {name: end.position.entry_id for name, end in ends.items()}


@pytest.mark.parametrize(
    ("limits", "sizes", "taken"),
    [
        # Equal shares, and what one leaves goes to others.
        (BatchLimits(10), {"a": [1] * 9, "b": [1] * 9}, {"a": 5, "b": 5}),
        (BatchLimits(10), {"a": [1] * 2, "b": [1] * 20}, {"a": 2, "b": 8}),
        (BatchLimits(10), {"a": [1] * 20, "b": [1] * 2}, {"a": 8, "b": 2}),
        (BatchLimits(10), {"a": [1] * 20, "b": [], "c": [1] * 2}, {"a": 8, "c": 2}),
        (BatchLimits(2), {"a": [1], "b": [1], "c": [1]}, {"a": 1, "b": 1}),
        # Bytes; a message that is too large comes alone.
        (BatchLimits(bytes=100), {"a": [10] * 20, "b": [10] * 20}, {"a": 5, "b": 5}),
        (BatchLimits(bytes=100), {"a": [80] * 3, "b": [80] * 3}, {"a": 1}),
        (BatchLimits(bytes=100), {"a": [500] * 2, "b": [10]}, {"a": 1}),
        (BatchLimits(3, 25), {"a": [10] * 9}, {"a": 2}),
        (BatchLimits(), {"a": [10] * 9, "b": []}, {"a": 9}),
        (BatchLimits(5), {"a": []}, {}),
        (BatchLimits(5), {}, {}),
    ],
)
def test_a_batch_is_within_its_limits(
    limits: BatchLimits, sizes: dict[str, list[int]], taken: dict[str, int]
) -> None:
    entries = Entries(**sizes)
    assert entries.taken(ends_within(limits, entries.ranges, entries.measure, 0)) == taken


@pytest.mark.parametrize("limits", [BatchLimits(), BatchLimits(messages=10)])
def test_a_partition_whose_new_messages_are_all_trimmed_is_in_the_batch(limits: BatchLimits) -> None:
    def nothing(
        partition: str, first: Place, end: Place, messages: int, stored_bytes: int, takes_one: bool
    ) -> Measured:
        del partition, first, messages, stored_bytes, takes_one
        return Measured(end, 0, 0)

    assert ends_within(limits, {"a": (at(0), at(5)), "b": (at(5), at(5))}, nothing, 0) == {"a": at(5)}


def test_with_fewer_messages_than_partitions_each_has_its_turn() -> None:
    entries = Entries(a=[1] * 9, b=[1] * 9, c=[1] * 9)
    turns = [list(ends_within(BatchLimits(1), entries.ranges, entries.measure, turn)) for turn in range(4)]
    assert turns == [["a"], ["b"], ["c"], ["a"]]


def test_partitions_are_asked_few_times() -> None:
    entries = Entries(**{f"p{number:03}": [7] * 1000 for number in range(100)})
    ends = ends_within(BatchLimits(bytes=10_000), entries.ranges, entries.measure, 3)
    assert 9_000 < 7 * sum(entries.taken(ends).values()) <= 10_000
    assert entries.asked <= 400


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "10"])
def test_limits_are_counts(wrong: int) -> None:
    with pytest.raises(InvalidConfiguration, match="max_messages_per_trigger="):
        BatchLimits(wrong)
    with pytest.raises(InvalidConfiguration, match="max_bytes_per_trigger="):
        BatchLimits(bytes=wrong)


def test_progress_is_told_as_spark_tells_it() -> None:
    batch = PlannedBatch(4, {"a": BEGINNING, "b": at(3)}, {"a": at(9, 2)})
    done = BatchRun(batch, 50, {"a": at(12), "b": at(3)}, {"addBatch": 90, "walCommit": 3})
    progress = describe_progress(
        IDENTITY, "run-1", done, 1_700_000_000_007, 1_699_999_999_007, 1_700_000_000_107
    )
    rates = {"inputRowsPerSecond": 50.0, "processedRowsPerSecond": 500.0}
    assert progress == {
        "id": "id-1",
        "runId": "run-1",
        "name": "q",
        "timestamp": "2023-11-14T22:13:20.007Z",
        "batchId": 4,
        "numInputRows": 50,
        **rates,
        "durationMs": {"addBatch": 90, "walCommit": 3, "triggerExecution": 100},
        "stateOperators": [],
        "sources": [
            {
                "description": "Topics[persistent://public/default/t]",
                "startOffset": {"a": "earliest", "b": "5:3"},
                "endOffset": {"a": "5:9:2", "b": "5:3"},
                "latestOffset": {"a": "5:12", "b": "5:3"},
                "numInputRows": 50,
                **rates,
            }
        ],
        "sink": {"description": "ForeachBatch", "numOutputRows": -1},
    }
    json.dumps(progress)
    first = describe_progress(IDENTITY, "run-1", done, 5, None, 5)
    assert first["inputRowsPerSecond"] == 0.0


def test_places_are_in_the_order_of_the_log() -> None:
    assert BEGINNING == Place(EARLIEST) < at(0) < at(0, 1) < at(1) < Place(Position(6, 0))
