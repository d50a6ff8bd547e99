"""Calls that come again because their answer was lost, though they were carried out."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

MAX_KNOWN = 256


class RepeatedCalls:
    """Carries out a call once for its number, and answers every repeat alike.

    A call that raised is carried out again. The last 256 are known, until the actor dies.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[int, asyncio.Task[Any]] = OrderedDict()

    async def once(self, number: int, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Return the answer of `work`, of this time or of the first.

        A caller that waits no longer does not end it.
        """
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
