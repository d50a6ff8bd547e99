"""What is asked for again under one number is done once."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_ray.broker.subscription.consumers.consumer_calls import MAX_KNOWN, RepeatedCalls
from pulsar_ray.errors import BrokerPersistenceError


class Work:
    """Counts how often it was done; ends when told to."""

    def __init__(self) -> None:
        self.done = 0
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        await self.may_end.wait()
        self.done += 1
        if self.error is not None:
            raise self.error
        return self.done


def test_a_repeat_has_the_first_answer() -> None:
    async def run() -> None:
        calls, work = RepeatedCalls(), Work()
        work.may_end.set()
        assert [await calls.once(7, work) for _ in range(3)] == [1, 1, 1]
        assert await calls.once(8, work) == 2

    asyncio.run(run())


def test_a_repeat_waits_for_what_is_under_way() -> None:
    async def run() -> None:
        calls, work = RepeatedCalls(), Work()
        first = asyncio.ensure_future(calls.once(7, work))
        again = asyncio.ensure_future(calls.once(7, work))
        await asyncio.sleep(0)
        first.cancel()
        work.may_end.set()
        assert await again == 1
        assert first.cancelled()
        assert work.done == 1

    asyncio.run(run())


def test_what_failed_is_done_again() -> None:
    async def run() -> None:
        calls, work = RepeatedCalls(), Work()
        work.may_end.set()
        work.error = BrokerPersistenceError("the disk")
        with pytest.raises(BrokerPersistenceError):
            await calls.once(7, work)
        work.error = None
        assert await calls.once(7, work) == 2

    asyncio.run(run())


def test_the_oldest_are_forgotten() -> None:
    async def run() -> None:
        calls, work = RepeatedCalls(), Work()
        work.may_end.set()
        for number in range(MAX_KNOWN + 1):
            await calls.once(number, work)
        assert await calls.once(1, work) == 2
        assert await calls.once(0, work) == MAX_KNOWN + 2

    asyncio.run(run())
