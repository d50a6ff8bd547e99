"""Write a range of a partition as one parquet file, without Ray and pyspark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pulsar_ray.data.planning.plan import LostRange, ReadRange, check_nothing_lost
from pulsar_ray.data.reading.avro_values import CORRUPT_COLUMN, AvroValues, encode_avro_blocks
from pulsar_ray.data.reading.block_schema import BLOCK_SCHEMA
from pulsar_ray.data.reading.rows import BLOCK_BYTES, encode_blocks
from pulsar_ray.data.reading.segments import stored_rows
from pulsar_ray.data.reading.topic_versions import TypedTopics
from pulsar_ray.data.reading.typed_values import REASON_COLUMN, encode_typed_blocks
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray_spark.landing.folder import Folder

_SCHEMA = pa.schema(
    [
        *(BLOCK_SCHEMA.field(name) for name in ("key", "value", "ordering_key", "properties")),
        pa.field("topic", pa.utf8(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        *(
            BLOCK_SCHEMA.field(name)
            for name in (
                "ledger_id",
                "entry_id",
                "batch_index",
                "publish_time",
                "event_time",
                "sequence_id",
                "producer_name",
                "schema_version",
            )
        ),
    ]
)

LANDING_COLUMNS: tuple[str, ...] = tuple(_SCHEMA.names)
"""Those of MESSAGE_SCHEMA without `redelivery_count`, which is 0 of whatever is read past subscriptions."""


def landing_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Normalise the columns wanted, None for all; in the order of LANDING_COLUMNS.

    Raises InvalidConfiguration for one that there is not, and for none.
    """
    if columns is None:
        return LANDING_COLUMNS
    wanted = {columns} if isinstance(columns, str) else set(columns)
    unknown = wanted.difference(LANDING_COLUMNS)
    if unknown or not wanted:
        raise InvalidConfiguration(
            f"columns={sorted(unknown or wanted)}: give at least one of {', '.join(LANDING_COLUMNS)}"
        )
    return tuple(name for name in LANDING_COLUMNS if name in wanted)


def file_schema(columns: Sequence[str], values: AvroValues | TypedTopics | None = None) -> pa.Schema:
    """The Arrow schema of files with these columns.

    With types for values, last columns have the bytes of those that do not fit, and by versions the reasons.
    """
    plain = pa.schema([_SCHEMA.field(name) for name in columns])
    if values is None:
        return plain
    fields = [pa.field("value", values.type) if field.name == "value" else field for field in plain]
    unread = [pa.field(CORRUPT_COLUMN, pa.binary())]
    if isinstance(values, TypedTopics):
        unread.append(pa.field(REASON_COLUMN, pa.utf8()))
    return pa.schema([*fields, *unread])


def block_columns_of(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of a block that a file's columns are made of.

    A block needs one to have rows.
    """
    return tuple(name for name in BLOCK_SCHEMA.names if name in columns) or ("source",)


def file_table(block: pa.Table, topic: str, partition: int, schema: pa.Schema) -> pa.Table:
    """Make a table of a file's schema of a block of one partition."""
    same = {"topic": topic, "partition": partition}
    arrays = [
        pa.repeat(pa.scalar(same[field.name], field.type), block.num_rows)
        if field.name in same
        else block[field.name]
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


@dataclass(frozen=True)
class FileJob:
    """A file to be written, and where."""

    read_range: ReadRange
    folder: Folder
    name: str
    columns: tuple[str, ...]
    time_ms: int
    lost: LostRange | None = None
    """Messages of the range that are trimmed, where that is an error."""
    avro_schema: str = ""
    """The schema of values that the file has as structs; without one they are bytes."""
    typed: TypedTopics | None = None
    """The versions by which values become columns, if they do."""


@dataclass(frozen=True)
class WrittenFile:
    """A file that is there now; without messages there is none."""

    topic: str
    messages: int
    stored_bytes: int


def write_file(job: FileJob) -> WrittenFile:
    """Write the file unless it is there.

    Behind this it is durable, and has every message of the range. Raises DataLost if some are trimmed, the
    errors of `stored_rows`, and OSError of the folder.
    """
    topic = job.read_range.topic
    if job.folder.has(job.name):
        # Its messages may well be trimmed since.
        return WrittenFile(topic, 0, 0)
    if job.lost is not None:
        check_nothing_lost([job.lost])
    scratch = job.folder.scratch()
    try:
        messages = _write(job, scratch)
        stored_bytes = scratch.stat().st_size if messages else 0
        if messages:
            job.folder.place(scratch, job.name, job.time_ms)
    finally:
        scratch.unlink(missing_ok=True)
    return WrittenFile(topic, messages, stored_bytes)


def _write(job: FileJob, path: Path) -> int:
    read_range, messages = job.read_range, 0
    values = job.typed or (AvroValues(job.avro_schema) if job.avro_schema else None)
    schema = file_schema(job.columns, values)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        # A group of rows per block: Spark reads them in parallel, and here is only one at a time.
        for block, count in _blocks(job, values):
            table = pa.ipc.open_stream(block).read_all()
            writer.write_table(file_table(table, read_range.topic, read_range.partition, schema))
            messages += count
    return messages


def _blocks(job: FileJob, values: AvroValues | TypedTopics | None) -> Iterator[tuple[bytes, int]]:
    rows, columns = stored_rows(job.read_range), block_columns_of(job.columns)
    if values is None:
        return encode_blocks(rows, 0, BLOCK_BYTES, columns)
    if isinstance(values, TypedTopics):
        return encode_typed_blocks(rows, 0, BLOCK_BYTES, columns, values.of(job.read_range.topic))
    return encode_avro_blocks(rows, 0, BLOCK_BYTES, columns, values)
