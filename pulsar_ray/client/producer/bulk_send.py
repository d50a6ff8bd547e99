"""Sends the rows of `send_many` and `send_arrow` as blocks.

Rows are spread over partitions, and each partition's rows cut into blocks; one answer comes for all of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_ray.client.endpoint.endpoint_link import EndpointLink
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.bulk_columns import (
    as_list,
    batching_keys,
    delivery_column,
    dictionary_codes,
    due_times,
    key_column,
    property_column,
    time_column,
)
from pulsar_ray.client.producer.message_fields import MessageFields, check_delivery_time
from pulsar_ray.client.producer.partition_limits import BulkLimits
from pulsar_ray.client.producer.partition_producer import PartitionProducer
from pulsar_ray.client.producer.routing import BatchTurnsRouter, CustomRouter, Router, find_available
from pulsar_ray.client.producer.send_callbacks import ErrorCallback
from pulsar_ray.errors import OperationNotSupported, PulsarException, Result, Timeout
from pulsar_ray.format.arrow_payload import encode_rows
from pulsar_ray.format.block import KEY_COLUMN, ORDERING_KEY_COLUMN
from pulsar_ray.format.columnar import is_columnar, row_bytes
from pulsar_ray.format.delivery_times import encode_times
from pulsar_ray.format.metadata import BlockMetadata, encode_producer_fields
from pulsar_ray.format.payload import encode_batch, encode_table
from pulsar_ray.format.table import DELIVER_AT, normalize_table, split_rows, split_table
from pulsar_ray.format.validation import check_given
from pulsar_ray.lane.waiting import Completion
from pulsar_ray.model.enums import BatchingType
from pulsar_ray.model.message_id import DUPLICATE_LEDGER, MessageId, entry_at

logger = logging.getLogger(__name__)

_ROW_OVERHEAD_BYTES = 64
BulkCallback = Callable[[Any, list[MessageId]], None]
"""callback(Result, the last message id of each partition)."""


class BulkReceipts:
    """Counts blocks under way, and answers when all have ended. Thread-safe.

    The answer is the last message id of each partition that got any, or the first error.
    """

    def __init__(self, callback: BulkCallback | None) -> None:
        self._callback = callback
        self._lock = threading.Lock()
        # The call itself counts as one until it has begun its last block.
        self._under_way = 1
        self._last: dict[int, MessageId] = {}
        self._error: PulsarException | None = None
        self._done = Completion()

    def begin_block(self) -> None:
        """Count a block, before it can be confirmed."""
        with self._lock:
            self._under_way += 1

    def stored(self, partition: int, last: MessageId) -> None:
        """End a block that is stored up to the message `last`."""
        self._end_one(partition, last, None)

    def failed(self, error: PulsarException) -> None:
        """End a block that was not stored, or perhaps not."""
        self._end_one(-1, None, error)

    def all_begun(self) -> None:
        """Answer as soon as all blocks so far have ended: no more of them follow."""
        self._end_one(-1, None, None)

    def _end_one(self, partition: int, last: MessageId | None, error: PulsarException | None) -> None:
        with self._lock:
            self._under_way -= 1
            if error is not None:
                self._error = self._error or error
            elif last is not None and (partition not in self._last or self._last[partition] < last):
                self._last[partition] = last
            is_last = self._under_way == 0
        if is_last:
            self._answer()

    def _answer(self) -> None:
        self._done.set()
        if self._callback is None:
            return
        try:
            if self._error is not None:
                self._callback(self._error.result, [])
            else:
                self._callback(Result.Ok, self._ids())
        except Exception:
            logger.exception("a send callback raised")

    def _ids(self) -> list[MessageId]:
        return [self._last[partition] for partition in sorted(self._last)]

    def wait(self, link: EndpointLink | None, timeout_s: float) -> list[MessageId]:
        """Wait for the answer, reading `link` if all blocks went over one.

        Raises the first error, Timeout without receipts in time.
        """
        if link is not None:
            link.wait(self._done, time.monotonic() + timeout_s)
        else:
            self._done.wait(timeout_s)
        if not self._done.is_set():
            raise Timeout(f"no receipts within {timeout_s} s; which messages were stored is unknown")
        if self._error is not None:
            raise self._error.again()
        return self._ids()


class BulkSend:
    """Encodes the rows of one call and adds them to the queues of their partitions.

    `callback` or `wait` gets the last message id of each partition.
    """

    def __init__(
        self,
        options: ProducerOptions,
        partitions: list[PartitionProducer],
        router: Router,
        route_lock: threading.Lock,
        callback: BulkCallback | None = None,
    ) -> None:
        if isinstance(router, CustomRouter):
            raise OperationNotSupported(
                "send_many and send_arrow route by key hash; a message_router needs send()"
            )
        self._options = options
        self._is_key_based = options.batching_enabled and options.batching_type == BatchingType.KeyBased
        self._partitions = partitions
        # A topic that grows meanwhile must not scatter the rows of one call, keyed ones among them.
        self._only = partitions[0] if len(partitions) == 1 else None
        self._router = router
        self._route_lock = route_lock
        self._limits = limits_of(partitions)
        self._is_encrypted = options.encryption_key is not None
        self._receipts = BulkReceipts(callback)
        self._now_ms = time.time_ns() // 1_000_000
        self._due_ms: int | None = None
        """When all of it is due, if it is delayed as a whole."""

    def _keep_entries_apart(self, *, are_delayed: bool) -> None:
        """Let each message that is an entry have its own block, if it is encrypted.

        Nobody would see the keys of entries that share an encrypted block.
        """
        if self._is_encrypted and (are_delayed or not self._options.batching_enabled):
            self._limits = BulkLimits(1, self._limits.max_bytes)

    def _goes_alone(self, partition: PartitionProducer, value: Any) -> bool:
        """Whether the only row of a block is sent as `send` sends it."""
        is_apart = self._is_encrypted and self._limits.max_rows == 1
        return is_apart or partition.queue.state.limits.goes_alone(value)

    # --- what is sent -----------------------------------------------------------------------------

    def send_table(self, data: pa.Table | pa.RecordBatch, deliver_at: int | None) -> BulkSend:
        """Cut, encode and write a table."""
        self._due_ms, many = delivery_column(deliver_at)
        if many is not None:
            raise ValueError(
                "deliver_at of send_arrow is one time for all rows: give the table a column deliver_at"
            )
        if not isinstance(data, (pa.Table, pa.RecordBatch)):
            raise ValueError(f"send_arrow takes a pyarrow Table or RecordBatch, not {type(data).__name__}")
        # Else it would be stored, and nobody could read its blocks.
        check_given(data)
        typed = self._options.schema.typed
        table = normalize_table(data) if typed is None else typed.of_table(data)
        if _DELIVER_AT in table.column_names:
            if deliver_at is not None:
                raise ValueError("give deliver_at as a column or as an argument, not both")
            if (latest := pc.max(table.column(_DELIVER_AT)).as_py()) is not None:
                check_delivery_time(f"column {_DELIVER_AT}", latest)
        self._keep_entries_apart(are_delayed=self._due_ms is not None or _DELIVER_AT in table.column_names)
        for index, part in self._split_by_partition(table):
            for batch in split_table(part, *self._limits):
                self._add_batch(self._partition_of(index), batch)
        self._receipts.all_begun()
        return self

    def _split_by_partition(self, table: pa.Table) -> list[tuple[int | None, pa.Table]]:
        """Split a table into (partition index, rows).

        The index is None for the keyless, whose entries take turns.
        """
        if self._only is not None and not self._is_key_based:
            return [(None, table)]
        target_of_row = self._targets(table)
        group_of_row = target_of_row
        if self._is_key_based:
            group_of_row = batching_keys(table) * (len(self._partitions) + 1) + target_of_row
        groups, first_rows = np.unique(group_of_row, return_index=True)
        if len(groups) == 1:
            return [(_index(target_of_row[0]), table)]
        return [
            (_index(target_of_row[first]), table.filter(pa.array(group_of_row == group)))
            for group, first in zip(groups, first_rows, strict=True)
        ]

    def _targets(self, table: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
        """List the partition index of each row.

        It is -1 for the keyless, and where there is no choice.
        """
        if self._only is not None:
            return np.full(table.num_rows, -1, dtype=np.int64)
        keys, key_of_row = dictionary_codes(table, "key")
        targets = np.array([*(self._router.choose(key) if key else -1 for key in keys), -1], dtype=np.int64)
        return np.take(targets, key_of_row)

    def _partition_of(self, index: int | None) -> PartitionProducer:
        if self._only is not None:
            return self._only
        if index is None:
            if isinstance(self._router, BatchTurnsRouter):
                # A batch that is open there ends before this one, and its turn with it.
                self._partitions[self._router.current].queue.end_turn()
                index = self._router.take_turn()
                for _ in self._partitions:
                    if self._partitions[index].takes_keyless:
                        break
                    index = self._router.take_turn()
            else:
                with self._route_lock:
                    index = self._router.choose(None)
                    if not self._partitions[index].takes_keyless:
                        index = find_available(index, self._router, self._partitions)
        return self._partitions[index]

    def _add_batch(self, partition: PartitionProducer, batch: pa.RecordBatch) -> None:
        value = _value_alone(batch) if batch.num_rows == 1 else None
        if batch.num_rows == 1 and self._goes_alone(partition, value):
            row = {name: batch.column(name)[0].as_py() for name in batch.schema.names if name != "value"}
            properties = dict(row.get("properties") or ())
            due_ms = row.get(_DELIVER_AT, self._due_ms)
            fields = (row.get("key"), row.get("ordering_key"), properties, row.get("event_time"), due_ms)
            self._add_alone(partition, None if value is None else bytes(value), *fields)
            return
        payload, columns = encode_table(batch, partition.queue.payload_memory)
        key = batch.column("key")[0].as_py() if columns & KEY_COLUMN else None
        ordering = batch.column("ordering_key")[0].as_py() if columns & ORDERING_KEY_COLUMN else None
        due: int | list[int] | None = self._due_ms
        if _DELIVER_AT in batch.schema.names:
            due = due_times(batch.column(_DELIVER_AT), self._now_ms)
        self._add_payload(partition, payload, columns, batch.num_rows, key, ordering, due, is_batch=True)

    def send_many(
        self,
        values: Iterable[bytes | None],
        keys: Iterable[str | None] | None,
        ordering_keys: Iterable[str | None] | None,
        properties: Iterable[dict[str, str] | None] | None,
        event_times: Iterable[int | None] | None,
        deliver_at: int | Iterable[int | None] | None = None,
    ) -> BulkSend:
        """Encode and write a list, or an iterable that is made one."""
        self._due_ms, times = delivery_column(deliver_at)
        values = as_list("values", values)
        keys, ordering_keys = key_column("partition_keys", keys), key_column("ordering_keys", ordering_keys)
        properties, event_times = property_column(properties), time_column(event_times)
        schema = self._options.schema
        if schema.fields_of is not None:
            keys, event_times = _fields_of_rows(schema.fields_of, values, keys, event_times)
        encode = schema.encode
        if schema.typed is not None or not _is_plain(values):
            values = [None if value is None else encode(value) for value in values]
            if not _is_plain(values):
                raise ValueError("values must be bytes or None, or what the producer's schema makes bytes of")
        columns = (keys, ordering_keys, properties, event_times, times)
        for name, column in zip(_COLUMN_NAMES, columns, strict=True):
            if column is not None and len(column) != len(values):
                raise ValueError(
                    f"{name} has {len(column)} items for {len(values)} values: give one for each, or None"
                )
        self._keep_entries_apart(are_delayed=self._due_ms is not None or times is not None)
        for index, rows in self._rows_by_partition(len(values), keys, ordering_keys):
            picked = [_pick(column, rows) for column in (values, *columns)]
            self._add_rows(index, picked)
        self._receipts.all_begun()
        return self

    def _rows_by_partition(
        self, count: int, keys: Sequence[str | None] | None, ordering_keys: Sequence[str | None] | None
    ) -> list[tuple[int | None, list[int] | None]]:
        by_key = self._is_key_based and (keys is not None or ordering_keys is not None)
        if not by_key and (keys is None or self._only is not None):
            return [(None, None)] if count else []
        none: Sequence[str | None] = [None] * count
        groups: dict[tuple[int | None, str | None], list[int]] = {}
        for row, (key, ordering_key) in enumerate(zip(keys or none, ordering_keys or none, strict=True)):
            index = self._router.choose(key) if key and self._only is None else None
            groups.setdefault((index, (ordering_key or key or None) if by_key else None), []).append(row)
        return [(index, rows) for (index, _), rows in groups.items()]

    def _add_rows(self, index: int | None, columns: list[Any]) -> None:
        values = columns[0]
        for first, end in _cut(values, self._limits):
            part: list[Any] = [column if column is None else column[first:end] for column in columns]
            partition = self._partition_of(index)
            if end - first == 1 and self._goes_alone(partition, part[0][0]):
                row: list[Any] = [None if column is None else column[0] for column in part]
                value, key, ordering, named, event_time, due_ms = row
                due_ms = self._due_ms if part[5] is None else due_ms
                self._add_alone(partition, value, key, ordering, named, event_time, due_ms)
                continue
            typed = self._options.schema.typed
            payload, bits = encode_rows(
                part[0] if typed is None or end - first == 1 else typed.gathered(part[0]),
                keys=part[1],
                ordering_keys=part[2],
                properties=part[3],
                event_times=part[4],
            )
            key = part[1][0] if part[1] else None
            ordering = part[2][0] if part[2] else None
            due = self._due_ms if part[5] is None else due_times(part[5], self._now_ms)
            is_batch = self._options.batching_enabled
            self._add_payload(partition, payload, bits, end - first, key, ordering, due, is_batch=is_batch)

    # --- blocks -----------------------------------------------------------------------------------

    def _add_alone(
        self,
        partition: PartitionProducer,
        value: bytes | None,
        key: str | None,
        ordering_key: str | None,
        properties: dict[str, str] | None,
        event_time: int | None,
        deliver_at: int | None,
    ) -> None:
        """Add a row as `send` adds a message, perhaps in chunks."""
        fields = MessageFields(
            key or None, ordering_key or None, properties or None, event_time or None, None, deliver_at
        )
        if deliver_at is not None:
            partition.queue.state.limits.check_delay(deliver_at, self._now_ms)
        self._receipts.begin_block()
        try:
            receipt = _RowReceipt(self._receipts, partition.route.partition)
            partition.queue.add_row(value, receipt, fields)
        except PulsarException as error:
            self._receipts.failed(error)
            raise

    def _add_payload(
        self,
        partition: PartitionProducer,
        payload: Any,
        columns: int,
        count: int,
        key: str | None,
        ordering_key: str | None,
        due: int | list[int] | None,
        *,
        is_batch: bool,
    ) -> None:
        # Delayed messages are entries of their own, and what shares a block with them.
        is_batch = is_batch and due is None
        partition.queue.check_size(len(payload))
        if due is not None:
            partition.queue.state.limits.check_delay(due if isinstance(due, int) else max(due), self._now_ms)
        now_ms = time.time_ns() // 1_000_000
        codec = int(self._options.compression_type)

        version = partition.queue.state.schema_version

        def encode(incarnation: int, entry_seq: int, producer_name: str, first_id: int) -> list[Any]:
            metadata = None
            if is_batch and (key is not None or ordering_key is not None):
                metadata = BlockMetadata(producer_name, key, ordering_key, schema_version=version)
            elif isinstance(due, int):
                metadata = BlockMetadata(producer_name, deliver_at=due, schema_version=version)
            elif due is not None:
                times = encode_times(due)
                metadata = BlockMetadata(producer_name, schema_version=version, delivery_times=times)
            return encode_batch(
                payload,
                columns,
                message_count=count,
                incarnation=incarnation,
                entry_seq=entry_seq,
                first_sequence_id=first_id,
                last_sequence_id=first_id + count - 1,
                publish_time_ms=now_ms,
                row_is_entry=not is_batch,
                codec=codec,
                metadata=metadata,
                fields=encode_producer_fields(producer_name, version),
            )

        def done(ledger_id: int, entry_id: int, error: PulsarException | None, stored_before: int) -> None:
            if error is not None:
                self._receipts.failed(error)
                return
            index, stored = partition.route.partition, count - stored_before
            if ledger_id == DUPLICATE_LEDGER:
                last = MessageId()
            elif is_batch:
                last = MessageId(index, ledger_id, entry_id, stored - 1, batch_size=stored)
            else:
                last = MessageId(index, ledger_id, entry_at(entry_id, stored - 1))
            self._receipts.stored(index, last)

        self._receipts.begin_block()
        try:
            partition.queue.add_block(
                encode, entries=1 if is_batch else count, messages=count, size=len(payload), done=done
            )
        except PulsarException as error:
            self._receipts.failed(error)
            raise

    def wait(self) -> list[MessageId]:
        """Return the ids once all is durable.

        Raises the first error, Timeout without receipts in `send_timeout_millis`.
        """
        timeout_s = self._options.send_timeout_millis / 1000 or 1e9
        return self._receipts.wait(None if self._only is None else self._only.link, timeout_s)


class _RowReceipt(ErrorCallback):
    """The receipt of a row that was added alone."""

    __slots__ = ("_partition", "_receipts")

    def __init__(self, receipts: BulkReceipts, partition: int) -> None:
        self._receipts = receipts
        self._partition = partition

    def __call__(self, result: Any, message_id: MessageId) -> None:
        self._receipts.stored(self._partition, message_id)

    def failed(self, error: PulsarException) -> None:
        self._receipts.failed(error)


_PLAIN_TYPES = frozenset((bytes, type(None)))
_COLUMN_NAMES = ("partition_keys", "ordering_keys", "properties", "event_timestamps", "deliver_at")
_DELIVER_AT = DELIVER_AT.name


def limits_of(partitions: Sequence[PartitionProducer]) -> BulkLimits:
    """Find the limits that any partition has told.

    One broker says the same for all partitions.
    """
    states = [partition.queue.state for partition in partitions]
    return next((state.limits.bulk for state in states if state.producer_name), states[0].limits.bulk)


def _value_alone(batch: pa.RecordBatch) -> Any:
    """The payload that the only row has alone; None for a tombstone."""
    column = batch.column("value")
    return row_bytes(column)[0] if is_columnar(column) else column[0].as_buffer()


def _fields_of_rows(
    fields_of: Callable[[Any, str | None, int | None], tuple[str | None, int | None]],
    values: Sequence[Any],
    keys: Sequence[str | None] | None,
    event_times: Sequence[int | None] | None,
) -> tuple[list[str | None], list[int | None]]:
    """The keys and times that values have, where none are given."""
    none = [None] * len(values)
    given = zip(values, keys or none, event_times or none, strict=False)
    found = [(key, at) if value is None else fields_of(value, key, at) for value, key, at in given]
    return [key or None for key, _ in found], [at for _, at in found]


def _pick(column: Sequence[Any] | None, rows: list[int] | None) -> Any:
    if column is None or rows is None:
        return column
    return [column[row] for row in rows]


def _index(target: np.int64) -> int | None:
    return int(target) if target >= 0 else None


def _is_plain(values: Sequence[Any]) -> bool:
    return set(map(type, values)) <= _PLAIN_TYPES


def _cut(values: Sequence[bytes | None], limits: BulkLimits) -> list[tuple[int, int]]:
    """List half-open row ranges, one for each block."""
    count = len(values)
    present = values if None not in values else [value or b"" for value in values]
    rows, size = limits
    if count <= rows and sum(map(len, present)) + count * _ROW_OVERHEAD_BYTES <= size:  # type: ignore[arg-type]
        return [(0, count)]
    return split_rows([_ROW_OVERHEAD_BYTES + len(value or b"") for value in values], rows, size)
