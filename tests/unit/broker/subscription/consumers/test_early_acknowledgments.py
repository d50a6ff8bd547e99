"""Acknowledgments that wait until their dispatcher knows of the entries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsar_ray.broker.subscription.consumers.consumer_calls import (
    MAX_WAITING,
    EarlyAcknowledgments,
    reach_of,
)
from pulsar_ray.errors import NotConnected, PulsarException, SessionLost
from pulsar_ray.session.requests import Acknowledge


class Partition:
    """Answers when told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers: asyncio.Queue[Exception | None] = asyncio.Queue()

    async def look(self) -> None:
        self.asked += 1
        if (error := await self.answers.get()) is not None:
            raise error


def made(partition: Partition) -> tuple[EarlyAcknowledgments, list[int]]:
    return EarlyAcknowledgments(partition.look, asyncio.ensure_future), []


def test_who_waits_is_not_kept_by_those_that_come_later() -> None:
    async def run() -> None:
        partition = Partition()
        early, done = made(partition)
        await early.settled()
        early.add(lambda _: done.append(1))
        await asyncio.sleep(0)
        early.add(lambda _: done.append(2))
        settled = asyncio.ensure_future(early.settled())
        partition.answers.put_nowait(None)
        while partition.asked < 2:
            await asyncio.sleep(0)
        assert done == [1]
        assert not settled.done()
        early.add(lambda _: done.append(3))
        partition.answers.put_nowait(None)
        await settled
        assert done == [1, 2]
        partition.answers.put_nowait(None)
        await early.settled()
        assert done == [1, 2, 3]

    asyncio.run(run())


def test_what_a_partition_that_cannot_be_asked_may_not_have_is_to_be_repeated() -> None:
    async def run() -> None:
        partition = Partition()
        errors: list[PulsarException | None] = []
        early = EarlyAcknowledgments(partition.look, asyncio.ensure_future)
        early.add(errors.append)
        settled = asyncio.ensure_future(early.settled())
        await asyncio.sleep(0)
        partition.answers.put_nowait(NotConnected("gone"))
        with pytest.raises(SessionLost, match="gone"):
            await settled
        assert [type(error) for error in errors] == [SessionLost]
        early.add(errors.append)
        partition.answers.put_nowait(None)
        await early.settled()
        assert errors[1:] == [None]
        await early.settled()

    asyncio.run(run())


def test_one_too_many_is_to_be_repeated() -> None:
    async def run() -> None:
        errors: list[PulsarException | None] = []
        early = EarlyAcknowledgments(Partition().look, asyncio.ensure_future)
        for _ in range(MAX_WAITING + 1):
            early.add(errors.append)
        assert [type(error) for error in errors] == [SessionLost]

    asyncio.run(run())


def test_how_far_an_acknowledgment_reaches() -> None:
    def reach(**fields: Any) -> tuple[int, int]:
        said: dict[str, Any] = {"ranges": (), "batch_rows": (), "cumulative": None, **fields}
        return reach_of(Acknowledge(0, 1, **said))

    assert reach() == (-1, -1)
    assert reach(ranges=((3, 0, 9), (4, 2, 5)), batch_rows=((4, 4, ((0, 1),)),)) == (4, 5)
    assert reach(ranges=((3, 0, 9),), batch_rows=((4, 4, ((0, 1),)),)) == (4, 4)
    assert reach(cumulative=(5, 7, 2), ranges=((3, 0, 9),)) == (5, 7)
    assert reach(entry_bits=((3, 16, b"\xff\x05"),)) == (3, 26)
    assert reach(entry_bits=((3, 16, b""),)) == (3, -1)
    assert reach(entry_bits=((3, 16, b"\xff\x05"), (3, 20, b"\x01"))) == (3, 26)
