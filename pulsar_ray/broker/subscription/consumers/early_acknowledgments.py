"""Acknowledgments that reach a dispatcher before it knows of the entries.

A publisher has the ids of entries at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from pulsar_ray.errors import PulsarException
from pulsar_ray.session.requests import Acknowledge

MAX_WAITING = 1024


class EarlyAcknowledgments:
    """Holds acknowledgments until the partition has answered where its log ends.

    Behind that end nothing can be acknowledged.

    Runs on the owner loop. `look` asks; when it returns, what there was by then is known.
    """

    def __init__(
        self, look: Callable[[], Awaitable[Any]], spawn: Callable[[Coroutine[Any, Any, None]], Any]
    ) -> None:
        self._look = look
        self._spawn = spawn
        self._waiting: list[Callable[[], None]] = []
        self._taken: asyncio.Future[None] | None = None
        """Done once those that wait are, and with them all before."""
        self._is_looking = False

    @property
    def are_waiting(self) -> bool:
        """Whether some are not done yet."""
        return self._is_looking

    def add(self, acknowledge: Callable[[], None]) -> None:
        """Call `acknowledge` once the log's end is known; at once if too many wait.

        It is called as well if the end cannot be asked for.
        """
        if len(self._waiting) >= MAX_WAITING:
            acknowledge()
            return
        if not self._waiting:
            self._taken = asyncio.get_running_loop().create_future()
        self._waiting.append(acknowledge)
        if not self._is_looking:
            self._is_looking = True
            self._spawn(self._take())

    async def settled(self) -> None:
        """Wait until all acknowledgments that were added by now are done.

        Those that others add meanwhile do not count.
        """
        if self._taken is not None:
            await asyncio.shield(self._taken)

    async def _take(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting, taken = self._waiting, [], self._taken
                with contextlib.suppress(PulsarException):
                    await self._look()
                for acknowledge in waiting:
                    acknowledge()
                if taken is not None:
                    taken.set_result(None)
        finally:
            self._is_looking = False


def reach_of(request: Acknowledge) -> tuple[int, int]:
    """Return the last entry that is named.

    Clients send each kind in order, but bits may overlap.
    """
    reach = (-1, -1)
    if request.ranges:
        ledger_id, _, last = request.ranges[-1]
        reach = ledger_id, last
    for rows in (request.batch_rows, request.moved_rows):
        if rows:
            reach = max(reach, rows[-1][:2])
    if request.cumulative is not None:
        reach = max(reach, request.cumulative[:2])
    for ledger_id, origin, data in request.entry_bits:
        reach = max(reach, (ledger_id, origin + 8 * len(data) - 9 + data[-1].bit_length() if data else -1))
    return reach
