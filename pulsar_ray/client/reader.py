"""The reader people use: a non-durable cursor that the application places itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pulsar_ray.client.consumer import Consumer
from pulsar_ray.client.consumer_core import ConsumerCore
from pulsar_ray.client.message import Message
from pulsar_ray.client.opened_later import OpenedLater
from pulsar_ray.model.message_id import MessageId

if TYPE_CHECKING:
    from pulsar_ray.client.client import Client


class Reader(OpenedLater):
    """Reads a topic from a message id on; holds nothing back and leaves no subscription behind. Thread-safe.

    After a crash of its dispatcher it goes on behind what it had received; messages that retention trimmed
    are skipped.
    """

    def __init__(
        self, client: Client, consumer: Consumer, core: ConsumerCore, arguments: dict[str, Any]
    ) -> None:
        self._client = client
        self._consumer = consumer
        self._core = core
        self._arguments = arguments

    def topic(self) -> str:
        """The full name of the topic."""
        return self._consumer.topic()

    def read_next(self, timeout_millis: int | None = None) -> Message:
        """The next message; waits for ever, or so many ms (then Timeout)."""
        message = self._consumer.receive(timeout_millis)
        self._consumer.acknowledge(message)
        return message

    def has_message_available(self) -> bool:
        """Whether `read_next` would find a message that is stored by now."""
        return self._consumer.has_message_available()

    def seek(self, messageid: MessageId | int) -> None:
        """Go on behind this message (at it with `start_message_id_inclusive`), or at a publish time in ms."""
        self._consumer.seek(messageid)

    def close(self) -> None:
        """Leave. A second call raises AlreadyClosed."""
        self._client.forget(self)
        self._consumer.close()

    def shut_down(self) -> None:
        """End at once."""
        self._consumer.shut_down()

    def is_connected(self) -> bool:
        """True while every partition's connection stands."""
        return self._consumer.is_connected()

    def __reduce__(self) -> tuple[Any, ...]:
        return _recreate, (self._client, self._arguments)


def _recreate(client: Client, arguments: dict[str, Any]) -> Reader:
    reader = Reader.__new__(Reader)
    reader.open_later(lambda: client.reader_from(arguments, reader), _client=client, _arguments=arguments)
    return reader
