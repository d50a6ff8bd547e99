"""Copies failed messages to retry letter and dead letter topics, and knows their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pulsar_ray.client.acks.unacked_rows import HeldBlock
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.received.message import BlockRows, Rows, items_of
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.client.received.receiver_queue import QueuedDelivery
from pulsar_ray.errors import InvalidConfiguration, InvalidTopicName
from pulsar_ray.model import row_sets
from pulsar_ray.model.message_id import entry_at
from pulsar_ray.model.row_sets import RowSet
from pulsar_ray.model.topic_name import PERSISTENT, TopicName

REAL_TOPIC = "REAL_TOPIC"


class LetterTopics:
    """Names letter topics by the topic of a message, never by a partition.

    They are stored even if that topic is not. Raises InvalidConfiguration for topics that would be their own
    letter topics, InvalidTopicName.
    """

    def __init__(self, options: ConsumerOptions) -> None:
        policy = options.dead_letter_policy
        self._retry = _full(policy.retry_letter_topic) if policy is not None else ""
        self._dead = _full(policy.dead_letter_topic) if policy is not None else ""
        self._subscription = options.subscription_name
        self._retry_suffix = f"-{options.subscription_name}-RETRY"
        self._enables_retry = options.enable_retry
        self._listed = _listed(options)
        self._check()

    def _check(self) -> None:
        if self._dead and self._dead == self._retry:
            raise InvalidConfiguration(
                f"dead_letter_topic and retry_letter_topic are both {self._dead}: give two topics"
            )
        for topic in self._listed:
            self.check_dead_letter_topic(self.dead_letter_topic(topic), topic)
            if self._enables_retry and TopicName.parse(self.retry_topic(topic)).partitioned_full == topic:
                raise InvalidConfiguration(
                    f"retry_letter_topic={topic} is the topic that is consumed: give another one"
                )

    def check_dead_letter_topic(self, dead_letter_topic: str, source: str) -> None:
        """Raise InvalidConfiguration if messages would be moved to where they come from."""
        whole = TopicName.parse(dead_letter_topic).partitioned_full
        if whole == source or whole in self._listed:
            raise InvalidConfiguration(
                f"dead_letter_topic={dead_letter_topic} is consumed itself: its messages would circle; "
                "give another topic"
            )

    def retry_topic(self, source: str) -> str:
        """The topic where messages of a topic wait to be retried."""
        return self._retry or self._derived(source, "RETRY")

    def dead_letter_topic(self, source: str) -> str:
        """The topic that messages of a topic are moved to."""
        return self._dead or self._derived(source, "DLQ")

    def are_letters(self, topic: str) -> bool:
        """Whether what a received topic has comes from a retry letter topic of this consumer.

        Only there are properties the system's: elsewhere whoever publishes can set them.
        """
        name = TopicName.parse(topic).partitioned_full
        if not self._enables_retry or name in self._listed:
            return False
        if len(self._listed) == 1:
            return True
        return name == self._retry if self._retry else name.endswith(self._retry_suffix)

    def rows_by_source(self, block: ReceivedBlock, rows: Rows) -> dict[str, BlockRows]:
        """Group rows of a block by the topic that they belong to.

        It is the same for all of them, unless they come from a retry letter topic.
        """
        properties = block.properties
        if properties is None or not self.are_letters(block.topic_name):
            return {self.source_of(block.topic_name, {}): BlockRows(block, rows)}
        found: dict[str, list[int]] = {}
        for row in rows:
            found.setdefault(self.source_of(block.topic_name, properties[row]), []).append(row)
        return {source: BlockRows(block, numbers) for source, numbers in found.items()}

    def source_of(self, topic: str, properties: Mapping[str, str]) -> str:
        """The topic that a received message belongs to.

        It may come from a retry letter topic, where `REAL_TOPIC` counts if it names a topic of this consumer
        whose retry letters go there.
        """
        name = TopicName.parse(topic).partitioned_full
        if not self.are_letters(name):
            return name
        if len(self._listed) == 1:
            return self._listed[0]
        said = properties.get(REAL_TOPIC, "")
        if self._retries_in(said, name):
            return said
        return name if self._retry else name.removesuffix(self._retry_suffix)

    def _retries_in(self, source: str, retry_topic: str) -> bool:
        try:
            is_whole = TopicName.parse(source).partitioned_full == source
            is_there = is_whole and self.retry_topic(source) == retry_topic
        except InvalidTopicName:
            return False
        return is_there and (not self._listed or source in self._listed)

    def _derived(self, source: str, kind: str) -> str:
        name = TopicName.parse(source)
        whole = TopicName.parse(name.partitioned_full)
        derived = (
            f"{PERSISTENT}://{name.tenant}/{name.namespace}/{whole.local_name}-{self._subscription}-{kind}"
        )
        try:
            return TopicName.parse(derived).full
        except InvalidTopicName as error:
            raise InvalidTopicName(f"{error.text}; name the {kind} topic in the dead_letter_policy") from None


def _full(name: str) -> str:
    return TopicName.parse(name).full if name else ""


def _listed(options: ConsumerOptions) -> list[str]:
    """The topics that are consumed by name; none of a pattern."""
    topics = [options.topic] if isinstance(options.topic, str) else options.topic
    if not isinstance(topics, list):
        return []
    return list(dict.fromkeys(TopicName.parse(topic).partitioned_full for topic in topics))


# They carry all that the messages do, and where these are from.

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


def marked_columns(block: ReceivedBlock, rows: Rows, name: str) -> LetterColumns:
    """Copy rows of a block as they are, each with its id in a property."""
    properties: list[dict[str, str] | None] = [
        {**of_row, name: origin_id(block, row)}
        for row, of_row in zip(rows, _properties(block, rows), strict=True)
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


def rows_over_limit(delivery: QueuedDelivery, max_failures: int) -> RowSet:
    """The delivered rows whose own failures exceed the limit.

    Failures of others in their batch do not count.
    """
    if delivery.redelivery_count <= max_failures:
        return 0
    if not delivery.row_failures:
        return delivery.rows
    over = [(first, end) for first, end, failures in delivery.row_failures if failures > max_failures]
    return delivery.rows & row_sets.of_ranges(tuple(over))


def split_over_limit(deliveries: Sequence[QueuedDelivery], max_failures: int) -> list[QueuedDelivery]:
    """Make rows over the limit deliveries of their own, in place, and mark them."""
    parts: list[QueuedDelivery] = []
    for delivery in deliveries:
        over = rows_over_limit(delivery, max_failures)
        if not over:
            parts.append(delivery)
        elif over == delivery.rows:
            parts.append(delivery._replace(is_over_limit=True))
        else:
            parts += _runs_over(delivery, over)
    return parts


def _runs_over(delivery: QueuedDelivery, over: RowSet) -> list[QueuedDelivery]:
    parts: list[QueuedDelivery] = []
    left = delivery.rows
    while left:
        is_over = bool(left & -left & over)
        # Rows of the same kind up to the first one of the other.
        others = left & ~over if is_over else left & over
        run = left & ((others & -others) - 1) if others else left
        parts.append(delivery._replace(rows=run, is_over_limit=is_over))
        left ^= run
    return parts
