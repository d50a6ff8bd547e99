"""Who waits for one message without a thread: futures of the synchronous client, and of event loops."""

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
    """Gets one message, or an error. Called by whoever brings messages."""

    def give(self, message: Message, origin: Origin) -> bool:
        """False if it does not want it any more: the next one gets it."""

    def fail(self, error: PulsarException) -> bool:
        """False if it does not want that any more."""


class WaitingReceivers(deque[Receiver]):
    """In the order they came; more may come, and some may leave, while others are served."""

    def offer(self, takes: Callable[[Receiver], bool]) -> bool:
        """Whether one took it; those who are asked before and do not want it wait no more."""
        while self:
            with suppress(IndexError):  # another thread took the last one away
                if takes(self.popleft()):
                    return True
        return False

    def fail(self, error: PulsarException) -> None:
        """All of them wait no more."""
        while self.offer(lambda receiver: receiver.fail(error)):
            pass


class FutureReceiver:
    """What `receive_async` waits with."""

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
