"""Messages that wait for room in a producer's queues.

They are sent in order, and as many at once as there is room for.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pulsar_ray.client.producer.partition_producer import PartitionProducer
from pulsar_ray.client.producer.send_callbacks import ErrorCallback
from pulsar_ray.errors import PulsarException, Timeout
from pulsar_ray.lane.timers import LoopTimers
from pulsar_ray.model.message_id import MessageId


class SendFuture(asyncio.Future[MessageId], ErrorCallback):
    """One message's receipt; completed on the loop it belongs to."""

    def __call__(self, result: Any, message_id: MessageId) -> None:
        if not self.done():
            self.set_result(message_id)

    def failed(self, error: PulsarException) -> None:
        if not self.done():
            # Tracebacks of different tasks must not pile up in one error.
            self.set_exception(error.again())


@dataclass
class _Waiting:
    number: int
    sent: SendFuture
    value: bytes | None
    fields: tuple[Any, ...] | None
    is_in_turn: bool
    expiry: asyncio.TimerHandle | None = None
    is_waiting: bool = field(default=True)


class BlockedSends:
    """The messages of one producer that wait for room.

    Messages bound for a partition wait for that one; those in turn wait together for the one that
    `next_in_turn` gives, which changes while they are added.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timeout_s: float,
        next_in_turn: Callable[[], PartitionProducer],
    ) -> None:
        self._loop = loop
        self._timers = LoopTimers(loop)
        self._timeout_s = timeout_s
        self._next_in_turn = next_in_turn
        self._numbers = itertools.count()
        self._in_turn: deque[_Waiting] = deque()
        self._bound: defaultdict[PartitionProducer, deque[_Waiting]] = defaultdict(deque)

    def put(
        self,
        sent: SendFuture,
        value: bytes | None,
        fields: tuple[Any, ...] | None,
        partition: PartitionProducer | None,
    ) -> None:
        """Enqueue a message now, or once there is room.

        `sent` fails with Timeout after the send timeout.

        No partition: the one whose turn it is then. Raises what `PartitionProducer.enqueue` raises; after a
        wait `sent` fails with it.
        """
        target = partition or self._next_in_turn()
        if not self._in_turn and not self._bound[target] and target.room:
            target.gather()
            if target.enqueue(value, sent, fields, in_turn=partition is None):
                return
        message = _Waiting(next(self._numbers), sent, value, fields, partition is None)
        (self._in_turn if partition is None else self._bound[partition]).append(message)
        self._admit(target)
        if message.is_waiting and self._timeout_s:
            message.expiry = self._loop.call_later(self._timeout_s, self._expire, message, target)

    def _admit(self, partition: PartitionProducer) -> None:
        """There may be room at the partition, and at those whose turn comes next."""
        self._admit_to(partition)
        while self._in_turn and (current := self._next_in_turn()) is not partition:
            partition = current
            self._admit_to(partition)

    def _admit_to(self, partition: PartitionProducer) -> None:
        if partition.on_room is None:
            partition.on_room = partial(self._timers.call_soon, partial(self._admit, partition))
        while (waiting := self._first_for(partition)) is not None:
            message = waiting[0]
            if not message.sent.done():
                if not partition.room:
                    # The open batch would otherwise fill the queue until its delay is over.
                    partition.seal()
                    return
                if not self._enqueue(message, partition):
                    continue  # the turn has moved on
            waiting.popleft()
            message.is_waiting = False
            if message.expiry is not None:
                message.expiry.cancel()
        if not self._bound[partition] and not self._in_turn:
            partition.on_room = None

    def _first_for(self, partition: PartitionProducer) -> deque[_Waiting] | None:
        """The queue whose first message is the next one for the partition."""
        queues = [queue for queue in (self._bound[partition], self._in_turn) if queue]
        if self._in_turn and self._next_in_turn() is not partition:
            queues.remove(self._in_turn)
        return min(queues, key=lambda queue: queue[0].number, default=None)

    def _enqueue(self, message: _Waiting, partition: PartitionProducer) -> bool:
        partition.gather()
        try:
            return partition.enqueue(message.value, message.sent, message.fields, in_turn=message.is_in_turn)
        except PulsarException as error:
            message.sent.failed(error)
            return True

    def _expire(self, message: _Waiting, partition: PartitionProducer) -> None:
        message.sent.failed(Timeout(f"the producer's queue stayed full for {self._timeout_s} s"))
        self._admit(partition)
