"""The thread that calls a ConsumerEventListener when the active consumer changes."""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from typing import Any, Protocol

from pulsar_ray.client.options.policies import ConsumerEventListener
from pulsar_ray.lane.waiting import may_wait

logger = logging.getLogger(__name__)

STOP_S = 1.0
BECAME_ACTIVE = "became_active"
BECAME_INACTIVE = "became_inactive"
PARTITION_REPLACED = "partition_replaced"
ConsumerEvent = tuple[str, int]
"""(the listener's method for it, partition).

The partition is -1 on a topic without partitions.
"""


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
        if self._thread.is_alive() and self._thread is not threading.current_thread() and may_wait():
            self._thread.join(timeout=STOP_S)

    def _run(self) -> None:
        while (change := self._changes.get()) is not None and not self._is_stopped:
            event, partition = change
            try:
                getattr(self._listener, event)(self._consumer, partition)
            except Exception:
                logger.exception("a consumer event listener raised")
