"""Ray Datasets to topics."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import ray
import ray.data

from pulsar_ray.client.options.checks import check_enum
from pulsar_ray.data.full_store import NamingFullStores, paused, tried_while_full
from pulsar_ray.data.writing.publishers import PUBLISHERS, Connection, Publisher
from pulsar_ray.data.writing.publishing import Part, Sending
from pulsar_ray.data.writing.query_batch import QueryBatch
from pulsar_ray.data.writing.row_schema import KINDS, row_schema
from pulsar_ray.data.writing.write_target import WriteTarget
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.enums import CompressionType, HashingScheme

_MESSAGES = "messages"
_IN_SMALLER_BLOCKS = "have smaller blocks (DataContext.target_max_block_size) or fewer rows in a write"


def write(
    dataset: ray.data.Dataset,
    topic: str,
    *,
    value: str | None = None,
    key: str | None = None,
    properties: str | None = None,
    ordering_key: str | None = None,
    event_time: str | None = None,
    schema: Any = None,
    name: str | None = None,
    batch_id: int = 0,
    hashing_scheme: HashingScheme = HashingScheme.JavaStringHash,
    compression_type: CompressionType = CompressionType.NONE,
    num_cpus: float = 1,
    service_url: str = "auto",
    data_dir: str | os.PathLike[str] | None = None,
) -> int:
    """Publish the rows of a Ray Dataset, each a message.

    Returns their number once all are durable.

    Arguments name columns; None takes the column of the argument's own name if there is one (`value` there
    has to be). `value` is binary or text, null a tombstone; `key` and `ordering_key` text; `properties` a map
    of text to text, or what functions of rows make of it: a dict or a list of pairs; `event_time` a
    timestamp, or ms since 1970 as an integer. Other columns are left out.

    `schema` is "avro", "json" or "arrow": values are rows then, `value` a column of structs, or, left out,
    all columns but those that the others take by their own names. The topic gets the schema of these columns
    before a row is sent. A schema of `pulsar_ray.schema` is one that values are payloads of.

    Without `name` tasks of `num_cpus` publish blocks as they are computed, at least once: a task that is
    repeated sends its block again, and rows that were sent before an error stay. With `name` the Dataset is
    computed first, into Ray's object store, and each row of the batch `batch_id` is stored once, however
    often it is written. That rests on the topic's deduplication, which is turned on, on batch ids that
    rise, and on a Dataset that has the same rows in the same blocks each time: its order is preserved, and
    so it has them if it is made of files or of a range of a topic, without random or timed parts.

    Raises InvalidConfiguration for wrong columns, IncompatibleSchema, NotAllowedError for a batch behind a
    later one, and the client's own errors; without `name` those of tasks come as Ray Data raises them.
    """
    if name is None and batch_id != 0:
        raise InvalidConfiguration(
            f"batch_id={batch_id!r} without a name: with both each row is stored once, without a name at "
            "least once"
        )
    check_enum("hashing_scheme", hashing_scheme, HashingScheme)
    check_enum("compression_type", compression_type, CompressionType)
    columns = {
        "value": value,
        "key": key,
        "properties": properties,
        "ordering_key": ordering_key,
        "event_time": event_time,
    }
    connection = Connection(service_url, None if data_dir is None else os.fspath(data_dir))
    rows = None
    if schema is not None:
        value_type = (
            sent_columns(_sample(dataset), columns, has_rows=schema in KINDS).schema.field("value").type
        )
        rows = row_schema(schema, value_type)
    sending = Sending(hashing_scheme, compression_type, rows)
    if name is not None:
        return _write_once(dataset, topic, columns, QueryBatch.checked(name, batch_id), sending, connection)
    has_rows = rows is not None and rows.kind != ""
    with WriteTarget.connected(topic, connection) as target:
        target.create()
        target.register(rows)

    def send(block: pa.Table) -> pa.Table:
        sent = 0
        if block.num_rows:
            part = Part(0, lambda: sent_columns(block, columns, has_rows=has_rows), topic, sending)
            sent = sum(_publisher(connection).publish(part).values())
        return pa.table({_MESSAGES: pa.array([sent], pa.int64())})

    counts = dataset.map_batches(send, batch_size=None, batch_format="pyarrow", num_cpus=num_cpus)
    with NamingFullStores("computing the rows to write", _IN_SMALLER_BLOCKS):
        return sum(row[_MESSAGES] for row in counts.iter_rows())


@lru_cache(maxsize=4)
def _publisher(connection: Connection) -> Publisher:
    """The publisher of a worker's process, kept for its next task."""
    return Publisher(connection)


def _sample(dataset: ray.data.Dataset) -> pa.Table:
    """Return a table of the columns of a Dataset, with few rows or none."""
    found = dataset.schema()
    base = None if found is None else found.base_schema
    if isinstance(base, pa.Schema):
        return base.empty_table()
    for block in dataset.limit(1).iter_batches(batch_format="pyarrow"):
        return block
    raise InvalidConfiguration("the Dataset has no rows, and no columns to make a schema of")


def sent_columns(block: pa.Table, columns: dict[str, str | None], *, has_rows: bool = False) -> pa.Table:
    """Choose the columns that become messages, under the names that producers take.

    With `has_rows` values are structs: of the other columns where no column has them.

    Raises InvalidConfiguration for one that is not there.
    """
    chosen = {}
    for argument, given in columns.items():
        wanted = argument if given is None else given
        if argument == "value" and has_rows and given is None and wanted not in block.column_names:
            taken = {name for name, source in columns.items() if source is None}
            names = [name for name in block.column_names if name not in taken]
            chosen[argument] = block.select(names).to_struct_array()
        elif wanted in block.column_names:
            chosen[argument] = block.column(wanted)
        elif given is not None or argument == "value":
            raise InvalidConfiguration(
                f"{argument}: the Dataset has no column {wanted!r}; there are {', '.join(block.column_names)}"
            )
    if "properties" in chosen:
        chosen["properties"] = _as_maps(chosen["properties"])
    return pa.table(chosen)


def _as_maps(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Make maps of dicts and of lists of pairs.

    Ray Data has them as structs and as lists of lists.
    """
    if not (pa.types.is_struct(column.type) or pa.types.is_list(column.type)):
        return column
    try:
        return pa.array(map(_pairs, column.to_pylist()), pa.map_(pa.utf8(), pa.utf8()))
    except (pa.ArrowException, TypeError):
        return column  # refused by its type


def _pairs(row: dict[str, Any] | list[Any] | None) -> list[tuple[Any, ...]] | None:
    if row is None:
        return None
    if isinstance(row, dict):
        # All rows have the names of any of them.
        return [(name, text) for name, text in row.items() if text is not None]
    if row and not isinstance(row[0], list):
        raise TypeError("no pairs")
    return [tuple(pair) for pair in row]


@dataclass(frozen=True)
class _BlockRows:
    """A block in Ray's object store; called, it fetches what is sent of it."""

    block: Any
    columns: dict[str, str | None]
    has_rows: bool

    def __call__(self) -> pa.Table:
        def fetched() -> pa.Table:
            with NamingFullStores("fetching rows to write", _IN_SMALLER_BLOCKS):
                return ray.get(self.block)

        return sent_columns(tried_while_full(fetched, paused), self.columns, has_rows=self.has_rows)


def _write_once(
    dataset: ray.data.Dataset,
    topic: str,
    columns: dict[str, str | None],
    batch: QueryBatch,
    sending: Sending,
    connection: Connection,
) -> int:
    with NamingFullStores("computing the rows to write", _IN_SMALLER_BLOCKS):
        blocks = _in_order(dataset.to_arrow_refs, dataset)
    has_rows = sending.rows is not None and sending.rows.kind != ""
    with WriteTarget.connected(topic, connection) as target, target.taken(batch.query, sending.rows):
        named = target.begin(batch, max(len(blocks), 1), sending.hashing_scheme)
        if named.layout.tasks != max(len(blocks), 1):
            raise InvalidConfiguration(
                f"the Dataset has {len(blocks)} blocks, and had {named.layout.tasks} when batch "
                f"{batch.batch_id} of {batch.query!r} was begun: write the same Dataset, or give another name"
            )
        parts = [
            Part(task, _BlockRows(block, columns, has_rows), topic, sending, named)
            for task, block in enumerate(blocks)
        ]
        counts = PUBLISHERS.publish(parts, connection)
        if any(counts):
            target.end(named)
    return sum(rows for of_part in counts for rows in of_part.values())


def _in_order(compute: Callable[[], list[Any]], dataset: ray.data.Dataset) -> list[Any]:
    """Compute a Dataset with its blocks in their order."""
    options = dataset.context.execution_options
    before, options.preserve_order = options.preserve_order, True
    try:
        return compute()
    finally:
        options.preserve_order = before
