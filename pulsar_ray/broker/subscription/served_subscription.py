"""One subscription in its dispatcher's process: its consumers, their requests, its durable cursor.

Feeding the core and sending its grants follows in `SubscriptionTurn`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from pulsar_ray.broker.subscription.consumers.connected_consumers import ConnectedConsumers
from pulsar_ray.broker.subscription.consumers.consumer_endpoint import ConsumerEndpoint
from pulsar_ray.broker.subscription.cursor_flusher import CursorDurability
from pulsar_ray.broker.subscription.log.core_feeder import Feeder
from pulsar_ray.broker.subscription.subscription_stats import SubscriptionStats
from pulsar_ray.broker.subscription.subscription_turn import SubscriptionTurn
from pulsar_ray.clock import Clock
from pulsar_ray.dispatch.attachment import Attachment, Departure
from pulsar_ray.dispatch.consumer import ConsumerSpec
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.grant import DropQueue
from pulsar_ray.dispatch.inspect.watchdog import Watchdog
from pulsar_ray.dispatch.key_shared.hash_regions import key_shared_spec
from pulsar_ray.dispatch.redelivery import ConsumerQueue
from pulsar_ray.errors import ConsumerBusy, PulsarException, SessionLost
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.position import Position
from pulsar_ray.session.requests import (
    Acknowledge,
    ConsumerOpened,
    Credit,
    Done,
    Failed,
    NegativeAcknowledge,
    OpenConsumer,
    RedeliverUnacknowledged,
    encode_request,
)
from pulsar_ray.session.session_table import Session

logger = logging.getLogger(__name__)

LONGEST_WAIT_S = 1.0
SHORTEST_WAIT_S = 0.01

EndpointFactory = Callable[[Session, OpenConsumer, int], ConsumerEndpoint]
"""Makes the endpoint of a consumer that opens, with the id of its numbering."""


class ServedSubscription:
    """Runs on the owner loop; `subscription_parts` makes one with its parts."""

    def __init__(
        self,
        name: str,
        core: Dispatcher,
        consumers: ConnectedConsumers,
        new_endpoint: EndpointFactory,
        durability: CursorDurability,
        feeder: Feeder,
        turn: SubscriptionTurn,
        counts: SubscriptionStats,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.name = name
        self.core = core
        self.consumers = consumers
        self.turn = turn
        self.counts = counts
        self._new_endpoint = new_endpoint
        self._durability = durability
        self._feeder = feeder
        self._clock = clock
        self._loop = loop
        self._watchdog = Watchdog(core.settings.stuck_after_ms)
        feeder.extend_ledgers()

    # --- consumers --------------------------------------------------------------------------------

    async def open_consumer(self, session: Session, request: OpenConsumer) -> ConsumerOpened:
        """Attach a consumer, or attach it again.

        Waits while a consumer from before a restart may come back that excludes this one.

        Raises ConsumerBusy, also for one consumer too many, and SessionLost if the session ended meanwhile.
        """
        attachment_number = session.attachment
        await self._wait_for_returning(_spec_of(request, 0))
        if session.is_ended or session.attachment != attachment_number:
            # Requests behind it, over a newer attachment, were carried out already: to leave, perhaps.
            raise SessionLost("the connection was lost while its consumer waited: attach again")
        self.core.expire(self.now_ms())
        self._check_limit(request)
        numbering = self.consumers.numbering(
            request.incarnation, is_known=request.incarnation in self.core.consumers
        )
        is_same = request.dispatcher_epoch == numbering
        endpoint = self._new_endpoint(session, request, numbering)
        self._feeder.extend_ledgers()
        attachment = self.core.attach_consumer(
            _spec_of(request, numbering),
            self.now_ms(),
            epoch=self.core.epoch,
            received=request.received if is_same else 0,
            held=request.held,
            received_messages=request.received_messages,
            generation=request.generation,
            credit=request.credit,
        )
        if not attachment.resumed:
            self.counts.joined(request.incarnation)
        self.consumers.put(endpoint)
        await self.flushed(self.core.cursor.version)
        resumed = attachment.resumed and is_same
        start = None if self._durability.is_durable else list(self.core.cursor.mark_delete)
        opened = ConsumerOpened(
            request.request_id, request.name, numbering, resumed, attachment.generation, start
        )
        # The answer goes first: what comes before it the client drops, for it does not know what it is yet.
        self._loop.call_soon(self._opened, endpoint, attachment)
        return opened

    def _check_limit(self, request: OpenConsumer) -> None:
        """Raise ConsumerBusy for a consumer that is new, and one too many."""
        limit, present = self.core.settings.max_consumers_per_subscription, len(self.core.consumers)
        if 0 < limit <= present and not request.joined and request.incarnation not in self.core.consumers:
            raise ConsumerBusy(
                f"the subscription has {present} consumers, and the policy max_consumers_per_subscription "
                f"allows {limit}: close one, or raise the policy"
            )

    async def _wait_for_returning(self, spec: ConsumerSpec) -> None:
        """Wait until no consumer from before a restart may come back that excludes this one."""
        while self.core.must_wait(spec):
            await self._wait_for_one()

    async def wait_for_known(self) -> None:
        """Wait until consumers from before a restart are back, or their grace is over."""
        while self.core.next_deadline() is not None:
            await self._wait_for_one()

    async def _wait_for_one(self) -> None:
        deadline_ms = self.core.next_deadline()
        left_s = LONGEST_WAIT_S if deadline_ms is None else (deadline_ms - self.now_ms()) / 1000
        # When one of them is back, or its time is over, there is a turn.
        await self.turn.wait_run(min(LONGEST_WAIT_S, max(SHORTEST_WAIT_S, left_s)))
        self.core.expire(self.now_ms())

    def _opened(self, endpoint: ConsumerEndpoint, attachment: Attachment) -> None:
        # After a seek in between, what was granted before it is not wanted any more.
        again = attachment.again if attachment.generation == self.core.generation else []
        endpoint.open(again, attachment.generation)
        self.turn.consumer_opened()

    def detach(self, endpoint: ConsumerEndpoint) -> None:
        """Let everything wait again that a consumer holds whose session ended with a crash."""
        if self.consumers.remove(endpoint):
            self.counts.left(endpoint.incarnation)
            self.core.remove_consumer(endpoint.incarnation, Departure.CRASHED)
            self.turn.schedule()
            self._durability.flush_soon()

    async def close_consumer(self, endpoint: ConsumerEndpoint) -> None:
        """Remove a consumer that left by itself; durable when this returns."""
        if self.consumers.remove(endpoint):
            self.counts.left(endpoint.incarnation)
        self.core.remove_consumer(endpoint.incarnation, Departure.CLOSED)
        endpoint.session.endpoints.pop(endpoint.consumer_id, None)
        self.turn.schedule()
        await self.flushed(self.core.cursor.version)

    # --- requests of consumers --------------------------------------------------------------------

    def credit(self, endpoint: ConsumerEndpoint, request: Credit) -> None:
        """Take a report of room and progress."""
        self.core.set_credit(endpoint.incarnation, request.credit, request.received, request.handed_over)
        self.counts.credited(endpoint.incarnation)
        self.turn.room_was_made()

    def acknowledge(self, endpoint: ConsumerEndpoint, request: Acknowledge) -> None:
        """Acknowledge; a request with an id is answered once durable."""
        core = self.core
        unacked = core.blocks.unacked_messages
        self._feeder.extend_to_end()
        try:
            version = core.acknowledge(
                endpoint.incarnation,
                request.ranges,
                request.batch_rows,
                request.cumulative,
                request.generation,
                request.entry_bits,
            )
        except PulsarException as error:
            if request.request_id:
                endpoint.session.send(
                    encode_request(Failed(request.request_id, type(error).__name__, error.text))
                )
            return
        self.counts.acknowledged(endpoint.incarnation, unacked - core.blocks.unacked_messages)
        self.turn.room_was_made()
        if request.request_id:
            answer = self._answer_durable(
                endpoint.session, request.request_id, version, at_once=request.at_once
            )
            task = self._loop.create_task(answer)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        else:
            self._durability.flush_soon()

    async def _answer_durable(
        self, session: Session, request_id: int, version: int, *, at_once: bool
    ) -> None:
        try:
            await self.flushed(version, at_once=at_once)
        except PulsarException as error:
            session.send(encode_request(Failed(request_id, type(error).__name__, error.text)))
        else:
            session.send(encode_request(Done(request_id)))

    def negative_acknowledge(self, endpoint: ConsumerEndpoint, request: NegativeAcknowledge) -> None:
        """Let messages come again now."""
        numbering, had_received = request.first_said or (endpoint.numbering, request.received)
        if numbering != endpoint.numbering:
            had_received = 0  # what it has from before
        queue = ConsumerQueue(request.received, request.oldest, had_received)
        self._drop_queues(self.core.negative_acknowledge(endpoint.incarnation, request.items, queue))
        self._answer_done(endpoint, request.request_id)

    def redeliver_unacknowledged(self, endpoint: ConsumerEndpoint, request: RedeliverUnacknowledged) -> None:
        """Let all that this consumer holds come again."""
        received = request.received if request.numbering == endpoint.numbering else 0
        self._drop_queues(self.core.redeliver_unacknowledged(endpoint.incarnation, received))
        self._answer_done(endpoint, request.request_id)

    def _answer_done(self, endpoint: ConsumerEndpoint, request_id: int) -> None:
        if request_id:
            endpoint.session.send(encode_request(Done(request_id)))

    def _drop_queues(self, drops: list[DropQueue]) -> None:
        self.consumers.drop_queues(drops)
        self.turn.schedule()
        self._durability.flush_soon()

    async def seek(self, position: Position) -> int:
        """Start over at `position`, durably; returns the new generation."""
        self._feeder.extend_ledgers()
        drops = self.core.seek(position)
        self._feeder.forget_place()
        generation = self.core.generation
        # Consumers drop their queues before anything from there goes out.
        self.turn.hold()
        try:
            await self.flushed(self.core.cursor.version)
        finally:
            self.turn.release()
        self._drop_queues(drops)
        return generation

    # --- the log, durability, policies, stats -----------------------------------------------------

    def extend_ledgers(self) -> None:
        """Tell the cursor where the ledgers of the log end."""
        self._feeder.extend_ledgers()

    @property
    def is_busy(self) -> bool:
        """Whether consumers are awaited, or connected ones have something to get or hold.

        Where the number of consumers is limited each holds its place, which others could take meanwhile.
        """
        core = self.core
        if core.next_deadline() is not None:
            return True
        settings = core.settings
        if self.consumers and (settings.max_consumers_per_subscription or settings.max_consumers_per_topic):
            return True
        return bool(self.consumers) and (core.blocks.unacked_messages > 0 or bool(self.turn.has_work))

    @property
    def waits_for_entries(self) -> bool:
        """Whether somebody is connected who has had room for new entries lately."""
        return bool(self.consumers) and not self.turn.is_satisfied

    async def flushed(self, version: int, *, at_once: bool = True) -> None:
        """Wait until this version of the cursor is durable.

        Without `at_once` that is by the next grouped write.
        """
        await self._durability.flushed(version, at_once=at_once)

    def settings_changed(self) -> None:
        """Grant at once what only the former settings held back."""
        self.core.settings_changed()
        self.turn.schedule()

    def now_ms(self) -> int:
        """Return the time that its core counts in."""
        return self._clock.monotonic_ms()

    def active_in_the_way(self) -> Session | None:
        """Return the active consumer's session, if other sessions' consumers could get its messages."""
        active = self.core.active
        endpoint = None if active is None else self.consumers.get(active.spec.consumer_id)
        if active is None or endpoint is None or not self.consumers.sessions_beside(endpoint.session):
            return None
        has_messages = active.unacked or self.core.blocks.waiting_messages or self.core.has_unread
        return endpoint.session if has_messages else None

    def stats(self) -> dict[str, Any]:
        """Describe the subscription, with Pulsar's names where Pulsar has one."""
        counts = self.counts.describe(self.consumers.values(), self._feeder.problem)
        return {**counts, **self._watchdog.stats(self.now_ms())}

    def tick(self) -> None:
        """Sample rates, warn if the subscription stands still, and take a turn; once a second."""
        self.counts.sample()
        self.turn.tick()
        reason = self._watchdog.look(self.core, self.now_ms())
        if reason is not None:
            logger.warning("subscription %s stands still: %s", self.name, reason)
        self.turn.schedule()

    async def close(self) -> None:
        """Write the cursor and give its directory up."""
        await self._durability.close()


def _spec_of(request: OpenConsumer, numbering: int) -> ConsumerSpec:
    """Describe a consumer; `numbering` is higher than any that subscribed before can name."""
    return ConsumerSpec(
        request.incarnation,
        request.name,
        ConsumerType(request.consumer_type),
        request.priority_level,
        request.batch_index_ack,
        request.joined if 0 < request.joined < numbering else numbering,
        request.is_multi_topic,
        key_shared_spec(request.key_shared),
    )
