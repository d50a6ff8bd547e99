"""A landed folder under Spark's own Structured Streaming."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from pulsar_ray import Client
from pulsar_ray.admin import Admin
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray_spark import MESSAGE_SCHEMA, Landing, clean_landing, drop_landing, land, read_landing
from pulsar_ray_spark.errors import LandingMismatch
from pulsar_ray_spark.landing.columns import LANDING_COLUMNS
from tests.docs.fences import blocks_of

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
