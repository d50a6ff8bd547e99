"""Ranges of topics as Spark DataFrames."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple
from weakref import WeakSet

import pyarrow as pa
import ray
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pulsar_ray.admin.admin import Admin
from pulsar_ray.data.planning.broker_planner import BrokerPlanner
from pulsar_ray.data.planning.plan import (
    BoundArgument,
    RangePlanner,
    ReadRange,
    Topics,
    as_bound,
    as_topics,
    check_nothing_lost,
)
from pulsar_ray.data.reading.block_schema import BLOCK_SCHEMA, as_columns, block_columns
from pulsar_ray.data.reading.readers import READERS, BlockForm
from pulsar_ray.data.reading.rows import BLOCK_BYTES, check_block_bytes, ipc_stream
from pulsar_ray.data.reading.table_ranges import check_whole_log, table_ranges
from pulsar_ray.data.reading.topic_versions import typed_topics, whole_topics
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray_spark.handover import frame_of_blocks, hand_over, releasing
from pulsar_ray_spark.partitions import partitions_of
from pulsar_ray_spark.running import check_session, naming_a_stop
from pulsar_ray_spark.schema import as_messages, block_struct
from pulsar_ray_spark.value_form import AS_STORED, Bytes, Mode, ValueForm, as_value_form

_MAX_TASKS = 32
_log = logging.getLogger(__name__)
_warm: WeakSet[SparkContext] = WeakSet()
_lock = threading.Lock()


def read(
    spark: SparkSession,
    topic: str | Topics,
    start: BoundArgument = "earliest",
    end: BoundArgument = "latest",
    *,
    columns: Sequence[str] | None = None,
    key_type: Bytes = "string",
    value_type: Bytes = "binary",
    schema: StructType | str | None = None,
    avro_schema: str | None = None,
    read_compacted: bool = False,
    typed: bool = False,
    mode: Mode = "permissive",
    planner: RangePlanner | None = None,
    block_bytes: int = BLOCK_BYTES,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """Read a range of topics or partitions as a DataFrame.

    `topic` is a name, a list of names, or a compiled pattern as `Client.subscribe` takes it. The DataFrame
    has `columns` of MESSAGE_SCHEMA (None: all); others are neither decoded nor moved.

    `start` is inclusive, `end` exclusive; both are fixed in this call, as is the data: what is published
    later or trimmed changes nothing. A `timedelta` bounds the range so long before now. Readers beside the
    data decode and verify it into Ray's object store before this returns (it spills to disk what does not
    fit); rows keep the order of each partition's log. Without a `planner` the broker of this Ray cluster is
    asked, as `Client()` finds it. `release` gives the blocks back; else they go with the last DataFrame made
    from this one.

    Keys and values are binary or text (`key_type`, `value_type`), or values are structs: of JSON by `schema`,
    a StructType or its columns as text ("id BIGINT, note STRING"), of Avro by `avro_schema`, JSON text;
    `frame.select("key", "value.*")` makes columns of their fields. A tombstone is null. A value that does not
    fit is null in `mode` "permissive", its bytes stand in a last column `_corrupt_record`; "drop" leaves its
    row out; "fail" looks at all values before this returns, and raises SchemaMismatch.

    With `read_compacted` it is the table of a topic's keys: the latest message of each key of a partition,
    and nothing of a key whose latest message has no payload. Messages without a key are left out, unless the
    topic's `topic_compaction_retain_null_key` says otherwise. Whether the topic was compacted makes no
    difference to the rows. There is no `start`, no `end` and no `planner` then.

    With `typed` the schema is the topic's newest one, and each value is read by the version that wrote it:
    fields that it lacks have the newest schema's defaults. Reasons stand behind `_corrupt_record`, in
    `_corrupt_reason`. The values of topics without a schema stay bytes.

    Raises InvalidConfiguration for a wrong bound, column, size, type or schema, DataLost if messages from
    `start`, an id, on are trimmed (with `fail_on_data_loss=False` what is left is read), SparkStopped,
    SparkNotUsable for a session that RayDP has not started here, TopicNotFound, CorruptData, WrongNode and
    the client's own errors.
    """
    check_session(spark)
    topics, wanted = as_topics(topic), as_columns(columns)
    check_block_bytes(block_bytes)
    values = as_value_form(spark, key_type, value_type, schema, avro_schema, mode, is_typed=typed)
    read_columns = values.columns_to_read(wanted)
    now_ms = time.time_ns() // 1_000_000
    first, last = as_bound(start, now_ms), as_bound(end, now_ms)
    if read_compacted:
        check_whole_log(first, last)
        if planner is not None:
            raise InvalidConfiguration("read_compacted=True asks the broker: give no planner with it")
    warm_executors(spark)
    with ExitStack() as held:
        if read_compacted:
            ranges: Sequence[ReadRange] = table_ranges(held.enter_context(BrokerPlanner().tables(topics)))
        else:
            plan = held.enter_context((planner or BrokerPlanner()).plan(topics, first, last))
            if fail_on_data_loss:
                check_nothing_lost(plan.lost)
            ranges = plan.ranges
        if typed:
            with Admin() as admin:
                found = typed_topics(admin, whole_topics(topics, ranges))
            values = replace(values, typed=found)
            read_columns = values.columns_to_read(wanted)
        frame = read_ranges(spark, ranges, read_columns, block_bytes, values).frame
        return values.applied(frame, wanted) if values != AS_STORED else frame


class ReadFrame(NamedTuple):
    """A DataFrame of messages, and how many there are."""

    frame: DataFrame
    messages: int


def read_ranges(
    spark: SparkSession,
    ranges: Sequence[ReadRange],
    columns: Sequence[str],
    block_bytes: int = BLOCK_BYTES,
    values: ValueForm = AS_STORED,
) -> ReadFrame:
    """Read planned ranges into the object store, as a DataFrame with these columns of MESSAGE_SCHEMA.

    Rows are in the order of the ranges; the types of `values` are still to be applied. The files may go when
    this returns. Raises SparkStopped.
    """
    form = BlockForm(block_bytes, block_columns(columns), values.avro_schema, values.typed)
    sources = list(dict.fromkeys((each.topic, each.partition) for each in ranges))
    numbers = [sources.index((each.topic, each.partition)) for each in ranges]
    blocks = READERS.read(ranges, numbers, form)
    with naming_a_stop(spark):
        partitions = partitions_of(spark, len(blocks.refs), blocks.largest_bytes)
        handed_over = hand_over(spark, blocks.refs, values.block_struct(form.columns), partitions)
        frame = as_messages(handed_over, sources, values.made_columns(columns))
        return ReadFrame(frame, blocks.messages)


def prepare_reads(spark: SparkSession) -> None:
    """Start readers, and have Spark load and compile for an empty range.

    No executor is needed, so that this takes place while they start: the first read of a session would wait
    for it, some seconds where the JVM has everything still to load.
    """
    READERS.prepare()
    with releasing(as_messages(hand_over(spark, (), block_struct()), ())) as frame:
        frame._jdf.queryExecution().toRdd()  # noqa: SLF001 - plans and compiles, and runs nothing


def warm_executors(spark: SparkSession) -> None:
    """Begin to have the executors count blocks without rows, once per session.

    The first block that an executor reads has it load Ray's and Arrow's Java, for some seconds. Meanwhile the
    range is planned, for which a topic that sleeps is waked, and read.
    """
    with _lock:
        if spark.sparkContext in _warm:
            return
        _warm.add(spark.sparkContext)
    threading.Thread(target=_count_nothing, args=(spark,), name="pulsar-ray first read", daemon=True).start()


def _count_nothing(spark: SparkSession) -> None:
    try:
        nothing = ipc_stream(pa.RecordBatch.from_pylist([], schema=BLOCK_SCHEMA))
        tasks = min(spark.sparkContext.defaultParallelism, _MAX_TASKS)
        blocks = [ray.put(nothing) for _ in range(tasks)]
        as_messages(frame_of_blocks(spark, blocks, block_struct()), ()).count()
    except Exception as error:  # noqa: BLE001 - of a session or a Ray that ends; reads raise their own
        _log.debug("executors were not prepared for the first read: %s", error)
