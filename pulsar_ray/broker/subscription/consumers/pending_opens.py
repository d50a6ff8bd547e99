"""Requests to open a consumer that are not answered yet."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class PendingOpens:
    """Lets the close of a consumer wait for its open.

    A client that waits no longer closes a consumer that it does not know to be open.
    """

    def __init__(self) -> None:
        self._pending: Counter[tuple[int, int]] = Counter()
        self._waiters: dict[tuple[int, int], asyncio.Future[None]] = {}

    def __bool__(self) -> bool:
        return bool(self._pending)

    @contextmanager
    def under_way(self, session_id: int, endpoint_id: int) -> Iterator[None]:
        """Mark an open as pending for the time of a `with` block."""
        key = session_id, endpoint_id
        self._pending[key] += 1
        try:
            yield
        finally:
            self._pending -= Counter([key])
            if key not in self._pending and key in self._waiters:
                self._waiters.pop(key).set_result(None)

    async def ended(self, session_id: int, endpoint_id: int) -> None:
        """Wait until no open of this consumer is pending: it is open, or was refused."""
        key = session_id, endpoint_id
        while key in self._pending:
            if key not in self._waiters:
                self._waiters[key] = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiters[key])
