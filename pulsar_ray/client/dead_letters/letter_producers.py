"""The producers of one consumer for its retry letter and dead letter topics."""

from __future__ import annotations

import logging
import secrets
import string
import threading
from contextlib import suppress
from typing import Any, Protocol

from pulsar_ray.client.dead_letters.letter_topics import LetterTopics
from pulsar_ray.client.dead_letters.letters import LetterColumns
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy, DeadLetterProducerContext
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import ConsumerBusy, PulsarException
from pulsar_ray.model.enums import ConsumerType, InitialPosition
from pulsar_ray.model.topic_name import TopicName

logger = logging.getLogger(__name__)

_RANDOM_CHARACTERS = 5
_ALPHABET = string.ascii_letters + string.digits


class LetterClient(Protocol):
    """The client that copies are published through."""

    def producer_from(self, options: ProducerOptions) -> Any: ...

    def consumer_from(self, options: ConsumerOptions) -> Any: ...

    def keeps_nothing(self, topic: str) -> bool: ...


class LetterProducers:
    """Opens one producer for each topic, and again after it has ended. Thread-safe.

    `consumer_name` is part of the names of dead letter producers. All methods may block.
    """

    def __init__(
        self, client: LetterClient, options: ConsumerOptions, topics: LetterTopics, consumer_name: str
    ) -> None:
        assert options.dead_letter_policy is not None
        self._client = client
        self._policy: ConsumerDeadLetterPolicy = options.dead_letter_policy
        self._subscription = options.subscription_name
        self._topics = topics
        self._consumer_name = consumer_name
        self._opening = threading.Lock()
        self._open: dict[tuple[bool, str], Producer] = {}
        self._has_warned = False

    def forked(self) -> None:
        """Take a new lock in a forked child; the producers are the parent's."""
        self._opening = threading.Lock()
        self._open = {}

    def find(self, source: str, *, is_dead: bool) -> Producer | None:
        """The producer of a topic's dead letter or retry letter topic, if it is open."""
        known = self._open.get((is_dead, source))
        return None if known is None or known.has_ended else known

    def open(self, source: str, *, is_dead: bool) -> Producer:
        """The producer that `find` returns, which is opened if it is not.

        Raises what creating a producer and an initial subscription raises, and InvalidConfiguration if a
        customizer chose the topic that messages come from.
        """
        with self._opening:
            if (known := self.find(source, is_dead=is_dead)) is not None:
                return known
            options = self._options(source, is_dead=is_dead)
            if is_dead:
                self._topics.check_dead_letter_topic(options.topic, source)
                self._subscribe(options.topic)
            producer: Producer = self._client.producer_from(options)
            self._open[is_dead, source] = producer
        if is_dead:
            self._warn_if_unread(producer.topic())
        return producer

    def _options(self, source: str, *, is_dead: bool) -> ProducerOptions:
        topics, policy = self._topics, self._policy
        topic = topics.dead_letter_topic(source) if is_dead else topics.retry_topic(source)
        arguments: dict[str, Any] = {
            "topic": topic,
            "producer_name": self._producer_name(source) if is_dead else None,
            "batching_enabled": False,
            "chunking_enabled": TopicName.parse(topic).is_persistent,
            "block_if_queue_full": False,
        }
        customize = (
            policy.dead_letter_producer_customizer if is_dead else policy.retry_letter_producer_customizer
        )
        if customize is not None:
            context = DeadLetterProducerContext(topic, source, self._subscription, self._consumer_name)
            customize(context, arguments)
        return ProducerOptions.from_arguments(**arguments)

    def _producer_name(self, source: str) -> str:
        # Random, so that a consumer that comes back need not wait for its predecessor's name.
        random = "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_CHARACTERS))
        return f"{source}-{self._subscription}-{self._consumer_name}-{random}-DLQ"

    def _subscribe(self, topic: str) -> None:
        """Create the initial subscription, if one is wanted and it is not there."""
        name = self._policy.initial_subscription_name
        if not name:
            return
        options = ConsumerOptions.from_arguments(
            topic=topic,
            subscription_name=name,
            consumer_type=ConsumerType.Shared,
            receiver_queue_size=1,
            initial_position=InitialPosition.Earliest,
        )
        with suppress(ConsumerBusy):  # it is there, and used
            self._client.consumer_from(options).close()

    def _warn_if_unread(self, topic: str) -> None:
        if self._has_warned or self._policy.initial_subscription_name:
            return
        self._has_warned = True
        with suppress(PulsarException):
            if self._client.keeps_nothing(topic):
                logger.warning(
                    "%s has no subscription and no retention, so what is moved there is not kept: give the "
                    "dead_letter_policy an initial_subscription_name, or subscribe to it",
                    topic,
                )

    def close(self) -> None:
        """Close all; later calls open them again."""
        with self._opening:
            closing = list(self._open.values())
            self._open = {}
        for producer in closing:
            with suppress(PulsarException):
                producer.close()


def send_columns(producer: Producer, columns: LetterColumns) -> None:
    """Send many copies and wait until all are durable.

    They go one by one if a customizer gave the producer a `message_router`, or if some go in chunks.
    """
    if not (producer.is_routed_by_hand or any(map(producer.is_chunked, columns.values))):
        producer.send_many(
            columns.values,
            partition_keys=columns.keys,
            ordering_keys=columns.ordering_keys,
            properties=columns.properties,
            event_timestamps=columns.event_times,
        )
        return
    for row, value in enumerate(columns.values):
        of_row: list[Any] = [None if column is None else column[row] for column in columns[1:]]
        key, ordering_key, properties, event_time = of_row
        producer.send(
            value,
            properties=properties,
            partition_key=key,
            ordering_key=ordering_key,
            event_timestamp=event_time,
        )
