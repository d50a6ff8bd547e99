"""A subscription dispatcher, without Ray:

one durable subscription, or all non-durable cursors of a partition.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.broker.subscription.consumers.consumer_calls import ConsumerCalls
from pulsar_ray.broker.subscription.consumers.consumer_endpoint import ConsumerEndpoint
from pulsar_ray.broker.subscription.consumers.early_acknowledgments import EarlyAcknowledgments, reach_of
from pulsar_ray.broker.subscription.consumers.pending_opens import PendingOpens
from pulsar_ray.broker.subscription.log.log_view import LogView
from pulsar_ray.broker.subscription.log.partition_follower import PartitionFollower
from pulsar_ray.broker.subscription.served_subscription import ServedSubscription
from pulsar_ray.broker.subscription.subscription_admin import SubscriptionAdmin
from pulsar_ray.clock import Clock
from pulsar_ray.config import Settings
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.errors import (
    ConsumerBusy,
    InvalidConfiguration,
    Moved,
    PulsarException,
    SessionLost,
    SubscriptionNotFound,
)
from pulsar_ray.lane.await_within import within
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory, remove_cursor
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorStore
from pulsar_ray.managed_ledger.cursor.managed_cursor import ManagedCursor, Subscription
from pulsar_ray.model.position import EARLIEST, Position
from pulsar_ray.session.control_calls import CONSUMER_CALLS, check_call
from pulsar_ray.session.requests import (
    Acknowledge,
    Advanced,
    Call,
    CloseEndpoint,
    ConsumerOpened,
    Credit,
    Failed,
    NegativeAcknowledge,
    OpenConsumer,
    RedeliverUnacknowledged,
    Request,
    encode_request,
)
from pulsar_ray.session.session_table import Session
from pulsar_ray.transport.cluster import SubscriptionRequest

LOOK_DEADLINE_S = 2.0
_FOLLOWER_NUMBERS = itertools.count(1 << 40)


class DispatcherServer:
    """Serves consumers. Made by `start`; it follows its partition and waits for nobody on the data path."""

    _calls_type: type[ConsumerCalls] = ConsumerCalls
    """What consumers may call here."""

    def __init__(
        self,
        request: SubscriptionRequest,
        follower: PartitionFollower,
        log: LogView,
        settings: Settings,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        host: SessionHost,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._request = request
        self._follower = follower
        follower.on_advanced = self.advanced
        self._log = log
        self._clock = clock
        self._loop = loop
        self._host = host
        self._on_fatal = on_fatal
        self._reader = DiskThread(loop, "reader")
        self._cursor_disk = DiskThread(loop, "cursor")
        self._settings = DispatchSettings.of(settings)
        self._subscriptions: dict[str, ServedSubscription] = {}
        self._number = next(_FOLLOWER_NUMBERS)
        self._directory = ""
        self._epoch = 0
        self._is_armed = False
        self._openings = PendingOpens()
        self._calls = self._calls_type(follower, seek=self._seek_to, unsubscribe=self._unsubscribe)
        self._early = EarlyAcknowledgments(lambda: follower.call("last_message"), host.spawn)
        self.is_removed = False
        self._removing = asyncio.Lock()
        self._admin: SubscriptionAdmin | None = None

    # --- starting ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register the subscription at the partition, open its cursor, follow.

        Raises what either refuses with.
        """
        attached = await self._follower.attach()
        self._directory = attached.directory
        if self._request.durable:
            await self._open_durable()
        else:
            self._epoch = self._clock.now_ms()
        self._follower.follow(self._number, armed=False)
        while self._log.epoch < 0:
            await asyncio.sleep(0.001)
        self._host.serve(self)

    async def _open_durable(self) -> None:
        request = self._request
        registered = await self._follower.call(
            "register_subscription",
            name=request.subscription,
            durable=True,
            initial=request.initial_position,
            properties=request.properties,
            create=request.create,
        )
        self._number = registered["number"]
        directory = cursor_directory(Path(registered["directory"]), self._number)
        subscription = Subscription(request.subscription, properties=dict(registered["properties"]))
        hold = Position(*registered["hold"])
        store = await self._cursor_disk.run(lambda: CursorStore.create(directory, subscription, hold))
        self._epoch = store.epoch
        host = self._add_host(request.subscription, store.cursor, store)
        self._admin = SubscriptionAdmin(
            host,
            self._follower,
            self._log,
            self._reader,
            self._directory,
            look_around=self.look_around,
            seek=lambda target, inclusive: self._seek_to(host, target, inclusive),
            remove=lambda: self._remove(host),
        )

    def _add_host(self, name: str, cursor: ManagedCursor, store: CursorStore | None) -> ServedSubscription:
        now_ms = self._clock.monotonic_ms()
        core = Dispatcher(cursor, self._settings, epoch=self._epoch, now_ms=now_ms, topic=self._request.topic)
        host = ServedSubscription(
            name,
            core,
            store,
            self._log,
            self._clock,
            self._loop,
            self._reader,
            self._cursor_disk,
            self._directory,
            on_mark_delete=lambda position: self._follower.move_hold(*position),
            on_fatal=self._on_fatal,
            on_demand=self._update_arming,
        )
        self._subscriptions[name] = host
        return host

    # --- following --------------------------------------------------------------------------------

    def advanced(self, packet: Advanced) -> None:
        """The partition's log moved."""
        self._log.advanced(packet)
        for host in self._subscriptions.values():
            host.turn.log_moved()

    def _update_arming(self) -> None:
        wanted = self._waits_for_entries
        if wanted != self._is_armed:
            self._is_armed = wanted
            self._follower.follow(self._number, armed=wanted)

    @property
    def _waits_for_entries(self) -> bool:
        return any(host.waits_for_entries for host in self._subscriptions.values())

    def tick(self) -> None:
        """Once a second, as a net under what following may have lost."""
        if self._is_armed:
            self._follower.follow(self._number, armed=True)
        for host in self._subscriptions.values():
            host.counts.sample()
            host.watch()
            host.turn.schedule()
            holder = host.active_in_the_way()
            if holder is not None and holder.is_stopped:
                self._host.spawn(self._outlast(holder))
        self._update_arming()

    async def _outlast(self, holder: Session) -> None:
        await self._host.outlast([holder])

    # --- sessions ---------------------------------------------------------------------------------

    def attach_details(self) -> dict[str, Any]:
        """What an attach answers besides the carrier's addresses."""
        self._check_not_removed()
        # The partition writes a new value each time it starts.
        reach = self._follower.link.attached.reach if self._follower.link.attached else ("", "")
        return {"epoch": self._epoch, "reach": reach, "directory": self._directory}

    def _check_not_removed(self) -> None:
        if self.is_removed:
            raise SubscriptionNotFound(f"subscription {self._request.subscription!r} was removed")

    def on_request(self, session: Session, request: Request, body: memoryview) -> None:
        """One packet of an attached session."""
        match request:
            case Credit() | Acknowledge() | NegativeAcknowledge() | RedeliverUnacknowledged():
                self._on_consumer_request(session, request)
            case OpenConsumer():
                self._answer_opened(session, request)
            case CloseEndpoint(request_id, endpoint_id):
                self._host.answer(session, request_id, self._close_endpoint, session, endpoint_id)
            case Call():
                self._host.answer(session, request.request_id, self._call, session, request)
            case _:
                raise InvalidConfiguration(f"a dispatcher does not answer {type(request).__name__}")

    def _on_consumer_request(
        self, session: Session, request: Credit | Acknowledge | NegativeAcknowledge | RedeliverUnacknowledged
    ) -> None:
        endpoint = session.endpoints.get(request.consumer_id)
        host = (
            self._subscriptions.get(endpoint.subscription) if isinstance(endpoint, ConsumerEndpoint) else None
        )
        if host is None or not isinstance(endpoint, ConsumerEndpoint):
            # Of a consumer that has left, or not opened yet here: it says all of it again when it opens.
            if not isinstance(request, Credit) and request.request_id:
                text = "the consumer is not open here: attach again"
                session.send(encode_request(Failed(request.request_id, "SessionLost", text)))
            return
        match request:
            case Credit():
                host.credit(endpoint, request)
            case Acknowledge() if reach_of(request) > self._log.last:
                self._early.add(partial(self._acknowledge_late, session, host, endpoint, request))
            case Acknowledge():
                host.acknowledge(endpoint, request)
            case NegativeAcknowledge():
                host.negative_acknowledge(endpoint, request)
            case RedeliverUnacknowledged():
                host.redeliver_unacknowledged(endpoint, request)

    def _acknowledge_late(
        self, session: Session, host: ServedSubscription, endpoint: ConsumerEndpoint, request: Acknowledge
    ) -> None:
        # On another connection, or after another opening, the client says it again.
        if session.endpoints.get(request.consumer_id) is endpoint:
            host.acknowledge(endpoint, request)

    def _answer_opened(self, session: Session, request: OpenConsumer) -> None:
        async def run() -> None:
            try:
                with self._openings.under_way(session.id, request.consumer_id):
                    reply: Request = await self._open_consumer(session, request)
            except PulsarException as error:
                reply = Failed(request.request_id, type(error).__name__, error.text, error.details)
            session.send(encode_request(reply))
            self._update_arming()

        self._host.spawn(run())

    async def _open_consumer(self, session: Session, request: OpenConsumer) -> ConsumerOpened:
        self._check_not_removed()
        host = self._subscriptions.get(request.subscription)
        if host is None:
            if self._request.durable:
                raise Moved(
                    f"this dispatcher does not serve subscription {request.subscription!r}: resolve it again"
                )
            host = await self._open_reader(request)
        try:
            opened = await host.open_consumer(session, request)
        except ConsumerBusy:
            attachment = session.attachment
            if not await self._host.outlast(host.sessions_beside(session)):
                raise
            if session.is_ended or session.attachment != attachment:
                raise SessionLost("the connection was lost while its consumer waited: attach again") from None
            opened = await host.open_consumer(session, request)
        self._check_not_removed()
        return opened

    async def _open_reader(self, request: OpenConsumer) -> ServedSubscription:
        start = request.start or {"target": "latest", "inclusive": False}
        mark = Position(*await self._follower.call("seek_position", **start))
        cursor = ManagedCursor(Subscription(request.subscription, is_durable=False), mark)
        return self._subscriptions.get(request.subscription) or self._add_host(
            request.subscription, cursor, None
        )

    async def _close_endpoint(self, session: Session, endpoint_id: int) -> None:
        await self._openings.ended(session.id, endpoint_id)
        await self._early.settled()
        endpoint = session.endpoints.get(endpoint_id)
        if isinstance(endpoint, ConsumerEndpoint) and (
            host := self._subscriptions.get(endpoint.subscription)
        ):
            await host.close_consumer(endpoint)
            self._forget_reader(host)
        self._update_arming()

    def _forget_reader(self, host: ServedSubscription) -> None:
        if not self._request.durable and not host.endpoints:
            self._subscriptions.pop(host.name, None)

    def on_session_ended(self, session: Session, crashed: bool) -> None:
        """What its consumers held waits for others."""
        for endpoint in list(session.endpoints.values()):
            if isinstance(endpoint, ConsumerEndpoint) and (
                host := self._subscriptions.get(endpoint.subscription)
            ):
                host.detach(endpoint)
                self._forget_reader(host)
        self._update_arming()

    # --- control calls ----------------------------------------------------------------------------

    async def _call(self, session: Session, request: Call) -> Any:
        endpoint = session.endpoints.get(request.endpoint_id)
        if not isinstance(endpoint, ConsumerEndpoint) or endpoint.subscription not in self._subscriptions:
            raise SessionLost("the consumer is not open here: attach again")
        host = self._subscriptions[endpoint.subscription]
        check_call(CONSUMER_CALLS, "dispatcher", request.method, request.arguments)
        await self._early.settled()
        return await self._calls.call(request.method, host, endpoint, request.arguments)

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """A call of an administrator (see `SubscriptionAdmin`), over the actor handle."""
        if self._admin is None:
            raise InvalidConfiguration(
                "non-durable subscriptions are not administered: they end by themselves"
            )
        return await self._admin.call(name, arguments)

    async def _seek_to(self, host: ServedSubscription, target: Any, inclusive: bool) -> int:
        if self._request.durable:
            mark = await self._follower.call(
                "hold_for_seek", number=self._number, target=target, inclusive=inclusive
            )
        else:
            mark = await self._follower.call("seek_position", target=target, inclusive=inclusive)
        position = Position(*mark)
        return await host.seek(position.next() if position != EARLIEST else Position(0, 0))

    async def _unsubscribe(self, host: ServedSubscription, endpoint: ConsumerEndpoint) -> None:
        if self._request.durable:
            await self._remove(host)
        else:
            await host.close_consumer(endpoint)
            self._forget_reader(host)

    async def _remove(self, host: ServedSubscription) -> None:
        async with self._removing:
            if self.is_removed:
                return
            self.is_removed = True
            try:
                await self._follower.call("remove_subscription", number=self._number)
            except PulsarException:
                self.is_removed = False
                raise
            # Of what is gone nothing need be written, and on a full disk nothing can be.
            for endpoint in list(host.endpoints.values()):
                with contextlib.suppress(PulsarException):
                    await host.close_consumer(endpoint)
            with contextlib.suppress(PulsarException):
                await host.close()
            await self._cursor_disk.run(lambda: remove_cursor(Path(self._directory), self._number))

    async def serves(self) -> bool:
        """Whether its subscription is there; says so behind a removal under way."""
        async with self._removing:
            return not self.is_removed

    # --- stats, closing ---------------------------------------------------------------------------

    async def look_around(self) -> None:
        """Learn where the log is now; the partition tells only who waits for it, and several not at once."""
        if not self._is_armed:
            self._follower.follow(self._number, armed=False)
        # Its answer comes behind what following is answered with, and what was held back.
        with contextlib.suppress(PulsarException, asyncio.TimeoutError):
            await within(self._follower.call("last_message"), LOOK_DEADLINE_S)
        for host in self._subscriptions.values():
            host.core.cursor.set_ledgers(self._log.ledgers)

    def stats(self) -> dict[str, Any]:
        """Per subscription; `consumers` counts all."""
        subscriptions = {name: host.stats() for name, host in self._subscriptions.items()}
        return {
            "subscriptions": subscriptions,
            "consumers": [c for s in subscriptions.values() for c in s["consumers"]],
            "epoch": self._epoch,
        }

    def leave(self) -> None:
        """Follow the partition no longer."""
        self._follower.close()

    async def give_up(self) -> None:
        """It could not start: keep nothing that another one would need, nor threads."""
        with contextlib.suppress(Exception):
            await self.close()
        for disk in (self._reader, self._cursor_disk):
            disk.end()

    async def close(self) -> None:
        """Make the cursor durable and leave."""
        self.leave()
        for host in self._subscriptions.values():
            with contextlib.suppress(PulsarException):
                await host.close()
