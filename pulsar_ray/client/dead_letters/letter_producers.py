"""The producers of one consumer for its retry letter and dead letter topics."""

from __future__ import annotations

import logging
import secrets
import string
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from pulsar_ray.client.dead_letters.letters import LetterTopics
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy, DeadLetterProducerContext
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.client.schemas.registration import NO_WRITER, Writer, schema_of_copies
from pulsar_ray.errors import ConsumerBusy, PulsarException
from pulsar_ray.lane.io_thread import IoThread
from pulsar_ray.model.enums import ConsumerType, InitialPosition
from pulsar_ray.model.topic_name import TopicName

logger = logging.getLogger(__name__)

IDLE_S = 60.0
"""How long an unused producer stays open.

Its name keeps its topic from sleeping.
"""
LOOKS = 4
"""How often in that time unused ones are looked for."""
_RANDOM_CHARACTERS = 5
_ALPHABET = string.ascii_letters + string.digits


_Key = tuple[bool, str, Writer]
"""Whether letters are dead, the topic of their messages, and what these were written with."""


class LetterClient(Protocol):
    """The client that copies are published through."""

    def producer_from(self, options: ProducerOptions) -> Any: ...

    def consumer_from(self, options: ConsumerOptions) -> Any: ...

    def keeps_nothing(self, topic: str) -> bool: ...


class LentProducer:
    """An open producer with its users, and the time since which it has none."""

    __slots__ = ("producer", "unused_since_s", "users")

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.users = 0
        self.unused_since_s = 0.0


class LetterProducers:
    """Lends one producer for each topic, opened when it is needed. Thread-safe.

    One that nobody has used for a minute is closed, and opened again for the next letter.

    `consumer_name` is part of the names of dead letter producers. `now_s` is the time that being unused
    counts in.
    """

    def __init__(
        self,
        client: LetterClient,
        options: ConsumerOptions,
        topics: LetterTopics,
        consumer_name: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        assert options.dead_letter_policy is not None
        self._client = client
        self._policy: ConsumerDeadLetterPolicy = options.dead_letter_policy
        self._subscription = options.subscription_name
        self._topics = topics
        self._consumer_name = consumer_name
        self._now_s = now_s
        self._has_warned = False
        self._start_empty()

    def _start_empty(self) -> None:
        self._lock = threading.Lock()
        self._opening: set[_Key] = set()
        """Those that a thread opens, which may take a while; others wait for `_opened`."""
        self._opened = threading.Condition(self._lock)
        self._open: dict[_Key, LentProducer] = {}
        self._is_looked_after = False

    def forked(self) -> None:
        """Take new locks in a forked child; the producers are the parent's."""
        self._start_empty()

    @contextmanager
    def lent(self, source: str, *, is_dead: bool, writer: Writer = NO_WRITER) -> Iterator[Producer]:
        """Lend the producer of a topic's dead letter or retry letter topic.

        It blocks while that is opened. Raises what creating a producer and an initial subscription raises,
        and InvalidConfiguration if a customizer chose the topic that messages come from.
        """
        opened = self.take(source, is_dead=is_dead, writer=writer) or self.open(
            source, is_dead=is_dead, writer=writer
        )
        try:
            yield opened.producer
        finally:
            self.give_back(opened)

    def take(self, source: str, *, is_dead: bool, writer: Writer = NO_WRITER) -> LentProducer | None:
        """Take a producer if it is open, until `give_back`; blocks for nothing."""
        with self._lock:
            return self._take((is_dead, source, writer))

    def _take(self, key: _Key) -> LentProducer | None:
        known = self._open.get(key)
        if known is None or known.producer.has_ended:
            return None
        known.users += 1
        return known

    def give_back(self, taken: LentProducer) -> None:
        """Use a producer no more that was taken or opened."""
        with self._lock:
            taken.users -= 1
            taken.unused_since_s = self._now_s()

    def open(self, source: str, *, is_dead: bool, writer: Writer = NO_WRITER) -> LentProducer:
        """Take a producer as `take` does, opened if it is not; blocks."""
        # Without a lock: a customizer is the application's code, and may close the consumer.
        options = self._options(source, writer, is_dead=is_dead)
        key = is_dead, source, writer
        with self._lock:
            self._opened.wait_for(lambda: key not in self._opening)
            if (known := self._take(key)) is not None:
                return known
            self._opening.add(key)
        try:
            if is_dead:
                self._topics.check_dead_letter_topic(options.topic, source)
                self._subscribe(options.topic)
            opened = LentProducer(self._client.producer_from(options))
            opened.producer.ending.warns = False
            opened.users = 1
            with self._lock:
                self._open[key] = opened
                is_looked_after, self._is_looked_after = self._is_looked_after, True
        finally:
            with self._lock:
                self._opening.discard(key)
                self._opened.notify_all()
        if not is_looked_after:
            self._look_later()
        if is_dead:
            self._warn_if_unread(opened.producer.topic())
        return opened

    # --- closing what is not used -----------------------------------------------------------------

    def close_unused(self) -> None:
        """Close what nobody has used for `IDLE_S`; blocks."""
        now_s = self._now_s()
        with self._lock:
            unused = [key for key, each in self._open.items() if _is_unused(each, now_s)]
            closing = [self._open.pop(key).producer for key in unused]
        _close(closing)

    def _look_later(self) -> None:
        IoThread.get().call_later(IDLE_S / LOOKS, self._look)

    def _look(self) -> None:
        now_s = self._now_s()
        with self._lock:
            has_unused = any(_is_unused(each, now_s) for each in self._open.values())
            self._is_looked_after = is_needed = bool(self._open)
        if has_unused:
            threading.Thread(target=self.close_unused, name="pulsar-ray-letters", daemon=True).start()
        if is_needed:
            self._look_later()

    # --- opening ----------------------------------------------------------------------------------

    def _options(self, source: str, writer: Writer, *, is_dead: bool) -> ProducerOptions:
        topics, policy = self._topics, self._policy
        topic = topics.dead_letter_topic(source) if is_dead else topics.retry_topic(source)
        arguments: dict[str, Any] = {
            "topic": topic,
            "schema": schema_of_copies(writer),
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
        with self._lock:
            self._opened.wait_for(lambda: not self._opening)
            closing = [each.producer for each in self._open.values()]
            self._open = {}
        _close(closing)


def _is_unused(each: LentProducer, now_s: float) -> bool:
    return not each.users and now_s - each.unused_since_s >= IDLE_S


def _close(producers: list[Producer]) -> None:
    for producer in producers:
        with suppress(PulsarException):
            producer.close()
