"""Send the rows of one part of a write to a topic.

Under a name they are stored exactly once, without one at least once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pulsar_ray.client.client import Client
from pulsar_ray.client.options.schema import BytesSchema
from pulsar_ray.client.producer.bulk_columns import dictionary_codes
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.client.producer.routing import key_hash_function
from pulsar_ray.data.writing.query_batch import KnownIds, Layout, QueryBatch
from pulsar_ray.data.writing.row_schema import RowSchema
from pulsar_ray.errors import InvalidConfiguration, ProducerBusy
from pulsar_ray.format.table import normalize_table, split_table
from pulsar_ray.model.enums import CompressionType, HashingScheme
from pulsar_ray.model.topic_name import TopicName

ROWS_PER_TURN = 8192
"""Of rows without a key, so many in a row go to one partition."""


def row_lanes(
    table: pa.Table, task: int, partitions: int, scheme: HashingScheme = HashingScheme.JavaStringHash
) -> dict[int, pa.Table]:
    """Divide rows by the index of the partition that each goes to; their order stays.

    Keys go by hash, as every producer with this scheme sends them. Rows without one take turns, which begin
    at another partition for each task.
    """
    if table.num_rows == 0:
        return {}
    if partitions == 1:
        return {0: table}
    turns = (np.arange(table.num_rows) // ROWS_PER_TURN + task) % partitions
    keys, key_of_row = dictionary_codes(table, "key")
    key_hash = key_hash_function(scheme)
    by_key = np.array([*(key_hash(key) % partitions if key else -1 for key in keys), -1], dtype=np.int64)
    targets = by_key[key_of_row]
    targets = np.where(targets < 0, turns, targets)
    used = np.unique(targets)
    if len(used) == 1:
        return {int(used[0]): table}
    return {int(index): table.filter(pa.array(targets == index)) for index in used}


_LANES_AT_ONCE = 8
SEND_TIMEOUT_MS = 120_000
NAME_FREE_S = 60.0
"""How long to wait for a producer's name.

A publisher that has just died may have it, or a second run.
"""
_BETWEEN_OPENINGS_S = 0.2

TableSource = Callable[[], pa.Table]
"""Fetches the rows of a part, the same at each call; is pickled."""


class Sending(NamedTuple):
    """How messages are sent.

    A named write hashes keys as its layout says, which its first run chose.
    """

    hashing_scheme: HashingScheme = HashingScheme.JavaStringHash
    compression_type: CompressionType = CompressionType.NONE
    rows: RowSchema | None = None
    """The schema that values are written with; without one they are bytes."""


class NamedWrite(NamedTuple):
    """A write whose rows are stored once, however often it is run."""

    batch: QueryBatch
    layout: Layout
    partitions: tuple[str, ...]
    """The full names of as many of the topic's partitions as the layout has."""
    known: KnownIds
    """The ids stored under the query's names before."""

    def rows_stored(self, task: int, partition: int) -> int:
        """Count the rows of a task that an earlier run has stored in a partition.

        They are that many from the first one.
        """
        ids = self.known.get(self.partitions[partition], {})
        return self.batch.rows_stored(ids.get(self.batch.producer_name(self.layout, task), -1))


class Part(NamedTuple):
    """The rows of one task, and where they go.

    Without `named` they are stored at least once.
    """

    task: int
    source: TableSource
    topic: str
    sending: Sending
    named: NamedWrite | None = None


def publish_part(client: Client, part: Part) -> dict[int, int]:
    """Send a part, and return the number of its rows for each partition.

    They are durable then.

    All under -1 if the write has no name. Raises InvalidConfiguration for a column that cannot be sent, and
    what `Producer.send_arrow` raises; a named part may then be sent again.
    """
    try:
        given = part.source()
        table = normalize_table(given) if part.sending.rows is None else part.sending.rows.made(given)
        _check_texts(table)
    except ValueError as error:
        raise InvalidConfiguration(f"the rows for {part.topic} cannot be sent: {error}") from None
    if part.named is None:
        return _publish_unnamed(client, part, table)
    return _publish_named(client, part, part.named, table)


def _check_texts(table: pa.Table) -> None:
    """Check texts as producers do not: one that is no UTF-8 would stop its receivers."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise ValueError(f"column {name!r} of type {column.type}: {error}") from None


def _publish_unnamed(client: Client, part: Part, table: pa.Table) -> dict[int, int]:
    producer = _open(client, part, part.topic, None, None)
    try:
        rows = part.sending.rows
        if rows is None or rows.kind != "arrow":
            producer.send_arrow(table)
        else:
            for batch in table.to_batches():
                producer.send_arrow(rows.sent(batch))
    finally:
        producer.close()
    return {-1: table.num_rows}


def _publish_named(client: Client, part: Part, named: NamedWrite, table: pa.Table) -> dict[int, int]:
    lanes = row_lanes(table, part.task, named.layout.partitions, named.layout.hashing_scheme)
    name = named.batch.producer_name(named.layout, part.task)

    _check_same_rows(part, named, {index: lane.num_rows for index, lane in lanes.items()})

    def publish_lane(index: int) -> None:
        stored = named.rows_stored(part.task, index)
        rest = lanes[index].slice(stored)
        if rest.num_rows == 0:
            return
        producer = _open(client, part, named.partitions[index], name, named.batch.first_id + stored - 1)
        try:
            # One block at a time: behind one that is refused nothing may be stored, for its highest id would
            # say of the refused one that it is stored as well.
            for block in split_table(rest, *producer.bulk_limits):
                producer.send_arrow(block if part.sending.rows is None else part.sending.rows.sent(block))
        finally:
            producer.close()

    with ThreadPoolExecutor(_LANES_AT_ONCE, "lane") as threads:
        list(threads.map(publish_lane, lanes))
    return {index: lane.num_rows for index, lane in lanes.items()}


def _check_same_rows(part: Part, named: NamedWrite, rows: Mapping[int, int]) -> None:
    """Raise InvalidConfiguration for a batch that had more rows before."""
    for index, topic in enumerate(named.partitions):
        stored, found = named.rows_stored(part.task, index), rows.get(index, 0)
        if stored > found:
            raise InvalidConfiguration(
                f"batch {named.batch.batch_id} of {named.batch.query!r} has {found} rows for {topic} in part "
                f"{part.task}, and an earlier run has stored {stored}: a batch must have the same rows each "
                "time; a query that begins anew needs another name, or forget_writes()"
            )


def _open(client: Client, part: Part, topic: str, name: str | None, used_id: int | None) -> Producer:
    # Rows that were read of a topic may be larger than a block.
    makes_chunks = TopicName.parse(topic).is_persistent
    return when_free(
        lambda: client.create_producer(
            topic,
            name,
            schema=BytesSchema() if part.sending.rows is None else part.sending.rows.schema(),
            initial_sequence_id=used_id,
            send_timeout_millis=SEND_TIMEOUT_MS,
            batching_enabled=not makes_chunks,
            chunking_enabled=makes_chunks,
            hashing_scheme=part.sending.hashing_scheme,
            compression_type=part.sending.compression_type,
        )
    )


def when_free(open_producer: Callable[[], Producer]) -> Producer:
    """Open a producer whose name another one may have just now. Raises ProducerBusy after NAME_FREE_S."""
    deadline = time.monotonic() + NAME_FREE_S
    while True:
        try:
            return open_producer()
        except ProducerBusy:
            if time.monotonic() > deadline:
                raise
            time.sleep(_BETWEEN_OPENINGS_S)
