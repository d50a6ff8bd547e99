"""The thread of a message listener: user code never runs on the I/O thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.received.block_rows import BlockRows
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import AlreadyClosed, PulsarException, Timeout
from pulsar_ray.lane.waiting import may_wait

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0


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
        if self._thread.is_alive() and self._thread is not threading.current_thread() and may_wait():
            self._thread.join(timeout=LOOK_INTERVAL_S)

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
