from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

import pytest
import ray
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from pulsar_ray.data import failing_actors
from pulsar_ray.data.planning.plan import AtMessages, LostRange, ReadRange
from pulsar_ray.data.reading.readers import READERS
from pulsar_ray.errors import CorruptData, DataLost, InvalidConfiguration, WrongNode
from pulsar_ray.model.message_id import EARLIEST, LATEST, MessageId, Position
from pulsar_ray_spark import MESSAGE_SCHEMA, AtSubscription, AtTime, read, release, releasing
from pulsar_ray_spark.errors import SparkStopped
from pulsar_ray_spark.handover import held_blocks
from tests.spark.stored_topic import StoredTopics
from tests.stored_messages import PUBLISHED_MS, batch, single
from tests.stored_segments import write_segment

TOPIC = "persistent://public/default/orders"


@pytest.fixture
def topics() -> StoredTopics:
    return StoredTopics()


@contextmanager
def time_zone(spark: SparkSession, name: str) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", name)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def values_of(frame: DataFrame) -> list[bytes]:
    return [bytes(row.value) for row in frame.select("value").collect()]


def test_every_column_with_and_without_a_value(
    spark: SparkSession, topics: StoredTopics, tmp_path: Path
) -> None:
    segment = write_segment(
        tmp_path / "5-0.seg",
        [
            [
                single(
                    b"\x00\xff",
                    sequence_id=7,
                    producer_name="Zoë",
                    key="clé-日本",
                    ordering_key="\U0001f511",
                    properties={"größe": "ä", "leer": ""},
                    event_time=0,
                    schema_version=b"\x00\x02",
                ),
                single(None, sequence_id=8),
                batch(
                    [b"", b"y"], first_sequence_id=9, keys=["", None], properties=[None, {"a": "b"}], codec=1
                ),
            ]
        ],
        ledger_id=2**40,
        first_entry_id=3,
    )
    topics.add(TOPIC + "-partition-2", segment, partition=2)
    with releasing(read(spark, TOPIC + "-partition-2", planner=topics)) as frame:
        assert frame.schema == MESSAGE_SCHEMA
        rows = frame.selectExpr(
            "*", "unix_millis(publish_time) AS ms", "unix_millis(event_time) AS event_ms"
        ).collect()
    common: dict[str, Any] = {
        "topic": TOPIC + "-partition-2",
        "partition": 2,
        "ledger_id": 2**40,
        "redelivery_count": 0,
    }
    common["ms"] = PUBLISHED_MS
    nothing: dict[str, Any] = {"ordering_key": None, "event_ms": None, "schema_version": None}
    wanted: list[dict[str, Any]] = [
        {
            "key": "clé-日本",
            "value": bytearray(b"\x00\xff"),
            "ordering_key": "\U0001f511",
            "properties": {"größe": "ä", "leer": ""},
            "entry_id": 3,
            "batch_index": -1,
            "event_ms": 0,
            "sequence_id": 7,
            "producer_name": "Zoë",
            "schema_version": bytearray(b"\x00\x02"),
        },
        {**nothing, "key": None, "value": None, "properties": {}, "entry_id": 4, "batch_index": -1},
        {**nothing, "key": "", "value": bytearray(), "properties": {}, "entry_id": 5, "batch_index": 0},
        {
            **nothing,
            "key": None,
            "value": bytearray(b"y"),
            "properties": {"a": "b"},
            "entry_id": 5,
            "batch_index": 1,
        },
    ]
    wanted[1] |= {"sequence_id": 8, "producer_name": ""}
    wanted[2] |= {"sequence_id": 9, "producer_name": "p"}
    wanted[3] |= {"sequence_id": 10, "producer_name": "p"}
    for row, expected in zip(rows, wanted, strict=True):
        got = row.asDict()
        del got["publish_time"], got["event_time"]
        assert got == {**common, **expected}


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_times_are_instants_in_every_session_time_zone(
    spark: SparkSession, topics: StoredTopics, tmp_path: Path, zone: str
) -> None:
    # 1969, 1970, an hour that does not exist in New York, 2100.
    times = [-1, 0, 1_710_054_000_001, 4_102_444_800_999]
    messages = [single(b"", publish_time_ms=time, event_time=time) for time in times]
    topics.add(TOPIC, write_segment(tmp_path / "5-0.seg", [messages]))
    with time_zone(spark, zone), releasing(read(spark, TOPIC, planner=topics)) as frame:
        rows = frame.selectExpr(
            "unix_millis(publish_time)", "unix_millis(event_time)", "publish_time", "event_time"
        )
        for time, row in zip(times, rows.collect(), strict=True):
            moment = datetime.fromtimestamp(time // 1000, timezone.utc).replace(
                microsecond=time % 1000 * 1000
            )
            assert row[:2] == (time, time)
            assert (
                row.publish_time.astimezone(timezone.utc) == row.event_time.astimezone(timezone.utc) == moment
            )
        named = frame.selectExpr("date_format(publish_time, 'yyyy-MM-dd HH') AS hour").collect()
    hours = {"UTC": "1970-01-01 00", "America/New_York": "1969-12-31 19", "Asia/Kolkata": "1970-01-01 05"}
    assert named[1].hour == hours[zone]


@pytest.mark.parametrize("ranges", ["none", "without messages", "without segments"])
def test_an_empty_range_is_an_empty_frame_with_all_columns(
    spark: SparkSession, topics: StoredTopics, tmp_path: Path, ranges: str
) -> None:
    topics.ranges[TOPIC] = []
    if ranges == "without messages":
        topics.add(TOPIC, write_segment(tmp_path / "5-0.seg", [[single(b"a")]]), end=EARLIEST)
    if ranges == "without segments":
        topics.add(TOPIC)
    frame = read(spark, TOPIC, planner=topics)
    assert frame.schema == MESSAGE_SCHEMA
    assert frame.collect() == []
    assert frame.groupBy("key").count().collect() == []
    assert frame.agg({"sequence_id": "max"}).collect() == [Row(**{"max(sequence_id)": None})]
    assert release(frame) == 0


def test_topics_partitions_and_their_order(spark: SparkSession, topics: StoredTopics, tmp_path: Path) -> None:
    for partition in (0, 1):
        for index in (0, 1):
            segment = write_segment(
                tmp_path / f"{partition}-{index}.seg",
                [[batch([b"%d%d%d" % (partition, index, i) for i in range(3)])] * 20],
                ledger_id=partition,
                segment_index=index,
                first_entry_id=20 * index,
            )
            topics.add(TOPIC, segment, partition=partition)
    topics.add("other", write_segment(tmp_path / "other.seg", [[single(b"o")]], ledger_id=9))
    with releasing(read(spark, [TOPIC, "other"], planner=topics, block_bytes=1000)) as frame:
        rows = frame.collect()
        assert 1 < frame.rdd.getNumPartitions() < held_blocks()
    assert [(row.topic, row.partition) for row in rows] == [(TOPIC, 0)] * 120 + [(TOPIC, 1)] * 120 + [
        ("other", -1)
    ]
    for partition in (0, 1):
        ids = [
            (row.entry_id, row.batch_index)
            for row in rows
            if row.topic == TOPIC and row.partition == partition
        ]
        assert ids == [(entry, index) for entry in range(40) for index in range(3)]
    assert topics.leases == 0


def test_messages_larger_than_blocks_share_partitions_by_their_own_size(
    spark: SparkSession, topics: StoredTopics, tmp_path: Path
) -> None:
    values = [bytes([number]) * (8 << 20) for number in range(12)]
    topics.add(TOPIC, write_segment(tmp_path / "5-0.seg", [[single(value)] for value in values]))
    for block_bytes, partitions in ((1 << 20, 4), (64 << 20, 2)):
        with releasing(read(spark, TOPIC, planner=topics, block_bytes=block_bytes)) as frame:
            assert frame.rdd.getNumPartitions() == partitions
            assert [row.n for row in frame.selectExpr("length(value) as n").collect()] == [8 << 20] * 12


def test_bounds_reach_the_planner_and_cut(spark: SparkSession, topics: StoredTopics, tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "5-0.seg", [[batch([b"a", b"b", b"c"]), single(b"d"), single(b"e")]])
    topics.add(TOPIC, segment, first=Position(5, 0), end=Position(5, 2), first_batch_index=1)
    message_id = MessageId(-1, 5, 0, 1)
    moment = datetime(2024, 1, 1, tzinfo=timezone.utc)
    with releasing(read(spark, TOPIC, planner=topics, start=message_id, end=moment)) as frame:
        assert values_of(frame) == [b"b", b"c", b"d"]
    read(spark, TOPIC, planner=topics, start=AtSubscription("s"))
    assert topics.asked == [
        ([TOPIC], AtMessages((message_id,)), AtTime(1_704_067_200_000)),
        ([TOPIC], AtSubscription("s"), "latest"),
    ]


def test_columns_are_those_asked_for_in_that_order(
    spark: SparkSession, topics: StoredTopics, tmp_path: Path
) -> None:
    segments = [
        write_segment(tmp_path / f"{name}.seg", [[batch([b"a", b"b"], keys=["k", None]), single(b"c")]])
        for name in (TOPIC.rsplit("/", 1)[1], "other")
    ]
    topics.add(TOPIC, segments[0])
    topics.add("other", segments[1])
    both = [TOPIC, "other"]
    with releasing(read(spark, both, planner=topics, columns=["value", "key"])) as frame:
        assert frame.columns == ["value", "key"]
        rows = [(bytes(row.value), row.key) for row in frame.collect()]
        assert rows == [(b"a", "k"), (b"b", None), (b"c", None)] * 2
    with releasing(read(spark, both, planner=topics, columns=["topic", "redelivery_count"])) as frame:
        assert frame.schema == StructType([MESSAGE_SCHEMA[name] for name in frame.columns])
        assert [tuple(row) for row in frame.collect()] == [(TOPIC, 0)] * 3 + [("other", 0)] * 3
    with releasing(read(spark, "other", planner=topics, columns=["redelivery_count"])) as frame:
        assert frame.count() == 3


def test_a_pattern_reads_the_topics_that_match_it(
    spark: SparkSession, topics: StoredTopics, tmp_path: Path
) -> None:
    for name in ("orders-a", "orders-b", "clicks"):
        topics.add(name, write_segment(tmp_path / f"{name}.seg", [[single(name.encode())]]))
    with releasing(read(spark, re.compile("orders-.*"), planner=topics)) as frame:
        assert values_of(frame) == [b"orders-a", b"orders-b"]
    with releasing(read(spark, re.compile("nothing"), planner=topics)) as frame:
        assert values_of(frame) == []


def test_a_bad_call_is_refused_before_anything_is_planned(spark: SparkSession, topics: StoredTopics) -> None:
    with pytest.raises(InvalidConfiguration, match="is no bound"):
        read(spark, TOPIC, planner=topics, start=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match="no topic to read"):
        read(spark, [], planner=topics)
    with pytest.raises(InvalidConfiguration, match="'payload' is no column of a topic; there are key, value"):
        read(spark, TOPIC, planner=topics, columns=["payload"])
    for columns in ([], ["key", "key"]):
        with pytest.raises(InvalidConfiguration, match="must name at least one column, each once"):
            read(spark, TOPIC, planner=topics, columns=columns)
    for size in (0, -1, 1.5, "16m", True):
        with pytest.raises(InvalidConfiguration, match=f"block_bytes is {size!r}: give a number of bytes"):
            read(spark, TOPIC, planner=topics, block_bytes=size)  # type: ignore[arg-type]
    assert topics.asked == []


def test_what_is_lost_is_an_error_unless_what_is_left_will_do(
    spark: SparkSession, topics: StoredTopics, tmp_path: Path
) -> None:
    topics.add(TOPIC, write_segment(tmp_path / "5-0.seg", [[single(b"left")]]))
    topics.lost.append(LostRange(TOPIC, Position(4, 1), Position(4, 9)))
    with pytest.raises(DataLost, match=f"{TOPIC} from 4:1 to 4:9"):
        read(spark, TOPIC, planner=topics)
    assert topics.leases == 0
    with releasing(read(spark, TOPIC, planner=topics, fail_on_data_loss=False)) as frame:
        assert values_of(frame) == [b"left"]


def test_a_session_that_was_stopped_is_named(topics: StoredTopics) -> None:
    stopped = SparkSession.__new__(SparkSession)
    stopped._sc = cast("Any", object())
    with pytest.raises(SparkStopped, match="start another"):
        read(stopped, TOPIC, planner=topics)
    assert topics.asked == []


def test_errors_of_readers_arrive_as_they_are_and_end_the_lease(
    spark: SparkSession, topics: StoredTopics, tmp_path: Path
) -> None:
    good = write_segment(tmp_path / "5-0.seg", [[single(b"good")]])
    bad = write_segment(tmp_path / "5-1.seg", [[single(b"payload")]], segment_index=1)
    path = Path(bad.path)
    path.write_bytes(path.read_bytes().replace(b"payload", b"pAyload"))
    topics.add(TOPIC, good)
    topics.add(TOPIC, bad)
    with pytest.raises(CorruptData, match=r"5-1\.seg") as caught:
        read(spark, TOPIC, planner=topics)
    assert str(path) in caught.value.path
    assert topics.leases == 0
    topics.add("gone", write_segment(tmp_path / "d" / "5-0.seg", [[single(b"a")]]))
    (tmp_path / "d" / "5-0.seg").unlink()
    (tmp_path / "d").rmdir()
    with pytest.raises(WrongNode, match="not on this node"):
        read(spark, "gone", planner=topics)
    topics.ranges[TOPIC].pop()
    with releasing(read(spark, TOPIC, planner=topics)) as frame:
        assert values_of(frame) == [b"good"]


def test_a_reader_that_is_killed_is_replaced(
    spark: SparkSession, topics: StoredTopics, tmp_path: Path
) -> None:
    topics.add(TOPIC, write_segment(tmp_path / "5-0.seg", [[single(b"a")]]))
    with releasing(read(spark, TOPIC, planner=topics)) as frame:
        assert values_of(frame) == [b"a"]
    killed = READERS._idle.handles()
    assert killed
    for reader in killed:
        ray.kill(reader)
    with releasing(read(spark, TOPIC, planner=topics)) as frame:
        assert values_of(frame) == [b"a"]


@pytest.mark.long
def test_a_reader_that_stands_still_is_replaced(
    spark: SparkSession, topics: StoredTopics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_actors, "LOOK_AFTER_S", 1.0)
    monkeypatch.setattr(failing_actors, "ANSWER_WITHIN_S", 10.0)
    topics.add(TOPIC, write_segment(tmp_path / "5-0.seg", [[single(b"a")]]))
    READERS.close()  # another test may have killed idle ones
    with releasing(read(spark, TOPIC, planner=topics)) as frame:
        assert values_of(frame) == [b"a"]

    def pid(_: Any) -> int:
        return os.getpid()

    for reader in READERS._idle.handles():
        os.kill(ray.get(reader.__ray_call__.remote(pid)), signal.SIGSTOP)
    with releasing(read(spark, TOPIC, planner=topics)) as frame:
        assert values_of(frame) == [b"a"]


def test_a_node_that_is_gone_is_a_wrong_node(spark: SparkSession, tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "d" / "5-0.seg", [[single(b"a")]])
    Path(segment.path).unlink()
    Path(segment.path).parent.rmdir()
    topics = StoredTopics()
    topics.ranges[TOPIC] = [ReadRange("a" * 56, TOPIC, -1, (segment,), EARLIEST, LATEST)]
    with pytest.raises(WrongNode, match=f"node {'a' * 56}, which has it"):
        read(spark, TOPIC, planner=topics)
