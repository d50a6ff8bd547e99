"""Which consumers are being opened just now: who closes one must come behind that."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

POLL_S = 0.01


class PendingOpens:
    """By session and endpoint id. A client that waits no longer closes what it does not know to be open."""

    def __init__(self) -> None:
        self._now: Counter[tuple[int, int]] = Counter()

    @contextmanager
    def under_way(self, session_id: int, endpoint_id: int) -> Iterator[None]:
        """While it is being opened."""
        key = session_id, endpoint_id
        self._now[key] += 1
        try:
            yield
        finally:
            self._now -= Counter([key])

    async def ended(self, session_id: int, endpoint_id: int) -> None:
        """Wait until it is open, or was refused."""
        while (session_id, endpoint_id) in self._now:
            await asyncio.sleep(POLL_S)
