"""Waiting until a congested carrier has sent what is queued."""

from __future__ import annotations

import asyncio


class DrainSignal:
    """Wakes all that wait when a carrier has drained or ended."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Wait for the next `fire`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def fire(self) -> None:
        """Wake all that wait now."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
