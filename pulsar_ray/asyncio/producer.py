"""The producer of an asyncio client."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from pulsar_ray.asyncio.blocking_calls import in_thread
from pulsar_ray.asyncio.lazy_handle import LazyHandle, OpeningClient
from pulsar_ray.asyncio.loop_handles import LoopProducer
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.message_fields import MessageFields
from pulsar_ray.client.producer.send_callbacks import ErrorCallback
from pulsar_ray.client.producer.send_queue import SendQueue
from pulsar_ray.errors import PulsarException, Timeout
from pulsar_ray.lane.io_thread import LoopTimers
from pulsar_ray.lane.waiting import within
from pulsar_ray.model.message_id import MessageId


class Producer(LazyHandle[LoopProducer]):
    """Publishes to a topic, from any number of tasks of its loop.

    Made by `Client.create_producer`; pickled, it reconnects as a new one at its first awaited call.

    A receipt (the return of `send`) means: stored durably, and there after any crash. Without one the outcome
    is unknown. Messages of one partition are stored in the order in which their sends began.
    """

    _what = "producer"

    def __init__(
        self, client: OpeningClient, options: ProducerOptions, inner: LoopProducer | None = None
    ) -> None:
        super().__init__(client)
        self._options = options
        self._blocks = options.block_if_queue_full
        self._room_queue: BlockedSends | None = None
        if inner is not None:
            self._opened(inner)

    async def _open(self) -> LoopProducer:
        return await self._client.open_producer(self._options)

    @property
    def _rooms(self) -> BlockedSends:
        if self._room_queue is None:
            timeout_s = self._options.send_timeout_millis / 1000
            inner = self._open_already()
            self._room_queue = BlockedSends(self._client.loop(), timeout_s, lambda: inner.next_in_turn)
        return self._room_queue

    async def send(
        self,
        content: Any,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> MessageId:
        """Publish one message and wait until it is stored durably. `content=None` is a tombstone.

        Messages that are sent in one turn of the loop go out together. With batching (the default here) a
        batch waits for more until its delay, a limit or `flush`. A full queue (`max_pending_messages`) is
        waited for with `block_if_queue_full`, else raises ProducerQueueIsFull. Once begun, a send that is
        cancelled goes on.

        Raises Timeout after `send_timeout_millis` without a receipt (the outcome is then unknown),
        MessageTooBig, DiskSpaceLow, AlreadyClosed; ValueError for wrong arguments, TypeError for content of a
        type the schema does not take.
        """
        loop = self._client.loop()
        inner = self._inner or await self._open_first()
        prepared = inner.prepare(
            content,
            properties,
            partition_key,
            ordering_key,
            sequence_id,
            replication_clusters,
            False if disable_replication is None else disable_replication,
            event_timestamp,
            deliver_at,
            deliver_after,
        )
        return await self._begun(loop, inner, *prepared)

    def begin_send(
        self,
        content: Any,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
    ) -> asyncio.Future[MessageId]:
        """Begin `send` of an open producer, and return the future of its receipt.

        Raises at once what `send` raises for wrong arguments.
        """
        loop, inner = self._client.loop(), self._open_already()
        prepared = inner.prepare(
            content, properties, partition_key, None, None, None, False, event_timestamp, deliver_at, None
        )
        return self._begun(loop, inner, *prepared)

    def _begun(
        self,
        loop: asyncio.AbstractEventLoop,
        inner: LoopProducer,
        queue: SendQueue | None,
        value: bytes | None,
        fields: MessageFields | None,
    ) -> SendFuture:
        sent = SendFuture(loop=loop)
        if self._blocks:
            self._rooms.put(sent, value, fields, queue)
        elif queue is None:
            while not inner.next_in_turn.enqueue(value, sent, fields, in_turn=True):
                pass  # its batch was full: the next partition's turn
        else:
            queue.gather()
            queue.enqueue(value, sent, fields)
        return sent

    async def send_many(
        self,
        values: Iterable[bytes | None],
        *,
        partition_keys: Iterable[str | None] | None = None,
        ordering_keys: Iterable[str | None] | None = None,
        properties: Iterable[dict[str, str] | None] | None = None,
        event_timestamps: Iterable[int | None] | None = None,
        deliver_at: int | Iterable[int | None] | None = None,
    ) -> list[MessageId]:
        """Publish a list and wait until all of it is durable.

        Returns the last message's id of each partition that got any.

        It is encoded at once and on another thread, so its place among single sends is open until this
        returns. Of other iterables lists are made first; the others are as long as `values`. Raises what
        `send` raises; after an error a part may be stored, after a cancellation all.
        """
        inner = await self._open_first()
        return await in_thread(
            lambda: inner.send_many(
                values,
                partition_keys=partition_keys,
                ordering_keys=ordering_keys,
                properties=properties,
                event_timestamps=event_timestamps,
                deliver_at=deliver_at,
            )
        )

    async def send_arrow(
        self, data: pa.Table | pa.RecordBatch, *, deliver_at: int | None = None
    ) -> list[MessageId]:
        """Publish a table, row by row a message, and wait until all is durable.

        Returns the last id of each partition.

        Columns as the synchronous client's `send_arrow` takes them; place and errors as of `send_many`.
        """
        inner = await self._open_first()
        return await in_thread(lambda: inner.send_arrow(data, deliver_at=deliver_at))

    async def flush(self) -> None:
        """Write what is open, and wait until everything sent before is stored or has failed.

        Every send that was waited for with it has returned or raised by then. Raises Timeout, AlreadyClosed.
        """
        loop = self._client.loop()
        inner = await self._open_first()
        queues = inner.queues
        for queue in queues:
            queue.state.raise_if_ended()
        timeout_s = self._options.send_timeout_millis / 1000
        deadline = time.monotonic() + timeout_s
        settled = [loop.create_future() for _ in queues]
        for queue, future in zip(queues, settled, strict=True):
            queue.when_settled(partial(_settle, future))
        for future in settled:
            left = max(0.0, deadline - time.monotonic()) if timeout_s else None
            try:
                await within(future, left)
            except asyncio.TimeoutError:
                raise Timeout("flush: messages are still unconfirmed") from None

    async def close(self) -> None:
        """Store what is pending, then disconnect.

        A second call raises AlreadyClosed, one after `Client.shutdown` does not.
        """
        await super().close()

    def producer_name(self) -> str:
        """The given name, or the one made up by the broker."""
        return self._open_already().producer_name()

    def last_sequence_id(self) -> int:
        """The highest sequence id stored so far, -1 before any."""
        return self._open_already().last_sequence_id()

    def pending_bytes(self) -> int:
        """The bytes, as stored, of what is sealed and not confirmed yet."""
        return self._open_already().pending_bytes()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Producer, self._client, self._options), ()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


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
    fields: MessageFields | None
    is_in_turn: bool
    expiry: asyncio.TimerHandle | None = None
    is_waiting: bool = field(default=True)


class BlockedSends:
    """The messages of one producer that wait for room.

    They are sent in order, and as many at once as there is room for. Messages bound for a partition wait for
    its queue. Those in turn wait together for the one that `next_in_turn` gives, which changes while they are
    added.
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
        fields: MessageFields | None,
        queue: SendQueue | None,
    ) -> None:
        """Enqueue a message now, or once there is room.

        `sent` fails with Timeout after the send timeout.

        No queue: the one whose turn it is then. Raises what `SendQueue.enqueue` raises; after a
        wait `sent` fails with it.
        """
        target = queue or self._next_in_turn()
        if not self._in_turn and not self._bound[target] and target.state.room_left:
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
        if queue.on_room is None:
            queue.on_room = partial(self._timers.call_soon, partial(self._admit, queue))
        while (waiting := self._first_for(queue)) is not None:
            message = waiting[0]
            if not message.sent.done():
                if not queue.state.room_left:
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
            queue.on_room = None

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
