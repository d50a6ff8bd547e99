"""Answers the calls of consumers: opening, closing, seek, unsubscribe, progress.

Every call may come twice: its answer may have been lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pulsar_ray.broker.subscription.consumers.connected_consumers import ConsumerEndpoint
from pulsar_ray.broker.subscription.consumers.delivery_progress import DeliveryProgress
from pulsar_ray.broker.subscription.log.partition_link import PartitionLink
from pulsar_ray.broker.subscription.open_subscription import OpenSubscription
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.errors import PulsarException, SessionLost
from pulsar_ray.lane.waiting import within
from pulsar_ray.session.requests import Acknowledge, OpenConsumer
from pulsar_ray.transport.cluster import SubscriptionRequest

REPORT_DEADLINE_S = 2.0


class TopicAdmission:
    """Counts the consumers of one dispatcher at its partition, which adds up those of all.

    It asks and reports nothing while the topic has no such limit. Consumers that were there before come back
    unasked.
    """

    def __init__(
        self,
        settings: DispatchSettings,
        partition: PartitionLink,
        served: Mapping[str, OpenSubscription],
        request: SubscriptionRequest,
    ) -> None:
        self._settings = settings
        self._partition = partition
        self._served = served
        self._is_durable = request.durable
        self._name = request.subscription if request.durable else ""
        self._opening: dict[int, str] = {}
        self._reported: tuple[int, int] | None = None

    @property
    def is_limited(self) -> bool:
        """Whether the topic limits consumers or subscriptions."""
        settings = self._settings
        return bool(settings.max_consumers_per_topic or settings.max_subscriptions_per_topic)

    def _counts(self) -> tuple[int, int]:
        """Count consumers and readers' subscriptions, those that are opening included."""
        consumers = set(self._opening).union(*(served.consumers for served in self._served.values()))
        readers = 0 if self._is_durable else len({*self._served, *self._opening.values()})
        return len(consumers), readers

    @contextlib.asynccontextmanager
    async def admitted(self, request: OpenConsumer) -> AsyncIterator[None]:
        """Let a consumer open within. Raises ConsumerBusy or NotAllowedError if the topic is full."""
        if request.joined or not self.is_limited:
            yield
            return
        is_new_reader = not self._is_durable and request.subscription not in self._served
        self._opening[request.incarnation] = request.subscription
        try:
            consumers, readers = self._counts()
            await self._partition.call(
                "admit_consumer",
                dispatcher=self._name,
                consumers=consumers,
                readers=readers,
                is_new_reader=is_new_reader,
            )
            self._reported = consumers, readers
            yield
        finally:
            self._opening.pop(request.incarnation, None)
            await self.report()

    async def report(self) -> None:
        """Report how many there are, if that is not what was reported last.

        A report that is lost is made again by `tick`.
        """
        counts = self._counts()
        if self.is_limited and counts != self._reported:
            with contextlib.suppress(PulsarException, asyncio.TimeoutError):
                consumers, readers = self._reported = counts
                report = {"dispatcher": self._name, "consumers": consumers, "readers": readers}
                await within(self._partition.call_once("report_consumers", report), REPORT_DEADLINE_S)

    def tick(self) -> None:
        """Let the next report be made whatever the partition was sent before; once a second."""
        self._reported = None


MAX_KNOWN = 256


class RepeatedCalls:
    """Carries out a call once for its number, and answers every repeat alike.

    A call that raised is carried out again. The last 256 are known, until the actor dies.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[int, asyncio.Task[Any]] = OrderedDict()

    async def once(self, number: int, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Return the answer of `work`, of this time or of the first.

        A caller that waits no longer does not end it.
        """
        task = self._known.get(number)
        if task is None:
            task = self._known[number] = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(lambda done: self._ended(number, done))
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return await asyncio.shield(task)

    def _ended(self, number: int, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or task.exception():
            self._known.pop(number, None)


class PendingOpens:
    """Lets the close of a consumer wait for its open.

    A client that waits no longer closes a consumer that it does not know to be open.
    """

    def __init__(self) -> None:
        self._pending: Counter[tuple[int, int]] = Counter()
        self._waiters: dict[tuple[int, int], asyncio.Future[None]] = {}

    def __bool__(self) -> bool:
        return bool(self._pending)

    @contextmanager
    def under_way(self, session_id: int, endpoint_id: int) -> Iterator[None]:
        """Mark an open as pending for the time of a `with` block."""
        key = session_id, endpoint_id
        self._pending[key] += 1
        try:
            yield
        finally:
            self._pending -= Counter([key])
            if key not in self._pending and key in self._waiters:
                self._waiters.pop(key).set_result(None)

    async def ended(self, session_id: int, endpoint_id: int) -> None:
        """Wait until no open of this consumer is pending: it is open, or was refused."""
        key = session_id, endpoint_id
        while key in self._pending:
            if key not in self._waiters:
                self._waiters[key] = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiters[key])


MAX_WAITING = 1024


TakeEarly = Callable[[PulsarException | None], None]
"""Takes an acknowledgment, or the error for which it cannot be taken."""


class EarlyAcknowledgments:
    """Holds acknowledgments until the partition has answered where its log ends.

    Behind that end nothing can be acknowledged: while it is not known they get SessionLost, for which their
    clients repeat them.

    Runs on the owner loop. `look` asks; when it returns, what there was by then is known.
    """

    def __init__(
        self, look: Callable[[], Awaitable[Any]], spawn: Callable[[Coroutine[Any, Any, None]], Any]
    ) -> None:
        self._look = look
        self._spawn = spawn
        self._waiting: list[TakeEarly] = []
        self._taken: asyncio.Future[PulsarException | None] | None = None
        """Done once those that wait are, and with them all before."""
        self._is_looking = False

    @property
    def are_waiting(self) -> bool:
        """Whether some are not done yet."""
        return self._is_looking

    def add(self, take: TakeEarly) -> None:
        """Call `take` once the log's end is known, or cannot be asked for.

        With the error at once if too many wait.
        """
        if len(self._waiting) >= MAX_WAITING:
            take(SessionLost(f"{MAX_WAITING} acknowledgments wait for the end of the log: repeat this one"))
            return
        if not self._waiting:
            self._taken = asyncio.get_running_loop().create_future()
        self._waiting.append(take)
        if not self._is_looking:
            self._is_looking = True
            self._spawn(self._take())

    async def settled(self) -> None:
        """Wait until all acknowledgments that were added by now are done.

        Those that others add meanwhile do not count. Raises SessionLost if the log's end cannot be asked for.
        """
        if self._is_looking and self._taken is not None:
            error = await asyncio.shield(self._taken)
            if error is not None:
                raise error.again()

    async def _take(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting, taken = self._waiting, [], self._taken
                error: PulsarException | None = None
                try:
                    await self._look()
                except PulsarException as failed:
                    error = SessionLost(f"the partition did not say where its log ends ({failed}): ask again")
                for take in waiting:
                    take(error)
                if taken is not None:
                    taken.set_result(error)
        finally:
            self._is_looking = False


def reach_of(request: Acknowledge) -> tuple[int, int]:
    """Return the last entry that is named.

    Clients send each kind in order, but bits may overlap.
    """
    reach = (-1, -1)
    if request.ranges:
        ledger_id, _, last = request.ranges[-1]
        reach = ledger_id, last
    for rows in (request.batch_rows, request.moved_rows):
        if rows:
            reach = max(reach, rows[-1][:2])
    if request.cumulative is not None:
        reach = max(reach, request.cumulative[:2])
    for ledger_id, origin, data in request.entry_bits:
        reach = max(reach, (ledger_id, origin + 8 * len(data) - 9 + data[-1].bit_length() if data else -1))
    return reach


class ConsumerCalls:
    """Answers the calls of one dispatcher's consumers, on the owner loop.

    `seek` and `unsubscribe` are the dispatcher's own; `topic` is its partition.
    """

    def __init__(
        self,
        progress: DeliveryProgress,
        topic: str,
        *,
        seek: Callable[[str, Any, bool], Coroutine[Any, Any, int]],
        unsubscribe: Callable[[OpenSubscription, ConsumerEndpoint], Awaitable[None]],
    ) -> None:
        self._progress = progress
        self._topic = topic
        self._seek = seek
        self._unsubscribe = unsubscribe
        self._seeks = RepeatedCalls()

    async def call(
        self,
        method: str,
        subscription: OpenSubscription,
        endpoint: ConsumerEndpoint,
        arguments: dict[str, Any],
    ) -> Any:
        """Answer one of CONSUMER_CALLS."""
        methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "seek": self.seek,
            "check_unsubscribe": self.check_unsubscribe,
            "unsubscribe": self.unsubscribe,
            "last_message": self.last_message,
            "has_more": self.has_more,
            "report_moves": self.report_moves,
            "report_nacks": self.report_nacks,
        }
        return await methods[method](subscription, endpoint, **arguments)

    async def seek(
        self,
        subscription: OpenSubscription,
        _endpoint: ConsumerEndpoint,
        seek_id: int,
        target: Any,
        inclusive: bool,
    ) -> int:
        """Start over at the target, once for each `seek_id`; returns the new generation."""
        sought: int = await self._seeks.once(
            seek_id, lambda: self._seek(subscription.name, target, inclusive)
        )
        return sought

    async def check_unsubscribe(self, subscription: OpenSubscription, endpoint: ConsumerEndpoint) -> None:
        """Raise BrokerMetadataError if others are connected, those that slept included."""
        await subscription.wait_for_known()
        subscription.consumers.check_sole(
            endpoint, f"the subscription {subscription.name!r} of {self._topic}"
        )

    async def unsubscribe(self, subscription: OpenSubscription, endpoint: ConsumerEndpoint) -> None:
        """Delete the subscription. Raises BrokerMetadataError if it has other consumers."""
        await self.check_unsubscribe(subscription, endpoint)
        await self._unsubscribe(subscription, endpoint)

    async def last_message(self, subscription: OpenSubscription, _endpoint: ConsumerEndpoint) -> Any:
        """Return the partition's last message, as the subscription reads it."""
        return await self._progress.last_message(subscription.name)

    async def has_more(
        self, _subscription: OpenSubscription, endpoint: ConsumerEndpoint, numbering: int, received: int
    ) -> bool:
        """Return whether anything stored by now is still to come to the consumer."""
        return await self._progress.has_more(endpoint, numbering, received)

    async def report_moves(
        self, _subscription: OpenSubscription, endpoint: ConsumerEndpoint, moved: int, error: str
    ) -> None:
        """Take a count of messages moved to a dead letter topic, for the stats.

        `error` is the reason why more were not moved. A late one is made good by the next.
        """
        endpoint.dead_letters = (moved, error)

    async def report_nacks(
        self, subscription: OpenSubscription, endpoint: ConsumerEndpoint, waiting: int, due_in_ms: int
    ) -> None:
        """Take a count of messages that wait at the consumer for their negative acknowledgment's delay.

        It is for people alone, who ask why messages wait.
        """
        subscription.nacks_wait(endpoint, waiting, due_in_ms)
