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

from pulsar_ray.client.producer.blocks.send_callbacks import ErrorCallback
from pulsar_ray.client.producer.queue.send_queue import SendQueue
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
    fields: tuple[Any, ...] | int | None
    is_in_turn: bool
    expiry: asyncio.TimerHandle | None = None
    is_waiting: bool = field(default=True)


class BlockedSends:
    """The messages of one producer that wait for room.

    Messages bound for a partition wait for its queue. Those in turn wait together for the one that
    `next_in_turn` gives, which changes while they are added.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timeout_s: float,
        next_in_turn: Callable[[], SendQueue],
    ) -> None:
        self._loop = loop
        self._timers = LoopTimers(loop)
        self._timeout_s = timeout_s
        self._next_in_turn = next_in_turn
        self._numbers = itertools.count()
        self._in_turn: deque[_Waiting] = deque()
        self._bound: defaultdict[SendQueue, deque[_Waiting]] = defaultdict(deque)

    def put(
        self,
        sent: SendFuture,
        value: bytes | None,
        fields: tuple[Any, ...] | int | None,
        queue: SendQueue | None,
    ) -> None:
        """Enqueue a message now, or once there is room.

        `sent` fails with Timeout after the send timeout.

        No queue: the one whose turn it is then. Raises what `SendQueue.enqueue` raises; after a
        wait `sent` fails with it.
        """
        target = queue or self._next_in_turn()
        if not self._in_turn and not self._bound[target] and target.room_left:
            target.gather()
            if target.enqueue(value, sent, fields, in_turn=queue is None):
                return
        message = _Waiting(next(self._numbers), sent, value, fields, queue is None)
        (self._in_turn if queue is None else self._bound[queue]).append(message)
        self._admit(target)
        if message.is_waiting and self._timeout_s:
            message.expiry = self._loop.call_later(self._timeout_s, self._expire, message, target)

    def _admit(self, queue: SendQueue) -> None:
        """Admit messages to the queue, and to those whose turn comes next."""
        self._admit_to(queue)
        while self._in_turn and (current := self._next_in_turn()) is not queue:
            queue = current
            self._admit_to(queue)

    def _admit_to(self, queue: SendQueue) -> None:
        if queue.room.on_room is None:
            queue.room.on_room = partial(self._timers.call_soon, partial(self._admit, queue))
        while (waiting := self._first_for(queue)) is not None:
            message = waiting[0]
            if not message.sent.done():
                if not queue.room_left:
                    # The open batch would otherwise fill the queue until its delay is over.
                    queue.seal()
                    return
                if not self._enqueue(message, queue):
                    continue  # the turn has moved on
            waiting.popleft()
            message.is_waiting = False
            if message.expiry is not None:
                message.expiry.cancel()
        if not self._bound[queue] and not self._in_turn:
            queue.room.on_room = None

    def _first_for(self, queue: SendQueue) -> deque[_Waiting] | None:
        """The waiting messages of which the first is the next one for the queue."""
        lines = [line for line in (self._bound[queue], self._in_turn) if line]
        if self._in_turn and self._next_in_turn() is not queue:
            lines.remove(self._in_turn)
        return min(lines, key=lambda line: line[0].number, default=None)

    def _enqueue(self, message: _Waiting, queue: SendQueue) -> bool:
        queue.gather()
        try:
            return queue.enqueue(message.value, message.sent, message.fields, in_turn=message.is_in_turn)
        except PulsarException as error:
            message.sent.failed(error)
            return True

    def _expire(self, message: _Waiting, queue: SendQueue) -> None:
        message.sent.failed(Timeout(f"the producer's queue stayed full for {self._timeout_s} s"))
        self._admit(queue)
