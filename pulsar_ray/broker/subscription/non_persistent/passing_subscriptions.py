"""The subscriptions of a dispatcher whose topic is non-persistent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pulsar_ray.broker.figures.actor_report import Figures
from pulsar_ray.broker.partition.non_persistent.push_followers import WINDOW_BYTES
from pulsar_ray.broker.subscription.consumers.connected_consumers import ConnectedConsumers, ConsumerEndpoint
from pulsar_ray.broker.subscription.log.partition_link import RETRY_S, Arming, PartitionLink
from pulsar_ray.broker.subscription.non_persistent.passing_subscription import (
    GENERATION,
    Bodies,
    PassingSender,
    PassingSubscription,
    has_room,
)
from pulsar_ray.broker.subscription.open_subscription import OpenSubscription
from pulsar_ray.broker.subscription.subscription_parts import DispatcherContext
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.non_persistent import NonPersistentDispatcher
from pulsar_ray.errors import OperationNotSupported, PulsarException, SubscriptionNotFound
from pulsar_ray.lane.waiting import within
from pulsar_ray.model.message_id import EARLIEST
from pulsar_ray.model.registrations import check_new_name
from pulsar_ray.session.packet_encoders import DeliverEncoder
from pulsar_ray.session.requests import Follow, OpenConsumer, Pushed
from pulsar_ray.session.session_table import Session
from pulsar_ray.transport.cluster import AttachReply, SubscriptionRequest

LOOK_DEADLINE_S = 2.0
REPORT_BYTES = WINDOW_BYTES // 8


class PassingProgress:
    """The progress of consumers of a non-persistent topic: nothing stored is to come."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    async def last_message(self, subscription: str) -> Any:
        """Raises OperationNotSupported."""
        raise OperationNotSupported(
            f"{self._topic} is non-persistent: it keeps no last message; use a persistent:// topic"
        )

    async def has_more(self, endpoint: ConsumerEndpoint, numbering: int, received: int) -> bool:
        """Return whether something is on its way to this consumer."""
        return endpoint.has_unsent


class PassingSubscriptions:
    """Gives the partition's entries to consumers at once.

    Entries that nobody has room for are lost.

    Entries are numbered here, for the sake of credit and re-attachment; nobody outside sees the numbers. A
    subscription is there as long as its dispatcher is, and begins with what is published next. `is_admitted`:
    it was there before its actor was restarted.
    """

    can_park = False
    was_created = False
    directory = ""
    reach = ("", "")
    acknowledged_entries = 0

    def problem(self) -> str:
        return ""

    def __init__(
        self,
        request: SubscriptionRequest,
        context: DispatcherContext,
        partition: PartitionLink,
        *,
        is_admitted: bool,
    ) -> None:
        self._is_admitted = is_admitted
        self._request = request
        self._context = context
        self._partition = partition
        self._follower = PushFollower(
            partition,
            request.subscription if request.durable else "",
            on_pushed=self._pushed,
            on_lost=self._count_lost,
        )
        self._arming = Arming(lambda is_armed: self._follower.follow(armed=is_armed))
        self._passing: dict[str, PassingSubscription] = {}
        self.served: Mapping[str, OpenSubscription] = self._passing
        self._gone = Figures()
        """Counts of readers that are gone."""
        self.progress = PassingProgress(request.topic)
        self._next_entry_id = 0
        self.epoch = 0
        self.log_end = EARLIEST

    async def start(self) -> None:
        """Attach to the partition.

        Raises its refusals, SubscriptionNotFound if it may not create, and NotAllowedError if the topic may
        have no more subscriptions.
        """
        if self._request.durable and not self._request.create:
            raise SubscriptionNotFound(
                f"subscription {self._request.subscription!r} does not exist on {self._request.topic}"
            )
        if self._request.durable:
            check_new_name("subscription", self._request.subscription)
        await self._follower.attach()
        self.epoch = self._context.clock.now_ms()
        if self._request.durable:
            await self._ask_admission()
            self._add(self._request.subscription)

    async def _ask_admission(self) -> None:
        if self._is_admitted or not self._context.settings.max_subscriptions_per_topic:
            return
        try:
            await self._partition.call("admit_subscription", name=self._request.subscription)
        except PulsarException:
            await self._follower.unfollow()  # or the partition counts it as a subscription
            raise

    def _add(self, name: str) -> PassingSubscription:
        passing = self._passing[name] = _passing_subscription(self._context, name, self.epoch)
        return passing

    # --- readers ----------------------------------------------------------------------------------

    async def prepare_open(self) -> None:
        await self._follower.wait_armed()

    async def open_reader(self, request: OpenConsumer) -> OpenSubscription:
        return self._add(request.subscription)

    def forget_reader(self, subscription: OpenSubscription) -> None:
        if not self._request.durable and not subscription.consumers:
            self._gone.add(subscription.figures().counts)
            self._passing.pop(subscription.name, None)

    # --- following --------------------------------------------------------------------------------

    def _pushed(self, packet: Pushed, body: memoryview) -> None:
        """Give entries that the partition sent to every subscription."""
        blocks: list[BlockRef] = []
        bodies: Bodies = {}
        offset = 0
        for length, entries, messages in packet.blocks:
            first = self._next_entry_id
            blocks.append(BlockRef(self.epoch, 0, 0, length, first, entries, messages, entries > 1))
            bodies[self.epoch, first] = body[offset : offset + length]
            offset += length
            self._next_entry_id += entries
        for passing in self._passing.values():
            passing.publish(blocks, bodies)

    def _count_lost(self, messages: int) -> None:
        """Count messages that the partition had to drop before they came here."""
        for passing in self._passing.values():
            passing.lost(messages)

    def update_arming(self, *, is_opening: bool) -> None:
        """Arm for connected consumers, with or without room: what they lose is counted."""
        self._arming.update(is_opening or any(p.consumers for p in self._passing.values()))

    def tick(self) -> None:
        self._arming.repeat()
        for passing in self._passing.values():
            passing.tick()

    async def look_around(self) -> None:
        """Learn what the partition dropped, also with nobody connected."""
        with contextlib.suppress(PulsarException, asyncio.TimeoutError):
            await within(self._follower.look(), LOOK_DEADLINE_S)

    def describe_found(self) -> str:
        return "nothing is stored"

    def troubles(self) -> dict[str, str]:
        return {}

    async def learn_end(self) -> Any:
        """Learn nothing: entries have no ids that could be acknowledged early."""

    # --- calls ------------------------------------------------------------------------------------

    async def seek(self, name: str, target: Any, inclusive: bool) -> int:
        """Do nothing, as Pulsar: there is nothing to go back to."""
        return GENERATION

    async def administer(self, name: str, arguments: dict[str, Any]) -> Any:
        """Raises OperationNotSupported: there is no backlog to administer."""
        raise OperationNotSupported(
            f"{name}: {self._request.topic} is non-persistent, so that its subscriptions have no backlog"
        )

    async def remove(self) -> None:
        passing = self._passing[self._request.subscription]
        for endpoint in list(passing.consumers.values()):
            await passing.close_consumer(endpoint)
        await self._follower.unfollow()

    def stats(self) -> dict[str, dict[str, Any]]:
        return {name: passing.stats() for name, passing in self._passing.items()}

    def figures(self) -> Figures:
        figures = Figures()
        for each in (self._gone, *(subscription.figures() for subscription in self._passing.values())):
            figures.add(each)
        return figures

    async def settle(self) -> None:
        """Do nothing: nothing is kept."""

    # --- leaving ----------------------------------------------------------------------------------

    def leave(self) -> None:
        self._partition.close()

    async def close(self) -> None:
        self.leave()


def _passing_subscription(context: DispatcherContext, name: str, epoch: int) -> PassingSubscription:
    """Put together a subscription of a non-persistent topic, without log and cursor file."""
    clock, loop = context.clock, context.loop
    consumers, bodies = ConnectedConsumers(epoch), Bodies()

    def can_take(incarnation: int) -> bool:
        endpoint = consumers.get(incarnation)
        return endpoint is not None and has_room(endpoint)

    core = NonPersistentDispatcher(
        context.settings, topic=context.topic, now_ms=clock.monotonic_ms(), can_take=can_take
    )

    def new_endpoint(session: Session, request: OpenConsumer, numbering: int) -> ConsumerEndpoint:
        encoder = DeliverEncoder(request.consumer_id, numbering)
        return ConsumerEndpoint(name, session, request, numbering, PassingSender(session, encoder, bodies))

    return PassingSubscription(name, core, consumers, new_endpoint, bodies, clock, loop)


class PushFollower:
    """The endpoint of a dispatcher at a non-persistent partition.

    On the owner loop `on_pushed` gets each packet once, and `on_lost` the number of messages that the
    partition had to drop for this dispatcher.
    """

    awaits_packets = True
    """The partition sends packets of its own accord."""
    needs_actor = True
    awaited_consumer = None
    """A dispatcher that runs follows its partition."""

    def __init__(
        self,
        partition: PartitionLink,
        subscription: str,
        *,
        on_pushed: Callable[[Pushed, memoryview], None],
        on_lost: Callable[[int], None],
    ) -> None:
        self._partition = partition
        self._subscription = subscription
        self._on_pushed = on_pushed
        self._on_lost = on_lost
        self._armed = False
        self._epoch = -1
        self._taken_bytes = 0
        self._reported_bytes = 0
        self._lost = 0
        self._session_id = -1

    async def attach(self) -> AttachReply:
        """Wait until attached."""
        return await self._partition.attach(self)

    def follow(self, *, armed: bool) -> None:
        """Send whether somebody waits for entries, and how many bytes have arrived."""
        self._armed = armed
        self._report()

    def _report(self) -> None:
        self._reported_bytes = self._taken_bytes
        self._partition.send(Follow(0, self._epoch, self._armed, self._taken_bytes, self._subscription))

    async def wait_armed(self) -> None:
        """Return once the partition sends what is published from now on.

        Raises the errors of calling it.
        """
        while not (await self.look())["armed"]:
            self._report()
            await asyncio.sleep(RETRY_S)

    async def look(self) -> dict[str, Any]:
        """Return the partition's view of this follower."""
        following: dict[str, Any] = await self._partition.call("following")
        self._learn(following["epoch"], following["dropped"])
        return following

    async def unfollow(self) -> None:
        """Leave, so that the partition counts no drops for a subscription that is gone."""
        with contextlib.suppress(PulsarException):
            await self._partition.call_once("unfollow", {})
        self._partition.close()

    # --- the endpoint: called on the owner loop, but for losses and attachments -------------------

    def reopen(self, attached: AttachReply) -> None:
        """Ask for new entries: attached again, and those that were under way are lost."""
        if attached.session_id != self._session_id:
            # A new session there counts from nothing.
            self._session_id, self._lost = attached.session_id, 0
        self._report()

    def on_refused(self, error: PulsarException) -> None:
        """Do nothing: the topic was deleted, and the controller ends this actor too."""

    def send_last(self) -> None:
        """Do nothing: a follower holds nothing back."""

    def on_detached(self) -> None:
        """Do nothing: nothing that was missed comes again."""

    def on_request(self, request: Any, body: memoryview) -> None:
        """Take in a Pushed packet."""
        if isinstance(request, Pushed):
            self._pushed(request, body)

    def on_receipts(self, rows: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Do nothing: a follower publishes nothing."""

    def _pushed(self, packet: Pushed, body: memoryview) -> None:
        if packet.epoch == self._epoch and packet.sent_bytes <= self._taken_bytes:
            return
        self._learn(packet.epoch, packet.dropped_messages)
        self._taken_bytes = packet.sent_bytes
        self._on_pushed(packet, body)
        if self._taken_bytes - self._reported_bytes >= REPORT_BYTES:
            self._report()

    def _learn(self, epoch: int, dropped: int) -> None:
        if epoch != self._epoch:
            # Another life of the partition counts from nothing.
            self._epoch, self._taken_bytes, self._reported_bytes, self._lost = epoch, 0, 0, 0
        # An answer may be looked at after a packet that came behind it.
        if dropped > self._lost:
            self._on_lost(dropped - self._lost)
            self._lost = dropped
