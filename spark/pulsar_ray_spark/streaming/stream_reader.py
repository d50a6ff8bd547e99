"""Start a query on topics."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.clock import SystemClock
from pulsar_ray.data.planning.broker_planner import BrokerPlanner
from pulsar_ray.data.planning.plan import Bound, BoundArgument, ReadRange, Topics, as_bound, as_topics
from pulsar_ray.data.reading.block_schema import as_columns
from pulsar_ray.data.reading.topic_versions import typed_topics, whole_topics
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray_spark.rounds.plan_log import check_name
from pulsar_ray_spark.rounds.topic_source import TopicSource, full_names
from pulsar_ray_spark.running import check_session
from pulsar_ray_spark.streaming.batch_limits import BatchLimits
from pulsar_ray_spark.streaming.batch_runner import BatchRunner
from pulsar_ray_spark.streaming.micro_batches import MicroBatches
from pulsar_ray_spark.streaming.planned_batch import QueryIdentity
from pulsar_ray_spark.streaming.query import StreamingQuery, Trigger
from pulsar_ray_spark.streaming.query_topics import QueryTopics, open_plans, subscription_of
from pulsar_ray_spark.value_form import AS_STORED, Bytes, Mode, ValueForm, as_value_form

_AT_ONCE = Trigger()


@dataclass(frozen=True)
class StreamReader:
    """A query that is not started yet; each method returns another one."""

    spark: SparkSession
    name: str
    topics: Topics
    first: Bound
    columns: tuple[str, ...]
    limits: BatchLimits
    fail_on_data_loss: bool
    service_url: str
    values: ValueForm = AS_STORED
    function: Callable[[DataFrame, int], Any] | None = None
    when: Trigger = _AT_ONCE
    is_typed: bool = False

    def foreach_batch(self, function: Callable[[DataFrame, int], Any]) -> StreamReader:
        """Have `function(frame, batch_id)` called with each batch.

        The frame has columns of MESSAGE_SCHEMA, and loses its rows when the function returns. After a crash
        the same rows come under the same batch id, so that a sink that stores the id with its output, or
        names its output by it, has each message once.
        """
        if not callable(function):
            raise InvalidConfiguration(
                f"foreach_batch({function!r}): give a function of a DataFrame and an id"
            )
        return replace(self, function=function)

    def trigger(
        self,
        *,
        processing_time: str | float | timedelta | None = None,
        once: bool | None = None,
        available_now: bool | None = None,
    ) -> StreamReader:
        """Say when batches run; without, as soon as there are messages.

        `processing_time` ("10 seconds", a timedelta, or seconds): at multiples of it, at once if the former
        batch took longer. `available_now`: all messages stored at the start, in batches within the limits.
        `once`: these in one batch, whatever the limits, behind a batch that a crash has left.
        """
        return replace(self, when=Trigger.from_arguments(processing_time, once, available_now))

    def start(self) -> StreamingQuery:
        """Start the query on a thread.

        Raises QueryInUse, QueryMismatch, SparkStopped, SparkNotUsable, TopicNotFound and what the client
        raises.
        """
        if self.function is None:
            raise InvalidConfiguration("nothing is to be done with the batches: give foreach_batch(function)")
        check_session(self.spark)
        clock = SystemClock()
        with ExitStack() as opened:
            client = opened.enter_context(Client(self.service_url))
            admin = opened.enter_context(Admin(self.service_url))
            log = opened.enter_context(open_plans(client, admin, self.name))
            source = TopicSource(
                admin,
                self.topics,
                subscription_of(self.name),
                fail_on_data_loss=self.fail_on_data_loss,
            )
            planner = BrokerPlanner.on(admin.cluster)
            topics = QueryTopics(admin, source, planner, may_lose=not self.fail_on_data_loss)
            values, values_of = self.values, None
            if self.is_typed:
                names = whole_topics(source.partitions(), ())
                values = replace(values, typed=typed_topics(admin, names))
                values_of = partial(_with_versions, admin, values)
            runner = BatchRunner(self.spark, topics, self.columns, values, self.function, values_of)
            identity = QueryIdentity(self.name, str(uuid.uuid4()), full_names(self.topics))
            batches = MicroBatches(identity, topics, log, runner.run, self.limits, clock)
            batches.begin(self.first)
            return StreamingQuery(batches, runner, self.when, clock, opened.pop_all().close)


def read_stream(
    spark: SparkSession,
    topics: str | Topics,
    *,
    name: str,
    start: BoundArgument = "latest",
    columns: Sequence[str] | None = None,
    key_type: Bytes = "string",
    value_type: Bytes = "binary",
    schema: StructType | str | None = None,
    avro_schema: str | None = None,
    read_compacted: bool = False,
    typed: bool = False,
    mode: Mode = "permissive",
    max_messages_per_trigger: int | None = None,
    max_bytes_per_trigger: int | None = None,
    fail_on_data_loss: bool = True,
    service_url: str = "auto",
) -> StreamReader:
    """Read topics as a stream of micro-batches: DataFrames with ids.

    `topics` is a name, a list of names or a compiled pattern; partitions and topics that come later are taken
    from their start. Under a known `name` the query goes on where it was; `start` counts for a new name.
    Frames have `columns` of MESSAGE_SCHEMA (None: all), with keys and values of the types that `key_type`,
    `value_type`, `schema`, `avro_schema` and `mode` say, as in `read`; values that do not fit in mode "fail"
    end the query with SchemaMismatch before the function has their batch. With `typed` the columns are those
    of the newest schema when the query starts; later versions are read as that one. A batch has up to
    `max_messages_per_trigger` messages and `max_bytes_per_trigger` bytes as they are stored, spread over
    partitions, but at least one message.

    A batch's ranges are stored at the broker before it runs, and its positions behind it, so that after a
    crash of anything the same rows come under the same id. The durable subscription `spark-<name>` keeps
    messages until their batch is done, and shows the backlog; `drop_query` deletes it. Ranges that were
    trimmed all the same, and listed topics that were deleted, end the query with DataLost unless
    `fail_on_data_loss` is off.

    A stream has every message: with `read_compacted` it is refused.

    Raises InvalidConfiguration, and `start()` what it says.
    """
    check_name(name)
    if read_compacted:
        raise InvalidConfiguration(
            "read_compacted=True: a stream cannot take back what it has given of a key. Read the table of "
            "all keys by read(..., read_compacted=True), and keep it up to date by a stream of every message"
        )
    wanted = as_columns(columns)
    values = as_value_form(spark, key_type, value_type, schema, avro_schema, mode, is_typed=typed)
    values.columns_to_read(wanted)
    if typed and "value" not in wanted:
        raise InvalidConfiguration(
            f"columns={list(wanted)} has no 'value', and typed=True: name it, or leave typed out"
        )
    return StreamReader(
        spark,
        name,
        as_topics(topics),
        as_bound(start, time.time_ns() // 1_000_000),
        wanted,
        BatchLimits(max_messages_per_trigger, max_bytes_per_trigger),
        fail_on_data_loss,
        service_url,
        values,
        is_typed=typed,
    )


def _with_versions(admin: Admin, values: ValueForm, ranges: Sequence[ReadRange]) -> ValueForm:
    """Return the form with the versions that producers have registered by now."""
    if values.typed is None:
        return values
    topics = whole_topics([each.topic for each in ranges], ())
    return replace(values, typed=values.typed.with_versions_of(admin, topics))
