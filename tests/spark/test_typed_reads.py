"""A topic with three versions of its schema, as columns of the newest one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.types import StructField, StructType

import pulsar_ray.data
from pulsar_ray import Client
from pulsar_ray.admin.admin import Admin
from pulsar_ray.errors import IncompatibleSchema, InvalidConfiguration
from pulsar_ray.schema import AvroSchema, JsonSchema, Schema, StringSchema
from pulsar_ray_spark import Written, land, read, read_landing, read_stream, releasing, write
from pulsar_ray_spark.errors import LandingMismatch, SchemaMismatch

PAID = datetime(2026, 1, 2, 3, 4, 5, 6, timezone.utc)


@dataclass
class Place:
    x: int = 0


@dataclass
class FirstOrder:
    item: str = ""
    gone: str = ""
    place: Place | None = None


@dataclass
class FarPlace:
    x: int = 0
    y: float = 0.5


@dataclass
class SecondOrder:
    item: str = ""
    count: int = 1
    place: FarPlace | None = None


@dataclass
class ThirdOrder:
    item: str = ""
    count: int = 2
    place: FarPlace | None = None
    paid: datetime | None = None
    tags: dict[str, int] | None = None


ROWS = [
    ("a", 2, (1, 0.5), None, None),
    ("b", 7, None, None, None),
    ("c", 3, (4, 5.0), PAID, {"t": 1}),
]


def send(client: Client, topic: str, schema: Schema, *values: Any) -> None:
    producer = client.create_producer(topic, schema=schema)
    for value in values:
        producer.send(value)
    producer.close()


def value_fields(frame: DataFrame) -> list[StructField]:
    """The fields of a frame's column of values."""
    kind = frame.schema["value"].dataType
    assert isinstance(kind, StructType)
    return kind.fields


def send_three_versions(client: Client, topic: str, kind: Any) -> None:
    send(client, topic, kind(FirstOrder), FirstOrder("a", "g", Place(1)))
    send(client, topic, kind(SecondOrder), SecondOrder("b", 7))
    send(client, topic, kind(ThirdOrder), ThirdOrder("c", 3, FarPlace(4, 5.0), PAID, {"t": 1}))


def rows_of(frame: DataFrame) -> list[Any]:
    fields = frame.selectExpr("value.*", "unix_micros(value.paid) AS micros")
    return [
        (
            row.item,
            row["count"],
            None if row.place is None else tuple(row.place),
            None if row.micros is None else PAID.replace(microsecond=row.micros % 1_000_000),
            row.tags,
        )
        for row in fields.collect()
    ]


@pytest.mark.long
@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_three_versions_in_one_read_are_columns_of_the_newest(
    spark: SparkSession, client: Client, topic: str, kind: Any
) -> None:
    send_three_versions(client, topic, kind)
    with releasing(read(spark, topic, columns=["value"], typed=True)) as frame:
        assert frame.columns == ["value", "_corrupt_record", "_corrupt_reason"]
        types = {field.name: field.dataType.simpleString() for field in value_fields(frame)}
        assert types == {
            "item": "string",
            "count": "bigint",
            "place": "struct<x:bigint,y:double>",
            "paid": "timestamp",
            "tags": "map<string,bigint>",
        }
        assert rows_of(frame) == ROWS
        assert frame.where("_corrupt_reason IS NOT NULL").count() == 0
    batches: list[list[Any]] = []
    query = (
        read_stream(
            spark, topic, name=f"typed-{topic}", start="earliest", columns=["value"], typed=True, mode="drop"
        )
        .foreach_batch(lambda batch, _: batches.append(rows_of(batch)))
        .trigger(available_now=True)
        .start()
    )
    query.await_termination()
    assert [row for batch in batches for row in batch] == ROWS


@pytest.mark.long
def test_values_that_do_not_fit_are_kept_left_out_or_refused(
    spark: SparkSession, client: Client, topic: str
) -> None:
    send(client, topic, JsonSchema(FirstOrder), FirstOrder("a"))
    with Admin() as admin:
        admin.schemas.upload(topic, JsonSchema(SecondOrder))
    untyped = client.create_producer(topic)
    for payload in (b"{", json.dumps({"item": "b", "count": "x"}).encode(), b'{"item": "c", "count": 4}'):
        untyped.send(payload)
    untyped.close()
    columns = ["value", "entry_id"]
    with releasing(read(spark, topic, columns=columns, typed=True)) as frame:
        rows = frame.orderBy("entry_id").collect()
    assert [row.value and (row.value.item, row.value["count"]) for row in rows] == [
        ("a", 1),
        None,
        None,
        ("c", 4),
    ]
    assert [row["_corrupt_record"] and bytes(row["_corrupt_record"]) for row in rows] == [
        None,
        b"{",
        b'{"item": "b", "count": "x"}',
        None,
    ]
    assert rows[2]["_corrupt_reason"] == (
        "without a version, read by the newest: ValueError: count is 'x', and no long"
    )
    with releasing(read(spark, topic, columns=columns, typed=True, mode="drop")) as frame:
        assert frame.columns == columns
        assert frame.count() == 2
    with pytest.raises(
        SchemaMismatch, match=rf"the value of message .* of .*{topic} .*read by the newest: .*drop"
    ):
        read(spark, topic, columns=columns, typed=True, mode="fail")


@pytest.mark.long
def test_topics_without_a_schema_stay_bytes_and_texts_are_a_column(
    spark: SparkSession, client: Client, topic: str
) -> None:
    untyped = client.create_producer(topic)
    untyped.send(b"\xff")
    untyped.close()
    with releasing(read(spark, topic, columns=["value"], typed=True)) as frame:
        assert frame.dtypes == [("value", "binary")]
        assert bytes(frame.collect()[0].value) == b"\xff"
    send(client, f"{topic}-texts", StringSchema(), "ä")
    with releasing(read(spark, f"{topic}-texts", columns=["value"], typed=True, mode="drop")) as frame:
        assert frame.dtypes == [("value", "string")]
        assert frame.collect()[0].value == "ä"


@pytest.mark.long
@pytest.mark.parametrize("schema", ["avro", "json", "arrow"])
def test_written_columns_come_back_with_their_types(
    spark: SparkSession, client: Client, topic: str, schema: str
) -> None:
    frame = spark.range(50).select(
        F.col("id").cast("int"),
        F.concat(F.lit("k"), F.col("id")).alias("key"),
        F.when(F.col("id") > 0, F.lit("ä")).alias("text"),
        F.expr("timestamp_micros(id - 5)").alias("at"),
        F.expr("date_from_unix_date(cast(id as int))").alias("day"),
        F.expr("array(struct(id as x, unhex('ff') as data))").alias("parts"),
    )
    client.get_topic_partitions(topic)
    with Admin() as admin:
        admin.topics.policies.set(topic, "schema_validation_enforced", True)
        assert write(frame, topic, schema=schema) == Written(50, 0)
        assert write(frame, topic, schema=schema, name="q", batch_id=1) == Written(50, 0)
        assert write(frame, topic, schema=schema, name="q", batch_id=1) == Written(50, 50)
        assert [each.schema.type for each in admin.schemas.versions(topic)] == [schema.upper()]
        with releasing(read(spark, topic, columns=["key", "value"], typed=True, mode="fail")) as read_back:
            wanted = [each for each in frame.schema.fields if each.name != "key"]
            # All columns of what is read may be null.
            types = {each.name: each.dataType.simpleString() for each in value_fields(read_back)}
            assert types == {each.name: each.dataType.simpleString() for each in wanted}
            rows = [(row.key, row.value) for row in read_back.collect()]
        values = frame.select("key", F.struct(*(each.name for each in wanted)).alias("value")).collect()
        assert sorted(rows) == sorted([(row.key, row.value) for row in values] * 2)
        other = frame.withColumn("id", F.lit("text"))
        with pytest.raises(IncompatibleSchema, match="id"):
            write(other, topic, schema=schema)
        # Rows are sent on as payloads too, with the version that topics insist on.
        version = admin.schemas.get(topic).schema
        if schema != "arrow":
            with releasing(read(spark, topic, columns=["value"])) as payloads:
                assert write(payloads, topic, schema=version) == Written(100, 0)
    dataset = pulsar_ray.data.read(topic, columns=["value"], typed=True, mode="drop")
    assert dataset.count() == (100 if schema == "arrow" else 200)
    copied = pulsar_ray.data.write(dataset, f"{topic}-copy", schema=schema)
    again = pulsar_ray.data.read(f"{topic}-copy", columns=["value"], typed=True)
    first = again.take(1)[0]["value"]
    assert copied == dataset.count() == again.count()
    assert first["parts"][0]["data"] == b"\xff"
    with pytest.raises(InvalidConfiguration, match="schema='thrift'"):
        write(frame, topic, schema="thrift", value="text")


def test_a_dataset_of_three_versions_has_the_newest_columns(client: Client, topic: str) -> None:
    send_three_versions(client, topic, AvroSchema)
    untyped = client.create_producer(topic)
    untyped.send(b"\xff")
    untyped.close()
    rows = pulsar_ray.data.read(topic, columns=["value"], typed=True).take_all()
    assert [(row["value"]["item"], row["value"]["count"]) for row in rows[:3]] == [
        ("a", 2),
        ("b", 7),
        ("c", 3),
    ]
    assert (rows[3]["value"], rows[3]["_corrupt_record"]) == (None, b"\xff")
    with pytest.raises(Exception, match=rf"the value of message .* of .*{topic} does not fit"):
        pulsar_ray.data.read(topic, columns=["value"], typed=True, mode="fail").take_all()


@pytest.mark.long
def test_a_landing_takes_new_columns_and_refuses_other_types(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path
) -> None:
    def land_all(name: str = topic) -> None:
        land(
            topic, tmp_path / "landed", name=name, until="latest", columns=["value"], typed=True
        ).await_termination()

    send(client, topic, AvroSchema(FirstOrder), FirstOrder("a", "g", Place(1)))
    land_all()
    send(client, topic, AvroSchema(SecondOrder), SecondOrder("b", 7, FarPlace(2)))
    land_all()
    files = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "landed"))
    rows = {row.item: row for row in files.select("value.*").collect()}
    assert (rows["a"].gone, rows["a"]["count"], rows["a"].place.y) == ("g", None, None)
    assert (rows["b"].gone, rows["b"]["count"], tuple(rows["b"].place)) == (None, 7, (2, 0.5))
    streamed = read_landing(spark, tmp_path / "landed", mode="drop")
    assert streamed.selectExpr("value.*").columns == ["item", "count", "place"]
    with Admin() as admin:
        admin.topics.policies.set(topic, "schema_compatibility_strategy", "ALWAYS_COMPATIBLE")
        text = {
            "type": "record",
            "name": "Order",
            "fields": [{"name": "count", "type": "string", "default": ""}],
        }
        admin.schemas.upload(topic, AvroSchema(None, text))
    with pytest.raises(
        LandingMismatch, match=r"value.count is int64, and the topic's newest schema has string"
    ):
        land_all()
