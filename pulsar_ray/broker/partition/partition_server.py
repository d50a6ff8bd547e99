"""A topic partition alone writes its managed ledger and its registry of subscriptions.

It runs on the owner loop without Ray, and its disk thread does what touches the disk, but for a lone small
write (ADR 0009). It waits for nobody: dispatchers and clients ask, it answers when the answer is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Hashable, Set
from functools import partial
from pathlib import Path
from typing import Any

from pulsar_ray.broker.figures.actor_report import ActorReport
from pulsar_ray.broker.figures.node_figures import PARTITION
from pulsar_ray.broker.partition.partition_parts import PartitionParts
from pulsar_ray.broker.partition.partition_stats import describe_partition, describe_subscriptions
from pulsar_ray.broker.partition.publishing.producer_endpoint import ProducerEndpoint
from pulsar_ray.broker.partition.publishing.publish_gate import (
    ClosedBy,
)
from pulsar_ray.broker.partition.reach_file import ReachFile
from pulsar_ray.broker.partition.recovered import TELLS_NOTHING_STORED, Recovered
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.broker.serving.shipping_link import ASYNC, SYNC
from pulsar_ray.broker.serving.sleeper import Retired
from pulsar_ray.config import OFF
from pulsar_ray.errors import (
    DiskSpaceLow,
    InvalidConfiguration,
    PulsarException,
)
from pulsar_ray.managed_ledger.cursor.cursor_directories import remove_forgotten
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Subscription
from pulsar_ray.managed_ledger.store.wake_times import mark_awake, write_wake_time
from pulsar_ray.model.message_id import Position
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

logger = logging.getLogger(__name__)

LOW_DISK_TRIM_S = 10.0
BEGIN_AGAIN_S = 5.0
"""When a partition tries again to write what the disk refused at its start."""
NO_USE = ("last_message", "report_consumers")
"""Calls of dispatchers that keep no partition awake: they are not made for clients."""
STATS_SLICE = 100
"""Subscriptions described in one go: well below a millisecond."""


class PartitionServer:
    """Serves one partition's sessions; `on_fatal` ends the process (a fenced owner must not go on)."""

    can_park = True

    def __init__(
        self, parts: PartitionParts, host: SessionHost, on_fatal: Callable[[BaseException], None]
    ) -> None:
        self._parts = parts
        ledger = self.ledger = parts.ledger
        self._clock, self._loop, self._in_force = parts.clock, parts.loop, parts.in_force
        self._host = host
        self._on_fatal = on_fatal
        self._calls_under_way = 0
        self.followers, self.producers = parts.followers, parts.producers
        self.intake, self.calls = parts.intake, parts.calls
        self._begin_again_at = self._loop.time() + BEGIN_AGAIN_S
        self._reach = ReachFile(Path(ledger.directory), ledger.disk)
        self._recovered = Recovered()
        self._note_start()
        self._follow_durability()
        parts.when_durable(self._recovered.are_durable)
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
        self._parts.disk.submit(partial(mark_awake, directory), lambda *_: None)

    def _follow_durability(self) -> None:
        """Let receipts wait for the journal as the policies of now say.

        Before they are known, none is given that a stricter policy would not have given.
        """
        if self._parts.shipping is not None:
            settings = self._in_force.settings
            durability = settings.remote_durability if self._in_force.are_current else SYNC
            self._parts.offload.is_wanted_off = durability == OFF
            if durability == OFF and self._parts.offload.has_away:
                durability = ASYNC  # until all of it is here again
            self._parts.shipping.set_durability(durability, settings.remote_lag_seconds)

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
                self._parts.cursors.woke(number)
                self._recovered.when_durable(self.followers.follow, session, -1 - number, request)
            case MoveHold(number, ledger_id, entry_id):
                if self.ledger.changes.has_subscription(number):
                    self._parts.holds.moved(number, Position(ledger_id, entry_id))
                else:
                    self.followers.need(number, Position(ledger_id, entry_id))
            case OpenProducer():
                self._parts.use.count_request()
                self._recovered.when_durable(self._parts.opening.open, session, request.producer_id, request)
            case CloseEndpoint(request_id, endpoint_id):
                self._parts.use.count_request()
                self._close_endpoint(session, endpoint_id)
                # A next life that did not know would keep the place for it.
                self._parts.producers_note.when_written(
                    lambda: session.send(encode_request(Done(request_id)))
                )
            case Call():
                self._call(session, request)
            case _:
                raise InvalidConfiguration(f"a partition does not answer {type(request).__name__}")

    def _call(self, session: Session, request: Call) -> None:
        method, arguments = request.method, request.arguments
        if self._parts.attendance.answers(method):
            self._host.answer_call(
                session, request.request_id, self._parts.attendance.call, session, method, arguments
            )
        else:
            self._host.answer_call(
                session, request.request_id, self.call, method, arguments, session.client_id
            )

    def _close_endpoint(self, session: Session, endpoint_id: int) -> None:
        endpoint = session.endpoints.get(endpoint_id)
        self._recovered.forget(session, endpoint_id)
        if isinstance(endpoint, ProducerEndpoint):
            self._parts.opening.close(endpoint)
        else:
            self._parts.opening.left(session, endpoint_id)

    def on_session_ended(self, session: Session, crashed: bool) -> None:
        """Its producers' names are free, its followers forgotten."""
        self._recovered.forget(session)
        self._parts.opening.stop_waiting(session)
        for endpoint in list(session.endpoints.values()):
            if isinstance(endpoint, ProducerEndpoint):
                self._parts.opening.close(endpoint)
        self.followers.forget(session)
        self._parts.attendance.forget(session)

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
        self._parts.disk.submit(self._parts.space.refusal, self._space_probed)
        self._parts.disk.submit(self.ledger.check_present, self._looked)
        if (recorded_end := self.ledger.begin_recorded_end()) is not None:
            self._parts.disk.submit(recorded_end.run, lambda *_: None)
        if self._parts.shipping is not None:
            self._follow_durability()
            self._parts.shipping.tick()
        now_ms = self._clock.now_ms()
        self.producers.sample_rates()
        self.intake.traffic.sample(self._clock.monotonic_ms())
        self._parts.throttle.tick()
        self.followers.catch_up()
        self.ledger.incarnations.forget_idle(now_ms)
        self._parts.opening.tick()
        self._parts.deduplication.tick(now_ms)
        self._parts.deletions.tick(self._trim_interval())
        if self._in_force.are_current:
            self._parts.compaction.tick()
            self._parts.offload.tick()
        if self._loop.time() >= self._begin_again_at:
            self._begin_again()

    def _begin_again(self) -> None:
        """Try to write what the disk refused at the start, until it has taken it."""
        if self.is_begun:
            self._begin_again_at = math.inf
            return
        self._begin_again_at = self._loop.time() + BEGIN_AGAIN_S
        self._parts.writer.submit(self.ledger.changes.begin_log())
        self._parts.disk.submit(self._reach.write, lambda *_: None)

    @property
    def is_begun(self) -> bool:
        """Whether the disk has taken what a start writes (ADR 0072)."""
        return self.ledger.has_begun and self._reach.is_written

    def _space_probed(self, refusal: DiskSpaceLow | None, error: BaseException | None) -> None:
        if error is None:
            self._parts.gate.set(ClosedBy.DISK_SPACE, refusal)

    def _looked(self, _: None, error: BaseException | None) -> None:
        if isinstance(error, PulsarException):
            self._on_fatal(error)

    def health(self) -> dict[str, Any]:
        """Say why nothing is stored, and how much is damaged, as fields of ActorFacts."""
        refusal = self._parts.gate.refusal
        is_ended = self._parts.gate.is_closed_by(ClosedBy.TERMINATED)
        return {
            "refusing": self._parts.waiting_for_remote() if refusal is None or is_ended else str(refusal),
            "is_disk_low": self._is_disk_low,
            "damaged_ranges": len(self.ledger.corruptions),
        }

    @property
    def _is_disk_low(self) -> bool:
        return self._parts.gate.is_closed_by(ClosedBy.DISK_SPACE)

    def _trim_interval(self) -> float:
        # Producers that wait for space do not wait for the next regular check.
        interval_s = self._parts.policies.settings.retention_check_interval_in_seconds
        return min(LOW_DISK_TRIM_S, interval_s) if self._is_disk_low else interval_s

    # --- policies ---------------------------------------------------------------------------------

    async def apply_policies(self, update: PolicyUpdate) -> None:
        """Let policies of the topic hold from now on.

        A late or repeated update changes nothing. Raises InvalidConfiguration for overrides that the
        settings refuse.
        """
        if self._in_force.take(update):
            former_limits = self._parts.policies.message_limits
            self._parts.policies.take(self._in_force.settings)
            self._parts.throttle.settings_changed()
            self._parts.quota.settings_changed()
            if self._parts.policies.message_limits != former_limits:
                self.producers.limits_changed()
            self.ledger.policies.take(self._in_force.settings)
        self._follow_durability()
        await self._parts.deduplication.follow()

    # --- calls, stats, closing --------------------------------------------------------------------

    async def call(self, name: str, arguments: dict[str, Any], client_id: str = "") -> Any:
        """Answer a control call (see `PartitionCalls`) over a session or the actor handle."""
        # The answer must come behind the commits that followers have not been sent yet.
        self.followers.send_held()
        if name not in NO_USE:
            self._parts.use.count_request()
        self._calls_under_way += 1
        try:
            if name not in TELLS_NOTHING_STORED:
                await self._recovered.wait()
            answer = await self.calls.call(name, arguments, client_id)
            if name == "register_subscription":
                self._parts.deletions.is_used(answer["number"])
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
        await self._parts.cursors.learn(
            [s for s in subscriptions if s.is_durable and s.number not in followed]
        )
        # One that left meanwhile counts as served: its cursor was not read.
        described = (
            self._described(subscriptions[:STATS_SLICE], followed) | await self._parts.quota.describe()
        )
        for start in range(STATS_SLICE, len(subscriptions), STATS_SLICE):
            await asyncio.sleep(0)
            part = subscriptions[start : start + STATS_SLICE]
            described["subscriptions"] += describe_subscriptions(
                part, self._parts.cursors, followed, self._parts.expired.describe
            )
        return described

    async def report(self) -> ActorReport:
        """Return the figures of the partition for the metrics of its node.

        Reads files for that, on a thread.
        """
        figures, backlogs = await self._parts.figures.gather()
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
        refusal = self._parts.gate.refusal
        if refusal is not None and not self._parts.gate.is_closed_by(ClosedBy.TERMINATED):
            return f"nothing is stored: {refusal.text}"
        corruptions = self.ledger.corruptions
        if corruptions:
            return f"damaged: {corruptions[0]}"
        return self._parts.offload.problem or self._parts.waiting_for_remote()

    def _described(self, subscriptions: list[Subscription], followed: Set[int]) -> dict[str, Any]:
        return {
            **describe_partition(self.ledger, self.intake, self.producers, followed),
            "subscriptions": describe_subscriptions(
                subscriptions, self._parts.cursors, followed, self._parts.expired.describe
            ),
            "diskLow": self._is_disk_low,
            **self._parts.compaction.describe(),
            "offloadedStorageSize": self._parts.offload.offloaded_bytes,
            "topicEpoch": self._parts.opening.topic_epoch,
            "waitingPublishers": self._parts.opening.waiting,
            "deduplicationStatus": "Enabled" if self.ledger.sequences.is_on else "Disabled",
        }

    # --- sleeping ---------------------------------------------------------------------------------

    def activity(self) -> Hashable | None:
        """See `SleepingServer.activity`; dispatchers that follow do not count."""
        if self._host.is_working or self._calls_under_way or not self.intake.is_idle:
            return None
        if self._recovered.are_waiting:
            return None
        if self._parts.compaction.is_awaited or self._parts.offload.is_running:
            return None
        if self.producers.hold_places or self._parts.opening.holds_places:
            return None
        if (
            self._parts.throttle.is_slowing
            or self._parts.opening.holds_back
            or not self._in_force.are_current
        ):
            # A partition that does not know yet what it may delete cannot say when to be woken for it.
            return None
        return len(self.producers.by_name), self._parts.use.counts()

    async def settle(self) -> None:
        """Write the holds that were reported, expire, and delete what nobody needs any more."""
        await self._parts.holds.write_now()
        await self._parts.deletions.settle()
        if self._in_force.are_current:
            await self._parts.offload.settle()
            self._follow_durability()  # all of it may be here again

    async def fall_asleep(self) -> Retired:
        """Close the log, and leave a note when trimming will be due."""
        wake_at_ms = await self._end_log()
        is_unused = self.is_unused
        # Those that slept with it come back when they are used: nobody waits for them.
        self._parts.producers_note.remove()
        await self._release()
        return Retired(wake_at_ms, is_unused=is_unused)

    @property
    def is_unused(self) -> bool:
        """Whether nobody has used the topic for so long that its policies have it deleted."""
        return self._parts.deletions.is_topic_due

    async def _end_log(self) -> int | None:
        """End the log, and leave a note when something will be due.

        That is trimming, or what expires or is evicted. Returns that time in ms, None if it never comes.
        """
        await self._parts.deletions.leave()
        self.ledger.changes.end_log()
        due_ms = [await self._parts.deletions.next_due_ms(), self._parts.offload.next_due_ms()]
        wake_at_ms = min((each for each in due_ms if each is not None), default=None)
        # Without it, metrics miss the backlogs until the partition is used again; that is all.
        with contextlib.suppress(OSError):
            await self._parts.figures.write_note()
            self._parts.expired.write()
        with contextlib.suppress(OSError):
            self._parts.offload.write_note()
        await self._parts.disk.run(lambda: write_wake_time(Path(self.ledger.directory), wake_at_ms))
        return wake_at_ms

    async def trim_now(self) -> None:
        """Delete what nobody needs any more; may be repeated."""
        await self.settle()

    async def close(self) -> None:
        """Write what is pending, then release the directory."""
        self._parts.compaction.close()
        await self._parts.disk.run(lambda: None)
        if self.intake.is_idle:
            with contextlib.suppress(OSError):
                await self._end_log()
        await self._release()

    async def _release(self) -> None:
        await self._parts.disk.run(self.ledger.close)
        self._parts.disk.stop()
        if self._parts.shipping is not None:
            self._parts.shipping.close()
