"""Receives on a loop from a consumer's or reader's queue.

Messages that a cancelled call had got go back.
"""

from __future__ import annotations

import asyncio
import time

from pulsar_ray.asyncio.requests import call_partition
from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.received.batch_collector import FOREVER_S, BatchCollector
from pulsar_ray.client.received.message import BlockRows, Message
from pulsar_ray.client.received.receiver_queue import Origin
from pulsar_ray.errors import PulsarException, SubscriptionNotFound, Timeout, TopicNotFound
from pulsar_ray.lane.io_thread import LoopTimers
from pulsar_ray.lane.waiting import within


class _Received(asyncio.Future[Message]):
    """Waits for one message."""

    origin: Origin | None = None

    def claim(self) -> bool:
        return not self.done()

    def give(self, message: Message, origin: Origin) -> None:
        self.origin = origin
        self.set_result(message)

    def fail(self, error: PulsarException) -> None:
        # Possibly from another thread; nothing is lost if nobody waits any more.
        LoopTimers(self.get_loop()).run(lambda: self._fail(error))

    def _fail(self, error: PulsarException) -> None:
        if not self.done():
            self.set_exception(error.again())


async def receive_one(core: ConsumerCore, timeout_s: float | None) -> Message:
    """The next message. Raises Timeout, AlreadyClosed, or what reading its block raises."""
    message = core.receive_now()
    if message is not None:
        return message
    loop = asyncio.get_running_loop()
    received = _Received(loop=loop)
    core.add_receiver(received)
    expiry = None
    if timeout_s is not None:
        expiry = loop.call_later(timeout_s, received.fail, Timeout("no message arrived in time"))
    try:
        return await received
    except BaseException:
        core.remove_receiver(received)
        if received.origin is not None:
            message = received.result()
            core.give_back([BlockRows(message.block, [message.row])], [received.origin])
        raise
    finally:
        if expiry is not None:
            expiry.cancel()


async def receive_into(core: ConsumerCore, taken: BatchCollector, timeout_s: float = FOREVER_S) -> None:
    """Take messages until it is enough or the time is over.

    Raises AlreadyClosed, or what reading a block raises; then nothing is taken.
    """
    deadline = time.monotonic() + timeout_s
    timers = LoopTimers(asyncio.get_running_loop())
    # A message that arrived stays in the queue and is taken behind the wait, so that a cancelled one loses
    # nothing.
    arrived = asyncio.Event()

    def tell() -> None:
        timers.run(arrived.set)

    core.add_listener(tell)
    try:
        while True:
            arrived.clear()
            core.take_into(taken, 0.0)
            left = deadline - time.monotonic()
            if taken.is_enough or left <= 0:
                return
            core.check()
            try:
                await within(arrived.wait(), min(left, 3600.0))
            except asyncio.TimeoutError:
                continue
    except BaseException:
        core.give_back(taken.parts, taken.origins)
        raise
    finally:
        core.remove_listener(tell)


async def has_message_available(core: ConsumerCore, timeout_s: float) -> bool:
    """Whether a message that is stored by now is waiting here, or will come."""
    core.check()
    if core.has_received():
        return True
    deadline = time.monotonic() + timeout_s
    answers = [_has_more(core, partition, deadline) for partition in core.partitions.all]
    available = await asyncio.gather(*answers)
    return any(available) or core.has_received()


async def _has_more(core: ConsumerCore, partition: PartitionConsumer, deadline: float) -> bool:
    try:
        if not await call_partition(partition, "has_more", deadline, **partition.has_more_arguments()):
            return False
        deliveries = partition.deliveries
        return not (
            deliveries.skipped
            and deliveries.leaves_out(await call_partition(partition, "last_message", deadline))
        )
    except (TopicNotFound, SubscriptionNotFound):  # of several topics, one is being deleted
        if not core.is_multi_topic:
            raise
        return False
