"""Requests wait that would tell what a start found and nobody shipped (ADR 0145).

A former process may have written entries that no receipt followed, because they were not in the object store.
Told as stored now, or shown, they could be lost with the node all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pulsar_ray.session.session_table import Session

TELLS_NOTHING_STORED = frozenset(
    {"why_receipts_wait", "offload_status", "compaction_status", "grant_lease", "release_lease"}
)
"""Calls of a partition that tell nobody what is stored."""


class Recovered:
    """Requests that would tell what is stored wait here until that is durable enough."""

    def __init__(self) -> None:
        self._early: dict[tuple[Session, int], tuple[int, Callable[[Session, Any], None], Any]] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._is_durable = False

    @property
    def are_waiting(self) -> bool:
        """Whether somebody waits, who would begin again if the partition fell asleep meanwhile."""
        return bool(self._early or self._waiting)

    def are_durable(self) -> None:
        """Carry out what waits, in its order, and let nothing wait from now on."""
        self._is_durable = True
        early, self._early = self._early, {}
        for (session, _), (attachment, answer, request) in early.items():
            if not session.is_ended and session.attachment == attachment:
                answer(session, request)
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def when_durable(
        self, answer: Callable[[Session, Any], None], session: Session, endpoint: int, request: Any
    ) -> None:
        """Answer a request of a session, perhaps later.

        Of several requests for an endpoint the last one is answered.
        """
        if self._is_durable:
            answer(session, request)
        else:
            self._early[session, endpoint] = session.attachment, answer, request

    async def wait(self) -> None:
        """Wait until what was found is durable enough."""
        if not self._is_durable:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting

    def forget(self, session: Session, endpoint: int | None = None) -> None:
        """Answer a session no more, or for an endpoint of it."""
        for key in list(self._early):
            if key[0] is session and endpoint in (None, key[1]):
                del self._early[key]
