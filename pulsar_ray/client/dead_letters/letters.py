"""Copies of received messages for retry letter and dead letter topics.

They carry all that the messages do, and where these are from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pulsar_ray.client.acks.unacked_rows import HeldBlock
from pulsar_ray.client.dead_letters.letter_topics import REAL_TOPIC
from pulsar_ray.client.received.block_rows import Rows, items_of
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.model.message_id import entry_at

ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUMETIMES = "RECONSUMETIMES"
DELAY_TIME = "DELAY_TIME"
UNREADABLE_BLOCK = "UNREADABLE_BLOCK"
"""Why a letter's value is a stored block: it could not be decoded (ADR 0092)."""
LETTER_PROPERTIES = (REAL_TOPIC, ORIGIN_MESSAGE_ID, RECONSUMETIMES, DELAY_TIME, UNREADABLE_BLOCK)
"""The properties that a copy has beside those of its message."""
USER_PREFIX = "USER_"
"""A copy's prefix to its message's own properties of these names.

Names that have one get another, so that taking one away gives back what was set.
"""


class LetterColumns(NamedTuple):
    """Messages to send, column by column, as `Producer.send_many` takes them; None is an empty column."""

    values: list[bytes | None]
    keys: list[str | None] | None
    ordering_keys: list[str | None] | None
    properties: list[dict[str, str] | None]
    event_times: list[int | None] | None


def letter_columns(block: ReceivedBlock, rows: Rows, source: str, *, are_letters: bool) -> LetterColumns:
    """Copy rows of a block that belong to the topic `source`.

    `are_letters` if they are copies already, of messages whose ids they keep.
    """
    properties: list[dict[str, str] | None] = []
    for row, of_row in zip(rows, _properties(block, rows), strict=True):
        copy = {ORIGIN_MESSAGE_ID: origin_id(block, row)}
        copy.update(of_row if are_letters else _beside_system(of_row))
        copy[REAL_TOPIC] = source
        properties.append(copy)
    return _columns(block, rows, properties)


def unreadable_letter(topic: str, held: HeldBlock, partition: int, data: bytes, reason: str) -> ReceivedBlock:
    """Make the one message of an undecodable block; its value is what is stored."""
    letter = ReceivedBlock.outgoing(topic, data, properties={UNREADABLE_BLOCK: reason})
    letter.ledger_id, letter.first_entry_id = held.ledger_id, held.first_entry_id
    letter.partition, letter.redelivery_count = partition, held.redelivery_count
    return letter


def original_columns(block: ReceivedBlock, rows: Rows) -> LetterColumns:
    """Copy rows of a block of letters as they were before they became letters.

    A message without `REAL_TOPIC` is no letter, and stays as it is.
    """
    properties: list[dict[str, str] | None] = [
        _without_system(of_row) if REAL_TOPIC in of_row else of_row for of_row in _properties(block, rows)
    ]
    return _columns(block, rows, properties)


def _beside_system(properties: dict[str, str]) -> dict[str, str]:
    """A message's own properties, with names that leave the system its own."""
    return {USER_PREFIX + name if _is_like_system(name) else name: properties[name] for name in properties}


def _without_system(properties: dict[str, str]) -> dict[str, str]:
    """The properties that a message had before `_beside_system`."""
    return {
        name.removeprefix(USER_PREFIX) if _is_like_system(name) else name: value
        for name, value in properties.items()
        if name not in LETTER_PROPERTIES
    }


def _is_like_system(name: str) -> bool:
    if not name.endswith(LETTER_PROPERTIES):
        return False
    while name.startswith(USER_PREFIX):
        name = name.removeprefix(USER_PREFIX)
    return name in LETTER_PROPERTIES


def _properties(block: ReceivedBlock, rows: Rows) -> list[dict[str, str]]:
    if block.properties is None:
        return [{} for _ in rows]
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
    """How often a retry letter was sent to its topic, by its properties."""
    text = properties.get(RECONSUMETIMES, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
