"""A landed folder under Spark's own Structured Streaming."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from pulsar_ray import Client
from pulsar_ray.admin import Admin
from pulsar_ray.data.planning.plan import ReadRange
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.message_id import EARLIEST, LATEST
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray_spark import MESSAGE_SCHEMA, Landing, clean_landing, drop_landing, land, read_landing
from pulsar_ray_spark.errors import LandingMismatch
from pulsar_ray_spark.landing.file_writing import LANDING_COLUMNS, FileJob, write_file
from pulsar_ray_spark.landing.folder import LocalFolder
from tests.docs.fences import blocks_of
from tests.stored_messages import batch
from tests.stored_segments import write_segment

SECOND_MS = 1000
MIDNIGHT_MS = 1_700_006_400_000
Event = tuple[str, int]
"""A key, and seconds since midnight."""


def publish(client: Client, topic: str, events: Iterable[Event]) -> None:
    producer = client.create_producer(topic, max_pending_messages=10_000, batching_enabled=True)
    for key, second in events:
        when = MIDNIGHT_MS + second * SECOND_MS
        producer.send_async(b"", None, partition_key=key, event_timestamp=when)
    producer.flush()
    producer.close()


def test_columns_are_those_of_messages() -> None:
    assert [*LANDING_COLUMNS, "redelivery_count"] == MESSAGE_SCHEMA.names


@pytest.mark.long
def test_windows_with_late_data_are_exact_over_restarts_and_clean_up(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path
) -> None:
    path, checkpoint = tmp_path / "landed", tmp_path / "checkpoint"
    with Admin() as admin:
        admin.topics.create_partitioned_topic(topic, 2)

    def run() -> None:
        """Land everything, and have the query read it."""
        assert land(topic, path, name=topic, until="latest").await_termination(120)
        stream = read_landing(spark, path, checkpoint=checkpoint)
        counts = (
            stream.withWatermark("event_time", "10 seconds")
            .groupBy(F.window("event_time", "10 seconds"), "key")
            .agg(F.count(F.lit(1)).alias("messages"))
            .select(F.unix_seconds("window.start").alias("second"), "key", "messages")
        )
        query = (
            counts.writeStream.format("parquet")
            .option("path", str(tmp_path / "counts"))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    on_time = [(f"k{second % 3}", second) for second in range(60) for _ in range(20)]
    # The watermark is 49 then: the window of 45 is open, that of 5 is closed.
    late, in_time = [("k0", 5)] * 7, [("k1", 45)] * 3
    more = [(f"k{second % 3}", second) for second in range(100, 150)]
    publish(client, topic, on_time)
    run()
    publish(client, topic, [*late, *in_time])
    run()
    before = len(list(path.glob("*.parquet")))
    deleted = clean_landing(path, checkpoint)
    assert 0 < deleted < before == deleted + len(list(path.glob("*.parquet")))
    # The last of these closes all windows but its own.
    publish(client, topic, [*more, ("k0", 2000)])
    run()
    wanted = Counter((second // 10 * 10, key) for key, second in (*on_time, *in_time, *more))
    rows = spark.read.parquet(str(tmp_path / "counts")).collect()
    assert len(rows) == len(wanted)
    assert {(row.second - MIDNIGHT_MS // SECOND_MS, row.key): row.messages for row in rows} == wanted

    other = f"{topic}-other"
    publish(client, other, [("k", 1)])
    land(other, tmp_path / "other", name=other, until="latest").await_termination(120)
    with pytest.raises(LandingMismatch, match=r"is one of a query of .*/landed, not of .*/other"):
        read_landing(spark, tmp_path / "other", checkpoint=checkpoint)
    drop_landing(topic, topic)
    with Admin() as admin:
        assert admin.topics.subscriptions(f"{topic}-partition-0") == []
    with pytest.raises(InvalidConfiguration, match="has no landing"):
        read_landing(spark, tmp_path / "counts")


@pytest.mark.long
def test_the_page_does_what_it_says(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, topic, [(f"k{number % 3}", number) for number in range(100)])
    monkeypatch.chdir(tmp_path)
    shown: list[int] = []
    monkeypatch.setattr(DataFrame, "show", lambda rows: shown.extend(row["count"] for row in rows.collect()))
    known: dict[str, object] = {"spark": spark}
    page = Path(__file__).parents[2] / "docs" / "spark-landing.md"
    for block in blocks_of(page):
        if block.language == "python":
            # The JVM's working directory is not that of this test.
            text = block.text.replace('"counts-checkpoint"', repr(str(tmp_path / "counts-checkpoint")))
            text = text.replace('"clicks"', repr(topic)).replace(
                "query = (", "landing_has_files(landing)\nquery = ("
            )
            known["landing_has_files"] = landing_has_files
            exec(text, known)
    assert sum(shown) == 100


def landing_has_files(landing: Landing) -> None:
    wait_until(lambda: landing.last_progress, what="a landed round")


GOOD = {"id": 1, "note": "a"}
SCHEMA = "id BIGINT, note STRING"
AVRO = json.dumps(
    {
        "type": "record",
        "name": "row",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
    }
)


def as_avro(row: dict[str, object]) -> bytes:
    stream = BytesIO()
    schemaless_writer(stream, parse_schema(json.loads(AVRO)), row)
    return stream.getvalue()


def rows_of(stream: DataFrame, name: str) -> list[Row]:
    query = stream.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return stream.sparkSession.table(name).orderBy("entry_id", "batch_index").collect()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["json", "avro"])
def test_values_are_structs_and_those_that_do_not_fit_go_as_the_mode_says(
    spark: SparkSession, tmp_path: Path, topic: str, kind: str
) -> None:
    good, avro = (json.dumps(GOOD).encode(), "") if kind == "json" else (as_avro(GOOD), AVRO)
    segment = write_segment(tmp_path / "5-0.seg", [[batch([good, b"{", None])]])
    asked = ReadRange("", "t", -1, (segment,), EARLIEST, LATEST)
    folder, view = LocalFolder(str(tmp_path / "landed")), topic.replace("-", "_")
    folder.begin()
    write_file(FileJob(asked, folder, "a.parquet", LANDING_COLUMNS, MIDNIGHT_MS, avro_schema=avro))
    folder.describe(json.dumps({"name": "n", "columns": LANDING_COLUMNS, "avro_schema": avro}))
    schema: dict[str, Any] = {"schema": SCHEMA} if kind == "json" else {}

    first, bad, tombstone = rows_of(read_landing(spark, folder.path, **schema), f"{view}_all")
    assert (first.value.asDict(), first._corrupt_record) == (GOOD, None)
    assert (bad.value, bytes(bad._corrupt_record)) == (None, b"{")
    assert (tombstone.value, tombstone._corrupt_record) == (None, None)
    kept = rows_of(read_landing(spark, folder.path, mode="drop", **schema), f"{view}_drop")
    assert [row.value and row.value.id for row in kept] == [1, None]
    assert "_corrupt_record" not in kept[0]
    with pytest.raises(StreamingQueryException, match=r"message 5:0:1 of t does not fit the schema: mode="):
        rows_of(read_landing(spark, folder.path, mode="fail", **schema), f"{view}_fail")
    folder.describe(json.dumps({"name": "n", "columns": ["value"], "avro_schema": avro}))
    nameless = read_landing(spark, folder.path, mode="fail", **schema)
    numbered = nameless.selectExpr("value.id", "1 AS entry_id", "0 AS batch_index")
    with pytest.raises(StreamingQueryException, match=r"message in file:.*/a\.parquet does not fit"):
        rows_of(numbered, f"{view}_nameless")


@pytest.mark.long
def test_a_landing_writes_structs_in_tasks_beside_the_data(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path
) -> None:
    with Admin() as admin:
        admin.topics.create_partitioned_topic(topic, 2)
    with client.create_producer(topic) as producer:
        for number in range(20):
            producer.send(as_avro({"id": number, "note": None}), partition_key=f"k{number}")
        producer.send(b"{", partition_key="bad")
    landing = land(topic, tmp_path, name=topic, avro_schema=AVRO, until="latest")
    assert landing.await_termination(120)
    rows = rows_of(read_landing(spark, tmp_path), topic.replace("-", "_"))
    assert Counter(row.value and row.value.id for row in rows) == Counter([*range(20), None])
    assert [bytes(row._corrupt_record) for row in rows if row._corrupt_record is not None] == [b"{"]
    assert {row.partition for row in rows} == {0, 1}
    drop_landing(topic, topic)
