"""Spark's columns of typed topics, against text of JSON that Spark parses with from_json."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import alternate, p50, rate
from benchmarks.measuring.results import Row
from benchmarks.on_spark.sessions import check_installed, session
from pulsar_ray.data.writing.row_schema import row_schema

MESSAGES = 1_000_000
ROUNDS = 3
AT_ONCE = 50_000
ROWS = pa.struct(
    [
        ("id", pa.int64()),
        ("item", pa.utf8()),
        ("count", pa.int32()),
        ("price", pa.float64()),
        ("paid", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.utf8())),
    ]
)
# Times are numbers in JSON.
DDL = "id BIGINT, item STRING, count INT, price DOUBLE, paid BOOLEAN, at BIGINT, tags ARRAY<STRING>"
FLOORS = {"arrow": 3.0}
"""How much faster than from_json a form is to be, where there is a floor."""


def run(env: Environment) -> list[Row]:
    """All works take turns in one session."""
    check_installed()
    with env.broker() as broker, session() as spark:
        count = env.count(MESSAGES, 20_000) // 1000 * 1000
        topics = {kind: _published(broker, kind, count) for kind in ("json", "avro", "arrow")}
        works = {kind: _typed(spark, topic, count) for kind, topic in topics.items()}
        works["from_json"] = _parsed(spark, topics["json"], count)
        times = alternate(works, ROUNDS)
    theirs = p50(times["from_json"])
    return [
        Row(
            f"typed columns, {kind}, {count:,} rows of seven columns",
            rate(count, p50(times[kind])),
            f"bytes of JSON and from_json {rate(count, theirs)}",
            theirs / p50(times[kind]),
            FLOORS.get(kind),
        )
        for kind in topics
    ]


def _published(broker: Broker, kind: str, count: int) -> str:
    topic = broker.topic()
    schema = row_schema(kind, ROWS)
    assert schema is not None
    producer = broker.client.create_producer(topic, schema=schema.schema())
    for first in range(0, count, AT_ONCE):
        values = pa.array([_row(number) for number in range(first, min(first + AT_ONCE, count))], ROWS)
        table = schema.made(pa.table({"value": values}))
        for batch in table.to_batches():
            producer.send_arrow(schema.sent(batch))
    producer.close()
    return topic


def _row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "item": f"item {number % 1000}",
        "count": number % 7,
        "price": number * 0.25,
        "paid": number % 3 == 0,
        "at": 1_700_000_000_000_000 + number,
        "tags": ["new", f"t{number % 10}"],
    }


def _typed(spark: Any, topic: str, count: int) -> Any:
    import pulsar_ray_spark  # noqa: PLC0415 - only where Spark is installed

    def work() -> None:
        read = pulsar_ray_spark.read(spark, topic, columns=["value"], typed=True)
        with pulsar_ray_spark.releasing(read) as frame:
            _look_at_all(frame, count)

    return work


def _parsed(spark: Any, topic: str, count: int) -> Any:
    from pyspark.sql import functions  # noqa: PLC0415

    import pulsar_ray_spark  # noqa: PLC0415

    def work() -> None:
        with pulsar_ray_spark.releasing(pulsar_ray_spark.read(spark, topic, columns=["value"])) as frame:
            parsed = functions.from_json(frame["value"].cast("string"), DDL)
            _look_at_all(frame.select(parsed.alias("value")), count)

    return work


def _look_at_all(frame: Any, count: int) -> None:
    (row,) = frame.selectExpr("value.*").selectExpr("count(id)", "sum(hash(*))").collect()
    assert row[0] == count
