"""One subscription in its dispatcher's process: its consumers, what they say, its cursor becoming durable.

What follows on it, the core being fed and its grants going out, is `SubscriptionTurn`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.subscription.consumers.consumer_endpoint import ConsumerEndpoint, QueueReset
from pulsar_ray.broker.subscription.consumers.consumer_spec import spec_of
from pulsar_ray.broker.subscription.consumers.delivery_numberings import DeliveryNumberings
from pulsar_ray.broker.subscription.cursor_flusher import CursorFlusher
from pulsar_ray.broker.subscription.log.core_feeder import CoreFeeder
from pulsar_ray.broker.subscription.log.log_view import LogView
from pulsar_ray.broker.subscription.subscription_stats import SubscriptionStats
from pulsar_ray.broker.subscription.subscription_turn import SubscriptionTurn
from pulsar_ray.clock import Clock
from pulsar_ray.dispatch.attachment import Attachment, Departure
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.grant import DropQueue
from pulsar_ray.dispatch.inspect.watchdog import Watchdog
from pulsar_ray.dispatch.redelivery import ConsumerQueue
from pulsar_ray.errors import BrokerMetadataError, PulsarException, SessionLost
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorStore
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

LOOK_MS = 100


class ServedSubscription:
    """Runs on the owner loop. `store` is None for a non-durable cursor, which leaves nothing behind."""

    def __init__(
        self,
        name: str,
        core: Dispatcher,
        store: CursorStore | None,
        log: LogView,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        reader: DiskThread,
        cursor_disk: DiskThread,
        directory: str,
        *,
        on_mark_delete: Callable[[Position], None],
        on_fatal: Callable[[BaseException], None],
        on_demand: Callable[[], None],
    ) -> None:
        self.name = name
        self.core = core
        self._log = log
        self._clock = clock
        self._loop = loop
        self._reader = reader
        self._directory = directory
        self.endpoints: dict[int, ConsumerEndpoint] = {}
        self.counts = SubscriptionStats(core, clock)
        self._numberings = DeliveryNumberings(core.epoch)
        self._flusher = None
        if store is not None:

            def moved(position: Position) -> None:
                self.counts.mark_delete_advanced()
                on_mark_delete(position)

            self._flusher = CursorFlusher(
                name, store, loop, cursor_disk, on_mark_delete=moved, on_fatal=on_fatal
            )
        self._feeder = CoreFeeder(
            name,
            core,
            log,
            loop,
            reader,
            directory,
            holds=store is not None,
            turn=self._run_turn,
            dropped=self._drop,
        )
        self.turn = SubscriptionTurn(
            core,
            log,
            self._feeder,
            self.endpoints,
            self.counts,
            clock,
            loop,
            on_drops=self._drop,
            on_demand=on_demand,
        )
        self._watchdog = Watchdog(core.settings.stuck_after_ms)
        core.cursor.set_ledgers(log.ledgers)

    # --- consumers --------------------------------------------------------------------------------

    async def open_consumer(self, session: Session, request: OpenConsumer) -> ConsumerOpened:
        """Attach a consumer, or attach it again; waits while one from before a restart may come back.

        Raises ConsumerBusy, and SessionLost if the session ended meanwhile.
        """
        spec, attachment_number = spec_of(request, 0), session.attachment
        while self.core.must_wait(spec):
            await self._wait_a_little()
        if session.is_ended or session.attachment != attachment_number:
            # What was asked behind it, over a newer attachment, was done already: to leave, perhaps.
            raise SessionLost("the connection was lost while its consumer waited: attach again")
        self.core.expire(self.now_ms())
        numbering = self._numberings.of(
            request.incarnation, is_known=request.incarnation in self.core.consumers
        )
        spec = spec_of(request, numbering)
        is_same = request.dispatcher_epoch == numbering
        endpoint = self._new_endpoint(session, request, numbering)
        self.core.cursor.set_ledgers(self._log.ledgers)
        attachment = self.core.attach_consumer(
            spec,
            self.now_ms(),
            epoch=self.core.epoch,
            received=request.received if is_same else 0,
            held=request.held,
            received_messages=request.received_messages,
            generation=request.generation,
        )
        if not attachment.resumed:
            self.counts.joined(request.incarnation)
        self._put_in_place(endpoint, request)
        await self.flushed(self.core.cursor.version)
        resumed = attachment.resumed and is_same
        start = list(self.core.cursor.mark_delete) if self._flusher is None else None
        opened = ConsumerOpened(
            request.request_id, request.name, numbering, resumed, attachment.generation, start
        )
        # The answer goes first: what comes before it the client drops, for it does not know what it is yet.
        self._loop.call_soon(self._opened, endpoint, attachment)
        return opened

    def _put_in_place(self, endpoint: ConsumerEndpoint, request: OpenConsumer) -> None:
        """It is the consumer's from now on, instead of one that it had before."""
        endpoint.subscription = self.name
        endpoint.metadata = request.properties or {}
        endpoint.is_held = self._flusher is not None
        former = self.endpoints.get(request.incarnation)
        if former is not None:
            former.retire()
        self.endpoints[request.incarnation] = endpoint
        endpoint.session.endpoints[request.consumer_id] = endpoint

    def _new_endpoint(self, session: Session, request: OpenConsumer, numbering: int) -> ConsumerEndpoint:
        return ConsumerEndpoint(
            session,
            request.consumer_id,
            request.incarnation,
            request.name,
            self._directory,
            numbering,
            self._loop,
            self._reader,
            reads_files=request.reads_files,
        )

    def _opened(self, endpoint: ConsumerEndpoint, attachment: Attachment) -> None:
        # After a seek in between, what was granted before it is not wanted any more.
        again = attachment.again if attachment.generation == self.core.generation else []
        endpoint.open(again, attachment.generation)
        self.turn.consumer_opened()

    async def _wait_a_little(self) -> None:
        # Those that are awaited may be back before their time is over.
        deadline = self.core.next_deadline()
        delay_ms = LOOK_MS if deadline is None else min(LOOK_MS, max(10, deadline - self.now_ms()))
        await asyncio.sleep(delay_ms / 1000)
        self.core.expire(self.now_ms())

    def detach(self, endpoint: ConsumerEndpoint) -> None:
        """Its session ended with a crash: what it holds waits again, after the session's own grace."""
        if self.endpoints.get(endpoint.incarnation) is endpoint:
            del self.endpoints[endpoint.incarnation]
            self._numberings.forget(endpoint.incarnation)
            self.counts.left(endpoint.incarnation)
            self.core.remove_consumer(endpoint.incarnation, Departure.CRASHED)
            self.turn.schedule()
            self._flush_soon()

    async def close_consumer(self, endpoint: ConsumerEndpoint) -> None:
        """It left by itself; durable when this returns."""
        if self.endpoints.get(endpoint.incarnation) is endpoint:
            del self.endpoints[endpoint.incarnation]
            self._numberings.forget(endpoint.incarnation)
            self.counts.left(endpoint.incarnation)
        self.core.remove_consumer(endpoint.incarnation, Departure.CLOSED)
        endpoint.session.endpoints.pop(endpoint.consumer_id, None)
        self.turn.schedule()
        await self.flushed(self.core.cursor.version)

    # --- what consumers say -----------------------------------------------------------------------

    def credit(self, endpoint: ConsumerEndpoint, request: Credit) -> None:
        """A report of room and progress."""
        self.core.set_credit(endpoint.incarnation, request.credit, request.received, request.handed_over)
        self.counts.credited(endpoint.incarnation)
        self.turn.room_was_made()

    def acknowledge(self, endpoint: ConsumerEndpoint, request: Acknowledge) -> None:
        """Acknowledgments; with a request id answered once durable."""
        unacked = self.core.blocks.unacked_messages
        self._feeder.tell_end()
        try:
            version = self.core.acknowledge(
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
        self.counts.acknowledged(endpoint.incarnation, unacked - self.core.blocks.unacked_messages)
        self.turn.room_was_made()
        if request.request_id:
            answer = self._answer_durable(
                endpoint.session, request.request_id, version, at_once=request.at_once
            )
            task = self._loop.create_task(answer)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        else:
            self._flush_soon()

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
        self._drop(self.core.negative_acknowledge(endpoint.incarnation, request.items, queue))
        self._answer_done(endpoint, request.request_id)

    def redeliver_unacknowledged(self, endpoint: ConsumerEndpoint, request: RedeliverUnacknowledged) -> None:
        """Let all that this consumer holds come again."""
        received = request.received if request.numbering == endpoint.numbering else 0
        self._drop(self.core.redeliver_unacknowledged(endpoint.incarnation, received))
        self._answer_done(endpoint, request.request_id)

    def _answer_done(self, endpoint: ConsumerEndpoint, request_id: int) -> None:
        if request_id:
            endpoint.session.send(encode_request(Done(request_id)))

    def _drop(self, actions: list[DropQueue], is_seek: bool = False) -> None:
        self._send_drops(self._queue_drops(actions, is_seek))

    def _queue_drops(self, actions: list[DropQueue], is_seek: bool) -> list[QueueReset]:
        """What consumers are told, with their counts as they are now: later grants are not meant."""
        drops = []
        start = list(self.core.cursor.mark_delete) if is_seek and self._flusher is None else None
        for action in actions:
            consumer = self.core.consumers.get(action.consumer_id)
            if consumer is not None:
                last, granted = consumer.next_number - 1, consumer.granted
                drops.append(QueueReset(action.consumer_id, action.generation, is_seek, last, granted, start))
        return drops

    def _send_drops(self, drops: list[QueueReset]) -> None:
        for drop in drops:
            endpoint = self.endpoints.get(drop.incarnation)
            if endpoint is not None:
                endpoint.drop_queue(drop)
        self.turn.schedule()
        self._flush_soon()

    async def seek(self, position: Position) -> int:
        """Start over at `position`, durably; the new generation."""
        self.core.cursor.set_ledgers(self._log.ledgers)
        drops = self._queue_drops(self.core.seek(position), is_seek=True)
        self._feeder.forget_place()
        generation = self.core.generation
        # Consumers are told before anything from there goes out.
        self.turn.hold()
        try:
            await self.flushed(self.core.cursor.version)
        finally:
            self.turn.release()
        self._send_drops(drops)
        return generation

    # --- the log, durability, and what is told about them ------------------------------------------

    @property
    def waits_for_entries(self) -> bool:
        """Whether somebody is connected that new entries would concern, and has had room for some lately."""
        return bool(self.endpoints) and not self.turn.is_satisfied

    def _run_turn(self) -> None:
        self.turn.run()

    async def flushed(self, version: int, *, at_once: bool = True) -> None:
        """Wait until this version of the cursor is durable; without `at_once` by the next grouped write."""
        if self._flusher is not None:
            await self._flusher.flushed(version, at_once=at_once)

    def _flush_soon(self) -> None:
        if self._flusher is not None:
            self._flusher.flush_soon()

    def now_ms(self) -> int:
        """The time its core counts in."""
        return self._clock.monotonic_ms()

    def sessions_beside(self, session: Session) -> list[Session]:
        """Of the consumers that are connected, without those of `session`."""
        return [e.session for e in self.endpoints.values() if e.session is not session]

    def active_in_the_way(self) -> Session | None:
        """Whose the active consumer is, if there are messages that other sessions' consumers could get."""
        active = self.core.active
        endpoint = None if active is None else self.endpoints.get(active.spec.consumer_id)
        if active is None or endpoint is None or not self.sessions_beside(endpoint.session):
            return None
        has_messages = active.unacked or self.core.blocks.waiting_messages or self.core.has_unread
        return endpoint.session if has_messages else None

    def check_sole(self, endpoint: ConsumerEndpoint) -> None:
        """Raise BrokerMetadataError, as Pulsar does, unless this is the only connected consumer."""
        if len(self.endpoints) > 1:
            raise BrokerMetadataError(
                "unsubscribe: other consumers are connected to the subscription; close them first"
            )

    def stats(self) -> dict[str, Any]:
        """Pulsar's names where Pulsar has one."""
        counts = self.counts.describe(self.endpoints.values(), self._feeder.problem)
        return {**counts, **self._watchdog.stats(self.now_ms())}

    def watch(self) -> None:
        """Once a second: warn if the subscription stands still."""
        self.turn.tick()
        reason = self._watchdog.look(self.core, self.now_ms())
        if reason is not None:
            logger.warning("subscription %s stands still: %s", self.name, reason)

    async def close(self) -> None:
        """Write the cursor and give its directory up."""
        if self._flusher is not None:
            await self._flusher.close()
