"""DataFrames written to topics of a real broker, and to no topic at all."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

import pulsar_ray
from pulsar_ray.admin.admin import Admin
from pulsar_ray.data.writing.write_target import WriteTarget
from pulsar_ray.errors import InvalidConfiguration, NotAllowedError
from pulsar_ray.managed_ledger.log.producer_sequences import KEPT_PREFIX
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import NAMESPACE
from pulsar_ray_spark import Written, executor_blocks, forget_writes, read, releasing, write, writing
from pulsar_ray_spark.sent_columns import IF_PRESENT, in_smaller_parts, message_columns
from tests.ending_processes import command_lines, kill
from tests.running_broker import partition_actor

ROWS = 3000


@pytest.fixture
def admin(client: pulsar_ray.Client) -> Iterator[Admin]:
    with Admin() as admin:
        yield admin


def create(admin: Admin, topic: str, partitions: int = 0) -> str:
    """A topic that keeps everything."""
    if partitions:
        admin.topics.create_partitioned_topic(topic, partitions)
    else:
        admin.topics.create_topic(topic)
    admin.topics.create_subscription(topic, "keep")
    return topic


def messages(spark: SparkSession, first: int = 0) -> DataFrame:
    """Rows with every column; some have no key, no value, no properties, no time."""
    return spark.range(first, first + ROWS).selectExpr(
        "if(id % 5 = 0, null, concat('k', id % 7)) AS key",
        "if(id % 100 = 99, null, cast(concat('v', id) AS binary)) AS value",
        "if(id % 3 = 0, null, map('n', cast(id AS string), 'a', 'b')) AS properties",
        "if(id % 4 = 0, null, timestamp_millis(id + 1)) AS event_time",
        "concat('o', id % 2) AS ordering_key",
    )


def stored(spark: SparkSession, topic: str) -> list[Row]:
    columns = ["partition", "key", "value", "properties", "event_time", "ordering_key"]
    with releasing(read(spark, topic, columns=columns)) as frame:
        return frame.withColumn("event_time", F.expr("unix_millis(event_time)")).collect()


def as_counted(rows: list[Row]) -> Counter[Any]:
    return Counter(
        (
            row.key,
            None if row.value is None else bytes(row.value),
            tuple(sorted((row.properties or {}).items())),
            row.event_time,
            row.ordering_key,
        )
        for row in rows
    )


def wanted(frame: DataFrame) -> Counter[Any]:
    return as_counted(frame.withColumn("event_time", F.expr("unix_millis(event_time)")).collect())


@pytest.mark.long
def test_a_batch_too_large_for_a_piece_per_core_is_divided_further_and_stored_once(
    spark: SparkSession, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(admin, topic)
    frame = messages(spark)
    cores = spark.sparkContext.defaultParallelism
    with monkeypatch.context() as small:
        small.setattr(executor_blocks, "BLOCK_BYTES", 8192)
        small.setattr(executor_blocks, "MAX_BLOCK_BYTES", 16384)
        small.setattr(writing, "blocks_to_begin_with", lambda _frame: cores)
        assert write(frame, topic, name="q", batch_id=0) == Written(ROWS, 0)
        (ids,) = admin.topics.producer_sequence_ids(topic, KEPT_PREFIX).values()
        (pieces,) = {int(name.split("/")[1].partition("x")[0]) for name in ids if ids[name] >= 0}
        assert pieces > 2 * cores
    # As small as it is for others, it ends as it began.
    assert write(frame, topic, name="q", batch_id=0) == Written(ROWS, ROWS)
    assert as_counted(stored(spark, topic)) == wanted(frame)


@pytest.mark.long
def test_a_batch_that_another_run_begins_meanwhile_is_divided_as_that_did(
    spark: SparkSession, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(admin, topic)
    frame = messages(spark)
    compute = executor_blocks.executor_blocks
    others: list[Written] = []

    @contextmanager
    def computed(ordered: DataFrame) -> Iterator[Any]:
        with compute(ordered) as blocks:
            if not others:
                # As publishers do whose driver was killed: they do not ask for the query's name.
                others.append(Written(0, 0))
                others.append(write(frame, topic, name="q", batch_id=0, tasks=5))
            yield blocks

    monkeypatch.setattr(writing, "executor_blocks", computed)
    monkeypatch.setattr(WriteTarget, "taken", lambda *_: nullcontext())
    assert write(frame, topic, name="q", batch_id=0, tasks=2) == Written(ROWS, ROWS)
    assert others[1] == Written(ROWS, 0)
    assert as_counted(stored(spark, topic)) == wanted(frame)


def test_a_frame_that_spark_takes_to_be_large_begins_with_more_pieces(spark: SparkSession) -> None:
    cores = spark.sparkContext.defaultParallelism
    assert executor_blocks.blocks_to_begin_with(messages(spark)) == cores
    large = spark.range(10 * 1000 * 1000).selectExpr("cast(id AS binary) AS value")
    assert cores < executor_blocks.blocks_to_begin_with(large) < 100
    joined = large.crossJoin(large.withColumnRenamed("value", "key"))
    assert executor_blocks.blocks_to_begin_with(joined) <= 16 * cores
    unknown = spark.createDataFrame(spark.sparkContext.parallelize([(b"a",)]), "value binary")
    assert executor_blocks.blocks_to_begin_with(unknown) == cores


@pytest.mark.long
def test_batches_are_stored_once_with_all_columns_from_batch_and_stream(
    spark: SparkSession, admin: Admin, topic: str, tmp_path: Path
) -> None:
    create(admin, topic, 2)
    first = messages(spark)
    assert write(first, topic, name="q", batch_id=0) == Written(ROWS, 0)
    # The same rows in another order and other partitions, and other tasks.
    again = first.orderBy(F.rand()).repartition(5)
    assert write(again, topic, name="q", batch_id=0, tasks=7) == Written(ROWS, ROWS)
    assert as_counted(stored(spark, topic)) == wanted(first)
    for key in range(7):
        rows = [row for row in stored(spark, topic) if row.key == f"k{key}"]
        assert len({row.partition for row in rows}) == 1
    later = messages(spark, ROWS)
    assert write(later, topic, name="q", batch_id=1, tasks=3).stored == ROWS
    with pytest.raises(NotAllowedError, match="comes after batch 1"):
        write(first, topic, name="q", batch_id=0)

    streamed = create(admin, f"{topic}-stream")
    later.write.parquet(str(tmp_path / "in"))
    results: list[Written] = []

    def write_twice(batch: DataFrame, batch_id: int) -> None:
        results.extend(write(batch, streamed, name="s", batch_id=batch_id) for _ in range(2))

    stream = spark.readStream.schema(later.schema).parquet(str(tmp_path / "in"))
    query = stream.writeStream.foreachBatch(write_twice).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert results == [Written(ROWS, 0), Written(ROWS, ROWS)]
    assert as_counted(stored(spark, streamed)) == wanted(later)

    assert forget_writes(topic, "q") > 0
    assert write(first, topic, name="q", batch_id=0).stored == ROWS


def publishers() -> list[psutil.Process]:
    """The processes of this Ray's publishers."""
    node: Any = ray._private.worker._global_node
    (raylet,) = node.all_processes["raylet"]
    workers = psutil.Process(raylet.process.pid).children()
    lines = command_lines(workers)
    return [worker for worker, line in lines.items() if line.startswith("ray::Publisher")]


def test_a_killed_partition_and_killed_publishers_in_the_middle_store_nothing_twice(
    spark: SparkSession, admin: Admin, topic: str
) -> None:
    create(admin, topic)
    frame = spark.range(60_000).selectExpr("cast(id AS string) AS value", "concat('k', id % 50) AS key")
    written: list[Written] = []
    writing = threading.Thread(
        target=lambda: written.append(write(frame, topic, name="q", batch_id=0, tasks=4))
    )
    writing.start()
    wait_until(lambda: admin.topics.stats(topic)["msgInCounter"] > 0, 120, "the first messages")
    ray.kill(ray.get_actor(partition_actor(topic), namespace=NAMESPACE), no_restart=False)
    for publisher in publishers():
        kill(publisher)
    writing.join(240)
    assert [each.messages for each in written] == [60_000]
    write(frame, topic, name="q", batch_id=0)
    with releasing(read(spark, topic, columns=["value"])) as back:
        assert (back.count(), back.distinct().count()) == (60_000, 60_000)


def test_partitions_too_large_to_hand_over_are_divided_and_keep_the_order_of_each_key(
    spark: SparkSession, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(admin, topic)
    monkeypatch.setattr(executor_blocks, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(executor_blocks, "MAX_BLOCK_BYTES", 8192)
    frame = spark.range(ROWS, numPartitions=1).selectExpr(
        "if(id % 50 = 7, null, concat('k', id % 7)) AS key", "cast(lpad(id, 8, '0') AS binary) AS value"
    )
    assert write(frame, topic) == Written(ROWS, 0)
    rows = stored(spark, topic)
    values = [bytes(row.value) for row in rows]
    assert sorted(values) == [b"%08d" % number for number in range(ROWS)]
    for remainder in range(7):
        of_key = [bytes(row.value) for row in rows if row.key == f"k{remainder}"]
        assert of_key == sorted(of_key)


@pytest.mark.long
def test_rows_without_a_name_keep_the_order_of_their_partitions(
    spark: SparkSession, admin: Admin, topic: str
) -> None:
    create(admin, topic)
    frame = spark.range(0, 1000, numPartitions=1).select(F.col("id").cast("string").alias("number"))
    assert write(frame, topic, value="number", key=F.lit(b"k")) == Written(1000, 0)
    rows = stored(spark, topic)
    assert [bytes(row.value) for row in rows] == [b"%d" % number for number in range(1000)]
    assert {row.key for row in rows} == {"k"}
    assert write(frame.where("false"), topic, value="number") == Written(0, 0)
    assert write(frame.limit(0), topic, value="number", name="q", batch_id=0) == Written(0, 0)


def test_empty_keys_and_the_time_0_are_stored_as_none_and_earlier_times_refused(
    spark: SparkSession, admin: Admin, topic: str
) -> None:
    create(admin, topic, 2)
    frame = spark.range(100).selectExpr(
        "cast(id AS string) AS value", "'' AS key", "cast('' AS binary) AS ordering_key",
        "timestamp_millis(id % 2) AS event_time",
    )  # fmt: skip
    write(frame, topic, name="unset", batch_id=0)
    rows = stored(spark, topic)
    assert len(rows) == 100
    assert {(row.key, row.ordering_key) for row in rows} == {(None, None)}
    assert Counter(row.event_time for row in rows) == {None: 50, 1: 50}
    tasks = place_of_tasks(frame)
    assert len(tasks) > 1, "rows without a key do not all go to one task"
    with pytest.raises(InvalidConfiguration, match=r"event_time.*-1:"):
        write(frame.withColumn("event_time", F.expr("timestamp_millis(-1)")), topic)


def place_of_tasks(frame: DataFrame) -> set[int]:
    """The tasks that rows are divided among."""
    divided = in_smaller_parts(frame, 4).select(F.spark_partition_id().alias("task"))
    return {row.task for row in divided.distinct().collect()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "value: the DataFrame has no column 'value'; there are n, m, t, event_time"),
        ({"value": None}, "value=None"),
        ({"value": 7}, "neither the name of a column nor a Column"),
        ({"value": "n"}, "value='n' has type bigint, not binary or string"),
        ({"value": "t", "key": "n"}, "key='n' has type bigint, not string or binary"),
        ({"value": "t", "ordering_key": "m"}, r"ordering_key='m' has type map<string,bigint>"),
        ({"value": "t", "properties": "m"}, r"has type map<string,bigint>, not map<string,string>"),
        ({"value": "t", "event_time": "t"}, "event_time='t' has type string, not timestamp or bigint"),
        ({"value": "t", "key": "gone"}, "key: the DataFrame has no column 'gone'"),
        (
            {"value": "t", "event_time": IF_PRESENT},
            r"the column .event_time., sent as it has that name, has type date, .*event_time=None",
        ),
    ],
)
def test_columns_that_cannot_be_sent_are_refused_by_name_and_type(
    spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    frame = spark.sql("SELECT 1L AS n, map('a', 1L) AS m, 'x' AS t, DATE'2024-01-01' AS event_time")
    names = ("value", "key", "properties", "ordering_key", "event_time")
    given = {**dict.fromkeys(names, IF_PRESENT), "event_time": None, **arguments}
    with pytest.raises(InvalidConfiguration, match=message):
        message_columns(frame, given)


def test_a_name_and_a_batch_belong_together_and_a_stream_is_no_batch(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 'x' AS value")
    with pytest.raises(InvalidConfiguration, match="belong together"):
        write(frame, "t", name="q")
    stream = spark.readStream.format("rate").load()
    with pytest.raises(InvalidConfiguration, match="foreachBatch"):
        write(stream, "t")
    with pytest.raises(
        InvalidConfiguration, match=r"a builtins\.str is no DataFrame of Spark: give one first"
    ):
        write("t", frame)  # type: ignore[arg-type]
