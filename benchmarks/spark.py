"""Spark's count and sum over a topic, against a table of the same columns handed to RayDP directly."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import pyarrow as pa
import ray

from benchmarks.environment import Broker, Environment, Skipped
from benchmarks.measure import alternate, p50, rate
from benchmarks.results import Row

MESSAGES = 2_000_000
MESSAGE = b"x" * 100
ROUNDS = 4
BLOCK_ROWS = 40_000


def run(env: Environment) -> list[Row]:
    """Ours and the table take turns on one executor, after a first round that starts readers."""
    for package in ("pyspark", "raydp"):
        if importlib.util.find_spec(package) is None:
            raise Skipped(f"{package} is not installed")
    import pulsar_ray_spark  # noqa: PLC0415 - only where Spark is installed

    messages = env.count(MESSAGES, 20_000) // 1000 * 1000
    with env.broker() as broker:
        topic = broker.topic()
        _publish(broker, topic, messages)
        spark = pulsar_ray_spark.start("bench", executor_cores=2, executor_memory="2g")
        try:
            return [_row(spark, topic, messages)]
        finally:
            pulsar_ray_spark.stop()


def _publish(broker: Broker, topic: str, messages: int) -> None:
    producer = broker.client.create_producer(topic, batching_enabled=True)
    values = [MESSAGE] * 1000
    for _ in range(messages // 1000):
        producer.send_many_async(values, None)
    producer.flush()
    producer.close()


def _row(spark: Any, topic: str, messages: int) -> Row:
    from raydp.spark.dataset import ray_dataset_to_spark_dataframe  # noqa: PLC0415

    import pulsar_ray_spark  # noqa: PLC0415

    table = _same_table(topic, messages)

    def count_and_sum(frame: Any) -> None:
        (row,) = frame.selectExpr("count(*)", "sum(length(value))").collect()
        assert tuple(row) == (messages, messages * len(MESSAGE))

    def ours() -> None:
        with pulsar_ray_spark.releasing(pulsar_ray_spark.read(spark, topic)) as frame:
            count_and_sum(frame)

    def direct() -> None:
        blocks = [ray.put(_ipc_stream(batch)) for batch in table.to_batches(BLOCK_ROWS)]
        count_and_sum(ray_dataset_to_spark_dataframe(spark, table.schema, blocks))

    began = time.perf_counter()
    ours()
    first = time.perf_counter() - began
    times = alternate({"ours": ours, "direct": direct}, ROUNDS)
    mine, theirs = p50(times["ours"]), p50(times["direct"])
    return Row(
        f"Spark count + sum over {messages:,} messages of 100 B",
        rate(messages, mine),
        f"the same columns as a table {rate(messages, theirs)}",
        theirs / mine,
        0.8,
        note=f"the first read {rate(messages, first)}",
    )


def _same_table(topic: str, messages: int) -> pa.Table:
    """Make the table that `read` gives, without a broker."""
    properties = pa.map_(pa.utf8(), pa.utf8())
    time_type = pa.timestamp("us", tz="UTC")

    def chunk(first: int) -> pa.RecordBatch:
        rows = min(BLOCK_ROWS, messages - first)
        numbers = pa.array(range(first, first + rows), pa.int64())
        same = {
            "value": pa.scalar(MESSAGE, pa.binary()),
            "topic": pa.scalar(topic),
            "partition": pa.scalar(-1, pa.int32()),
            "ledger_id": pa.scalar(1 << 31, pa.int64()),
            "batch_index": pa.scalar(0, pa.int32()),
            "publish_time": pa.scalar(1_700_000_000_000_000, time_type),
            "producer_name": pa.scalar("pulsar-ray-1-1-1"),
            "redelivery_count": pa.scalar(0, pa.int32()),
        }
        columns = {
            "key": pa.nulls(rows, pa.utf8()),
            "ordering_key": pa.nulls(rows, pa.utf8()),
            "properties": pa.array([{}] * rows, properties),
            "entry_id": numbers,
            "event_time": pa.nulls(rows, time_type),
            "sequence_id": numbers,
            "schema_version": pa.nulls(rows, pa.binary()),
        } | {name: pa.repeat(value, rows) for name, value in same.items()}
        return pa.RecordBatch.from_pydict(columns)

    return pa.Table.from_batches([chunk(first) for first in range(0, messages, BLOCK_ROWS)])


def _ipc_stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream
