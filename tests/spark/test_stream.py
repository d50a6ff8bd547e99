"""Streams of micro-batches on a broker and Spark."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import ray
from pyspark.sql import SparkSession

from pulsar_ray import Client
from pulsar_ray.admin import Admin
from pulsar_ray.data.reading.readers import READERS
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import NAMESPACE, partition_name
from pulsar_ray_spark import drop_query, read_stream
from pulsar_ray_spark.errors import QueryFailed, QueryInUse, QueryMismatch, SchemaMismatch
from pulsar_ray_spark.handover import held_blocks
from tests.docs.fences import blocks_of
from tests.spark.stream_sink import Sink

WAIT_S = 120


def publish(client: Client, topic: str, numbers: Iterable[int]) -> None:
    producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
    for number in numbers:
        producer.send_async(b"%d" % number, None)
    producer.flush()
    producer.close()


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path / "sink")


@pytest.mark.long
def test_a_stream_has_each_message_once_over_restarts_and_failures(
    spark: SparkSession, client: Client, topic: str, sink: Sink
) -> None:
    held, name = held_blocks(), f"once-{topic}"
    with Admin() as admin:
        admin.topics.create_partitioned_topic(topic, 2)
        publish(client, topic, range(250))
        stream = read_stream(
            spark, topic, name=name, start="earliest", columns=["value"], max_messages_per_trigger=100
        ).foreach_batch(sink.take)

        query = stream.trigger(available_now=True).start()
        assert query.await_termination(WAIT_S)
        assert sink.counts() == [100, 100, 50]
        assert [progress["numInputRows"] for progress in query.recent_progress] == sink.counts()
        assert query.last_progress is not None
        (source,) = query.last_progress["sources"]
        assert source["latestOffset"].items() <= source["endOffset"].items()
        assert query.status["message"] == "Stopped"
        assert held_blocks() <= held

        sink.fails_at = 3
        publish(client, topic, range(250, 400))
        failed = stream.trigger(once=True).start()
        with pytest.raises(QueryFailed, match=f"'{name}' stopped at ValueError: no more today"):
            failed.await_termination(WAIT_S)
        error = failed.exception()
        assert error is not None
        assert isinstance(error.__cause__, ValueError)
        assert not failed.is_active

        publish(client, topic, range(400, 410))
        with stream.trigger(processing_time="200 milliseconds").start() as again:
            assert (again.id, again.name) == (query.id, name)
            assert again.run_id != query.run_id
            with pytest.raises(QueryInUse, match=f"query '{name}' runs already"):
                stream.start()
            with pytest.raises(QueryInUse):
                drop_query(name)
            again.process_all_available()
            assert sink.numbers() == Counter(range(410))
            assert sink.reruns == 1
            stats = admin.topics.stats(topic)["partitions"].values()
            assert [each["subscriptions"][f"spark-{name}"]["msgBacklog"] for each in stats] == [0, 0]
        assert not again.is_active
        assert again.exception() is None
        with pytest.raises(QueryMismatch, match=rf"drop_query\('{name}'\)"):
            read_stream(spark, f"{topic}-other", name=name).foreach_batch(sink.take).start()
        with pytest.raises(InvalidConfiguration, match="foreach_batch"):
            read_stream(spark, topic, name=name).start()
        drop_query(name)
        drop_query(name)
        assert admin.topics.subscriptions(f"{topic}-partition-0") == []
        assert not [each for each in admin.topics.list() if name in each]


def kill_readers() -> None:
    for reader in READERS._idle.handles():
        ray.kill(reader)


def kill_partition(topic: str) -> None:
    actor = ray.get_actor(partition_name(TopicName.parse(topic).full), namespace=NAMESPACE)
    os.kill(ray.get(actor.probe.remote()), signal.SIGKILL)


def test_killed_partitions_and_readers_double_and_lose_nothing(
    spark: SparkSession, client: Client, topic: str, sink: Sink
) -> None:
    publish(client, topic, range(100))
    stream = read_stream(spark, topic, name=topic, start="earliest", max_messages_per_trigger=150)
    with stream.foreach_batch(sink.take).start() as query:
        wait_until(lambda: query.last_progress, WAIT_S, "the first batch")
        kills: list[Callable[[], None]] = [kill_readers, lambda: kill_partition(topic)]
        for number, kill in enumerate(kills, 1):
            killer = threading.Thread(target=kill)
            killer.start()
            publish(client, topic, range(100 * number, 100 * number + 100))
            killer.join()
        query.process_all_available()
    assert sink.numbers() == Counter(range(300))
    drop_query(topic)


@pytest.mark.long
def test_values_of_a_stream_have_the_types_of_a_schema(
    spark: SparkSession, client: Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    for value in (b'{"n": 1}', b"no json", b'{"n": 2}'):
        producer.send(value, partition_key="k")
    producer.close()
    rows: list[Any] = []
    typed = {"columns": ["key", "value"], "schema": "n BIGINT", "key_type": "binary", "start": "earliest"}
    kept = read_stream(spark, topic, name=f"kept-{topic}", **typed)  # type: ignore[arg-type]
    kept.foreach_batch(lambda frame, _: rows.extend(frame.collect())).trigger(
        once=True
    ).start().await_termination()
    assert [(bytes(row.key), row.value and row.value.n, row._corrupt_record) for row in rows] == [
        (b"k", 1, None),
        (b"k", None, bytearray(b"no json")),
        (b"k", 2, None),
    ]
    refused = read_stream(spark, topic, name=f"refused-{topic}", mode="fail", **typed)  # type: ignore[arg-type]
    rows.clear()
    query = refused.foreach_batch(lambda frame, _: rows.extend(frame.collect())).trigger(once=True).start()
    with pytest.raises(QueryFailed, match="does not fit the schema") as failed:
        query.await_termination(WAIT_S)
    assert isinstance(failed.value.__cause__, SchemaMismatch)
    assert rows == []
    for name in ("kept", "refused"):
        drop_query(f"{name}-{topic}")
    with pytest.raises(InvalidConfiguration, match="has no 'value'"):
        read_stream(spark, topic, name=topic, columns=["key"], schema="n BIGINT")


@pytest.mark.long
def test_the_page_does_what_it_says(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, topic, range(100))
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "spark-streams.md"
    known: dict[str, object] = {"spark": spark, "client": client}
    for block in blocks_of(page):
        if block.language == "python":
            text = block.text.replace('"counts/', f'"{tmp_path}/counts/').replace(
                '"counts"', f'"{topic}-counts"'
            )
            exec(text.replace('"clicks"', repr(topic)), known)
