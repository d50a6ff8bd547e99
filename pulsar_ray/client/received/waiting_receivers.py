"""Receivers wait for messages without a thread, and get them in their order."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol

from pulsar_ray.client.received.message import Message
from pulsar_ray.client.received.receiver_queue import Origin
from pulsar_ray.errors import PulsarException
from pulsar_ray.lane.waiting import running_callbacks


class Receiver(Protocol):
    """Gets one message, or an error, from the thread that brings messages."""

    def claim(self) -> bool:
        """Wait no more, but for the message or error that follows.

        False if the receiver waits no more already: the next one gets that.
        """

    def give(self, message: Message, origin: Origin) -> None:
        """Take a message, behind `claim`.

        It may run the application's code, so no lock is held.
        """

    def fail(self, error: PulsarException) -> None:
        """Take an error, behind `claim`, as `give`."""


class WaitingReceivers(deque[Receiver]):
    """Keeps receivers in their order; they may come and leave while others are served."""

    def claim(self) -> Receiver | None:
        """Claim the first receiver that still waits; None if there is none."""
        while self:
            with suppress(IndexError):  # another thread took the last one away
                if (receiver := self.popleft()).claim():
                    return receiver
        return None

    def fail(self, error: PulsarException) -> None:
        """Fail all receivers with the error."""
        while (receiver := self.claim()) is not None:
            receiver.fail(error)


class FutureReceiver:
    """Waits for `receive_async`, with a future."""

    def __init__(self) -> None:
        self.future: Future[Message] = Future()

    def claim(self) -> bool:
        """See Receiver; the future cannot be cancelled any more."""
        return self.future.set_running_or_notify_cancel()

    def give(self, message: Message, _origin: Origin) -> None:
        """Complete the future, whose callbacks must not wait."""
        with running_callbacks():
            self.future.set_result(message)

    def fail(self, error: PulsarException) -> None:
        """Fail the future, as `give`."""
        with running_callbacks():
            self.future.set_exception(error)
