"""Tests that run on an event loop of their own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from pulsar_ray import asyncio as pulsar
from pulsar_ray.client.received.message import Message

TEST_DEADLINE_S = 240.0
"""Less than that of the suite; topics that fall asleep again and again take their time on a busy machine."""
POLL_S = 0.01


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes a test of a coroutine; it fails if it does not come to an end."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), TEST_DEADLINE_S))

    return run


async def until(condition: Callable[[], bool]) -> None:
    """Wait for it; the test's deadline ends it."""
    while not condition():
        await asyncio.sleep(POLL_S)


async def turns(count: int) -> None:
    """Let everything else go on for so many turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def receive(consumer: pulsar.Consumer, count: int) -> list[Message]:
    """The next messages."""
    return [await consumer.receive() for _ in range(count)]


async def values(consumer: pulsar.Consumer, count: int, *, acknowledge: bool = False) -> list[bytes]:
    """The values of the next messages, acknowledged if wanted."""
    messages = await receive(consumer, count)
    if acknowledge:
        for message in messages:
            await consumer.acknowledge(message)
    return [message.data() for message in messages]
