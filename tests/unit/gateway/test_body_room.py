"""Bodies that wait for room, in their order."""

from __future__ import annotations

import asyncio

import pytest

from pulsar_ray.gateway.body_room import SMALL_BYTES, BodyRoom

LONG_S = 60.0
BIG = 4 * SMALL_BYTES


def test_they_get_room_in_their_order_and_a_small_one_at_once() -> None:
    async def run() -> None:
        room = BodyRoom(BIG)
        got: list[int] = []

        async def take(number: int, asked: int) -> None:
            got.append(number)
            size = await room.take(asked, LONG_S)
            got.append(number)
            room.give_back(size)

        held = await room.take(BIG - SMALL_BYTES, LONG_S)
        tasks = [asyncio.ensure_future(take(number, asked)) for number, asked in ((1, BIG), (2, 70_000))]
        await asyncio.sleep(0)
        # The second would fit, and waits behind the first.
        assert got == [1, 2]
        assert await room.take(SMALL_BYTES, LONG_S) == 0
        room.give_back(held)
        await asyncio.gather(*tasks)
        assert got == [1, 2, 1, 2]
        assert await room.take(10 * BIG, LONG_S) == BIG

    asyncio.run(run())


def test_who_gives_up_or_goes_holds_nobody_up() -> None:
    async def run() -> None:
        room = BodyRoom(BIG)
        held = await room.take(3 * SMALL_BYTES, LONG_S)
        with pytest.raises(asyncio.TimeoutError):
            await room.take(BIG, 0.0)
        gone = asyncio.ensure_future(room.take(BIG, LONG_S))
        behind = asyncio.ensure_future(room.take(SMALL_BYTES + 1, LONG_S))
        await asyncio.sleep(0)
        gone.cancel()
        room.give_back(SMALL_BYTES)
        assert await behind == SMALL_BYTES + 1
        room.give_back(SMALL_BYTES + 1)
        late = asyncio.ensure_future(room.take(BIG, LONG_S))
        await asyncio.sleep(0)
        # It is let in, and goes in the same turn.
        room.give_back(held - SMALL_BYTES)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        assert await room.take(BIG, 0.0) == BIG

    asyncio.run(run())
