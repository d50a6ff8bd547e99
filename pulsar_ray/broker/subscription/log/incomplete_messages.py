"""Giving up messages in chunks whose producers left in the middle (ADR 0038)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.errors import PulsarException
from pulsar_ray.lane.waiting import within
from pulsar_ray.model.message_id import Position

logger = logging.getLogger(__name__)

ANSWER_DEADLINE_S = 10.0

AskPartition = Callable[[Mapping[int, int], int], Awaitable[Mapping[str, Any]]]
"""Asks which producers, by incarnation, store nothing more behind an entry_seq: the call `end_messages`."""


class IncompleteMessages:
    """Acknowledges the chunks of messages that are overdue and will never be whole.

    Only the partition knows that of a producer. Without `ask`, where nothing is acknowledged durably, what is
    overdue is only forgotten: it is found again should the rest come. Runs on the owner loop.
    """

    def __init__(
        self,
        name: str,
        core: Dispatcher,
        loop: asyncio.AbstractEventLoop,
        ask: AskPartition | None,
        *,
        when_dropped: Callable[[], None],
    ) -> None:
        self._name = name
        self._core = core
        self._loop = loop
        self._ask = ask
        self._when_dropped = when_dropped
        self._is_asking = False

    @property
    def are_awaited(self) -> bool:
        """Whether one will be overdue: this dispatcher has to stay until then."""
        chunks = self._core.blocks.chunks
        return len(chunks) > 0 and chunks.limits.expire_ms > 0

    def tick(self, now_ms: int) -> None:
        """Look for overdue messages; once a second."""
        overdue = self._core.blocks.chunks.overdue(now_ms)
        if not overdue:
            return
        if self._ask is None:
            self._drop(overdue)
        elif not self._is_asking:
            self._is_asking = True
            task = self._loop.create_task(self._settle(overdue, self._ask))
            task.add_done_callback(self._asked)

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._is_asking = False
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, PulsarException | asyncio.TimeoutError):
                raise error
            logger.info("subscription %s: its partition does not answer: %s", self._name, error)

    async def _settle(self, overdue: Mapping[int, int], ask: AskPartition) -> None:
        core = self._core
        seek_generation = core.seek_generation
        answer = await within(ask(overdue, core.blocks.chunks.limits.expire_ms), ANSWER_DEADLINE_S)
        # All that they have stored must have been read: the rest of a message may be among it.
        if core.seek_generation == seek_generation and core.read_position > Position(*answer["last"]):
            self._drop({incarnation: overdue[incarnation] for incarnation in answer["left"]})

    def _drop(self, groups: Mapping[int, int]) -> None:
        core = self._core
        chunks = core.blocks.chunks
        before = chunks.dropped
        for incarnation, entry_seq in groups.items():
            chunks.left(incarnation, entry_seq)
        core.acknowledgments.acknowledge_chunks()
        if chunks.dropped > before:
            logger.warning(
                "subscription %s gave up %d messages in chunks: their producers left before they were whole",
                self._name,
                chunks.dropped - before,
            )
            self._when_dropped()
