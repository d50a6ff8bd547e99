"""Calls that are made again because their answer was lost, though what they ask for was done."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

MAX_KNOWN = 256


class RepeatedCalls:
    """Does once what is asked for under one number; whoever asks again gets the same answer.

    What raised is done again. The last 256 are known, until the actor dies.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[int, asyncio.Task[Any]] = OrderedDict()

    async def once(self, number: int, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """The answer of `work`, of this time or of the first. Whoever waits no longer does not end it."""
        task = self._known.get(number)
        if task is None:
            task = self._known[number] = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(lambda done: self._ended(number, done))
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return await asyncio.shield(task)

    def _ended(self, number: int, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or task.exception():
            self._known.pop(number, None)
