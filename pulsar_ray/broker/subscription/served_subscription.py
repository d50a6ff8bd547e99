"""One subscription of a stored topic: its consumers, their requests, its durable cursor.

Feeding the core and sending its grants follows in `SubscriptionTurn`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from pulsar_ray.broker.figures.actor_report import Figures
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.broker.subscription.consumers.connected_consumers import (
    ConnectedConsumers,
    ConsumerEndpoint,
    EndpointFactory,
    check_limit,
    spec_of,
)
from pulsar_ray.broker.subscription.cursor_flusher import CursorDurability
from pulsar_ray.broker.subscription.delayed.tracker_link import TrackerLink
from pulsar_ray.broker.subscription.log.compacted_log import CompactedLog
from pulsar_ray.broker.subscription.log.core_feeder import CoreFeeder, ReadingWatch
from pulsar_ray.broker.subscription.log.incomplete_messages import IncompleteMessages
from pulsar_ray.broker.subscription.open_subscription import SettleRequest
from pulsar_ray.broker.subscription.subscription_stats import SubscriptionStats, stored_figures
from pulsar_ray.broker.subscription.subscription_turn import SubscriptionTurn
from pulsar_ray.clock import Clock
from pulsar_ray.dispatch.consumer import Attachment, ConsumerExit, ConsumerSpec
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.grant import DropQueue
from pulsar_ray.dispatch.inspect.watchdog import Watchdog
from pulsar_ray.dispatch.inspect.why_blocked import Delayed, why_blocked
from pulsar_ray.dispatch.redelivery import ConsumerQueue
from pulsar_ray.dispatch.suspects.blame import Crash
from pulsar_ray.errors import PulsarException, SessionLost
from pulsar_ray.model.message_id import EARLIEST, Position
from pulsar_ray.session.requests import (
    Acknowledge,
    ConsumerOpened,
    Credit,
    Done,
    Failed,
    NegativeAcknowledge,
    OpenConsumer,
    RedeliverUnacknowledged,
    Unreadable,
    encode_request,
)
from pulsar_ray.session.session_table import Session

logger = logging.getLogger(__name__)

LONGEST_WAIT_S = 1.0
LONGEST_HOLD_MS = 600_000
SHORTEST_WAIT_S = 0.01


class ServedSubscription:
    """Serves one subscription of a stored topic; `subscription_parts` makes it with its parts.

    It runs on the owner loop.
    """

    def __init__(
        self,
        name: str,
        core: Dispatcher,
        consumers: ConnectedConsumers,
        new_endpoint: EndpointFactory,
        durability: CursorDurability,
        feeder: CoreFeeder,
        turn: SubscriptionTurn,
        counts: SubscriptionStats,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        incomplete: IncompleteMessages,
        reading_watch: ReadingWatch,
        log: CompactedLog,
        tracker: TrackerLink | None = None,
    ) -> None:
        self.name = name
        self.core = core
        self.consumers = consumers
        self.turn = turn
        self.counts = counts
        self._new_endpoint = new_endpoint
        self._durability = durability
        self.flushed = durability.flushed
        self._feeder = feeder
        self.now_ms = clock.monotonic_ms
        """The time that its core counts in."""
        self._loop = loop
        self._incomplete = incomplete
        self.tracker = tracker
        """The link to the tracker of its delayed messages, if they can wait here."""
        self._watchdog = Watchdog(core.settings.stuck_after_ms)
        self._reading_watch = reading_watch
        self._log = log
        self._moved = EARLIEST, 0
        """Where reading stood when it was last seen to have moved, and when that was."""
        feeder.extend_ledgers()

    # --- consumers --------------------------------------------------------------------------------

    async def open_consumer(self, session: Session, request: OpenConsumer) -> ConsumerOpened:
        """Attach a consumer, or attach it again.

        Waits while a consumer from before a restart may come back that excludes this one or has its place.

        Raises ConsumerBusy, also for one consumer too many, and SessionLost if the session ended meanwhile.
        """
        attachment_number = session.attachment
        await self._wait_for_returning(spec_of(request, 0), was_open=request.joined > 0)
        if session.is_ended or session.attachment != attachment_number:
            # Requests behind it, over a newer attachment, were carried out already: to leave, perhaps.
            raise SessionLost("the connection was lost while its consumer waited: attach again")
        self.core.expire(self.now_ms())
        check_limit(self.core.settings, self.core.consumers, request)
        numbering = self.consumers.numbering(
            request.incarnation, is_known=request.incarnation in self.core.consumers
        )
        is_same = request.numbering == numbering
        endpoint = self._new_endpoint(session, request, numbering)
        self._feeder.extend_ledgers()
        attachment = self.core.attach_consumer(
            spec_of(request, numbering),
            self.now_ms(),
            epoch=self.core.epoch,
            received=request.received if is_same else 0,
            held=request.held,
            parts=request.parts,
            received_messages=request.received_messages,
            generation=request.generation,
            credit=request.credit,
        )
        if not attachment.resumed:
            self.counts.traffic.joined(request.incarnation)
        self.consumers.put(endpoint)
        await self.flushed(self.core.cursor.version)
        resumed = attachment.resumed and is_same
        start = None if self._durability.is_durable else list(self.core.cursor.mark_delete)
        opened = ConsumerOpened(
            request.request_id,
            request.name,
            numbering,
            resumed,
            attachment.generation,
            start,
            sees_handed_over=endpoint.handed_over is not None,
        )
        # The answer goes first: what comes before it the client drops, for it does not know what it is yet.
        self._loop.call_soon(self._opened, endpoint, attachment)
        return opened

    def compacted_log(self) -> CompactedLog:
        """The log as the active consumer reads it."""
        self._feeder.look_who_reads()
        return self._log

    def needed_behind(self) -> Position | None:
        """The entry behind which a reader of a compacted topic needs the log.

        None: it reads the log as it is, or has not read on for so long that nothing is kept for it.
        """
        if not self.consumers:
            return None
        log, position, now_ms = self.compacted_log(), self.core.intake.read_position, self.now_ms()
        if position != self._moved[0]:
            self._moved = position, now_ms
        if not log.is_read_compacted or now_ms - self._moved[1] > LONGEST_HOLD_MS:
            return None
        return log.needed_behind(self.core.cursor.mark_delete)

    async def _wait_for_returning(self, spec: ConsumerSpec, *, was_open: bool) -> None:
        """Wait until no consumer from before a restart may come back that excludes this one."""
        while self.core.must_wait(spec, was_open=was_open):
            await self._wait_for_one()

    async def wait_for_known(self) -> None:
        """Wait until consumers from before a restart are back, or their grace is over."""
        while self.core.returning.awaited:
            await self._wait_for_one()

    def await_no_more(self, incarnation: int) -> None:
        """Wait no longer for a consumer from before a restart, which was closed meanwhile."""
        self.core.await_no_more(incarnation)
        self.turn.schedule()
        self._durability.flush_soon()

    async def _wait_for_one(self) -> None:
        returning = self.core.returning
        left_s = (returning.grace_until_ms - self.now_ms()) / 1000 if returning.awaited else LONGEST_WAIT_S
        # When one of them is back, or its time is over, there is a turn.
        await self.turn.wait_run(min(LONGEST_WAIT_S, max(SHORTEST_WAIT_S, left_s)))
        self.core.expire(self.now_ms())

    def _opened(self, endpoint: ConsumerEndpoint, attachment: Attachment) -> None:
        # After a seek in between, what was granted before it is not wanted any more.
        again = attachment.again if attachment.generation == self.core.generation else []
        endpoint.open(again, attachment.generation)
        self.turn.consumer_opened()

    def detach(self, endpoint: ConsumerEndpoint, *, crashed: bool) -> None:
        """Let everything wait again that a consumer holds whose session has ended.

        With a crash what its application had in hand is suspect, unless its policy counts none.
        """
        if self.consumers.remove(endpoint):
            self.counts.traffic.left(endpoint)
            self.counts.traffic.crashed += crashed
            counter = endpoint.handed_over
            crash = self.core.remove_consumer(
                endpoint.incarnation,
                ConsumerExit.CRASHED if crashed and endpoint.count_crashes else ConsumerExit.CLOSED,
                handed_over=None if counter is None else counter.read(),
            )
            if crash is not None and crash.handed_over:
                self._log_crash(endpoint, crash)
            self.turn.schedule()
            self._durability.flush_soon()

    def end_deliveries(self, endpoint: ConsumerEndpoint) -> bool:
        """Grant nothing more to a consumer whose session has ended.

        Returns whether messages fail if it has crashed: those would look as if they had ended it.
        """
        consumer = self.core.consumers.get(endpoint.incarnation)
        if consumer is None or self.consumers.get(endpoint.incarnation) is not endpoint:
            return False
        consumer.credit = consumer.granted
        if not endpoint.count_crashes or not self.core.cursor.subscription.is_durable:
            return False
        counter = endpoint.handed_over
        if counter is None:
            return bool(consumer.deliveries)
        handed_over = counter.read()
        return any(delivery.handed_over_rows(handed_over) for delivery in consumer.deliveries)

    def _log_crash(self, endpoint: ConsumerEndpoint, crash: Crash) -> None:
        which = f", which is taken to have crashed it: {crash.failed}" if crash.failed else ""
        event(
            logger,
            "the consumer %r of client %s ended without closing; it held %d messages, its application %d%s",
            endpoint.name,
            endpoint.session.client_id,
            crash.held,
            crash.handed_over,
            which,
            level=logging.WARNING,
            subscription=self.name,
        )

    def trouble(self) -> str:
        """Say whether the subscription cannot read or stands still; "" if all is well."""
        stands = f"stands still: {self._watchdog.reason}" if self._watchdog.reason else ""
        return self._feeder.problem or self.delayed().problem or self._reading_watch.reason or stands

    async def close_consumer(self, endpoint: ConsumerEndpoint) -> None:
        """Remove a consumer that left by itself; durable when this returns."""
        if self.consumers.remove(endpoint):
            self.counts.traffic.left(endpoint)
        self.core.remove_consumer(endpoint.incarnation, ConsumerExit.CLOSED)
        endpoint.session.endpoints.pop(endpoint.consumer_id, None)
        self.turn.schedule()
        await self.flushed(self.core.cursor.version)

    # --- requests of consumers --------------------------------------------------------------------

    def credit(self, endpoint: ConsumerEndpoint, request: Credit) -> None:
        """Take a report of room and progress."""
        self.core.set_credit(endpoint.incarnation, request.credit, request.received, request.handed_over)
        self.counts.traffic.credited(endpoint.incarnation)
        self.turn.room_was_made()

    def nacks_wait(self, endpoint: ConsumerEndpoint, waiting: int, due_in_ms: int) -> None:
        """Note how many failed messages wait at a consumer, and when the first comes again."""
        consumer = self.core.consumers.get(endpoint.incarnation)
        if consumer is not None:
            consumer.nacked = (waiting, self.now_ms() + due_in_ms)

    def settle(self, endpoint: ConsumerEndpoint, request: SettleRequest) -> None:
        """Acknowledge messages, or let them come again; a request with an id is answered."""
        match request:
            case Acknowledge():
                self._acknowledge(endpoint, request)
            case NegativeAcknowledge():
                self._negative_acknowledge(endpoint, request)
            case RedeliverUnacknowledged():
                self._redeliver_unacknowledged(endpoint, request)
            case Unreadable(_, ledger_id, first_entry_id, request_id, generation):
                place = (ledger_id, first_entry_id)
                self.core.cannot_read(endpoint.incarnation, place, generation)
                self.turn.room_was_made()
                self._answer_done(endpoint, request_id)

    def _acknowledge(self, endpoint: ConsumerEndpoint, request: Acknowledge) -> None:
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
                request.moved_rows,
            )
        except PulsarException as error:
            if request.request_id:
                endpoint.session.send(
                    encode_request(Failed(request.request_id, type(error).__name__, error.text))
                )
            return
        self.counts.traffic.acknowledged(endpoint.incarnation, unacked - core.blocks.unacked_messages)
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

    def _negative_acknowledge(self, endpoint: ConsumerEndpoint, request: NegativeAcknowledge) -> None:
        """Let messages come again now."""
        numbering, had_received = request.first_sent or (endpoint.numbering, request.received)
        if numbering != endpoint.numbering:
            had_received = 0  # what it has from before
        queue = ConsumerQueue(request.received, request.oldest, had_received)
        self._drop_queues(self.core.negative_acknowledge(endpoint.incarnation, request.items, queue))
        self._answer_done(endpoint, request.request_id)

    def _redeliver_unacknowledged(self, endpoint: ConsumerEndpoint, request: RedeliverUnacknowledged) -> None:
        """Let all that this consumer holds come again.

        Messages that it declared to another dispatcher than it asked first, and after that, came afterwards.
        """
        is_same = request.numbering == endpoint.numbering
        if is_same or request.redeliveries > endpoint.redeliveries:
            received = request.received if is_same else 0
            generation = request.generation if request.generation >= 0 else None
            handed_over = request.handed_over if request.handed_over >= 0 else None
            incarnation = endpoint.incarnation
            self._drop_queues(
                self.core.redeliver_unacknowledged(incarnation, received, generation, handed_over)
            )
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
        self._feeder.begin_again()
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

    def expire(self, position: Position, *, is_counted: bool = False) -> int:
        """Acknowledge all entries at or below a position, for their age.

        They count as expired unless the partition has counted them.

        Returns how many were not acknowledged. Consumers keep the messages of it that they hold. It is
        durable with the next write of the cursor.
        """
        entries = self.core.acknowledgments.acknowledge_through(position)
        if entries:
            if not is_counted:
                self.counts.expired(entries)
            self.turn.schedule()
            self._durability.flush_soon()
        return entries

    def extend_ledgers(self) -> None:
        """Tell the cursor where the ledgers of the log end."""
        self._feeder.extend_ledgers()

    @property
    def is_busy(self) -> bool:
        """Whether consumers are awaited, or connected ones have something to get or hold.

        Where the number of consumers is limited each holds its place, which others could take meanwhile.
        """
        core = self.core
        if core.returning.awaited:
            return True
        settings = core.settings
        if self.consumers and (settings.max_consumers_per_subscription or settings.max_consumers_per_topic):
            return True
        if self.consumers and self.tracker is not None and core.delayed.left_through is not None:
            return True
        if self.consumers and self._incomplete.are_awaited:
            return True
        return bool(self.consumers) and (core.blocks.unacked_messages > 0 or bool(self.turn.has_work))

    @property
    def waits_for_entries(self) -> bool:
        """Whether somebody is connected who has had room for new entries lately."""
        return bool(self.consumers) and not self.turn.is_satisfied

    def settings_changed(self) -> None:
        """Grant at once what only the former settings held back."""
        self.core.settings_changed()
        self.turn.schedule()

    def active_in_the_way(self) -> Session | None:
        """Return the active consumer's session, if other sessions' consumers could get its messages."""
        active = self.core.type.policy.active
        endpoint = None if active is None else self.consumers.get(active.spec.incarnation)
        if active is None or endpoint is None or not self.consumers.sessions_beside(endpoint.session):
            return None
        has_messages = active.unacked or self.core.blocks.waiting_messages or self.core.has_unread
        return endpoint.session if has_messages else None

    def stats(self) -> dict[str, Any]:
        """Describe the subscription, with Pulsar's names where Pulsar has one."""
        delayed = self.delayed()
        problem = self._feeder.problem or delayed.problem
        counts = self.counts.describe(self.consumers.values(), problem, delayed.messages)
        core = self.core
        log = self.compacted_log()
        removed = log.removed_from(max(core.intake.read_position, core.cursor.mark_delete.next()))
        if removed:
            counts = {
                **counts,
                "msgBacklog": max(counts["msgBacklog"] - removed, 0),
                "msgBacklogNoDelayed": max(counts["msgBacklogNoDelayed"] - removed, 0),
            }
        return {**counts, **self._watchdog.stats(self.now_ms())}

    def figures(self) -> Figures:
        """Return what the metrics have of it."""
        return stored_figures(self.counts.traffic, self.core, self.consumers, self.delayed().messages)

    def problem(self) -> str:
        """Say why messages do not go out; empty if nothing is known to be wrong."""
        core = self.core
        delayed = self.delayed()
        if self._feeder.problem or delayed.problem:
            return self._feeder.problem or delayed.problem
        keyed = core.type.keyed
        if self._watchdog.reason or core.is_blocked_on_unacked or (keyed is not None and keyed.index.parked):
            return str(why_blocked(core, self.now_ms(), delayed)["reason"])
        return ""

    def delayed(self) -> Delayed:
        """Describe the messages that wait for their time."""
        tracker = self.tracker
        if tracker is None:
            return Delayed()
        messages = min(tracker.entries, self.core.cursor.backlog())
        return Delayed(messages, tracker.due_in_ms, tracker.problem)

    def tick(self) -> None:
        """Sample rates, warn if the subscription stands still, and take a turn; once a second."""
        self.counts.sample()
        for incarnation in self.core.on_trial():
            endpoint = self.consumers.get(incarnation)
            if endpoint is not None and endpoint.handed_over is not None:
                self.core.has_handed_over(incarnation, endpoint.handed_over.read())
        self.turn.tick()
        used = {block.ref.segment_index for block in self.core.blocks.index.values()}
        self._log.let_go(used, self.core.intake.read_position, is_reading=self._feeder.is_reading)
        self._incomplete.tick(self.now_ms())
        if stands := self._reading_watch.look(self.now_ms()):
            text = "%s, and is tried again from the files"
            event(logger, text, stands, level=logging.WARNING, subscription=self.name)
        stood_ms = self._watchdog.stuck_for_ms(self.now_ms())
        reason = self._watchdog.look(self.core, self.now_ms())
        if reason is not None:
            event(logger, "stands still: %s", reason, level=logging.WARNING, subscription=self.name)
        elif stood_ms and not self._watchdog.reason:
            event(logger, "moves again, after %.0f s", stood_ms / 1000, subscription=self.name)
        self.turn.schedule()

    async def close(self) -> None:
        """Write the cursor and give its directory up."""
        if self.tracker is not None:
            self.tracker.close()
        self.let_go_of_forms()
        await self._durability.close()

    def let_go_of_forms(self) -> None:
        """Keep no compacted form on the disk any more: nothing is read from here on."""
        self._log.close()
