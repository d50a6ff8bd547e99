"""Calls that wait for a thread, and those whose callers have gone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pulsar_ray.gateway import calls
from pulsar_ray.gateway.calls import Calls
from pulsar_ray.gateway.replies import Refusal


def test_calls_of_callers_that_have_gone_count_and_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CALLS_AT_ONCE", 1)
    monkeypatch.setattr(calls, "WAITING_CALLS", 3)
    begun, may_end = threading.Event(), threading.Event()
    made: list[int] = []

    def slow() -> None:
        begun.set()
        may_end.wait(20)

    async def ask() -> None:
        admin: Any = None
        call = Calls(admin)
        first = asyncio.create_task(call(slow))
        await asyncio.to_thread(begun.wait, 20)
        for number in range(2):
            gone = asyncio.create_task(call(made.append, number))
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        last = asyncio.create_task(call(made.append, 2))
        await asyncio.sleep(0)
        with pytest.raises(Refusal, match="4 calls are under way or wait"):
            await call(made.append, 3)
        may_end.set()
        await asyncio.gather(first, last)
        call.close()

    asyncio.run(asyncio.wait_for(ask(), 20))
    assert made == [2]
