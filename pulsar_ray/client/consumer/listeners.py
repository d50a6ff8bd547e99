"""Calls a consumer's listeners of messages and events, each in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

from pulsar_ray.client.consumer.consumer_core import ConsumerCore, ConsumerEvent
from pulsar_ray.client.options.policies import ConsumerEventListener
from pulsar_ray.client.received.message import BlockRows, Message
from pulsar_ray.errors import AlreadyClosed, PulsarException, Timeout
from pulsar_ray.lane.waiting import may_wait

logger = logging.getLogger(__name__)


LOOK_INTERVAL_S = 1.0


def _join(thread: threading.Thread) -> None:
    """Wait for a stopped thread, unless this is it, or nobody may wait here."""
    if thread.is_alive() and thread is not threading.current_thread() and may_wait():
        thread.join(timeout=LOOK_INTERVAL_S)


class MessageListenerThread:
    """Calls `listen(message)` for one message after the other; what it raises is logged.

    Starts with `start`, once everything that a listener may use is there.
    """

    def __init__(self, core: ConsumerCore, listen: Callable[[Message], object], *, paused: bool) -> None:
        self._core = core
        self._listen = listen
        self._running = threading.Event()
        self._stopped = False
        if not paused:
            self._running.set()
        self._thread = threading.Thread(
            target=self._run, name=f"pulsar-ray-listener-{core.name}", daemon=True
        )

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def pause(self) -> None:
        """Hand out nothing more; a call under way ends."""
        self._running.clear()

    def resume(self) -> None:
        """Hand out again."""
        self._running.set()

    def stop(self) -> None:
        """End the thread after the call under way.

        Waits for the thread unless called from the listener, or where nobody may wait.
        """
        self._stopped = True
        self._running.set()
        _join(self._thread)

    def _is_stopped(self) -> bool:
        return self._stopped

    def _run(self) -> None:
        while not self._is_stopped():
            self._running.wait()
            try:
                message, origin = self._core.receive_with_origin(time.monotonic() + LOOK_INTERVAL_S)
            except Timeout:
                continue
            except AlreadyClosed:
                return
            except PulsarException:
                logger.exception("a message could not be read")
                if self._core.has_failed:
                    # Deleted, or its broker gone: each further look would raise the same at once.
                    return
                continue
            if not self._running.is_set():
                # In the queue it is where a seek finds it.
                self._core.give_back([BlockRows(message.block, [message.row])], [origin])
                continue
            if self._is_stopped():
                return
            try:
                self._listen(message)
            except Exception:
                logger.exception("a message listener raised")


class ListenerRunner(Protocol):
    """Calls a listener from its start on until it is stopped."""

    def start(self) -> None:
        """Begin to call."""

    def stop(self) -> None:
        """Call no more."""


class EventListenerThread:
    """Calls the listener for one event after the other; what it raises is logged."""

    def __init__(
        self, consumer: Any, listener: ConsumerEventListener, changes: SimpleQueue[ConsumerEvent | None]
    ) -> None:
        self._consumer = consumer
        self._listener = listener
        self._changes = changes
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="pulsar-ray-activity", daemon=True)

    def start(self) -> None:
        """Begin to call; nobody is called behind `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Call no more.

        Waits for a call under way unless this is one, or where nobody may wait.
        """
        self._is_stopped = True
        self._changes.put(None)
        _join(self._thread)

    def _run(self) -> None:
        while (change := self._changes.get()) is not None and not self._is_stopped:
            event, partition = change
            try:
                getattr(self._listener, event)(self._consumer, partition)
            except Exception:
                logger.exception("a consumer event listener raised")
