"""Bounds the memory that the bodies of all requests take together."""

from __future__ import annotations

import asyncio
from collections import deque

TOGETHER_BYTES = 256 << 20
SMALL_BYTES = 64 << 10
"""A body up to this size never waits: all connections together hold few of these."""


class BodyRoom:
    """Gives bodies room in the order in which they came.

    All on one event loop.
    """

    def __init__(self, most_bytes: int = TOGETHER_BYTES) -> None:
        self._most = most_bytes
        self._left = most_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, asked: int, within_s: float) -> int:
        """Wait for room, and return how many bytes are to be given back.

        For a small body that is 0. Raises asyncio.TimeoutError where there is none in time.
        """
        if asked <= SMALL_BYTES:
            return 0
        size = min(asked, self._most)
        if not self._waiting and size <= self._left:
            self._left -= size
            return size
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        deadline = loop.call_later(within_s, _give_up, turn)
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give_back(size)
            raise
        finally:
            deadline.cancel()
            self._let_in()
        return size

    def give_back(self, size: int) -> None:
        """Let the next ones in, where a body is over."""
        self._left += size
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done():
                if size > self._left:
                    return
                self._left -= size
                turn.set_result(None)
            self._waiting.popleft()


def _give_up(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(asyncio.TimeoutError())
