"""Sending copies of messages, whatever the messages could be, and telling which of them went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pulsar_ray.client.dead_letters.letters import LetterColumns
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import MessageTooBig

_ALONE_BYTES = 1 << 20
"""Larger copies go one by one: together they would be a block each as well."""
_FIELD_BYTES = 64
"""More than what a field of a message takes beside its text."""


class SentCopies(NamedTuple):
    """Which copies are durable: those of the rows before `end`, but for `too_big` ones."""

    end: int
    too_big: dict[int, MessageTooBig]
    error: Exception | None
    """Why those from `end` on did not go, some of which may be stored."""


def send_copies(producer: Producer, columns: LetterColumns) -> SentCopies:
    """Send copies in order, together where that goes, and wait until they are durable.

    A message that its topic does not take, for its size, keeps no other from going.
    """
    too_big: dict[int, MessageTooBig] = {}
    for rows, is_alone in _runs(producer, columns):
        try:
            if not is_alone:
                _send_together(producer, columns, rows)
                continue
        except MessageTooBig:
            # The topic takes less than it did a moment ago. Rows that went before it refused one go again.
            pass
        except Exception as error:  # noqa: BLE001 - a router or schema may raise anything
            return SentCopies(rows.start, too_big, error)
        for row in rows:
            try:
                _send_alone(producer, columns, row)
            except MessageTooBig as error:
                too_big[row] = error
            except Exception as error:  # noqa: BLE001
                return SentCopies(row, too_big, error)
    return SentCopies(len(columns.values), too_big, None)


def _runs(producer: Producer, columns: LetterColumns) -> Iterator[tuple[range, bool]]:
    """Rows that are sent in the same way: each alone, or all together."""
    count = len(columns.values)
    if producer.is_routed_by_hand:
        yield range(count), True
        return
    start = 0
    for row in range(count):
        if _is_large(producer, columns, row):
            if start < row:
                yield range(start, row), False
            yield range(row, row + 1), True
            start = row + 1
    if start < count:
        yield range(start, count), False


def _is_large(producer: Producer, columns: LetterColumns, row: int) -> bool:
    """Whether a message may be too large for a block that others could be in."""
    value = columns.values[row]
    size = len(value or b"") + _FIELD_BYTES
    for keys in (columns.keys, columns.ordering_keys):
        if keys is not None and (key := keys[row]):
            size += 4 * len(key) + _FIELD_BYTES
    for name, text in (columns.properties[row] or {}).items():
        size += 4 * (len(name) + len(text)) + _FIELD_BYTES
    return size > min(_ALONE_BYTES, producer.max_message_size // 2) or producer.is_chunked(value)


def _send_together(producer: Producer, columns: LetterColumns, rows: range) -> None:
    if len(rows) < len(columns.values):
        picked = (None if column is None else column[rows.start : rows.stop] for column in columns)
        columns = LetterColumns(*picked)  # type: ignore[arg-type]
    producer.send_many(
        columns.values,
        partition_keys=columns.keys,
        ordering_keys=columns.ordering_keys,
        properties=columns.properties,
        event_timestamps=columns.event_times,
    )


def _send_alone(producer: Producer, columns: LetterColumns, row: int) -> None:
    producer.send(
        columns.values[row],
        properties=columns.properties[row],
        partition_key=None if columns.keys is None else columns.keys[row],
        ordering_key=None if columns.ordering_keys is None else columns.ordering_keys[row],
        event_timestamp=None if columns.event_times is None else columns.event_times[row],
    )
