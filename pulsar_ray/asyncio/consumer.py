"""The consumer of an asyncio client."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from queue import Empty
from typing import Any

import pyarrow as pa

from pulsar_ray.asyncio.blocking_calls import in_thread
from pulsar_ray.asyncio.lazy_handle import LazyHandle, OpeningClient
from pulsar_ray.asyncio.loop_handles import LoopConsumer, LoopProducer
from pulsar_ray.asyncio.producer import Producer
from pulsar_ray.asyncio.receiving import has_message_available, receive_into, receive_one
from pulsar_ray.asyncio.requests import all_answered
from pulsar_ray.client.consumer.consumer import receive_timeout_s
from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.options.checks import check_number
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.options.policies import ConsumerEventListener
from pulsar_ray.client.received.batch_collector import (
    ANY_BYTES,
    FOREVER_S,
    BatchCollector,
    batch_limits,
)
from pulsar_ray.client.received.message import BlockRows, Message
from pulsar_ray.client.received.message_batch import MessageBatchView
from pulsar_ray.errors import InvalidConfiguration, Timeout
from pulsar_ray.lane.io_thread import LoopTimers
from pulsar_ray.lane.waiting import retrieved
from pulsar_ray.model.message_id import MessageId

logger = logging.getLogger(__name__)


class Consumer(LazyHandle[LoopConsumer]):
    """Receives from a topic through a subscription, in any number of tasks of its loop.

    Made by `Client.subscribe`; pickled, it subscribes anew at its first awaited call.

    Delivery is at least once: what was not acknowledged durably when something crashed comes again. A
    receiving call that is cancelled, or runs into `asyncio.wait_for`'s timeout, loses no message.
    """

    _what = "consumer"

    def __init__(
        self, client: OpeningClient, options: ConsumerOptions, inner: LoopConsumer | None = None
    ) -> None:
        super().__init__(client)
        self._options = options
        self._confirming: dict[PartitionConsumer, asyncio.Future[None]] = {}
        if inner is not None:
            self._opened(inner)

    async def _open(self) -> LoopConsumer:
        return await self._client.open_consumer(self._options)

    def _opened(self, inner: LoopConsumer) -> None:
        super()._opened(inner)
        listener = self._options.consumer_event_listener
        if listener is not None:
            inner.tell_activity_by(ActivityNotifier(self, listener, inner.core))

    # --- receiving --------------------------------------------------------------------------------

    async def receive(self, timeout_millis: int | None = None) -> Message:
        """The next message; waits for ever, or so many ms.

        Tasks get messages in the order of their calls.

        Raises Timeout, AlreadyClosed, InvalidConfiguration with a timeout on a queue of size 0, CorruptData
        naming the position of an entry that cannot be read (it stays unacknowledged).
        """
        self._client.loop()
        inner = self._inner or await self._open_first()
        if timeout_millis is None:
            return await receive_one(inner.core, None)
        if self._options.receiver_queue_size == 0:
            raise InvalidConfiguration("receive(timeout_millis) needs a receiver_queue_size above 0")
        return await receive_one(inner.core, receive_timeout_s(timeout_millis))

    async def batch_receive(self) -> MessageBatchView:
        """Messages by the batch receive policy.

        It returns when one of the policy's limits is reached; possibly none at its timeout.

        A sequence filled lazily; `acknowledge` takes it whole.
        """
        inner = await self._open_first()
        taken, timeout_s = batch_limits(self._options.batch_receive_policy)
        await receive_into(inner.core, taken, timeout_s)
        inner.core.handed_over(taken)
        return MessageBatchView(taken.parts)

    async def receive_arrow(self, max_messages: int = 100_000, timeout_millis: int | None = None) -> pa.Table:
        """The messages that are here, at least one, as a table.

        Its columns are key, value, ordering_key, properties, topic, ...

        Raises Timeout when nothing came in time, else what `receive` raises.
        """
        inner = await self._open_first()
        check_number("max_messages", max_messages, 1)
        timeout_s = FOREVER_S if timeout_millis is None else receive_timeout_s(timeout_millis)
        inner.core.widen(2 * max_messages)
        taken = BatchCollector(max_messages, ANY_BYTES, fills=False)
        await receive_into(inner.core, taken, timeout_s)
        if not taken.parts:
            raise Timeout(f"no message arrived in {timeout_millis} ms")
        inner.core.handed_over(taken)
        return inner.table_of(taken)

    async def has_message_available(self) -> bool:
        """Whether a message that is stored by now waits here, or will come.

        To this subscription.
        """
        inner = await self._open_first()
        return await has_message_available(inner.core, self._client.operation_timeout_s)

    def pause(self) -> None:
        """Ask the broker for nothing more until `resume`.

        Messages that are on their way or here are received as usual.
        """
        self._client.loop()
        self._open_already().core.is_paused = True

    def resume(self) -> None:
        """Go on after `pause`, or begin after `start_paused`."""
        self._client.loop()
        self._open_already().core.resume()

    # --- acknowledging ----------------------------------------------------------------------------

    async def acknowledge(self, message: Message | MessageId | MessageBatchView | Iterable[Message]) -> None:
        """Acknowledge a message, an id, or messages received in a batch.

        Acknowledgments are grouped and durable soon; with `ack_receipt_enabled` this returns once they are
        durable.
        """
        self._client.loop()
        inner = self._inner or await self._open_first()
        inner.acknowledge(message)
        if self._options.ack_receipt_enabled:
            await self._confirmed(inner)

    async def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge everything up to and including this message, within its partition.

        Raises CumulativeAcknowledgementNotAllowedError on Shared and KeyShared subscriptions.
        """
        inner = await self._open_first()
        inner.acknowledge_cumulative(message)
        await self._confirmed(inner)

    async def acknowledge_arrow(self, table: pa.Table) -> None:
        """Acknowledge the rows of a received table, or of any part of one.

        It needs the table's position columns only.
        """
        inner = await self._open_first()
        inner.acknowledge_arrow(table)
        await self._confirmed(inner)

    async def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Have a message delivered again after the redelivery delay or backoff.

        Of a batch, its whole entry comes again.
        """
        (await self._open_first()).negative_acknowledge(message)

    async def negative_acknowledge_arrow(self, table: pa.Table) -> None:
        """Have the rows of a received table delivered again."""
        (await self._open_first()).negative_acknowledge_arrow(table)

    async def reconsume_later(
        self, message: Message, delay: timedelta, properties: dict[str, str] | None = None
    ) -> None:
        """Send a message to the retry letter topic, to come again after a delay.

        It is copied. Returns when the copy is durable and the message acknowledged, durably; errors as of the
        synchronous client.
        """
        inner = await self._open_first()
        letters = inner.letters
        letter = letters.retried_later(message, delay, properties)
        lent = letters.take(letter)
        if lent is None:
            lent = await in_thread(letters.open, letter, undo=letters.give_back)
        try:
            assert isinstance(lent.producer, LoopProducer)
            await Producer(self._client, lent.producer.options, lent.producer).send(**letter.arguments)
        finally:
            letters.give_back(lent)
        inner.acknowledge_moved([BlockRows(message.block, [message.row])])
        await asyncio.shield(self._confirm(inner.partition_of(message)))

    def redeliver_unacknowledged_messages(self) -> None:
        """Have everything this consumer was given and did not acknowledge delivered again."""
        self._client.loop()
        self._open_already().redeliver_unacknowledged_messages()

    async def _confirmed(self, inner: LoopConsumer) -> None:
        """Wait until acknowledgments with receipts are confirmed.

        Those of one turn of the loop are sent, and waited for, together.
        """
        for confirming in [self._confirm(partition) for partition in inner.take_added()]:
            await asyncio.shield(confirming)

    def _confirm(self, partition: PartitionConsumer) -> asyncio.Future[None]:
        confirming = self._confirming.get(partition)
        if confirming is None:
            confirming = asyncio.ensure_future(self._say(partition))
            confirming.add_done_callback(retrieved)
            self._confirming[partition] = confirming
        return confirming

    async def _say(self, partition: PartitionConsumer) -> None:
        del self._confirming[partition]
        await all_answered(
            partition.ack_sender.send_durably(), time.monotonic() + self._client.operation_timeout_s
        )

    # --- control ----------------------------------------------------------------------------------

    async def seek(self, messageid: MessageId | int) -> None:
        """Go on behind this message, or at the first one published at this time (ms).

        At the message with `start_message_id_inclusive`; as the synchronous client's `seek`.
        """
        await in_thread((await self._open_first()).seek, messageid)

    async def unsubscribe(self) -> None:
        """Delete the subscription and leave. Raises while other consumers are connected to it."""
        await in_thread((await self._open_first()).unsubscribe)

    async def get_last_message_id(self) -> MessageId:
        """The id of the newest message of the topic, (-1,-1,-1,-1) if it is empty.

        One partition only.
        """
        return await in_thread((await self._open_first()).get_last_message_id)

    async def get_last_message_ids(self) -> list[MessageId]:
        """The id of the newest message of each partition."""
        return await in_thread((await self._open_first()).get_last_message_ids)

    async def close(self) -> None:
        """Make acknowledgments durable and leave.

        Messages that were acknowledged negatively come again now, before their delay is over, and count as
        failed. A second call raises AlreadyClosed, one after `unsubscribe` or `Client.shutdown` does not.
        """
        await super().close()

    def subscription_name(self) -> str:
        return self._options.subscription_name

    def consumer_name(self) -> str:
        """The given name, or ten random hex digits."""
        return self._open_already().consumer_name()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Consumer, self._client, self._options), ()


class ActivityNotifier:
    """Calls the listener for one change after the other.

    A coroutine is awaited.

    An exception of the listener is logged. Made on the loop; `stop` may come from any thread.
    """

    def __init__(self, consumer: object, listener: ConsumerEventListener, core: ConsumerCore) -> None:
        self._consumer = consumer
        self._listener = listener
        self._changes = core.activity
        self._loop = asyncio.get_running_loop()
        self._telling: asyncio.Task[None] | None = None
        self._is_stopped = False
        timers = LoopTimers(self._loop)
        core.on_activity = lambda: timers.call_soon(self._begin)

    def start(self) -> None:
        """Begin to call."""
        self._begin()

    def stop(self) -> None:
        """Call no more; a call under way ends."""
        self._is_stopped = True

    def _begin(self) -> None:
        if self._telling is None:
            self._telling = self._loop.create_task(self._tell())

    async def _tell(self) -> None:
        try:
            while not self._is_stopped:
                change = self._changes.get_nowait()
                if change is not None:
                    await self._tell_one(*change)
        except Empty:
            pass
        finally:
            self._telling = None

    async def _tell_one(self, event: str, partition: int) -> None:
        try:
            told = getattr(self._listener, event)(self._consumer, partition)
            if inspect.isawaitable(told):
                await told
        except Exception:
            logger.exception("a consumer event listener raised")
