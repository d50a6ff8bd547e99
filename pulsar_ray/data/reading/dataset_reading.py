"""Ranges of topics as Ray Datasets."""

from __future__ import annotations

import pickle
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import ray.data
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.arrow.received_table import TABLE_SCHEMA
from pulsar_ray.data.full_store import NamingFullStores
from pulsar_ray.data.planning.broker_planner import BrokerPlanner
from pulsar_ray.data.planning.lease_keeper import RangeHold
from pulsar_ray.data.planning.plan import (
    BoundArgument,
    ReadRange,
    Topics,
    as_bound,
    as_topics,
    check_nothing_lost,
)
from pulsar_ray.data.reading.avro_values import CORRUPT_COLUMN
from pulsar_ray.data.reading.block_schema import MESSAGE_COLUMNS, as_columns, block_columns
from pulsar_ray.data.reading.rows import BLOCK_BYTES, check_block_bytes, message_batches
from pulsar_ray.data.reading.segments import stored_rows
from pulsar_ray.data.reading.table_ranges import check_whole_log, table_ranges
from pulsar_ray.data.reading.topic_versions import TypedTopics, typed_topics, whole_topics
from pulsar_ray.data.reading.typed_values import REASON_COLUMN, typed_batches
from pulsar_ray.errors import InvalidConfiguration, SchemaSerializationException

Mode = Literal["permissive", "drop", "fail"]
_RANGE = "range"
_STRATEGY: Any = getattr(ray.data, "TaskPoolStrategy", object)
_FIRST_RAY_WITH_STRATEGIES = (2, 51)
"""Before it `map_batches` warns of each strategy that it is given."""


class _TaskHold:
    """A Dataset's hold, as the function of its tasks keeps it while they run.

    Pickled, as for each task, it is empty.
    """

    def __init__(self, hold: RangeHold | None = None) -> None:
        self._hold = hold

    def __reduce__(self) -> tuple[type[_TaskHold], tuple[()]]:
        return _TaskHold, ()


class _HoldingStrategy(_STRATEGY):  # type: ignore[misc]
    """Tasks of any number, as by default, and the hold of a Dataset.

    Ray Data has it with the Dataset and with all that are made from it, in all processes that these are
    handed to, and tasks get nothing of it.
    """

    def __init__(self, hold: RangeHold) -> None:
        super().__init__()
        self._hold = hold


_HOLDS: weakref.WeakKeyDictionary[ray.data.Dataset, RangeHold] = weakref.WeakKeyDictionary()


def read(
    topic: str | Topics,
    start: BoundArgument = "earliest",
    end: BoundArgument = "latest",
    *,
    columns: Sequence[str] | None = None,
    read_compacted: bool = False,
    typed: bool = False,
    mode: Mode = "permissive",
    fail_on_data_loss: bool = True,
    block_bytes: int = BLOCK_BYTES,
    num_cpus: float = 1,
    service_url: str = "auto",
) -> ray.data.Dataset:
    """Read a range of topics or partitions as a Ray Dataset of Arrow blocks.

    `topic` is a name, a list of names, or a compiled pattern as `Client.subscribe` takes it. The Dataset has
    `columns` of a received table (None: all); others are neither decoded nor moved. `start` is inclusive,
    `end` exclusive: "earliest", "latest", a message id or one per partition, a datetime, a timedelta before
    now, AtTime or AtSubscription. Both are fixed in this call, and so are the rows, however often and late
    the Dataset is computed.

    With `read_compacted` it is the table of a topic's keys: the latest message of each key of a partition,
    in the order of the log, and nothing of a key whose latest message has no payload. Messages without a key
    are left out, unless the topic's `topic_compaction_retain_null_key` says otherwise. Whether the topic was
    compacted makes no difference to the rows. All keys are read before this returns; there is no `start` and
    no `end` then.

    With `typed` values are columns of the topic's newest schema, a struct, each read by the version that
    wrote it. A value that does not fit is null in `mode` "permissive", its bytes and the reason stand in
    `_corrupt_record` and `_corrupt_reason` then; "drop" leaves its row out; "fail" raises
    SchemaSerializationException when it is computed. The values of topics without a schema stay bytes.

    The Dataset is lazy. Each task, of `num_cpus`, reads some 32 MiB, in blocks of about `block_bytes`: where
    it runs, or else on the node that has the files, verified and decoded before they move. Rows keep the
    order of each partition's log within a task; Ray Data keeps that of tasks with `preserve_order`. The
    broker keeps the range until the Dataset and all that are made from it are garbage, in all processes that
    have them (before Ray 2.51 in this one), or `release` is called. It keeps it for an hour longer after a
    crash, or if a Dataset was handed to another process.

    Raises InvalidConfiguration for a wrong bound, column or size, TopicNotFound, DataLost if messages from
    `start`, an id, on are trimmed (with `fail_on_data_loss=False` what is left is read), and the client's own
    errors. Errors of tasks, as CorruptData and WrongNode, come as Ray Data raises them when it computes.
    """
    topics, wanted = as_topics(topic), as_columns(columns)
    if mode not in ("permissive", "drop", "fail"):
        raise InvalidConfiguration(f"mode={mode!r}: give 'permissive', 'drop' or 'fail'")
    if typed and "value" not in wanted:
        raise InvalidConfiguration(
            f"columns={list(wanted)} has no 'value', and typed=True: name it, or leave typed out"
        )
    check_block_bytes(block_bytes)
    now_ms = time.time_ns() // 1_000_000
    first, last = as_bound(start, now_ms), as_bound(end, now_ms)
    if read_compacted:
        check_whole_log(first, last)
        tables, leases = BrokerPlanner(service_url).held_tables(topics)
        hold = RangeHold(leases)
        ranges: Sequence[ReadRange] = table_ranges(tables)
    else:
        plan, leases = BrokerPlanner(service_url).held_plan(topics, first, last)
        hold = RangeHold(leases)
        if fail_on_data_loss:
            check_nothing_lost(plan.lost)
        ranges = plan.ranges
    values = None
    if typed:
        with Admin(service_url) as admin:
            found = typed_topics(admin, whole_topics(topics, ranges))
        values = None if found is None else _ValueColumns(found, mode)
    if not ranges:
        hold.give_back()
        return ray.data.from_arrow(table_schema_of(wanted, values).empty_table())
    # A block, and so a task, for each range.
    blocks = [pa.table({_RANGE: pa.array([pickle.dumps(each)], pa.binary())}) for each in ranges]
    dataset = ray.data.from_arrow(blocks).map_batches(
        _reading(wanted, block_bytes, _TaskHold(hold), values),
        batch_size=None,
        batch_format="pyarrow",
        num_cpus=num_cpus,
        compute=_HoldingStrategy(hold) if takes_strategies(ray.__version__) else None,
    )
    _HOLDS[dataset] = hold
    return dataset


def takes_strategies(ray_version: str) -> bool:
    """Whether Datasets of this Ray hold their ranges in all processes that have them."""
    major, minor = ray_version.split(".")[:2]
    return (int(major), int(minor)) >= _FIRST_RAY_WITH_STRATEGIES


def release(dataset: ray.data.Dataset) -> None:
    """Give up the range under a Dataset of `read`, which this process has read.

    Rows that were not computed by then may be gone, in other processes too.

    Does nothing for others and the second time.
    """
    hold = _HOLDS.pop(dataset, None)
    if hold is not None:
        hold.give_back()


def _reading(
    columns: tuple[str, ...], block_bytes: int, hold: _TaskHold, values: _ValueColumns | None = None
) -> Callable[[pa.Table], Iterator[pa.Table]]:
    """The function of the tasks, which keeps `hold` as Ray Data keeps the function."""

    def read_ranges(ranges: pa.Table) -> Iterator[pa.Table]:
        assert hold is not None
        yield table_schema_of(columns, values).empty_table()
        for pickled in ranges.column(_RANGE).to_pylist():
            read_range: ReadRange = pickle.loads(pickled)
            if read_range.node_id == ray.get_runtime_context().get_node_id():
                yield from _tables(read_range, columns, block_bytes, values)
            else:
                yield from _fetched(read_range, columns, block_bytes, values)

    return read_ranges


def _tables(
    read_range: ReadRange, columns: tuple[str, ...], block_bytes: int, values: _ValueColumns | None = None
) -> Iterator[pa.Table]:
    rows = stored_rows(read_range)
    if values is not None:
        placed = (
            *columns,
            *(name for name in ("ledger_id", "entry_id", "batch_index") if name not in columns),
        )
        typed = values.topics.of(read_range.topic)
        for batch in typed_batches(rows, 0, block_bytes, block_columns(placed), typed):
            yield values.table(batch, read_range, columns)
        return
    for batch in message_batches(rows, 0, block_bytes, block_columns(columns)):
        yield message_table(batch, read_range.topic, read_range.partition, columns)


# Made once: Ray keeps each of its functions for as long as the job lasts.
_READ_TABLES: Any = ray.remote(_tables)


def _fetched(
    read_range: ReadRange, columns: tuple[str, ...], block_bytes: int, values: _ValueColumns | None
) -> Iterator[pa.Table]:
    """Read a range on the node that has its files.

    Ray Data places its own tasks as it likes. Without that node the reading starts elsewhere, and says that
    the files are not there.
    """
    placement = NodeAffinitySchedulingStrategy(read_range.node_id, soft=True)
    reading = _READ_TABLES.options(
        num_cpus=0, num_returns="streaming", scheduling_strategy=placement, name="pulsar_ray.data.read"
    )
    for block in reading.remote(read_range, columns, block_bytes, values):
        with NamingFullStores(f"reading {read_range.topic}", "read fewer columns or smaller block_bytes"):
            table = ray.get(block)
        yield table


def table_schema_of(
    columns: Sequence[str] = MESSAGE_COLUMNS, values: _ValueColumns | None = None
) -> pa.Schema:
    """The part of TABLE_SCHEMA that has these columns, in their order."""
    fields = [TABLE_SCHEMA.field(name) for name in columns]
    if values is None:
        return pa.schema(fields)
    typed = [pa.field("value", values.topics.type) if each.name == "value" else each for each in fields]
    return pa.schema([*typed, *values.added])


@dataclass(frozen=True)
class _ValueColumns:
    """The columns of values, and what becomes of those that do not fit."""

    topics: TypedTopics
    mode: Mode

    @property
    def added(self) -> list[pa.Field]:
        """The columns of values that do not fit."""
        if self.mode != "permissive":
            return []
        return [pa.field(CORRUPT_COLUMN, pa.binary()), pa.field(REASON_COLUMN, pa.utf8())]

    def table(self, batch: pa.RecordBatch, read_range: ReadRange, columns: Sequence[str]) -> pa.Table:
        """Make a table of a typed batch. Raises SchemaSerializationException in mode "fail"."""
        reasons = batch.column(REASON_COLUMN)
        if self.mode == "fail" and reasons.null_count < len(reasons):
            row = reasons.is_valid().index(pa.scalar(True)).as_py()
            place = ":".join(
                str(batch.column(name)[row]) for name in ("ledger_id", "entry_id", "batch_index")
            )
            raise SchemaSerializationException(
                f"the value of message {place} of {read_range.topic} does not fit the schema "
                f"({reasons[row]}): mode='permissive' keeps such values beside the others, 'drop' leaves "
                "them out"
            )
        if self.mode == "drop" and reasons.null_count < len(reasons):
            batch = batch.filter(reasons.is_null())
        made = {"topic": read_range.topic, "partition": read_range.partition, "redelivery_count": 0}
        schema, arrays = table_schema_of(columns, self), []
        for field in schema:
            if field.name in made:
                arrays.append(pa.repeat(pa.scalar(made[field.name], field.type), batch.num_rows))
            else:
                column = batch.column(field.name)
                arrays.append(column if column.type == field.type else column.cast(field.type))
        return pa.Table.from_arrays(arrays, schema=schema)


def message_table(batch: pa.RecordBatch, topic: str, partition: int, columns: Sequence[str]) -> pa.Table:
    """Make a table of a batch of `message_batches`, with these columns of TABLE_SCHEMA.

    It can be sent on by `Producer.send_arrow` as it is. A range is read past all subscriptions, so the
    redelivery count is 0.
    """
    made = {"topic": topic, "partition": partition, "redelivery_count": 0}
    schema = table_schema_of(columns)
    arrays = []
    for field in schema:
        if field.name in made:
            arrays.append(pa.repeat(pa.scalar(made[field.name], field.type), batch.num_rows))
        else:
            arrays.append(batch.column(field.name).cast(field.type))
    return pa.Table.from_arrays(arrays, schema=schema)
