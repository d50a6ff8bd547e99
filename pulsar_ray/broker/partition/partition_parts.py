"""The parts of a stored partition, put together here and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

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
from pulsar_ray.broker.partition.publishing.connected_producers import ConnectedProducers, DeduplicationSwitch
from pulsar_ray.broker.partition.publishing.own_messages import OwnMessages
from pulsar_ray.broker.partition.publishing.producer_endpoint import WaitingBlocks
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
from pulsar_ray.broker.partition.sleeping_cursors import SleepingCursors
from pulsar_ray.broker.partition.topic_compaction import TopicCompaction
from pulsar_ray.broker.partition.topic_offload import TopicOffload
from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.broker.serving.shipping_link import ShippingLink
from pulsar_ray.clock import Clock
from pulsar_ray.errors import (
    ProducerBlockedQuotaExceededException,
    PulsarException,
)
from pulsar_ray.managed_ledger.log.commit import LogEnd
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.message_id import EARLIEST
from pulsar_ray.transport.cluster import Cluster


class PartitionParts:
    """Serve one partition's log together, each made with the others that it needs.

    `on_fatal` ends the process; `new_cluster` makes what actors are asked by. `on_unused` is called when
    nobody has used the topic for so long that its policies have it deleted.
    """

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
        shipping: ShippingLink | None,
    ) -> None:
        self.ledger = ledger
        self.in_force = in_force
        self.clock = clock
        self.loop = loop
        self.shipping = shipping
        self.when_durable = when_durable = shipping.when_durable if shipping is not None else _at_once
        self.disk = DiskThread(loop, "disk")
        policies = self.policies = PartitionPolicies(in_force.settings)
        ledger.policies.take(in_force.settings)  # they may have changed while it was being opened
        self.gate = PublishGate()
        self.space = DiskSpaceProbe(ledger.directory, policies)
        self.gate.set(ClosedBy.DISK_SPACE, self.space.refusal())
        self.followers = Followers(ledger, loop)
        ledger.changes.needed_behind = self.followers.needed_behind
        self.cursors = SleepingCursors(Path(ledger.directory))
        waiting = WaitingBlocks()
        self.producers = ConnectedProducers(
            ledger, waiting, policies, clock, f"pulsar-ray-{ledger.identity.number}"
        )
        self.throttle = PublishThrottle(policies, clock, loop)
        self.writer = ManifestWriter(ledger, loop, self.disk, on_fatal, when_durable)
        self.holds = ReportedHolds(ledger.changes, self.writer, loop)
        self.expired = ExpiredCounts(ledger, self.cursors, lambda: self.followers.numbers, clock)
        expiry = MessageExpiry(ledger, self.writer, policies, clock, self._has_expired, self.expired)
        spawn = partial(host.spawn, is_work=False)
        self.quota = BacklogQuota(
            ledger,
            policies,
            clock,
            loop,
            spawn,
            self.holds.write_now,
            expiry.expire_before,
            self._quota_changed,
            lambda: in_force.are_current,
        )
        self.intake = PublishIntake(
            ledger,
            self.producers,
            policies,
            self.gate,
            clock,
            loop,
            self.disk,
            waiting,
            self.throttle,
            on_readable=self.followers.advanced,
            on_fatal=on_fatal,
            on_durable=None if shipping is None else self._confirm_when_shipped,
            quota=self.quota,
        )
        self.attendance = Attendance(ledger.identity.topic, policies, ledger.changes.count_subscriptions)
        self.compaction = TopicCompaction(
            ledger, self.writer, policies, clock, loop, spawn, new_cluster, self.followers.segments_changed
        )
        self.offload = TopicOffload(ledger, policies, clock, loop, spawn, shipping)
        self.calls = PartitionCalls(
            ledger,
            self.writer,
            self.disk,
            clock,
            self.attendance,
            OwnMessages(self.producers, self.intake, clock),
            self.producers,
            BacklogClearing(ledger, self.writer, clock, self._has_expired),
            TopicEnd(ledger, self.intake, self.gate, self.writer),
            self.compaction,
            self.offload,
            self.throttle,
            self.waiting_for_remote,
        )
        grace_s = in_force.settings.reattach_grace_seconds
        self.producers_note = ProducersNote(Path(ledger.directory), ledger.disk, self.disk)
        self.opening = ProducerOpening(
            ledger,
            self.producers,
            self.writer,
            host,
            loop,
            self.throttle.opened,
            grace_s,
            self.quota,
            self.producers_note,
            when_durable,
        )
        self.deduplication = DeduplicationSwitch(ledger, self.writer, self.producers, policies, in_force)
        self.deduplication.begin()
        self.use = TopicUse(self.followers, self.producers, self.opening, self.intake)
        self.deletions = DueDeletions(
            ledger,
            self.writer,
            in_force,
            policies,
            clock,
            loop,
            spawn,
            expiry,
            self.quota,
            self.cursors,
            self.use,
            on_unused,
        )
        self.figures = PartitionFigures(
            ledger,
            self.intake,
            self.producers,
            self.followers,
            self.cursors,
            self.compaction,
            self.offload,
            loop,
        )

    def _confirm_when_shipped(self, end: LogEnd) -> None:
        self.when_durable(partial(self.intake.confirm, end))

    def waiting_for_remote(self) -> str:
        """Say why receipts wait for the object store; empty if none is late."""
        return "" if self.shipping is None else self.shipping.waiting

    def _has_expired(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            known = self.ledger.changes.subscription(number)
            self.cursors.moved(number, EARLIEST if known is None else known.expired)
        self.followers.expired(numbers)

    def _quota_changed(self, refusal: PulsarException | None) -> None:
        """Refuse messages at the backlog's limit, or let producers go on."""
        is_refused = isinstance(refusal, ProducerBlockedQuotaExceededException)
        self.gate.set(ClosedBy.BACKLOG_QUOTA, refusal if is_refused else None)
        if refusal is None:
            self.opening.room_again()


def _at_once(receipt: Callable[[], None]) -> None:
    receipt()
