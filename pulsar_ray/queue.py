"""A durable queue with the methods of `ray.util.queue.Queue`.

Items are messages of a topic, and whoever gets them shares one subscription. An item is durable when `put`
returns, and gone for good when `get` returns; one that a getter held when it was killed comes to another.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from typing import Any, Protocol, runtime_checkable

import ray.cloudpickle
from ray.util.queue import Empty, Full

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.endpoint.ending import Ending
from pulsar_ray.client.endpoint.open_handles import FORGOTTEN
from pulsar_ray.client.options.checks import check_number, check_optional
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.client.received.message import Message
from pulsar_ray.clock import growing_pauses_s
from pulsar_ray.errors import AlreadyClosed, PulsarException
from pulsar_ray.lane.waiting import within
from pulsar_ray.model.enums import ConsumerType, InitialPosition
from pulsar_ray.model.topic_name import TopicName

__all__ = ["Empty", "Full", "Queue"]

SUBSCRIPTION = "queue"
MAX_FAILURES = 16
"""An item that fails more often goes to the dead letter topic."""
NAMELESS_UNUSED_MINUTES = 7 * 24 * 60
_THEN_DELETED_AFTER_S = 60
_FAILED_COMES_AGAIN_MS = 1000
_FIRST_LOOK_S, _LAST_LOOK_S = 0.01, 0.25
"""How often a full queue is looked at: less often the longer it is full."""
_PROMPT_S = 1.0
"""An item that is there comes within that time, unless another getter has it."""
_NEVER = float("inf")


@runtime_checkable
class Serializer(Protocol):
    """Makes items bytes, or text, and back; the module `json` is one."""

    def dumps(self, obj: Any, /) -> bytes | str:
        """Return the item as it is stored."""

    def loads(self, data: bytes, /) -> Any:
        """Return the item that is stored so."""


class Queue:
    """A first-in, first-out queue of Python objects that outlives every process.

    Arguments and methods are those of `ray.util.queue.Queue`, with the same exceptions; a handle can be
    passed to tasks and actors. `name` is the queue's topic, by which others find it; without one it has a
    name of its own and is found through its handle only. `client` is the client to work with (None: a new
    `Client()`). `actor_options` has no effect, for there is no such actor. `serializer` makes items bytes and
    back with its `dumps` and `loads`, as the modules `json` and `pickle` do (None: cloudpickle). All handles
    of a queue need the same one. To load a pickle is to run what its writer wrote, and everybody who may
    publish to the topic is one: give another serializer where that is too much.

    An item is durable once `put` returns. `get` returns once it is durable that the item is taken, so that
    no crash brings it back; an item that a process had received and not returned when it was killed comes to
    another getter, and so does one that could not be loaded. If that happens more than 16 times, it goes to
    the queue `<name>-queue-DLQ`. Order is that of the puts, except for items that come again. `maxsize` is
    checked when something is put: several processes at once may exceed it, by one call each. A queue without
    a name that nobody has had a handle of for a week is deleted with its items.
    """

    def __init__(
        self,
        maxsize: int = 0,
        actor_options: dict[str, Any] | None = None,
        *,
        name: str | None = None,
        client: Client | None = None,
        serializer: Serializer | None = None,
        _is_passed_on: bool = False,
    ) -> None:
        check_number("maxsize", maxsize)
        check_optional("serializer", serializer, Serializer, "an object with functions dumps and loads")
        if actor_options:
            warnings.warn("actor_options have no effect: a durable queue is a topic", stacklevel=2)
        self.maxsize = maxsize
        self.topic = TopicName.parse(f"queue-{uuid.uuid4().hex}" if name is None else name).full
        self._serializer: Serializer = ray.cloudpickle if serializer is None else serializer
        self._ends_by_itself = name is None
        self._is_own_client = client is None
        self._client = client
        self._lock = threading.RLock()
        self._sender: Producer | None = None
        self._resting: list[Consumer] = []
        self._known: Admin | None = None
        self._is_shut_down = False
        # As with Ray's own queue nobody need end a handle.
        self._ending = Ending("queue", warns=False)
        if not _is_passed_on:
            self._open()

    def _open(self) -> Client:
        """Connect at the first use of a handle.

        One that is passed to a task comes while Ray reads arguments, where nobody may wait.
        """
        with self._lock:
            self._check()
            if self._client is None:
                self._client = Client()
                self._client.ending.warns = False
            if self._known is None:
                self._known = Admin._on(self._client.cluster)  # noqa: SLF001 - the broker that is found already
                self._known.ending.warns = False
                self._ending.when_forgotten(_shut_down_later)
                # From now on the topic keeps what is put, and knows that somebody has a handle.
                self._resting.append(self._subscribed(self._client))
                if self._ends_by_itself:
                    _let_end(self._known, self.topic)
            return self._client

    @property
    def _admin(self) -> Admin:
        self._open()
        assert self._known is not None
        return self._known

    # --- how much there is

    def __len__(self) -> int:
        return self.size()

    def size(self) -> int:
        """How many items nobody has taken yet."""
        backlog: int = self._admin.topics.stats(self.topic)["subscriptions"][SUBSCRIPTION]["msgBacklog"]
        return backlog

    def qsize(self) -> int:
        """How many items nobody has taken yet."""
        return self.size()

    def empty(self) -> bool:
        """Whether there is no item."""
        return self.size() == 0

    def full(self) -> bool:
        """Whether `maxsize` items are there; never where it is 0 or less."""
        return 0 < self.maxsize <= self.size()

    # --- putting

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put an item, and return once it is durable.

        A full queue is waited for if `block`, for at most `timeout` seconds. Raises Full, ValueError for a
        negative timeout, and what `Producer.send` raises.
        """
        data = self._dumped(item)
        for pause_s in self._pauses(block=block, timeout=timeout):
            time.sleep(pause_s)
        self._producer().send(data)

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put an item as `put` does; a cancelled one may have been put."""
        data = self._dumped(item)
        pauses = self._pauses(block=block, timeout=timeout)
        while (pause_s := await asyncio.to_thread(next, pauses, None)) is not None:
            await asyncio.sleep(pause_s)
        producer = await asyncio.to_thread(self._producer)
        await asyncio.to_thread(producer.send, data)

    def put_nowait(self, item: Any) -> None:
        """Put an item, or raise Full at once."""
        self.put(item, block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """Put all items in their order, or raise Full without putting any."""
        if not isinstance(items, Iterable):
            raise TypeError("Argument 'items' must be an Iterable")
        dumped = [self._dumped(item) for item in items]
        if self.maxsize > 0 and (size := self.size()) + len(dumped) > self.maxsize:
            raise Full(f"Cannot add {len(dumped)} items to queue of size {size} and maxsize {self.maxsize}.")
        if dumped:
            self._producer().send_many(dumped)

    def _pauses(self, *, block: bool, timeout: float | None) -> Iterator[float]:
        """Say how long to wait before the next look, until there is room. Raises Full."""
        deadline = _deadline(timeout) if block else 0.0
        for pause_s in growing_pauses_s(_FIRST_LOOK_S, _LAST_LOOK_S):
            if not self.full():
                return
            if time.monotonic() >= deadline:
                raise Full
            yield min(pause_s, max(deadline - time.monotonic(), 0.0))

    # --- getting

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take an item.

        An empty queue is waited for if `block`, for at most `timeout` seconds. Raises Empty, ValueError for a
        negative timeout, and what loading the item raises, which then stays in the queue.
        """
        deadline = _deadline(timeout)
        if not block or timeout == 0:
            if self.empty():
                raise Empty
            deadline = time.monotonic() + _PROMPT_S
        with self._getter() as consumer:
            return self._taken(consumer, [_received(consumer.receive_async(), deadline)])[0]

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take an item as `get` does; one that is cancelled takes none."""
        deadline = _deadline(timeout)
        if not block or timeout == 0:
            if await asyncio.to_thread(self.empty):
                raise Empty
            deadline = time.monotonic() + _PROMPT_S
        consumer = await asyncio.to_thread(self._awake)
        try:
            item = await self._item(consumer, deadline)
        except BaseException:
            # An item that came meanwhile goes to another.
            await asyncio.shield(asyncio.to_thread(_leave, consumer))
            raise
        self._rest(consumer)  # at once: a cancellation must not come between
        return item

    async def _item(self, consumer: Consumer, deadline: float) -> Any:
        left_s = None if deadline == _NEVER else max(deadline - time.monotonic(), 0.0)
        try:
            message = await within(asyncio.wrap_future(consumer.receive_async()), left_s)
        except asyncio.TimeoutError:
            raise Empty from None
        loop = asyncio.get_running_loop()
        taking = loop.run_in_executor(None, self._taken, consumer, [message])
        try:
            return (await asyncio.shield(taking))[0]
        except asyncio.CancelledError:
            await _until_done(taking)
            if taking.exception() is None:
                # The item has left the queue, and nobody would have it: another one is put in its place.
                putting = loop.run_in_executor(None, lambda: self._producer().send(message.data()))
                await _until_done(putting)
                putting.result()
            raise

    def get_nowait(self) -> Any:
        """Take an item, or raise Empty at once."""
        return self.get(block=False)

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Take so many items, or raise Empty if there are fewer.

        Raises what loading one of them raises, and then takes none.
        """
        if not isinstance(num_items, int):
            raise TypeError("Argument 'num_items' must be an int")
        if num_items < 0:
            raise ValueError("'num_items' must be nonnegative")
        if (size := self.size()) < num_items:
            raise Empty(f"Cannot get {num_items} items from queue of size {size}.")
        messages: list[Message] = []
        with self._getter() as consumer:
            while len(messages) < num_items:
                try:
                    messages.append(_received(consumer.receive_async(), time.monotonic() + _PROMPT_S))
                except Empty:
                    raise Empty(f"Cannot get {num_items} items: others took some meanwhile.") from None
            return self._taken(consumer, messages)

    @contextmanager
    def _getter(self) -> Iterator[Consumer]:
        """Lend a consumer.

        After an error or an interrupt others get what it has.
        """
        consumer = self._awake()
        try:
            yield consumer
        except BaseException:
            _leave(consumer)
            raise
        self._rest(consumer)

    def _awake(self) -> Consumer:
        """A consumer for one getter, which asks for an item at a time.

        So none waits with it.
        """
        client = self._open()
        with self._lock:
            if self._resting:
                return self._resting.pop()
        return self._subscribed(client)

    def _subscribed(self, client: Client) -> Consumer:
        consumer = client.subscribe(
            self.topic,
            SUBSCRIPTION,
            ConsumerType.Shared,
            receiver_queue_size=0,
            initial_position=InitialPosition.Earliest,
            ack_receipt_enabled=True,
            # Another process, which has the item's module or the newer version, may be quicker next time.
            negative_ack_redelivery_delay_ms=_FAILED_COMES_AGAIN_MS,
            # The letters are a queue, too.
            dead_letter_policy=ConsumerDeadLetterPolicy(MAX_FAILURES, initial_subscription_name=SUBSCRIPTION),
        )
        consumer.ending.warns = False
        return consumer

    def _rest(self, consumer: Consumer) -> None:
        with self._lock:
            if not self._is_shut_down:
                self._resting.append(consumer)
                return
        # Closed elsewhere: that may wait or fail, and whoever has taken an item is to get it.
        FORGOTTEN.take(consumer, Consumer.close)

    def _taken(self, consumer: Consumer, messages: list[Message]) -> list[Any]:
        """Load items, and acknowledge them durably.

        Those that cannot be loaded here have failed, and all stay in the queue.
        """
        items: list[Any] = []
        error: BaseException | None = None
        for message in messages:
            try:
                items.append(self._serializer.loads(message.data()))
            except BaseException as raised:  # noqa: BLE001 - raised below; it is code of whoever put the item
                error = error or raised
                consumer.negative_acknowledge(message)
        if error is not None:
            raise error
        consumer.acknowledge(messages)
        return items

    def _dumped(self, item: Any) -> bytes:
        data = self._serializer.dumps(item)
        return data.encode() if isinstance(data, str) else data

    # --- the end

    def shutdown(self, force: bool = False, grace_period_s: int = 5) -> None:
        """Close this handle; the items stay, for other handles and the next program.

        `force` and `grace_period_s` have no effect: nothing is lost either way. `delete` ends the queue.
        """
        self._ending.leave()
        with self._lock:
            self._is_shut_down = True
            resting, self._resting = self._resting, []
            sender, self._sender = self._sender, None
            known, self._known = self._known, None
        for closed in (*resting, sender, known, self._client if self._is_own_client else None):
            if closed is not None:
                closed.close()

    def __del__(self) -> None:
        ending = self.__dict__.get("_ending")
        if ending is not None:
            ending.forgotten(self)

    def delete(self) -> None:
        """Delete the queue with all its items, whoever uses it."""
        self._admin.topics.delete(self.topic, force=True)
        self.shutdown()

    def _producer(self) -> Producer:
        client = self._open()
        with self._lock:
            if self._sender is None:
                self._sender = client.create_producer(self.topic, block_if_queue_full=True)
                self._sender.ending.warns = False
            return self._sender

    def _check(self) -> None:
        if self._is_shut_down:
            raise AlreadyClosed(f"this handle of the queue {self.topic} was shut down")

    def __reduce__(self) -> tuple[Any, ...]:
        client = None if self._is_own_client else self._client
        serializer = None if self._serializer is ray.cloudpickle else self._serializer
        return _handle, (self.maxsize, self.topic, client, serializer)


def _shut_down_later(queue: Queue) -> None:
    FORGOTTEN.take(queue, Queue.shutdown)


def _handle(maxsize: int, topic: str, client: Client | None, serializer: Serializer | None) -> Queue:
    return Queue(maxsize, name=topic, client=client, serializer=serializer, _is_passed_on=True)


def _deadline(timeout: float | None) -> float:
    if timeout is None:
        return _NEVER
    if timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
    return time.monotonic() + timeout


def _received(future: Future[Message], deadline: float) -> Message:
    """Return the message that comes in time; raises Empty if none does."""
    try:
        return future.result(None if deadline == _NEVER else max(deadline - time.monotonic(), 0.0))
    except FutureTimeout:
        if future.cancel():
            raise Empty from None
        return future.result()


def _leave(consumer: Consumer) -> None:
    # One whose client was closed meanwhile has left already.
    with suppress(PulsarException):
        consumer.close()


async def _until_done(future: asyncio.Future[Any]) -> None:
    """Wait for a future's end, however often the one who waits is cancelled."""
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([future])


def _let_end(admin: Admin, topic: str) -> None:
    """Have a queue without a name deleted once nobody has a handle."""
    policies = admin.topics.policies
    policies.set(topic, "subscription_expiration_time", subscription_expiration_time=NAMELESS_UNUSED_MINUTES)
    policies.set(
        topic,
        "inactive_topic_policies",
        delete_while_inactive=True,
        inactive_topic_delete_mode="delete_when_no_subscriptions",
        max_inactive_duration_seconds=_THEN_DELETED_AFTER_S,
    )
