"""DataFrames as messages of a topic, at least once or, under a name, exactly once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from pulsar_ray.client.options.checks import check_enum, check_number
from pulsar_ray.client.options.schema import Schema
from pulsar_ray.data.writing.publishers import PUBLISHERS, Connection
from pulsar_ray.data.writing.publishing import NamedWrite, Part, Sending
from pulsar_ray.data.writing.query_batch import MAX_TASKS, QueryBatch
from pulsar_ray.data.writing.row_schema import KINDS, row_schema
from pulsar_ray.data.writing.write_target import WriteTarget
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.enums import CompressionType, HashingScheme
from pulsar_ray.model.topic_schema import TopicSchema
from pulsar_ray_spark.executor_blocks import (
    ExecutorBlocks,
    MessageRows,
    blocks_to_begin_with,
    executor_blocks,
)
from pulsar_ray_spark.running import check_session, naming_a_stop
from pulsar_ray_spark.sent_columns import (
    IF_PRESENT,
    ColumnArgument,
    in_repeatable_order,
    in_smaller_parts,
    message_columns,
)


class Written(NamedTuple):
    """How many messages a write has, and how many an earlier run had stored."""

    messages: int
    repeated: int

    @property
    def stored(self) -> int:
        """How many messages this write itself stored."""
        return self.messages - self.repeated


def write(
    frame: DataFrame,
    topic: str,
    *,
    value: ColumnArgument = IF_PRESENT,
    key: ColumnArgument = IF_PRESENT,
    properties: ColumnArgument = IF_PRESENT,
    ordering_key: ColumnArgument = IF_PRESENT,
    event_time: ColumnArgument = IF_PRESENT,
    schema: Schema | TopicSchema | str | None = None,
    name: str | None = None,
    batch_id: int | None = None,
    tasks: int | None = None,
    hashing_scheme: HashingScheme = HashingScheme.JavaStringHash,
    compression_type: CompressionType = CompressionType.NONE,
    service_url: str = "auto",
    data_dir: str | os.PathLike[str] | None = None,
) -> Written:
    """Publish the rows of a DataFrame, each a message, and wait until all are durable.

    Columns are names or Column expressions; left out, the column of that name is taken if there is one, and
    None sends nothing. `value` is binary or string, null a tombstone; `key` and `ordering_key` string or
    binary, null for none; `properties` map<string,string>; `event_time` a timestamp, or ms since 1970 as an
    integer. Executors compute the rows and Ray actors publish them, up to one for each CPU; the driver gets
    counts only. A keyed row goes to the partition of its key's hash, as from every other producer.

    `schema` is "avro", "json" or "arrow": values are rows then, `value` a struct, or, left out, all columns
    but those that the others take by their own names. The topic gets the schema of these columns, and refuses
    it before a row is written. A schema of `pulsar_ray.schema` is one that values are payloads of, as topics
    need it that refuse producers without one.

    With `name` and `batch_id` exactly once: however often the batch is written, after whatever crash, with
    other `tasks` or on a topic that has grown meanwhile, each of its rows is stored once. It rests on the
    topic's deduplication, which is turned on, on a DataFrame that has the same rows each time, and on
    batch ids that rise. Rows are then divided by key among `tasks` (as many as Spark has cores, and more
    for a large batch) and sorted by event time, key and all else, and so stored, per key and task. Without
    `name` at least once: a publisher that dies sends its part again, and a part of a write that raises may
    be stored. The order of each partition of the DataFrame is then kept, or of each key in it where
    partitions are too large for an executor to hand over and are divided.

    Raises InvalidConfiguration for a wrong column, schema, name or batch, IncompatibleSchema,
    NotAllowedError for a batch behind a later one, SparkStopped, SparkNotUsable, ServiceUnitNotReady if no
    executor is left, ProducerBusy if the same batch is being written elsewhere, and the client's own errors;
    a named batch may be written again after any of them.
    """
    spark = _session_of(frame)
    batch = _batch(name, batch_id)
    check_enum("hashing_scheme", hashing_scheme, HashingScheme)
    check_enum("compression_type", compression_type, CompressionType)
    if tasks is not None:
        check_number("tasks", tasks, 1, MAX_TASKS)
    arguments = {
        "value": value,
        "key": key,
        "properties": properties,
        "ordering_key": ordering_key,
        "event_time": event_time,
    }
    messages = message_columns(frame, arguments, has_rows=isinstance(schema, str) and schema in KINDS)
    rows = row_schema(schema, to_arrow_type(messages.schema["value"].dataType))
    if batch is not None and rows is not None and rows.kind and _has_map(messages.schema["value"].dataType):
        raise InvalidConfiguration(
            "a write with a name sorts rows, and Spark sorts no maps: make arrays of them, by map_entries()"
        )
    connection = Connection(service_url, None if data_dir is None else os.fspath(data_dir))
    sending = Sending(hashing_scheme, compression_type, rows)
    with WriteTarget.connected(topic, connection) as target, naming_a_stop(spark):
        target.register(rows)
        if batch is None:
            target.create()
            chosen = messages if tasks is None else messages.repartition(tasks)
            with executor_blocks(chosen) as computed:
                if tasks or computed.blocks_wanted == len(computed.blocks):
                    return _summary(_publish(computed, topic, sending, connection, None))
                wanted = min(MAX_TASKS, computed.blocks_wanted)
            with executor_blocks(in_smaller_parts(messages, wanted)) as computed:
                return _summary(_publish(computed, topic, sending, connection, None))
        with (
            target.taken(batch.query, rows),
            _computed(target, batch, messages, tasks, hashing_scheme) as divided,
        ):
            named, computed = divided
            counts = _publish(computed, topic, sending, connection, named)
            if any(counts):
                target.end(named)
        return _summary(counts, named)


@contextmanager
def _computed(
    target: WriteTarget, batch: QueryBatch, messages: DataFrame, tasks: int | None, scheme: HashingScheme
) -> Iterator[tuple[NamedWrite, ExecutorBlocks]]:
    """Have Spark divide and sort a batch.

    A batch that was begun is divided as it was then; else, where the caller leaves that open, anew if its
    pieces turn out to be too large.
    """
    wanted = min(MAX_TASKS, tasks or blocks_to_begin_with(messages))
    while True:
        named = target.begin(batch, wanted, scheme)
        with executor_blocks(in_repeatable_order(messages, named.layout.tasks)) as computed:
            better = wanted if tasks else min(MAX_TASKS, computed.blocks_wanted)
            if better <= wanted or named.layout.tasks != wanted:
                # That took its time: publishers of a run that was killed may have begun the batch meanwhile.
                begun = target.begin(batch, wanted, scheme)
                if begun.layout == named.layout:
                    yield begun, computed
                    return
        wanted = better


def forget_writes(
    topic: str, name: str, *, service_url: str = "auto", data_dir: str | os.PathLike[str] | None = None
) -> int:
    """Forget the names of a query's producers, and return their number.

    For a query that will not run again: its names are kept until then. A batch that is written again
    afterwards is stored again. Raises TopicNotFound, WrongNode if a partition is away.
    """
    connection = Connection(service_url, None if data_dir is None else os.fspath(data_dir))
    with WriteTarget.connected(topic, connection) as target:
        return len(target.forget(name))


def _session_of(frame: object) -> SparkSession:
    if not isinstance(frame, DataFrame):
        raise InvalidConfiguration(
            f"a {type(frame).__module__}.{type(frame).__name__} is no DataFrame of Spark: give one first, as "
            "spark.createDataFrame(rows), and the topic behind it"
        )
    return check_session(frame.sparkSession)


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind)
    return isinstance(kind, MapType) or (isinstance(kind, ArrayType) and _has_map(kind.elementType))


def _batch(name: str | None, batch_id: int | None) -> QueryBatch | None:
    if name is None and batch_id is None:
        return None
    if name is None or batch_id is None:
        raise InvalidConfiguration(
            f"name={name!r} and batch_id={batch_id!r} belong together: with both each row is stored once, "
            "with neither at least once"
        )
    return QueryBatch.checked(name, batch_id)


def _publish(
    computed: ExecutorBlocks, topic: str, sending: Sending, connection: Connection, named: NamedWrite | None
) -> list[dict[int, int]]:
    rows = [MessageRows(block) for block in computed.blocks]
    parts = [Part(task, each, topic, sending, named) for task, each in enumerate(rows)]
    return PUBLISHERS.publish(parts, connection)


def _summary(counts: list[dict[int, int]], named: NamedWrite | None = None) -> Written:
    messages = sum(rows for of_task in counts for rows in of_task.values())
    if named is None:
        return Written(messages, 0)
    repeated = sum(
        min(rows, named.rows_stored(task, index))
        for task, of_task in enumerate(counts)
        for index, rows in of_task.items()
    )
    return Written(messages, repeated)
