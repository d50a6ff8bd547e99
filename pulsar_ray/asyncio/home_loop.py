"""The one event loop that a client and all it opened live on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pulsar_ray.errors import AlreadyClosed, NotAllowedError


class HomeLoop:
    """The loop of the first awaited call, which `on_settled` gets."""

    def __init__(self, on_settled: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_settled = on_settled

    def running(self) -> asyncio.AbstractEventLoop:
        """The running loop. Raises AlreadyClosed if it replaced a closed one, NotAllowedError on another."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return loop
        if self._loop is None:
            self._loop = loop
            self._on_settled(loop)
            return loop
        if self._loop.is_closed():
            raise AlreadyClosed(
                "the event loop that this client lived on is closed: make a new Client on the present one"
            )
        raise NotAllowedError(
            "this client lives on another event loop, that of its first call: make a Client for each loop"
        )
