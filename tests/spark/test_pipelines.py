"""The pipelines on the source files of this Python, checked against plain Python."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from pipelines import dead_letters, enrichment, parquet_table, sessions, stream_static_join, windowed_counts
from pulsar_ray import Client
from pulsar_ray_spark import drop_landing, land, read, releasing
from pulsar_ray_spark.demo.landed_pipeline import TextEvent, publish_text
from pulsar_ray_spark.demo.text import standard_library

FILES = standard_library(6)
DUE_MS = 1 << 42
"""The time of a last line, behind which every window and session is closed."""
SECOND_MS, HOUR_MS = 1_000, 3_600_000

Landed = tuple[Path, list[TextEvent]]


@pytest.fixture(scope="module")
def landed(spark: SparkSession, client: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Landed]:
    """A landed topic of real text, and its events."""
    directory = tmp_path_factory.mktemp("text")
    topic, path = directory.name, directory / "landed"  # no other try has either
    events = publish_text(client, topic, FILES)
    land(topic, path, name=topic, until="latest").await_termination()
    with client.create_producer(topic) as producer:
        producer.send(b"end", partition_key="end", event_timestamp=DUE_MS)
    land(topic, path, name=topic, until="latest").await_termination()
    yield path, events
    drop_landing(topic, topic)


@pytest.mark.long
def test_a_table_of_parquet_files_has_each_message_once(
    spark: SparkSession, landed: Landed, tmp_path: Path
) -> None:
    path, events = landed
    for _ in range(2):
        parquet_table.start(spark, path, tmp_path).awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "result")).where("module != 'end'")
    assert rows.select("message_id").distinct().count() == len(events)
    found = Counter((row.module, row.line.encode()) for row in rows.collect())
    assert found == Counter((event.module, event.line) for event in events)
    assert (tmp_path / "result" / "day=2023-11-15").is_dir()


@pytest.mark.long
def test_lines_join_a_table_that_stands_still(spark: SparkSession, landed: Landed, tmp_path: Path) -> None:
    path, events = landed
    stream_static_join.start(spark, path, tmp_path).awaitTermination()
    by_module = spark.read.parquet(str(tmp_path / "result")).groupBy("module", "file_bytes").count().collect()
    sizes = {file.module: file.path.stat().st_size for file in FILES}
    wanted = Counter((event.module, sizes[event.module]) for event in events)
    found = {(row.module, row.file_bytes): row["count"] for row in by_module}
    assert found.pop(("end", None)) == 1
    assert found == wanted
    packages = {event.module.partition(".")[0] for event in events}
    assert stream_static_join.show(spark, tmp_path).count() == len(packages) + 1


@pytest.mark.long
def test_windows_count_lines_and_definitions(spark: SparkSession, landed: Landed, tmp_path: Path) -> None:
    path, events = landed
    # One round is one batch, and the watermark follows behind it: no line is too late.
    windowed_counts.start(spark, path, tmp_path).awaitTermination()
    wanted: dict[int, Counter[str]] = defaultdict(Counter)
    for event in events:
        kind = "definitions" if event.line.lstrip(b" ").startswith((b"def ", b"class ")) else "others"
        wanted[event.time_ms // HOUR_MS * HOUR_MS][kind] += 1
    rows = windowed_counts.show(spark, tmp_path).select(F.unix_millis("hour"), "lines", "definitions")
    assert [tuple(row) for row in rows.collect()] == [
        (hour, sum(kinds.values()), kinds["definitions"]) for hour, kinds in sorted(wanted.items())
    ]


@pytest.mark.long
def test_sessions_end_with_a_pause(spark: SparkSession, landed: Landed, tmp_path: Path) -> None:
    path, events = landed
    sessions.start(spark, path, tmp_path).awaitTermination()
    wanted = Counter(_sessions(events))
    rows = sessions.show(spark, tmp_path).select("module", F.unix_millis("began"), "lines").collect()
    assert Counter(tuple(row) for row in rows) == wanted


def _sessions(events: list[TextEvent]) -> Iterator[tuple[str, int, int]]:
    """Module, first time and lines of what no two minutes lie between."""
    times: dict[str, list[int]] = defaultdict(list)
    for event in events:
        times[event.module].append(event.time_ms)
    for module, of_module in times.items():
        began = last = min(of_module)
        lines = 0
        for time_ms in sorted(of_module):
            if time_ms - last >= 120 * SECOND_MS:
                yield module, began, lines
                began, lines = time_ms, 0
            last = time_ms
            lines += 1
        yield module, began, lines


@pytest.mark.long
def test_lines_are_enriched_once_though_a_batch_is_run_again(
    spark: SparkSession, landed: Landed, topic: str, tmp_path: Path
) -> None:
    path, events = landed
    enrichment.start(spark, path, tmp_path, topic).awaitTermination()
    # As if Spark had died when everything was sent: it knows the batch as begun, not as committed.
    for commit in (tmp_path / "checkpoint" / "commits").iterdir():
        commit.unlink()
    enrichment.start(spark, path, tmp_path, topic).awaitTermination()
    with releasing(read(spark, topic)) as frame:
        rows = frame.where("key != 'end'").collect()
    found = Counter((row.key, bytes(row.value), row.properties["kind"]) for row in rows)
    assert found.total() == len(events)
    described = [json.loads(value) | {"kind": kind, "module": key} for key, value, kind in found.elements()]
    assert Counter(map(_described, described)) == Counter(map(_expected, events))


def _described(line: dict[str, Any]) -> tuple[str, str, str | None, int]:
    return line["module"], line["kind"], line.get("defines"), line["characters"]


def _expected(event: TextEvent) -> tuple[str, str, str | None, int]:
    text = event.line.decode(errors="replace")
    defined = re.match(enrichment.DEFINITION, text)
    if defined:
        return event.module, defined[1], defined[2], len(text)
    words = text.split()
    kind = "import" if words[0] in ("import", "from") else "comment" if words[0][0] == "#" else "other"
    return event.module, kind, None, len(text)


def test_dead_letters_by_topic_and_reason(spark: SparkSession, client: Client, topic: str) -> None:
    letters = [("orders", "no such user"), ("orders", "no such user"), ("orders", ""), ("mails", "bounced")]
    with client.create_producer(topic) as producer:
        for number, (origin, reason) in enumerate(letters):
            properties = {"REAL_TOPIC": origin, "ORIGIN_MESSAGE_ID": f"1:{number}:-1:-1"}
            producer.send(
                b"letter %d" % number,
                partition_key=f"k{number}",
                properties=properties | ({"reason": reason} if reason else {}),
            )
    with releasing(read(spark, topic, columns=dead_letters.COLUMNS)) as frame:
        rows = dead_letters.analysis(frame).collect()
    assert [(row.topic, row.reason, row.letters, row["keys"]) for row in rows] == [
        ("orders", "no such user", 2, 2),
        ("mails", "bounced", 1, 1),
        ("orders", "(none given)", 1, 1),
    ]
    assert rows[2].example == "letter 2"
    assert rows[2].example_id == "1:2:-1:-1"
