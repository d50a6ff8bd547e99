"""The messages of one block that is still open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pulsar_ray.client.producer.blocks.sealed_batch import SealedBatch, SendCallback

T = TypeVar("T")


class OpenBatch:
    """Holds columns that grow message by message.

    Only values and callbacks are kept for every message at once. The other columns are filled up with None,
    and sequence ids with the automatic ones, when a later message has something to say or when the block is
    sealed.
    """

    __slots__ = (
        "_base_id",
        "_base_row",
        "callbacks",
        "delivery_times",
        "event_times",
        "keys",
        "ordering_keys",
        "properties",
        "publish_time_ms",
        "sequence_ids",
        "values",
    )

    def __init__(self, publish_time_ms: int, first_sequence_id: int) -> None:
        self.values: list[bytes | None] = []
        self.callbacks: list[SendCallback | None] = []
        self.publish_time_ms = publish_time_ms
        self.keys: list[str | None] | None = None
        self.ordering_keys: list[str | None] | None = None
        self.properties: list[Mapping[str, str] | None] | None = None
        self.event_times: list[int | None] | None = None
        self.delivery_times: list[int | None] | None = None
        self.sequence_ids: list[int] | None = None
        # Rows from _base_row on have the automatic ids from _base_id on.
        self._base_id = first_sequence_id
        self._base_row = 0

    def next_sequence_id(self) -> int:
        """The automatic id of the next message: the highest one so far + 1."""
        return self._base_id + len(self.values) - self._base_row

    def last_sequence_id(self) -> int:
        """The id of the newest message; there is one."""
        if self.sequence_ids is not None and self._base_row == len(self.values):
            return self.sequence_ids[-1]
        return self.next_sequence_id() - 1

    def number_from(self, first_sequence_id: int) -> None:
        """Let the ids begin there; no message has been given one."""
        self._base_id = first_sequence_id

    def append(
        self,
        value: bytes | None,
        callback: SendCallback | None,
        key: str | None,
        ordering_key: str | None,
        properties: Mapping[str, str] | None,
        event_time: int | None,
        sequence_id: int | None,
        deliver_at: int | None = None,
    ) -> None:
        """Add a message that may have more than a value."""
        row = len(self.values)
        if sequence_id is not None and sequence_id != self.next_sequence_id():
            self._set_sequence_id(row, sequence_id)
        if key is not None:
            self.keys = _put(self.keys, row, key)
        if ordering_key is not None:
            self.ordering_keys = _put(self.ordering_keys, row, ordering_key)
        if properties:
            self.properties = _put(self.properties, row, properties)
        if event_time is not None:
            self.event_times = _put(self.event_times, row, event_time)
        if deliver_at is not None:
            self.delivery_times = _put(self.delivery_times, row, deliver_at)
        self.values.append(value)
        self.callbacks.append(callback)

    def undelayed_before(self) -> list[int | None]:
        """Return the delivery times, None for all rows so far that have none."""
        times = self.delivery_times = self.delivery_times or []
        return _filled(times, len(self.values))

    def _set_sequence_id(self, row: int, sequence_id: int) -> None:
        highest = self.next_sequence_id()
        if row == 0 and sequence_id > highest:
            self._base_id = sequence_id
            return
        ids = self._explicit_ids(row)
        ids.append(sequence_id)
        self.sequence_ids = ids
        self._base_id = max(highest, sequence_id + 1)
        self._base_row = row + 1

    def _explicit_ids(self, rows: int) -> list[int]:
        ids = self.sequence_ids or []
        ids.extend(range(self._base_id, self._base_id + rows - len(ids)))
        return ids

    def seal(self, payload_bytes: int, *, is_batch: bool) -> SealedBatch:
        """The finished block; these rows must not be used any more."""
        count = len(self.values)
        ids = None if self.sequence_ids is None else self._explicit_ids(count)
        first_id = self._base_id if ids is None else ids[0]
        last_id = self._base_id + count - 1 if ids is None else max(ids)
        if ids is not None and ids == list(range(first_id, first_id + count)):
            ids = None
        return SealedBatch(
            self.values,
            self.callbacks,
            is_batch=is_batch,
            publish_time_ms=self.publish_time_ms,
            payload_bytes=payload_bytes,
            first_sequence_id=first_id,
            last_sequence_id=last_id,
            sequence_ids=ids,
            keys=self.keys and _filled(self.keys, count),
            ordering_keys=self.ordering_keys and _filled(self.ordering_keys, count),
            properties=self.properties and _filled(self.properties, count),
            event_times=self.event_times and _filled(self.event_times, count),
            delivery_times=self.delivery_times and _filled(self.delivery_times, count),
        )


def _put(column: list[T | None] | None, row: int, item: T) -> list[T | None]:
    if column is None:
        column = []
    missing = row - len(column)
    if missing:
        column.extend([None] * missing)
    column.append(item)
    return column


def _filled(column: list[T | None], count: int) -> list[T | None]:
    if len(column) < count:
        column.extend([None] * (count - len(column)))
    return column
