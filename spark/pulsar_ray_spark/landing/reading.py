"""Landed folders as streaming DataFrames."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pyarrow.fs as pafs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pulsar_ray.data.reading.topic_versions import TypedTopics
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.topic_schema import TopicSchema
from pulsar_ray_spark.landing.checkpoint import SparkCheckpoint
from pulsar_ray_spark.landing.folder import LocalFolder, open_folder
from pulsar_ray_spark.schema import MESSAGE_SCHEMA
from pulsar_ray_spark.value_form import AS_STORED, Bytes, Mode, as_value_form

# Spark remembers the files it has read that are not older than the newest by more than this. Rounds rise in
# time, so that a file it has not read is never older.
_REMEMBERED = "1d"


def read_landing(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    max_files_per_trigger: int | None = None,
    key_type: Bytes = "string",
    value_type: Bytes = "binary",
    schema: StructType | str | None = None,
    mode: Mode = "permissive",
    filesystem: pafs.FileSystem | None = None,
) -> DataFrame:
    """Read a folder that `land` writes as a stream of Spark's own.

    It has the landing's columns of MESSAGE_SCHEMA, and takes everything that Structured Streaming has:
    watermarks, windows, joins, state, any sink. Each message comes exactly once, by the files' names and the
    query's checkpoint. Files come in the order of their rounds, `max_files_per_trigger` at a time (None: all
    that are there); where watermarks matter give at least as many as the topics have partitions.

    Keys and values appear as `read` has them: as text or binary, or structs of JSON by `schema`; those of a
    landing with an Avro schema, or a typed one, are structs. `mode` says what becomes of values that do not
    fit; with "fail" the query ends when it takes one, with Spark's own StreamingQueryException, whose text
    names message id and topic, or the file where the landing's columns do not have these.

    `checkpoint` is the query's `checkpointLocation`, which is only looked into, so that a wrong one is
    refused before Spark mixes two streams. A path of an object store is given as Spark knows it (s3a://);
    `filesystem` is pyarrow's for the same path, if it is not found by itself.

    Raises InvalidConfiguration for a folder without a landing or a wrong type or schema, LandingMismatch for
    a checkpoint of another.
    """
    if max_files_per_trigger is not None and (
        type(max_files_per_trigger) is not int or max_files_per_trigger < 1
    ):
        raise InvalidConfiguration(
            f"max_files_per_trigger={max_files_per_trigger!r}: give an int of at least 1, or None for all"
        )
    folder = open_folder(path, filesystem)
    description = folder.description()
    if description is None:
        raise InvalidConfiguration(f"{folder.path} has no landing: start one with land(), or mend the path")
    if checkpoint is not None:
        SparkCheckpoint(checkpoint, filesystem).check(folder)
    described = json.loads(description)
    columns = described["columns"]
    avro_schema = described.get("avro_schema") or None
    typed = described.get("typed")
    values = as_value_form(spark, key_type, value_type, schema, avro_schema, mode, is_typed=typed is not None)
    if typed is not None:
        values = replace(values, typed=TypedTopics(typed["topic"], TopicSchema.of(typed), {}))
    if values.is_typed and "value" not in columns:
        raise InvalidConfiguration(f"{folder.path} has no values: leave the schema out")
    stored = values.stored_struct(StructType([MESSAGE_SCHEMA[name] for name in columns]))
    reader = (
        spark.readStream.schema(stored)
        .option("pathGlobFilter", "*.parquet")
        .option("latestFirst", "false")
        .option("maxFileAge", _REMEMBERED)
        # Times before 1900 are as they stand; Spark would ask whether an old version of it had written them.
        .option("datetimeRebaseMode", "CORRECTED")
    )
    if max_files_per_trigger is not None:
        reader = reader.option("maxFilesPerTrigger", str(max_files_per_trigger))
    frame = reader.parquet(folder.path if isinstance(folder, LocalFolder) else os.fspath(path))
    return frame if values == AS_STORED else values.applied(frame, columns)
