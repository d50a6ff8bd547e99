"""Waiting on an event loop with a time limit, by one rule on every Python."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


async def within(awaited: Awaitable[T], seconds: float | None) -> T:
    """Await it for at most so long; None is for ever.

    Raises asyncio.TimeoutError; it is cancelled then.

    A cancellation of the caller always gets through, although the result may be there in the same turn of the
    loop: `asyncio.wait_for` returned that result instead before Python 3.12. The result is then dropped, so
    what must not be lost (a message) has to be taken by the caller behind the wait.
    """
    future = asyncio.ensure_future(awaited)
    # Where the caller gave up, what comes of it is no news.
    future.add_done_callback(retrieved)
    try:
        await asyncio.wait((future,), timeout=seconds)
        if future.done():
            return future.result()
    finally:
        future.cancel()
    raise asyncio.TimeoutError


def retrieved(future: asyncio.Future[Any]) -> None:
    """Mark a future's error as taken.

    Nobody may be left to take it, and the loop would report it as forgotten.
    """
    if not future.cancelled():
        future.exception()
