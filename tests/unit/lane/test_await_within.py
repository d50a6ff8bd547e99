"""Waiting on a loop with a deadline: what happens when two things happen in one turn of the loop."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import pytest

from pulsar_ray.lane.waiting import within
from tests.conformance.event_loop import on_a_loop, turns

SOON_S = 0.001
LONG_S = 60.0


@on_a_loop
async def test_what_is_awaited_is_returned_or_raised() -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()
    loop.call_soon(future.set_result, 7)
    assert await within(future, LONG_S) == 7
    assert await within(future, 0.0) == 7
    assert await within(future, None) == 7

    async def failing() -> None:
        await asyncio.sleep(0)
        raise KeyError("it")

    with pytest.raises(KeyError, match="it"):
        await within(failing(), LONG_S)


@on_a_loop
async def test_too_late_is_a_timeout_that_cancels_what_is_awaited() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    with pytest.raises(asyncio.TimeoutError):
        await within(future, SOON_S)
    assert future.cancelled()
    with pytest.raises(asyncio.TimeoutError):
        await within(asyncio.sleep(LONG_S), -1.0)


@on_a_loop
async def test_a_cancellation_in_the_turn_of_the_result_gets_through() -> None:
    loop = asyncio.get_running_loop()
    for later in range(4):
        future: asyncio.Future[int] = loop.create_future()
        waiting = asyncio.create_task(within(future, LONG_S))
        await turns(2)
        future.set_result(1)
        await turns(later)
        if not waiting.cancel():
            assert waiting.result() == 1
            assert later > 1
            continue
        with pytest.raises(asyncio.CancelledError):
            await waiting


@on_a_loop
async def test_a_cancellation_in_the_turn_of_the_result_of_a_coroutine_gets_through() -> None:
    for later in range(6):
        arrived = asyncio.Event()
        waiting = asyncio.create_task(within(arrived.wait(), LONG_S))
        await turns(3)
        arrived.set()
        await turns(later)
        if not waiting.cancel():
            assert waiting.result()
            assert later > 1
            continue
        with pytest.raises(asyncio.CancelledError):
            await waiting


@on_a_loop
async def test_a_cancellation_in_the_turn_of_the_deadline_gets_through() -> None:
    loop = asyncio.get_running_loop()
    deadline_s = 0.05
    for cancelled_after_s in (deadline_s / 2, deadline_s * 2):
        waiting = asyncio.create_task(within(loop.create_future(), deadline_s))
        await turns(2)
        loop.call_later(cancelled_after_s, waiting.cancel)
        # Behind this both are due, and run in one turn.
        time.sleep(3 * deadline_s)  # noqa: ASYNC251 - holds the loop up
        with pytest.raises(asyncio.CancelledError):
            await waiting


@on_a_loop
async def test_a_loop_of_waits_ends_when_it_is_cancelled() -> None:
    arrived = asyncio.Event()

    async def forever() -> None:
        while True:
            await within(arrived.wait(), LONG_S)
            arrived.clear()

    for later in range(8):
        waiting = asyncio.create_task(forever())
        await turns(3)
        arrived.set()
        await turns(later)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


@on_a_loop
async def test_an_error_that_comes_after_the_cancellation_is_no_news() -> None:
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))

    async def fails_when_cancelled() -> None:
        try:
            await asyncio.sleep(LONG_S)
        finally:
            raise KeyError("late")

    waiting = asyncio.create_task(within(fails_when_cancelled(), LONG_S))
    future: asyncio.Future[int] = loop.create_future()
    failed = asyncio.create_task(within(future, LONG_S))
    await turns(3)
    future.set_exception(KeyError("at once"))
    for task in (failed, waiting):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    del waiting, failed, future, task
    await turns(3)
    gc.collect()
    assert not reported
