"""A topic as a DataFrame of its keys, typed and not, compacted and not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from pyspark.sql import SparkSession

from pulsar_ray import Client
from pulsar_ray.admin.admin import Admin
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.schema import ArrowSchema, JsonSchema
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray_spark import read, read_stream, releasing

WAIT_S = 60.0


@dataclass
class Price:
    amount: int = 0


@dataclass
class NewPrice:
    amount: int = 0
    currency: str = "EUR"


def compact(topic: str) -> None:
    with Admin() as admin:
        admin.topics.compact(topic)
        wait_until(
            lambda: admin.topics.compaction_status(topic)["status"] == "SUCCESS", WAIT_S, "the compaction"
        )


def table(spark: SparkSession, topic: str) -> list[tuple[object, ...]]:
    with releasing(read(spark, topic, columns=["key", "value"], read_compacted=True)) as frame:
        return sorted((row["key"], bytes(row["value"])) for row in frame.collect())


def test_it_has_one_row_for_each_key(spark: SparkSession, client: Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send_many([b"%d" % n for n in range(3000)], partition_keys=[f"k{n % 1000}" for n in range(3000)])
    producer.send(b"no key")
    expected = sorted((f"k{n % 1000}", b"%d" % n) for n in range(2000, 3000))
    assert table(spark, topic) == expected
    compact(topic)
    assert table(spark, topic) == expected
    producer.send(b"new", partition_key="k7")
    producer.send(None, partition_key="k8")
    rest = {**dict(expected), "k7": b"new"}
    del rest["k8"]
    assert table(spark, topic) == sorted(rest.items())
    with pytest.raises(InvalidConfiguration, match="no start and no end"):
        read(spark, topic, "latest", read_compacted=True)
    with pytest.raises(InvalidConfiguration, match="is not persistent"):
        read(spark, f"non-persistent://public/default/{topic}", read_compacted=True)
    with pytest.raises(InvalidConfiguration, match="a stream cannot take back"):
        read_stream(spark, topic, name="of-a-table", read_compacted=True)


@pytest.mark.long
@pytest.mark.parametrize("form", [JsonSchema, ArrowSchema])
def test_values_are_columns_by_the_version_that_wrote_them(
    spark: SparkSession, client: Client, topic: str, form: type[JsonSchema | ArrowSchema]
) -> None:
    old = client.create_producer(topic, schema=form(Price), batching_enabled=True)
    for number in range(6):
        old.send_async(Price(number), None, partition_key=f"k{number % 4}")
    old.flush()
    compact(topic)
    new = client.create_producer(topic, schema=form(NewPrice))
    new.send(NewPrice(9, "USD"), partition_key="k3")
    new.send(None, partition_key="k2")
    with releasing(read(spark, topic, read_compacted=True, typed=True)) as frame:
        rows = [(row["key"], *row["value"]) for row in frame.select("key", "value").collect()]
    default = "EUR" if form is JsonSchema else None
    assert sorted(rows) == [("k0", 4, default), ("k1", 5, default), ("k3", 9, "USD")]
