"""Spark's count and sum over a topic, against a table of the same columns handed to RayDP directly."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
import ray

from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import alternate, p50, rate
from benchmarks.measuring.results import Row
from benchmarks.on_spark.sessions import check_installed, first_of_sessions, session
from pulsar_ray.data.reading.rows import BLOCK_BYTES

SMALL = (5_000_000, 100)
LARGE = (1_000_000, 1024)
ROUNDS = 5
SIX = ("key", "value", "entry_id", "publish_time", "sequence_id", "producer_name")
ALL: tuple[str, ...] = (
    *("key", "value", "ordering_key", "properties", "topic", "partition", "ledger_id", "entry_id"),
    *("batch_index", "publish_time", "event_time", "sequence_id", "producer_name", "schema_version"),
    "redelivery_count",
)


class Load(NamedTuple):
    """A topic, and the rows that are in it."""

    topic: str
    messages: int
    size: int

    @property
    def title(self) -> str:
        return f"{self.messages:,} messages of {self.size:,} B"

    @property
    def values(self) -> list[bytes]:
        """The values of 1,000 messages, which come again and again; parquet cannot make them smaller."""
        generator = random.Random(self.size)
        return [generator.randbytes(self.size) for _ in range(1000)]


def run(env: Environment) -> list[Row]:
    """Sessions with one read each, then one in which all works take turns."""
    check_installed()
    with env.broker() as broker:
        small, large = (
            published(broker, env.count(messages, 20_000) // 1000 * 1000, size)
            for messages, size in (SMALL, LARGE)
        )
        rows = [_first_reads(small)]
        with session() as spark:
            rows += [
                _warm(spark, small, ALL),
                _warm(spark, small, ("value",)),
                _warm(spark, large, ALL),
                _one_column(spark, small),
                _parquet(spark, small, env),
                _memory(spark, small, broker),
            ]
        return rows


def published(broker: Broker, messages: int, size: int) -> Load:
    """Publish a topic's messages."""
    load = Load(broker.topic(), messages, size)
    producer = broker.client.create_producer(load.topic, batching_enabled=True)
    values = load.values
    keys = [f"key-{number % 100}" for number in range(1000)]
    for _ in range(messages // 1000):
        producer.send_many_async(values, None, partition_keys=keys)
    producer.flush()
    producer.close()
    return load


def read_ours(spark: Any, load: Load, columns: Sequence[str]) -> None:
    """Read a topic and look at every row."""
    import pulsar_ray_spark  # noqa: PLC0415

    with pulsar_ray_spark.releasing(pulsar_ray_spark.read(spark, load.topic, columns=columns)) as frame:
        count_and_sum(frame, load)


def _read_table(spark: Any, table: pa.Table, load: Load) -> None:
    from raydp.spark.dataset import ray_dataset_to_spark_dataframe  # noqa: PLC0415

    blocks = [ray.put(_ipc_stream(batch)) for batch in table.to_batches()]
    count_and_sum(ray_dataset_to_spark_dataframe(spark, table.schema, blocks), load)


def count_and_sum(frame: Any, load: Load) -> None:
    """Count rows and sum the lengths of what is in the values, or in the first column."""
    column = "value" if "value" in frame.columns else frame.columns[0]
    (row,) = frame.selectExpr("count(*)", f"sum(length({column}))").collect()
    assert row[0] == load.messages
    assert column != "value" or row[1] == load.messages * load.size


def _first_reads(load: Load) -> Row:
    """Each read is the first of a session; the start of Spark is not counted."""
    table = _same_table(load, ALL)
    times = first_of_sessions(
        {
            "ours": lambda spark: read_ours(spark, load, ALL),
            "direct": lambda spark: _read_table(spark, table, load),
        }
    )
    mine, theirs = p50(times["ours"]), p50(times["direct"])
    return Row(
        f"first read of a session, {load.title}, all columns",
        rate(load.messages, mine),
        f"a table, the first too {rate(load.messages, theirs)}",
        theirs / mine,
        0.8,
    )


def _warm(spark: Any, load: Load, columns: Sequence[str]) -> Row:
    table = _same_table(load, columns)
    works = {
        "ours": lambda: read_ours(spark, load, columns),
        "direct": lambda: _read_table(spark, table, load),
    }
    times = alternate(works, ROUNDS)
    mine, theirs = p50(times["ours"]), p50(times["direct"])
    what = "all columns" if len(columns) > 1 else f"columns={list(columns)}"
    return Row(
        f"count + sum, {load.title}, {what}",
        rate(load.messages, mine),
        f"the same columns as a table {rate(load.messages, theirs)}",
        theirs / mine,
        0.9,
    )


def _one_column(spark: Any, load: Load) -> Row:
    works = {
        "one": lambda: read_ours(spark, load, ("key",)),
        "six": lambda: _read_all_of(spark, load, SIX),
    }
    times = alternate(works, ROUNDS)
    one, six = p50(times["one"]), p50(times["six"])
    return Row(
        f"one column of six, {load.title}",
        rate(load.messages, one),
        f"all six {rate(load.messages, six)}",
        one / six,
        0.4,
        at_most=True,
    )


def _read_all_of(spark: Any, load: Load, columns: Sequence[str]) -> None:
    """An action that needs every column."""
    import pulsar_ray_spark  # noqa: PLC0415

    with pulsar_ray_spark.releasing(pulsar_ray_spark.read(spark, load.topic, columns=columns)) as frame:
        assert frame.selectExpr(f"sum(hash({', '.join(columns)}))").collect()


def _parquet(spark: Any, load: Load, env: Environment) -> Row:
    with env.directory() as directory:
        path = str(directory / "rows")
        _write_parquet(load, path)
        works = {
            "ours": lambda: read_ours(spark, load, ("value",)),
            "parquet": lambda: count_and_sum(spark.read.parquet(path), load),
        }
        times = alternate(works, ROUNDS)
        shutil.rmtree(path)
    mine, theirs = p50(times["ours"]), p50(times["parquet"])
    return Row(
        f"the same rows in parquet files, {load.title}, columns=['value']",
        rate(load.messages, mine),
        f"parquet {rate(load.messages, theirs)}",
        mine / theirs,
        1.5,
        at_most=True,
        note="parquet finds out itself that it needs that column alone",
    )


def _write_parquet(load: Load, path: str) -> None:
    """Files of some tens of MB, as a landing has them."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    directory = Path(path)
    directory.mkdir()
    batches = _same_table(load, ALL).to_batches()
    for first in range(0, len(batches), 8):
        pq.write_table(
            pa.Table.from_batches(batches[first : first + 8]),
            directory / f"{first}.parquet",
            use_dictionary=False,
        )


def _memory(spark: Any, load: Load, broker: Broker) -> Row:
    """The memory of this process and its JVM after reading the topic, and a part of it."""
    part = published(broker, max(load.messages // 8 // 1000 * 1000, 1000), load.size)
    read_ours(spark, part, ALL)
    little = _driver_bytes()
    read_ours(spark, load, ALL)
    much = _driver_bytes()
    return Row(
        "the driver's memory, eight times the messages",
        f"{much / 1e6:,.0f} MB after {load.messages:,}",
        f"{little / 1e6:,.0f} MB after {part.messages:,}",
        much / little,
        1.1,
        at_most=True,
    )


def _driver_bytes() -> int:
    """Memory that only this process and its JVM have."""
    me = psutil.Process()
    jvms = [child for child in me.children() if child.name() == "java"]
    return sum(int(process.memory_full_info().uss) for process in (me, *jvms))


def _same_table(load: Load, columns: Sequence[str]) -> pa.Table:
    """Make the table that `read` gives, without a broker; blocks share the columns that are the same."""
    rows = _rows_per_block(load, columns)
    batches = []
    same: dict[int, dict[str, pa.Array]] = {}
    for first in range(0, load.messages, rows):
        count = min(rows, load.messages - first)
        if count not in same:
            same[count] = _repeated_columns(load, count)
        numbers = pa.array(range(first, first + count), pa.int64())
        arrays = same[count] | {"entry_id": numbers, "sequence_id": numbers}
        batches.append(pa.RecordBatch.from_pydict({name: arrays[name] for name in columns}))
    return pa.Table.from_batches(batches)


def _rows_per_block(load: Load, columns: Sequence[str]) -> int:
    """Rows of these columns that take as much as a block that `read` makes."""
    arrays = _repeated_columns(load, 1000) | dict.fromkeys(("entry_id", "sequence_id"), pa.array(range(1000)))
    taken: int = pa.table({name: arrays[name] for name in columns}).nbytes
    return max(1, BLOCK_BYTES * 1000 // taken)


def _repeated_columns(load: Load, count: int) -> dict[str, pa.Array]:
    properties = pa.map_(pa.utf8(), pa.utf8())
    time_type = pa.timestamp("us", tz="UTC")
    same = {
        "topic": pa.scalar(load.topic),
        "partition": pa.scalar(-1, pa.int32()),
        "ledger_id": pa.scalar(1 << 31, pa.int64()),
        "batch_index": pa.scalar(0, pa.int32()),
        "publish_time": pa.scalar(1_700_000_000_000_000, time_type),
        "producer_name": pa.scalar("pulsar-ray-1-1-1"),
        "redelivery_count": pa.scalar(0, pa.int32()),
    }
    return {
        "value": pa.array(load.values, pa.binary()).take(
            pa.array([number % 1000 for number in range(count)])
        ),
        "key": pa.array([f"key-{number % 100}" for number in range(count)]),
        "ordering_key": pa.nulls(count, pa.utf8()),
        "properties": pa.array([{}] * count, properties),
        "event_time": pa.nulls(count, time_type),
        "schema_version": pa.nulls(count, pa.binary()),
    } | {name: pa.repeat(value, count) for name, value in same.items()}


def _ipc_stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream
