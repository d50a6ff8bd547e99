"""A dispatcher of a non-persistent topic, without Ray: what it is sent goes to consumers now, or is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.broker.subscription.consumers.consumer_calls import ConsumerCalls
from pulsar_ray.broker.subscription.consumers.consumer_endpoint import ConsumerEndpoint
from pulsar_ray.broker.subscription.dispatcher_server import LOOK_DEADLINE_S, DispatcherServer
from pulsar_ray.broker.subscription.log.log_view import LogView
from pulsar_ray.broker.subscription.non_persistent.non_persistent_subscription import (
    Bodies,
    NonPersistentSubscription,
)
from pulsar_ray.broker.subscription.non_persistent.push_follower import PushFollower
from pulsar_ray.broker.subscription.served_subscription import ServedSubscription
from pulsar_ray.broker.subscription.subscription_admin import SubscriptionAdmin
from pulsar_ray.clock import Clock
from pulsar_ray.config import Settings
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.errors import OperationNotSupported, PulsarException, SubscriptionNotFound
from pulsar_ray.lane.await_within import within
from pulsar_ray.session.requests import ConsumerOpened, OpenConsumer, Pushed
from pulsar_ray.session.session_table import Session
from pulsar_ray.transport.cluster import SubscriptionRequest


class _PassingCalls(ConsumerCalls):
    async def last_message(self, host: ServedSubscription, _endpoint: ConsumerEndpoint) -> Any:
        """Raises OperationNotSupported."""
        raise OperationNotSupported(
            f"{host.core.topic} is non-persistent: it keeps no last message; use a persistent:// topic"
        )

    async def has_more(
        self, _host: ServedSubscription, endpoint: ConsumerEndpoint, numbering: int, received: int
    ) -> bool:
        """Whether something is on its way to this consumer."""
        return endpoint.has_unsent


class NonPersistentDispatcherServer(DispatcherServer):
    """One subscription, or all readers, of a partition that stores nothing.

    It numbers entries for itself, for the sake of credit and re-attachment; nobody outside sees the numbers.
    A subscription is there as long as this dispatcher is, and begins with what is published next.
    """

    _calls_type = _PassingCalls

    def __init__(
        self,
        request: SubscriptionRequest,
        follower: PushFollower,
        settings: Settings,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        host: SessionHost,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        super().__init__(request, follower, LogView(), settings, clock, loop, host, on_fatal)
        self._partition = follower
        follower.on_pushed, follower.on_lost = self.pushed, self.lost
        self._passing: dict[str, NonPersistentSubscription] = {}
        self._next_entry_id = 0
        self._opening = 0

    async def start(self) -> None:
        """Attach to the partition. Raises what it refuses with, SubscriptionNotFound if it may not create."""
        if self._request.durable and not self._request.create:
            raise SubscriptionNotFound(
                f"subscription {self._request.subscription!r} does not exist on {self._request.topic}"
            )
        await self._follower.attach()
        self._epoch = self._clock.now_ms()
        if self._request.durable:
            host = self._add_subscription(self._request.subscription)
            self._admin = SubscriptionAdmin(
                host,
                self._follower,
                self._log,
                self._reader,
                "",
                look_around=self.look_around,
                seek=lambda target, inclusive: self._seek_to(host, target, inclusive),
                remove=lambda: self._remove(host),
            )
        self._host.serve(self)

    def tick(self) -> None:
        """Once a second, as a net under what following may have lost."""
        super().tick()
        for host in self._passing.values():
            host.sample()

    def _add_subscription(self, name: str) -> NonPersistentSubscription:
        host = NonPersistentSubscription(
            name,
            self._request.topic,
            self._settings,
            self._epoch,
            self._clock,
            self._loop,
            self._reader,
            self._cursor_disk,
            self._on_fatal,
        )
        self._subscriptions[name] = self._passing[name] = host
        return host

    # --- what is published ------------------------------------------------------------------------

    def pushed(self, packet: Pushed, body: memoryview) -> None:
        """Entries from the partition: every subscription gets them now."""
        blocks: list[BlockRef] = []
        bodies: Bodies = {}
        offset = 0
        for length, entries, messages in packet.blocks:
            first = self._next_entry_id
            blocks.append(BlockRef(self._epoch, 0, 0, length, first, entries, messages, entries > 1))
            bodies[self._epoch, first] = body[offset : offset + length]
            offset += length
            self._next_entry_id += entries
        for host in self._passing.values():
            host.publish(blocks, bodies)

    def lost(self, messages: int) -> None:
        """The partition had to drop so many before they came here."""
        for host in self._passing.values():
            host.lost(messages)

    @property
    def _waits_for_entries(self) -> bool:
        return bool(self._opening) or super()._waits_for_entries

    # --- consumers --------------------------------------------------------------------------------

    async def _open_consumer(self, session: Session, request: OpenConsumer) -> ConsumerOpened:
        # What is published once the consumer knows that it is open must reach it.
        self._opening += 1
        try:
            self._update_arming()
            await self._partition.wait_armed()
            return await super()._open_consumer(session, request)
        finally:
            self._opening -= 1

    async def _open_reader(self, request: OpenConsumer) -> ServedSubscription:
        return self._add_subscription(request.subscription)

    def _forget_reader(self, host: ServedSubscription) -> None:
        super()._forget_reader(host)
        if host.name not in self._subscriptions:
            self._passing.pop(host.name, None)

    # --- control calls ----------------------------------------------------------------------------

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """A call of an administrator: of a subscription without a backlog there is only deleting."""
        if name != "delete":
            raise OperationNotSupported(
                f"{name}: {self._request.topic} is non-persistent, so that its subscriptions have no backlog"
            )
        return await super().call(name, arguments)

    async def _seek_to(self, host: ServedSubscription, target: Any, inclusive: bool) -> int:
        """Without effect, as in Pulsar: there is nothing to go back to."""
        return host.core.generation

    async def _remove(self, host: ServedSubscription) -> None:
        async with self._removing:
            self.is_removed = True
            for endpoint in list(host.endpoints.values()):
                await host.close_consumer(endpoint)
            await self._partition.unfollow()

    async def look_around(self) -> None:
        """Learn what the partition dropped, also with nobody connected."""
        with contextlib.suppress(PulsarException, asyncio.TimeoutError):
            await within(self._partition.look(), LOOK_DEADLINE_S)
