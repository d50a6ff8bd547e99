"""The side of a consumer that fills its retry letter and dead letter topics."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, NamedTuple

from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.dead_letters.dead_letter_mover import DeadLetterMover
from pulsar_ray.client.dead_letters.letter_producers import LentProducer, LetterClient, LetterProducers
from pulsar_ray.client.dead_letters.letters import (
    DELAY_TIME,
    ORIGIN_MESSAGE_ID,
    REAL_TOPIC,
    RECONSUMETIMES,
    LetterTopics,
    letter_columns,
    retries_of,
)
from pulsar_ray.client.options.checks import check_properties, check_type
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.client.received.message import Message
from pulsar_ray.client.schemas.registration import NO_WRITER, Writer, writer_of
from pulsar_ray.errors import OperationNotSupported


class Letter(NamedTuple):
    """A copy of one message of the topic `source`; `arguments` are those of `send`."""

    is_dead: bool
    source: str
    arguments: dict[str, Any]
    writer: Writer = NO_WRITER


class ConsumerLetters:
    """Moves what fails too often, and copies single messages to be retried."""

    def __init__(self, client: LetterClient, core: ConsumerCore) -> None:
        options = core.options
        assert options.dead_letter_policy is not None
        self._enables_retry = options.enable_retry
        self._max_retries = options.dead_letter_policy.max_redeliver_count
        self._core = core
        self._topics = LetterTopics(options)
        self._producers = LetterProducers(client, options, self._topics, core.name)
        self._mover = DeadLetterMover(core, self._topics, self._producers)

    def retried_later(self, message: Any, delay: timedelta, properties: dict[str, str] | None) -> Letter:
        """The copy of a message for its retry letter topic.

        After too many retries it is for the dead letter topic.
        Raises OperationNotSupported without `enable_retry`, ValueError for wrong arguments.
        """
        if not self._enables_retry:
            raise retry_not_enabled()
        check_type("delay", delay, timedelta, "a timedelta")
        check_properties("properties", properties)
        if not isinstance(message, Message):
            raise ValueError(
                f"reconsume_later takes a received Message, which is copied, not {type(message).__name__}"
            )
        block, row = message.block, message.row
        self._core.partitions.of(block.topic_name, block.partition)
        own = message.properties()
        source = self._topics.source_of(block.topic_name, own)
        is_letter = self._topics.are_letters(block.topic_name)
        times = 1 + (retries_of(own) if is_letter else 0)
        is_dead = times > self._max_retries
        values, keys, ordering_keys, copied, event_times = letter_columns(
            block, [row], source, are_letters=is_letter
        )
        copy = copied[0] or {}
        delay_ms = delay // timedelta(milliseconds=1)
        arguments: dict[str, Any] = {
            "content": values[0],
            "properties": {
                **copy,
                **(properties or {}),
                REAL_TOPIC: copy[REAL_TOPIC],
                ORIGIN_MESSAGE_ID: copy[ORIGIN_MESSAGE_ID],
                RECONSUMETIMES: str(times),
                DELAY_TIME: str(delay_ms),
            },
            "partition_key": None if keys is None else keys[0],
            "ordering_key": None if ordering_keys is None else ordering_keys[0],
            "event_timestamp": None if event_times is None else event_times[0],
        }
        if delay_ms > 0 and not is_dead:
            arguments["deliver_after"] = delay
        return Letter(is_dead, source, arguments, writer_of(block))

    def lent(self, letter: Letter) -> AbstractContextManager[Producer]:
        """See `LetterProducers.lent`: the producer for a copy."""
        return self._producers.lent(letter.source, is_dead=letter.is_dead, writer=letter.writer)

    def take(self, letter: Letter) -> LentProducer | None:
        """See `LetterProducers.take`."""
        return self._producers.take(letter.source, is_dead=letter.is_dead, writer=letter.writer)

    def open(self, letter: Letter) -> LentProducer:
        """See `LetterProducers.open`."""
        return self._producers.open(letter.source, is_dead=letter.is_dead, writer=letter.writer)

    def give_back(self, taken: LentProducer) -> None:
        """See `LetterProducers.give_back`."""
        self._producers.give_back(taken)

    def end(self) -> None:
        """Begin no more moves, as part of a shutdown."""
        self._mover.end()

    def close(self, deadline: float) -> None:
        """Wait for moves under way, and close the producers."""
        self._mover.close(deadline)
        self._producers.close()


def retry_not_enabled() -> OperationNotSupported:
    """The error of `reconsume_later` on a consumer without a retry letter topic."""
    return OperationNotSupported(
        "reconsume_later needs a retry letter topic: subscribe with enable_retry=True, and "
        "ConsumerType.Shared or KeyShared"
    )
