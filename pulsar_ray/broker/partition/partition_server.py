"""A topic partition, without Ray:

the sole writer of its managed ledger and of the subscription registry with its holds.

Everything runs on the owner loop; the disk thread does what touches the disk. It waits for nobody:
dispatchers and clients ask, it answers when the answer is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Hashable, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any

from pulsar_ray.broker.figures.actor_report import ActorReport
from pulsar_ray.broker.figures.node_figures import PARTITION
from pulsar_ray.broker.partition.attendance import Attendance
from pulsar_ray.broker.partition.backlog.backlog_clearing import BacklogClearing
from pulsar_ray.broker.partition.backlog.backlog_quota import BacklogQuota
from pulsar_ray.broker.partition.backlog.due_deletions import DueDeletions, TopicUse
from pulsar_ray.broker.partition.backlog.expired_counts import ExpiredCounts
from pulsar_ray.broker.partition.backlog.message_expiry import MessageExpiry
from pulsar_ray.broker.partition.followers import Followers
from pulsar_ray.broker.partition.manifest_writer import ManifestWriter, ReportedHolds
from pulsar_ray.broker.partition.partition_calls import PartitionCalls
from pulsar_ray.broker.partition.partition_figures import PartitionFigures
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.partition_stats import describe_partition, describe_subscriptions
from pulsar_ray.broker.partition.publishing.connected_producers import ConnectedProducers, DeduplicationSwitch
from pulsar_ray.broker.partition.publishing.own_messages import OwnMessages
from pulsar_ray.broker.partition.publishing.producer_endpoint import ProducerEndpoint, WaitingBlocks
from pulsar_ray.broker.partition.publishing.producer_opening import ProducerOpening
from pulsar_ray.broker.partition.publishing.producers_note import ProducersNote
from pulsar_ray.broker.partition.publishing.publish_gate import (
    ClosedBy,
    DiskSpaceProbe,
    PublishGate,
    PublishThrottle,
)
from pulsar_ray.broker.partition.publishing.publish_intake import PublishIntake
from pulsar_ray.broker.partition.publishing.topic_end import TopicEnd
from pulsar_ray.broker.partition.reach_file import ReachFile
from pulsar_ray.broker.partition.recovered import TELLS_NOTHING_STORED, Recovered
from pulsar_ray.broker.partition.sleeping_cursors import SleepingCursors
from pulsar_ray.broker.partition.topic_compaction import TopicCompaction
from pulsar_ray.broker.partition.topic_offload import TopicOffload
from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.broker.serving.shipping_link import ASYNC, SYNC, ShippingLink
from pulsar_ray.broker.serving.sleeper import Retired
from pulsar_ray.clock import Clock
from pulsar_ray.config import OFF
from pulsar_ray.errors import (
    DiskSpaceLow,
    InvalidConfiguration,
    ProducerBlockedQuotaExceededException,
    PulsarException,
)
from pulsar_ray.managed_ledger.cursor.cursor_directories import remove_forgotten
from pulsar_ray.managed_ledger.log.commit import LogEnd
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Subscription
from pulsar_ray.managed_ledger.store.wake_times import mark_awake, write_wake_time
from pulsar_ray.model.message_id import EARLIEST, Position
from pulsar_ray.model.policies import PolicyUpdate
from pulsar_ray.session.requests import (
    Call,
    CloseEndpoint,
    Done,
    Follow,
    MoveHold,
    OpenProducer,
    Publish,
    Request,
    encode_request,
)
from pulsar_ray.session.session_table import Session
from pulsar_ray.transport.cluster import Cluster

logger = logging.getLogger(__name__)

LOW_DISK_TRIM_S = 10.0
BEGIN_AGAIN_S = 5.0
"""When a partition tries again to write what the disk refused at its start."""
NO_USE = ("last_message", "report_consumers")
"""Calls of dispatchers that keep no partition awake: they are not made for clients."""
STATS_SLICE = 100
"""Subscriptions described in one go: well below a millisecond."""


class PartitionServer:
    """Serves one partition's sessions; `on_fatal` ends the process (a fenced owner must not go on).

    `new_cluster` makes what it asks for actors by.

    `on_unused` is called when nobody has used the topic for so long that its policies have it deleted.
    """

    can_park = True

    def __init__(
        self,
        ledger: ManagedLedger,
        in_force: PoliciesInForce,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        host: SessionHost,
        on_fatal: Callable[[BaseException], None],
        on_unused: Callable[[], None],
        new_cluster: Callable[[], Cluster],
        shipping: ShippingLink | None = None,
    ) -> None:
        self.ledger = ledger
        self._shipping = shipping
        self._clock = clock
        self._loop = loop
        self._host = host
        self._disk = DiskThread(loop, "disk")
        self._in_force = in_force
        policies = self._policies = PartitionPolicies(in_force.settings)
        self._gate = PublishGate()
        self._space = DiskSpaceProbe(ledger.directory, policies)
        self._gate.set(ClosedBy.DISK_SPACE, self._space.refusal())
        self.followers = Followers(ledger, loop)
        ledger.changes.needed_behind = self.followers.needed_behind
        self._cursors = SleepingCursors(Path(ledger.directory))
        waiting = WaitingBlocks()
        self.producers = ConnectedProducers(
            ledger, waiting, policies, clock, f"pulsar-ray-{ledger.identity.number}"
        )
        self._throttle = PublishThrottle(policies, clock, loop)
        when_durable = shipping.when_durable if shipping is not None else _at_once
        self._writer = ManifestWriter(ledger, loop, self._disk, on_fatal, when_durable)
        self._holds = ReportedHolds(ledger.changes, self._writer, loop)
        self._expired = ExpiredCounts(ledger, self._cursors, lambda: self.followers.numbers, clock)
        expiry = MessageExpiry(ledger, self._writer, policies, clock, self._has_expired, self._expired)
        spawn = partial(host.spawn, is_work=False)
        self._quota = BacklogQuota(
            ledger,
            policies,
            clock,
            loop,
            spawn,
            self._holds.write_now,
            expiry.expire_before,
            self._quota_changed,
            lambda: in_force.are_current,
        )
        self.intake = PublishIntake(
            ledger,
            self.producers,
            policies,
            self._gate,
            clock,
            loop,
            self._disk,
            waiting,
            self._throttle,
            on_readable=self.followers.advanced,
            on_fatal=on_fatal,
            on_durable=None if shipping is None else self._confirm_when_shipped,
            quota=self._quota,
        )
        self._on_fatal = on_fatal
        self._calls_under_way = 0
        self._attendance = Attendance(ledger.identity.topic, policies, ledger.changes.count_subscriptions)
        self._compaction = TopicCompaction(
            ledger, self._writer, policies, clock, loop, spawn, new_cluster, self.followers.segments_changed
        )
        self._offload = TopicOffload(ledger, policies, clock, loop, spawn, shipping)
        self.calls = PartitionCalls(
            ledger,
            self._writer,
            self._disk,
            clock,
            self._attendance,
            OwnMessages(self.producers, self.intake, clock),
            self.producers,
            BacklogClearing(ledger, self._writer, clock, self._has_expired),
            TopicEnd(ledger, self.intake, self._gate, self._writer),
            self._compaction,
            self._offload,
            self._throttle,
            self._waiting_for_remote,
        )
        grace_s = in_force.settings.reattach_grace_seconds
        self._producers_note = ProducersNote(Path(ledger.directory), ledger.disk, self._disk)
        self._opening = ProducerOpening(
            ledger,
            self.producers,
            self._writer,
            host,
            loop,
            self._throttle.opened,
            grace_s,
            self._quota,
            self._producers_note,
            when_durable,
        )
        self._deduplication = DeduplicationSwitch(ledger, self._writer, self.producers, policies, in_force)
        self._deduplication.begin()
        self._use = TopicUse(self.followers, self.producers, self._opening, self.intake)
        self._deletions = DueDeletions(
            ledger,
            self._writer,
            in_force,
            policies,
            clock,
            loop,
            spawn,
            expiry,
            self._quota,
            self._cursors,
            self._use,
            on_unused,
        )
        self._figures = PartitionFigures(
            ledger,
            self.intake,
            self.producers,
            self.followers,
            self._cursors,
            self._compaction,
            self._offload,
            loop,
        )
        self._begin_again_at = loop.time() + BEGIN_AGAIN_S
        self._reach = ReachFile(Path(ledger.directory), ledger.disk)
        self._recovered = Recovered()
        self._note_start()
        self._follow_durability()
        if shipping is None:
            self._recovered.are_durable()
        else:
            shipping.when_durable(self._recovered.are_durable)
        host.serve(self)

    def _note_start(self) -> None:
        """Say in the directory that it is served, and remove leftover cursors.

        Those are of subscriptions whose dispatcher died before it had removed them.
        """
        self._reach.write()
        changes, directory = self.ledger.changes, Path(self.ledger.directory)
        registered = {subscription.number for subscription in changes.subscriptions()}
        end = changes.next_subscription_number
        self._loop.run_in_executor(None, remove_forgotten, directory, registered, end)
        # Until it says more in its farewell: after a death of the whole broker somebody has to look.
        self._disk.submit(partial(mark_awake, directory), lambda *_: None)

    def _confirm_when_shipped(self, end: LogEnd) -> None:
        assert self._shipping is not None
        self._shipping.when_durable(partial(self.intake.confirm, end))

    def _follow_durability(self) -> None:
        """Let receipts wait for the journal as the policies of now say.

        Before they are known, none is given that a stricter policy would not have given.
        """
        if self._shipping is not None:
            settings = self._in_force.settings
            durability = settings.remote_durability if self._in_force.are_current else SYNC
            self._offload.is_wanted_off = durability == OFF
            if durability == OFF and self._offload.has_away:
                durability = ASYNC  # until all of it is here again
            self._shipping.set_durability(durability, settings.remote_lag_seconds)

    # --- sessions ---------------------------------------------------------------------------------

    def attach_details(self) -> dict[str, Any]:
        """Return the part of an attach answer that is not about carriers."""
        self.ledger.check_owner()
        return {
            "epoch": self.ledger.epoch,
            "reach": self._reach.proof,
            "directory": str(self.ledger.directory),
        }

    def on_request(self, session: Session, request: Request, body: memoryview) -> None:
        """One packet of an attached session.

        PulsarExceptions raised here close the carrier; the client attaches again.
        """
        if type(request) is Publish:
            self.intake.publish(session, request.producer_id, body, is_awaited=request.is_awaited)
            return
        match request:
            case Follow(number):
                self.ledger.check_owner()
                self._cursors.woke(number)
                self._recovered.when_durable(self.followers.follow, session, -1 - number, request)
            case MoveHold(number, ledger_id, entry_id):
                if self.ledger.changes.has_subscription(number):
                    self._holds.moved(number, Position(ledger_id, entry_id))
                else:
                    self.followers.need(number, Position(ledger_id, entry_id))
            case OpenProducer():
                self._use.count_request()
                self._recovered.when_durable(self._opening.open, session, request.producer_id, request)
            case CloseEndpoint(request_id, endpoint_id):
                self._use.count_request()
                self._close_endpoint(session, endpoint_id)
                # A next life that did not know would keep the place for it.
                self._producers_note.when_written(lambda: session.send(encode_request(Done(request_id))))
            case Call():
                self._call(session, request)
            case _:
                raise InvalidConfiguration(f"a partition does not answer {type(request).__name__}")

    def _call(self, session: Session, request: Call) -> None:
        method, arguments = request.method, request.arguments
        if self._attendance.answers(method):
            self._host.answer_call(
                session, request.request_id, self._attendance.call, session, method, arguments
            )
        else:
            self._host.answer_call(
                session, request.request_id, self.call, method, arguments, session.client_id
            )

    def _close_endpoint(self, session: Session, endpoint_id: int) -> None:
        endpoint = session.endpoints.get(endpoint_id)
        self._recovered.forget(session, endpoint_id)
        if isinstance(endpoint, ProducerEndpoint):
            self._opening.close(endpoint)
        else:
            self._opening.left(session, endpoint_id)

    def on_session_ended(self, session: Session, crashed: bool) -> None:
        """Its producers' names are free, its followers forgotten."""
        self._recovered.forget(session)
        self._opening.stop_waiting(session)
        for endpoint in list(session.endpoints.values()):
            if isinstance(endpoint, ProducerEndpoint):
                self._opening.close(endpoint)
        self.followers.forget(session)
        self._attendance.forget(session)

    def end_deliveries(self, session: Session) -> bool:
        """Producers and followers hold no messages."""
        return False

    def tick(self) -> None:
        """Once a second: ownership, space, the log's end, trimming, forgotten incarnations."""
        try:
            self.ledger.check_owner()
        except PulsarException as error:
            self._on_fatal(error)
            return
        self._disk.submit(self._space.refusal, self._space_probed)
        self._disk.submit(self.ledger.check_present, self._looked)
        if (recorded_end := self.ledger.begin_recorded_end()) is not None:
            self._disk.submit(recorded_end.run, lambda *_: None)
        if self._shipping is not None:
            self._follow_durability()
            self._shipping.tick()
        now_ms = self._clock.now_ms()
        self.producers.sample_rates()
        self.intake.traffic.sample(self._clock.monotonic_ms())
        self._throttle.tick()
        self.followers.catch_up()
        self.ledger.incarnations.forget_idle(now_ms)
        self._opening.tick()
        self._deduplication.tick(now_ms)
        self._deletions.tick(self._trim_interval())
        if self._in_force.are_current:
            self._compaction.tick()
            self._offload.tick()
        if self._loop.time() >= self._begin_again_at:
            self._begin_again()

    def _begin_again(self) -> None:
        """Try to write what the disk refused at the start, until it has taken it."""
        if self.is_begun:
            self._begin_again_at = math.inf
            return
        self._begin_again_at = self._loop.time() + BEGIN_AGAIN_S
        self._writer.submit(self.ledger.changes.begin_log())
        self._disk.submit(self._reach.write, lambda *_: None)

    @property
    def is_begun(self) -> bool:
        """Whether the disk has taken what a start writes (ADR 0072)."""
        return self.ledger.has_begun and self._reach.is_written

    def _has_expired(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            known = self.ledger.changes.subscription(number)
            self._cursors.moved(number, EARLIEST if known is None else known.expired)
        self.followers.expired(numbers)

    def _quota_changed(self, refusal: PulsarException | None) -> None:
        """Refuse messages at the backlog's limit, or let producers go on."""
        is_refused = isinstance(refusal, ProducerBlockedQuotaExceededException)
        self._gate.set(ClosedBy.BACKLOG_QUOTA, refusal if is_refused else None)
        if refusal is None:
            self._opening.room_again()

    def _space_probed(self, refusal: DiskSpaceLow | None, error: BaseException | None) -> None:
        if error is None:
            self._gate.set(ClosedBy.DISK_SPACE, refusal)

    def _looked(self, _: None, error: BaseException | None) -> None:
        if isinstance(error, PulsarException):
            self._on_fatal(error)

    def health(self) -> dict[str, Any]:
        """Say why nothing is stored, and how much is damaged, as fields of ActorFacts."""
        refusal = self._gate.refusal
        is_ended = self._gate.is_closed_by(ClosedBy.TERMINATED)
        return {
            "refusing": self._waiting_for_remote() if refusal is None or is_ended else str(refusal),
            "is_disk_low": self._is_disk_low,
            "damaged_ranges": len(self.ledger.corruptions),
        }

    def _waiting_for_remote(self) -> str:
        return "" if self._shipping is None else self._shipping.waiting

    @property
    def _is_disk_low(self) -> bool:
        return self._gate.is_closed_by(ClosedBy.DISK_SPACE)

    def _trim_interval(self) -> float:
        # Producers that wait for space do not wait for the next regular check.
        interval_s = self._policies.settings.retention_check_interval_in_seconds
        return min(LOW_DISK_TRIM_S, interval_s) if self._is_disk_low else interval_s

    # --- policies ---------------------------------------------------------------------------------

    async def apply_policies(self, update: PolicyUpdate) -> None:
        """Let policies of the topic hold from now on.

        A late or repeated update changes nothing. Raises InvalidConfiguration for overrides that the
        settings refuse.
        """
        if self._in_force.take(update):
            former_limits = self._policies.message_limits
            self._policies.take(self._in_force.settings)
            self._throttle.settings_changed()
            self._quota.settings_changed()
            if self._policies.message_limits != former_limits:
                self.producers.limits_changed()
            self.ledger.policies.take(self._in_force.settings)
        self._follow_durability()
        await self._deduplication.follow()

    # --- calls, stats, closing --------------------------------------------------------------------

    async def call(self, name: str, arguments: dict[str, Any], client_id: str = "") -> Any:
        """Answer a control call (see `PartitionCalls`) over a session or the actor handle."""
        # The answer must come behind the commits that followers have not been sent yet.
        self.followers.send_held()
        if name not in NO_USE:
            self._use.count_request()
        self._calls_under_way += 1
        try:
            if name not in TELLS_NOTHING_STORED:
                await self._recovered.wait()
            answer = await self.calls.call(name, arguments, client_id)
            if name == "register_subscription":
                self._deletions.is_used(answer["number"])
            return answer
        finally:
            self._calls_under_way -= 1

    def stats(self) -> dict[str, Any]:
        """Counters of this partition since it started, its storage and its subscriptions."""
        return self._described(self.ledger.changes.subscriptions(), self.followers.numbers)

    async def gather_stats(self) -> dict[str, Any]:
        """As `stats`, in slices between which others get the loop.

        Of subscriptions whose dispatchers do not run the cursors are read first.
        """
        followed = self.followers.numbers
        subscriptions = self.ledger.changes.subscriptions()
        await self._cursors.learn([s for s in subscriptions if s.is_durable and s.number not in followed])
        # One that left meanwhile counts as served: its cursor was not read.
        described = self._described(subscriptions[:STATS_SLICE], followed) | await self._quota.describe()
        for start in range(STATS_SLICE, len(subscriptions), STATS_SLICE):
            await asyncio.sleep(0)
            part = subscriptions[start : start + STATS_SLICE]
            described["subscriptions"] += describe_subscriptions(
                part, self._cursors, followed, self._expired.describe
            )
        return described

    async def report(self) -> ActorReport:
        """Return the figures of the partition for the metrics of its node.

        Reads files for that, on a thread.
        """
        figures, backlogs = await self._figures.gather()
        identity = self.ledger.identity
        return ActorReport(
            kind=PARTITION,
            topic=identity.topic,
            number=identity.number,
            figures=figures,
            problem=self._problem(),
            backlogs=backlogs,
        )

    def _problem(self) -> str:
        """Say why nothing is stored, or what cannot be read; empty if all is well."""
        refusal = self._gate.refusal
        if refusal is not None and not self._gate.is_closed_by(ClosedBy.TERMINATED):
            return f"nothing is stored: {refusal.text}"
        corruptions = self.ledger.corruptions
        if corruptions:
            return f"damaged: {corruptions[0]}"
        return self._offload.problem or self._waiting_for_remote()

    def _described(self, subscriptions: list[Subscription], followed: Set[int]) -> dict[str, Any]:
        return {
            **describe_partition(self.ledger, self.intake, self.producers, followed),
            "subscriptions": describe_subscriptions(
                subscriptions, self._cursors, followed, self._expired.describe
            ),
            "diskLow": self._is_disk_low,
            **self._compaction.describe(),
            "offloadedStorageSize": self._offload.offloaded_bytes,
            "topicEpoch": self._opening.topic_epoch,
            "waitingPublishers": self._opening.waiting,
            "deduplicationStatus": "Enabled" if self.ledger.sequences.is_on else "Disabled",
        }

    # --- sleeping ---------------------------------------------------------------------------------

    def activity(self) -> Hashable | None:
        """See `SleepingServer.activity`; dispatchers that follow do not count."""
        if self._host.is_working or self._calls_under_way or not self.intake.is_idle:
            return None
        if self._recovered.are_waiting:
            return None
        if self._compaction.is_awaited or self._offload.is_running:
            return None
        if self.producers.hold_places or self._opening.holds_places:
            return None
        if self._throttle.is_slowing or self._opening.holds_back or not self._in_force.are_current:
            # A partition that does not know yet what it may delete cannot say when to be woken for it.
            return None
        return len(self.producers.by_name), self._use.counts()

    async def settle(self) -> None:
        """Write the holds that were reported, expire, and delete what nobody needs any more."""
        await self._holds.write_now()
        await self._deletions.settle()
        if self._in_force.are_current:
            await self._offload.settle()
            self._follow_durability()  # all of it may be here again

    async def fall_asleep(self) -> Retired:
        """Close the log, and leave a note when trimming will be due."""
        wake_at_ms = await self._end_log()
        is_unused = self.is_unused
        # Those that slept with it come back when they are used: nobody waits for them.
        self._producers_note.remove()
        await self._release()
        return Retired(wake_at_ms, is_unused=is_unused)

    @property
    def is_unused(self) -> bool:
        """Whether nobody has used the topic for so long that its policies have it deleted."""
        return self._deletions.is_topic_due

    async def _end_log(self) -> int | None:
        """End the log, and leave a note when something will be due.

        That is trimming, or what expires or is evicted. Returns that time in ms, None if it never comes.
        """
        await self._deletions.leave()
        self.ledger.changes.end_log()
        due_ms = [await self._deletions.next_due_ms(), self._offload.next_due_ms()]
        wake_at_ms = min((each for each in due_ms if each is not None), default=None)
        # Without it, metrics miss the backlogs until the partition is used again; that is all.
        with contextlib.suppress(OSError):
            await self._figures.write_note()
            self._expired.write()
        with contextlib.suppress(OSError):
            self._offload.write_note()
        await self._disk.run(lambda: write_wake_time(Path(self.ledger.directory), wake_at_ms))
        return wake_at_ms

    async def trim_now(self) -> None:
        """Delete what nobody needs any more; may be repeated."""
        await self.settle()

    async def close(self) -> None:
        """Write what is pending, then release the directory."""
        self._compaction.close()
        await self._disk.run(lambda: None)
        if self.intake.is_idle:
            with contextlib.suppress(OSError):
                await self._end_log()
        await self._release()

    async def _release(self) -> None:
        await self._disk.run(self.ledger.close)
        self._disk.stop()
        if self._shipping is not None:
            self._shipping.close()


def _at_once(receipt: Callable[[], None]) -> None:
    receipt()
