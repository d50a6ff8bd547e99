"""Senders that wait for room in a producer's queue: in order, and as many at once as there is room for."""

from __future__ import annotations

import asyncio
from collections import deque

from pulsar_ray.client.partition_producer import PartitionProducer
from pulsar_ray.errors import Timeout
from pulsar_ray.lane.timers import LoopTimers


class RoomQueue:
    """Of one partition. A sender that was let in has its place until it calls `entered`."""

    def __init__(
        self, partition: PartitionProducer, loop: asyncio.AbstractEventLoop, timeout_s: float
    ) -> None:
        self._partition = partition
        self._loop = loop
        self._timeout_s = timeout_s
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._let_in = 0
        timers = LoopTimers(loop)
        partition.on_room = lambda: timers.call_soon(self._admit) if self._waiting else None

    async def enter(self) -> None:
        """Wait for room for one message. Raises Timeout after the send timeout."""
        if not self._waiting and not self._let_in and self._partition.room:
            self._let_in += 1
            return
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        self._partition.seal()
        self._admit()
        expiry = self._loop.call_later(self._timeout_s, self._expire, waiter) if self._timeout_s else None
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.entered()
            raise
        finally:
            if expiry is not None:
                expiry.cancel()

    def entered(self) -> None:
        """The message of a sender that was let in is in the queue, or will not come."""
        self._let_in -= 1
        self._admit()

    def _admit(self) -> None:
        waiting = self._waiting
        while waiting and (waiting[0].done() or self._partition.room > self._let_in):
            waiter = waiting.popleft()
            if not waiter.done():
                self._let_in += 1
                waiter.set_result(None)

    def _expire(self, waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_exception(Timeout(f"the producer's queue stayed full for {self._timeout_s} s"))
            self._admit()
