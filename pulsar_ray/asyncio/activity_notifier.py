"""Notifies a ConsumerEventListener on the event loop which consumer is the active one."""

from __future__ import annotations

import asyncio
import inspect
import logging
from queue import Empty

from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.options.policies import ConsumerEventListener
from pulsar_ray.lane.timers import LoopTimers

logger = logging.getLogger(__name__)


class ActivityNotifier:
    """Calls the listener for one change after the other.

    A coroutine is awaited.

    An exception of the listener is logged. Made on the loop; `stop` may come from any thread.
    """

    def __init__(self, consumer: object, listener: ConsumerEventListener, core: ConsumerCore) -> None:
        self._consumer = consumer
        self._listener = listener
        self._changes = core.activity
        self._loop = asyncio.get_running_loop()
        self._telling: asyncio.Task[None] | None = None
        self._is_stopped = False
        timers = LoopTimers(self._loop)
        core.on_activity = lambda: timers.call_soon(self._begin)

    def start(self) -> None:
        """Begin to call."""
        self._begin()

    def stop(self) -> None:
        """Call no more; a call under way ends."""
        self._is_stopped = True

    def _begin(self) -> None:
        if self._telling is None:
            self._telling = self._loop.create_task(self._tell())

    async def _tell(self) -> None:
        try:
            while not self._is_stopped:
                change = self._changes.get_nowait()
                if change is not None:
                    await self._tell_one(*change)
        except Empty:
            pass
        finally:
            self._telling = None

    async def _tell_one(self, event: str, partition: int) -> None:
        try:
            told = getattr(self._listener, event)(self._consumer, partition)
            if inspect.isawaitable(told):
                await told
        except Exception:
            logger.exception("a consumer event listener raised")
