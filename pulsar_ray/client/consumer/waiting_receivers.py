"""Receivers that wait for one message without a thread: futures, also those of event loops."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol

from pulsar_ray.client.received.message import Message
from pulsar_ray.client.received.queued_delivery import Origin
from pulsar_ray.errors import PulsarException


class Receiver(Protocol):
    """Gets one message, or an error, from the thread that brings messages."""

    def give(self, message: Message, origin: Origin) -> bool:
        """Take a message. False if the receiver waits no more: the next one gets it."""

    def fail(self, error: PulsarException) -> bool:
        """Take an error. False if the receiver waits no more."""


class WaitingReceivers(deque[Receiver]):
    """Keeps receivers in their order; they may come and leave while others are served."""

    def offer(self, takes: Callable[[Receiver], bool]) -> bool:
        """Offer something to one receiver after the other; True once one took it.

        Those that did not want it wait no more.
        """
        while self:
            with suppress(IndexError):  # another thread took the last one away
                if takes(self.popleft()):
                    return True
        return False

    def fail(self, error: PulsarException) -> None:
        """Fail all receivers with the error."""
        while self.offer(lambda receiver: receiver.fail(error)):
            pass


class FutureReceiver:
    """Waits for `receive_async`, with a future."""

    def __init__(self) -> None:
        self.future: Future[Message] = Future()

    def give(self, message: Message, _origin: Origin) -> bool:
        """Complete the future unless it was cancelled."""
        if not self.future.set_running_or_notify_cancel():
            return False
        self.future.set_result(message)
        return True

    def fail(self, error: PulsarException) -> bool:
        """Fail the future unless it was cancelled."""
        if not self.future.set_running_or_notify_cancel():
            return False
        self.future.set_exception(error)
        return True
