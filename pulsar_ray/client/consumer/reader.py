"""The reader people use: a non-durable cursor that the application places itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pulsar_ray.client.consumer.consumer import Consumer, ConsumerClient
from pulsar_ray.client.endpoint.ending import Ending
from pulsar_ray.client.endpoint.lazy_handle import LazyHandle
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.message_id import MessageId


class Reader(LazyHandle):
    """Reads a topic from a message id on. Thread-safe.

    It holds nothing back and leaves no subscription behind. After a crash of its dispatcher it goes on behind
    what it had received; messages that retention trimmed are skipped.
    """

    def __init__(self, client: ConsumerClient, consumer: Consumer, arguments: dict[str, Any]) -> None:
        self._client = client
        self._ending = consumer.ending
        self._consumer = consumer
        self._arguments = arguments
        self._listener: Callable[[Reader, Message], Any] | None = arguments.get("reader_listener")
        if self._listener is not None:
            consumer.hand_to(self._heard)

    def start_listening(self) -> None:
        """Begin to call the listener, if there is one."""
        self._consumer.start_listening()

    def _heard(self, message: Message) -> None:
        assert self._listener is not None
        self._consumer.acknowledge(message)
        self._listener(self, message)

    def topic(self) -> str:
        """The full name of the topic."""
        return self._consumer.topic()

    def read_next(self, timeout_millis: int | None = None) -> Message:
        """The next message; waits for ever, or so many ms (then Timeout).

        InvalidConfiguration with a reader_listener.
        """
        if self._listener is not None:
            raise InvalidConfiguration("this reader has a reader_listener: read_next() cannot be used")
        message = self._consumer.receive(timeout_millis)
        self._consumer.acknowledge(message)
        return message

    def has_message_available(self) -> bool:
        """Whether `read_next` would find a message that is stored by now."""
        return self._consumer.has_message_available()

    def seek(self, messageid: MessageId | int) -> None:
        """Go on behind a message, or at a publish time in ms.

        With `start_message_id_inclusive` it goes on at the message.
        """
        self._consumer.seek(messageid)

    def close(self) -> None:
        """Leave. A second call raises AlreadyClosed, one after `Client.shutdown` does not."""
        self._ending.close(self._close)

    def _close(self) -> None:
        if self._never_opened():
            return
        try:
            self._consumer.leave()
        finally:
            self._client.forget(self)

    def shut_down(self) -> None:
        """End at once."""
        self._consumer.shut_down()

    def is_connected(self) -> bool:
        """True while every partition's connection stands."""
        return not self._ending.is_over and self._consumer.is_connected()

    def __reduce__(self) -> tuple[Any, ...]:
        return _recreate, (self._client, self._arguments)


def _recreate(client: ConsumerClient, arguments: dict[str, Any]) -> Reader:
    reader = Reader.__new__(Reader)
    opening = reader.open_lazily(
        lambda: client.reader_from(arguments, reader),
        _client=client,
        _arguments=arguments,
        _ending=Ending("reader", warns=False),
    )
    if arguments.get("reader_listener") is not None:
        # Nobody needs to call a reader that has a listener.
        opening.start("pulsar-ray-reopen")
    return reader
