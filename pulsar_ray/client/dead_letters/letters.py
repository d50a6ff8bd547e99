"""Copies of received messages for retry letter and dead letter topics.

They carry all that the messages do, and where these are from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pulsar_ray.client.dead_letters.letter_topics import REAL_TOPIC
from pulsar_ray.client.received.block_rows import Rows, items_of
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.model.position import entry_at

ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUMETIMES = "RECONSUMETIMES"
DELAY_TIME = "DELAY_TIME"
LETTER_PROPERTIES = (REAL_TOPIC, ORIGIN_MESSAGE_ID, RECONSUMETIMES, DELAY_TIME)
"""The properties that a copy has beside those of its message."""


class LetterColumns(NamedTuple):
    """Messages to send, column by column, as `Producer.send_many` takes them; None is an empty column."""

    values: list[bytes | None]
    keys: list[str | None] | None
    ordering_keys: list[str | None] | None
    properties: list[dict[str, str] | None]
    event_times: list[int | None] | None


def letter_columns(block: ReceivedBlock, rows: Rows, source: str) -> LetterColumns:
    """Copy rows of a block that belong to the topic `source`."""
    given = _properties(block, rows)
    properties: list[dict[str, str] | None] = [
        {REAL_TOPIC: source, ORIGIN_MESSAGE_ID: origin_id(block, row), **of_row}
        for row, of_row in zip(rows, given, strict=True)
    ]
    return _columns(block, rows, properties)


def original_columns(block: ReceivedBlock, rows: Rows) -> LetterColumns:
    """Copy rows of a block of letters as they were before they became letters."""
    properties: list[dict[str, str] | None] = [
        {name: value for name, value in of_row.items() if name not in LETTER_PROPERTIES}
        for of_row in _properties(block, rows)
    ]
    return _columns(block, rows, properties)


def _properties(block: ReceivedBlock, rows: Rows) -> list[dict[str, str]]:
    if block.properties is None:
        return [{}] * len(rows)
    return [dict(of_row or {}) for of_row in items_of(block.properties, rows)]


def _columns(block: ReceivedBlock, rows: Rows, properties: list[dict[str, str] | None]) -> LetterColumns:
    return LetterColumns(
        items_of(block.values, rows),
        None if block.keys is None else items_of(block.keys, rows),
        None if block.ordering_keys is None else items_of(block.ordering_keys, rows),
        properties,
        None if block.event_times is None else items_of(block.event_times, rows),
    )


def joined_columns(parts: list[LetterColumns]) -> LetterColumns:
    """Make one of several."""
    if len(parts) == 1:
        return parts[0]
    counts = [len(part.values) for part in parts]

    def join(columns: list[list[object] | None]) -> list[object] | None:
        if all(column is None for column in columns):
            return None
        filled = [column or [None] * count for column, count in zip(columns, counts, strict=True)]
        return [item for column in filled for item in column]

    return LetterColumns(*(join(list(columns)) for columns in zip(*parts, strict=True)))  # type: ignore[arg-type]


def origin_id(block: ReceivedBlock, row: int) -> str:
    """The id of a received message as ledger:entry:partition:batch, with -1 where there is none."""
    if block.is_batch:
        return f"{block.ledger_id}:{block.first_entry_id}:{block.partition}:{row}"
    return f"{block.ledger_id}:{entry_at(block.first_entry_id, row)}:{block.partition}:-1"


def retries_of(properties: Mapping[str, str]) -> int:
    """How often a message was sent to a retry letter topic, by its properties."""
    text = properties.get(RECONSUMETIMES, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
