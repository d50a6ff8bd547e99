"""Keys and values as text, and values as JSON and Avro structs."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray_spark import MESSAGE_SCHEMA, read, releasing
from pulsar_ray_spark.errors import SchemaMismatch
from pulsar_ray_spark.handover import held_blocks, release_all
from tests.spark.stored_topic import StoredTopics
from tests.stored_messages import batch, single
from tests.stored_segments import write_segment

TOPIC = "persistent://public/default/orders"
ORDER = StructType([StructField("id", LongType()), StructField("note", StringType())])
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "counts", "type": {"type": "map", "values": "int"}},
        ],
    }
)
# Before 1970, and after 2262, where 64 bits of ns end.
BEFORE, AFTER = -86_400_001, 16_725_225_600_000


def avro(row: dict[str, Any]) -> bytes:
    stream = BytesIO()
    schemaless_writer(stream, parse_schema(json.loads(AVRO)), {"tags": [], "counts": {}, **row})
    return stream.getvalue()


GOOD: dict[str, list[bytes]] = {
    "json": [b'{"id": 1, "note": "a"}', '{"id": 2, "note": "ä", "more": 1}'.encode(), b'{"note": null}'],
    "avro": [
        avro({"id": 1, "note": "a", "at": BEFORE, "tags": ["x", "y"], "counts": {"k": 3}}),
        avro({"id": 2, "note": "ä", "at": AFTER}),
    ],
}
BAD = {
    "json": [b"{", b'{"id": "one"}', b"", b"\xff\xfe"],
    "avro": [b"", b"\xff\xff", GOOD["avro"][0] + b"\0"],
}
GIVEN: dict[str, dict[str, Any]] = {
    "json": {"schema": "id BIGINT, note STRING"},
    "avro": {"avro_schema": AVRO},
}


@pytest.fixture
def topics() -> StoredTopics:
    return StoredTopics()


def stored(topics: StoredTopics, path: Path, values: list[bytes | None]) -> None:
    keys = [None if index % 2 else f"k{index}" for index in range(len(values))]
    messages = [batch(values, keys=keys), single(None, key="gone", event_time=BEFORE)]
    topics.add(TOPIC, write_segment(path / "5-0.seg", [messages]))


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_values_that_fit_are_structs_beside_key_and_metadata(
    spark: SparkSession, topics: StoredTopics, tmp_path: Path, kind: str
) -> None:
    stored(topics, tmp_path, [*GOOD[kind]])
    with releasing(read(spark, TOPIC, planner=topics, mode="fail", **GIVEN[kind])) as frame:
        assert frame.columns == MESSAGE_SCHEMA.names
        rows = rows_of(frame)
        names = frame.select("value.*").columns
    assert names == (["id", "note"] if kind == "json" else ["id", "note", "at", "tags", "counts"])
    values = [row["value"] for row in rows]
    assert [value and value["id"] for value in values[:2]] == [1, 2]
    assert [value and value["note"] for value in values[:2]] == ["a", "ä"]
    assert values[-1] is None
    assert (rows[0]["key"], rows[1]["key"], rows[-1]["key"]) == ("k0", None, "gone")
    if kind == "json":
        assert values[2] == {"id": None, "note": None}
    else:
        assert (values[0]["tags"], values[0]["counts"]) == (["x", "y"], {"k": 3})
        with releasing(read(spark, TOPIC, planner=topics, columns=["value"], **GIVEN[kind])) as frame:
            times = frame.selectExpr("unix_millis(value.at) AS ms").collect()
        assert [row.ms for row in times] == [BEFORE, AFTER, None]


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_values_that_do_not_fit_are_kept_dropped_or_refused(
    spark: SparkSession, topics: StoredTopics, tmp_path: Path, kind: str
) -> None:
    good, bad = GOOD[kind][0], BAD[kind]
    stored(topics, tmp_path, [good, *bad])
    columns = ["value", "key"]
    with releasing(read(spark, TOPIC, planner=topics, columns=columns, **GIVEN[kind])) as frame:
        assert frame.columns == [*columns, "_corrupt_record"]
        assert frame.schema["_corrupt_record"].dataType == BinaryType()
        rows = rows_of(frame)
    assert [row["value"] is None for row in rows] == [False, *[True] * len(bad), True]
    kept = [row["_corrupt_record"] for row in rows]
    assert [None if each is None else bytes(each) for each in kept[1:-1]] == bad
    assert (kept[0], kept[-1]) == (None, None)
    with releasing(read(spark, TOPIC, planner=topics, columns=columns, mode="drop", **GIVEN[kind])) as frame:
        assert frame.columns == columns
        assert [row["key"] for row in rows_of(frame)] == ["k0", "gone"]
    release_all()
    with pytest.raises(SchemaMismatch, match=rf"message 5:0:1 of {TOPIC} does not fit"):
        read(spark, TOPIC, planner=topics, columns=columns, mode="fail", **GIVEN[kind])
    assert held_blocks() == 0


def test_keys_and_values_are_bytes_or_text(spark: SparkSession, topics: StoredTopics, tmp_path: Path) -> None:
    stored(topics, tmp_path, ["ä".encode(), None])
    with releasing(
        read(spark, TOPIC, planner=topics, columns=["key", "value"], key_type="binary", value_type="string")
    ) as frame:
        assert [(field.name, field.dataType) for field in frame.schema] == [
            ("key", BinaryType()),
            ("value", StringType()),
        ]
        rows = [(row.key and bytes(row.key), row.value) for row in frame.collect()]
    assert rows == [(b"k0", "ä"), (None, None), (b"gone", None)]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"schema": "id BIGINT", "avro_schema": AVRO}, "exclude each other"),
        ({"schema": "id BIGINT", "value_type": "string"}, "exclude each other"),
        ({"schema": "id NOTYPE"}, r"is no list of columns, such as .*: \[UNSUPPORTED_DATATYPE\].*NOTYPE"),
        ({"schema": StructType([])}, "give a StructType"),
        ({"schema": "_corrupt_record STRING"}, "is the column of values that do not fit"),
        ({"avro_schema": "{"}, "is no Avro schema"),
        ({"schema": ORDER, "columns": ["key"]}, "name 'value' too"),
        ({"value_type": "text"}, "value_type='text'"),
        ({"mode": "ignore"}, "mode='ignore'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_planned(
    spark: SparkSession, topics: StoredTopics, given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=reason):
        read(spark, TOPIC, planner=topics, **given)
    assert topics.asked == []
