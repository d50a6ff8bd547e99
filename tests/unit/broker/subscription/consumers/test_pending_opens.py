"""A close waits for the open before it."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_ray.broker.subscription.consumers.consumer_calls import PendingOpens


def test_a_close_waits_for_the_opens_of_its_consumer_alone() -> None:
    asyncio.run(_wait_for_opens())


async def _wait_for_opens() -> None:
    opens, go, events = PendingOpens(), [asyncio.Event(), asyncio.Event()], []

    async def open_one(number: int, endpoint_id: int) -> None:
        with opens.under_way(1, endpoint_id):
            await go[number].wait()
            events.append(f"open {number}")

    async def close(endpoint_id: int) -> None:
        await opens.ended(1, endpoint_id)
        events.append(f"close {endpoint_id}")

    assert not opens
    tasks = [asyncio.ensure_future(open_one(number, 7)) for number in range(2)]
    await asyncio.sleep(0)
    assert opens
    await close(8)
    tasks += [asyncio.ensure_future(close(7)) for _ in range(2)]
    for event in reversed(go):
        await asyncio.sleep(0)
        event.set()
    await asyncio.gather(*tasks)
    assert events == ["close 8", "open 1", "open 0", "close 7", "close 7"]
    assert not opens


def test_a_refused_open_ends_as_well() -> None:
    async def refuse() -> None:
        opens = PendingOpens()
        with pytest.raises(ValueError, match="refused"), opens.under_way(1, 7):
            raise ValueError("refused")
        await opens.ended(1, 7)
        assert not opens

    asyncio.run(refuse())
