"""Requests to a dispatcher that are awaited on the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_ray.asyncio.blocking_calls import in_thread
from pulsar_ray.client.acks.partition_acks import PendingRequest
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.errors import NotConnected, PulsarException, SessionLost, Timeout
from pulsar_ray.lane.io_thread import LoopTimers
from pulsar_ray.lane.waiting import within
from pulsar_ray.session.requests import Request
from pulsar_ray.transport.actor_link import FIRST_BACKOFF_S, ActorLink


async def call_partition(partition: PartitionConsumer, method: str, deadline: float, **arguments: Any) -> Any:
    """A control call that changes nothing, behind what was acknowledged before.

    Made again if the carrier is lost.
    """
    partition.ack_sender.flush()
    link = partition.link
    while True:
        if not link.is_attached:
            await in_thread(link.ensure_attached, deadline)
        try:
            return await _request(
                link, lambda rid: partition.session.control(rid, method, arguments), deadline
            )
        except (SessionLost, NotConnected):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(FIRST_BACKOFF_S)


async def _request(link: ActorLink, build: Callable[[int], Request], deadline: float) -> Any:
    loop = asyncio.get_running_loop()
    timers = LoopTimers(loop)
    answered: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: PulsarException | None) -> None:
        if answered.done():
            return
        if error is not None:
            answered.set_exception(error.again())
        else:
            answered.set_result(value)

    # A lost carrier is noticed on any thread.
    link.request_async(build, lambda value, error: timers.run(lambda: settle(value, error)))
    return await _until(answered, deadline, "the actor did not answer in time")


async def all_answered(requests: Sequence[PendingRequest], deadline: float) -> None:
    """Wait until the dispatcher has answered. Raises what it refused one with, or Timeout."""
    loop = asyncio.get_running_loop()
    timers = LoopTimers(loop)
    left = len(requests)
    done: asyncio.Future[None] = loop.create_future()

    def one() -> None:
        nonlocal left
        left -= 1
        if not left and not done.done():
            done.set_result(None)

    for request in requests:
        request.when_answered(lambda: timers.run(one))
    if requests:
        text = "the dispatcher did not answer in time; acknowledgments may not be durable yet"
        await _until(done, deadline, text)
    for request in requests:
        if request.error is not None:
            raise request.error.again()


async def _until(future: asyncio.Future[Any], deadline: float, text: str) -> Any:
    try:
        return await within(future, max(0.0, deadline - time.monotonic()))
    except asyncio.TimeoutError:
        raise Timeout(text) from None
