"""A partition of a non-persistent topic, without Ray: it stores nothing.

Everything runs on the owner loop and nothing waits: neither a producer for a dispatcher nor one dispatcher
for another.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from pulsar_ray.broker.figures.actor_report import ActorReport
from pulsar_ray.broker.figures.node_figures import PARTITION
from pulsar_ray.broker.partition.attendance import Attendance
from pulsar_ray.broker.partition.non_persistent.push_followers import PushFollowers, messages_of
from pulsar_ray.broker.partition.partition_figures import publishing_figures
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.partition_stats import describe_publisher
from pulsar_ray.broker.partition.publishing.connected_producers import ConnectedProducers
from pulsar_ray.broker.partition.publishing.own_messages import OwnMessages
from pulsar_ray.broker.partition.publishing.producer_endpoint import ProducerEndpoint, WaitingBlocks
from pulsar_ray.broker.partition.publishing.publish_gate import PublishGate, PublishThrottle
from pulsar_ray.broker.partition.publishing.publish_intake import PublishIntake
from pulsar_ray.broker.partition.sleeping_partition import NO_QUOTA
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.broker.serving.sleeper import Retired
from pulsar_ray.clock import Clock
from pulsar_ray.errors import (
    InvalidConfiguration,
    NotAllowedError,
    OperationNotSupported,
    PulsarException,
    text_naming,
)
from pulsar_ray.managed_ledger.log.memory_log import NOT_STORED, Blocks, MemoryLog
from pulsar_ray.model.enums import ProducerAccessMode
from pulsar_ray.model.policies import PolicyUpdate
from pulsar_ray.model.topic_name import TopicName, check_user_may_publish, is_system_topic
from pulsar_ray.model.traffic import Drops
from pulsar_ray.session.requests import (
    NO_EPOCH,
    Call,
    CloseEndpoint,
    Done,
    Failed,
    Follow,
    OpenProducer,
    Publish,
    Request,
    encode_request,
)
from pulsar_ray.session.session_table import Session

T = TypeVar("T")


class NonPersistentPartitionServer:
    """Serves one partition's sessions; entries that followers cannot take are dropped and counted."""

    can_park = True

    def __init__(
        self,
        topic: str,
        in_force: PoliciesInForce,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        host: SessionHost,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._topic = topic
        self._clock = clock
        self._host = host
        self.epoch = clock.now_ms()
        self.followers = PushFollowers(self.epoch)
        self._log = MemoryLog(self.epoch, self._hand_over)
        self._in_force = in_force
        policies = self._policies = PartitionPolicies(in_force.settings)
        waiting = WaitingBlocks()
        name_prefix = f"pulsar-ray-{secrets.token_hex(4)}"
        self.producers = ConnectedProducers(self._log, waiting, policies, clock, name_prefix)
        self._throttle = PublishThrottle(policies, clock, loop)
        self.intake = PublishIntake(
            self._log,
            self.producers,
            policies,
            PublishGate(),
            clock,
            loop,
            _NoDisk(),
            waiting,
            self._throttle,
            on_readable=lambda _: None,
            on_fatal=on_fatal,
        )
        self._own_messages = OwnMessages(self.producers, self.intake, clock)
        self._attendance = Attendance(topic, policies, self._count_subscriptions)
        self._drops: dict[int, Drops] = {}
        self._uses = 0
        host.serve(self)

    def health(self) -> dict[str, Any]:
        """Nothing is wrong with a partition that keeps nothing."""
        return {}

    # --- sessions ---------------------------------------------------------------------------------

    def attach_details(self) -> dict[str, Any]:
        """Return the part of an attach answer that is not about carriers.

        There are no files to reach.
        """
        return {"epoch": self.epoch, "reach": ("", ""), "directory": ""}

    def on_request(self, session: Session, request: Request, body: memoryview) -> None:
        """One packet of an attached session.

        PulsarExceptions raised here close the carrier; the client attaches again.
        """
        match request:
            case Publish(producer_id, is_awaited):
                self.intake.publish(session, producer_id, body, is_awaited=is_awaited)
            case Follow():
                self.followers.follow(session, request)
            case OpenProducer(request_id):
                self._uses += 1
                try:
                    check_user_may_publish(self._topic)
                    if request.access_mode != ProducerAccessMode.Shared:
                        raise NotAllowedError(
                            f"access_mode {ProducerAccessMode(request.access_mode).name}: {self._topic} is "
                            "non-persistent and keeps no topic epoch; use a persistent:// topic"
                        )
                    reply: Request = self.producers.open(session, request)
                    self._throttle.opened(session)
                except PulsarException as error:
                    text = text_naming(error, str(self._topic))
                    reply = Failed(request_id, type(error).__name__, text)
                session.send(encode_request(reply))
            case CloseEndpoint(request_id, endpoint_id):
                self._uses += 1
                self._close_endpoint(session, endpoint_id)
                session.send(encode_request(Done(request_id)))
            case Call(request_id, _, method, arguments):
                self._host.answer_call(session, request_id, self._call, session, method, arguments)
            case _:
                raise InvalidConfiguration(f"this partition does not answer {type(request).__name__}")

    def _close_endpoint(self, session: Session, endpoint_id: int) -> None:
        endpoint = session.endpoints.get(endpoint_id)
        if isinstance(endpoint, ProducerEndpoint):
            self.producers.close(endpoint)
            self._drops.pop(endpoint.incarnation, None)

    def on_session_ended(self, session: Session, crashed: bool) -> None:
        """Its producers' names are free, its followers forgotten."""
        for endpoint_id in list(session.endpoints):
            self._close_endpoint(session, endpoint_id)
        self.followers.forget(session)
        self._attendance.forget(session)

    def end_deliveries(self, session: Session) -> bool:
        """Producers and followers hold no messages."""
        return False

    def tick(self) -> None:
        """Once a second: rates, and producers that left long ago."""
        now_ms = self._clock.monotonic_ms()
        self.producers.sample_rates()
        self.intake.traffic.sample(now_ms)
        self._throttle.tick()
        for drops in self._drops.values():
            drops.sample(now_ms)
        self._log.incarnations.forget_idle(self._clock.now_ms())

    # --- policies ---------------------------------------------------------------------------------

    async def apply_policies(self, update: PolicyUpdate) -> None:
        """See PartitionServer.apply_policies."""
        if self._in_force.take(update):
            former_limits = self._policies.message_limits
            self._policies.take(self._in_force.settings)
            self._throttle.settings_changed()
            if self._policies.message_limits != former_limits:
                self.producers.limits_changed()

    def _count_subscriptions(self, besides: str) -> int:
        return sum(name != besides for name in self.followers.subscriptions)

    # --- publishing -------------------------------------------------------------------------------

    def _hand_over(self, blocks: Blocks) -> None:
        lost = self.followers.push(blocks)
        if lost:
            now_ms = self._clock.monotonic_ms()
            for incarnation, messages in messages_of(blocks, lost).items():
                if incarnation not in self._drops:
                    self._drops[incarnation] = Drops(now_ms)
                self._drops[incarnation].record(messages)

    # --- control calls ----------------------------------------------------------------------------

    async def _call(self, session: Session, name: str, arguments: dict[str, Any]) -> Any:
        if name == "following":
            return self.followers.following(session)
        if name == "unfollow":
            return self.followers.end_subscription(session)
        if self._attendance.answers(name):
            return await self._attendance.call(session, name, arguments)
        return await self.call(name, arguments)

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """A control call over the actor handle: all but one are about what is stored."""
        if name == "append_message" and is_system_topic(TopicName.parse(self._topic)):
            return await self._append_own(**arguments)
        raise OperationNotSupported(
            f"{name}: {self._topic} is non-persistent: it stores nothing, and its subscriptions come with "
            "their consumers; use a persistent:// topic"
        )

    async def _append_own(self, key: str, value: str) -> list[int]:
        """Publish a message of the broker itself, if anybody follows who may take it."""
        if not self.followers.subscriptions and not self.followers.has_readers:
            return list(NOT_STORED)
        return list(await self._own_messages.append(key, value))

    def stats(self) -> dict[str, Any]:
        """Counters of this partition since it started, in the shape of a stored one's."""
        traffic = self.intake.traffic
        return {
            "msgInCounter": traffic.messages,
            "bytesInCounter": traffic.bytes,
            **traffic.describe(),
            "commits": 0,
            "storageSize": 0,
            "ledgers": [],
            "producers": sorted(self.producers.by_name),
            "publishers": [
                self._publisher(producer) for _, producer in sorted(self.producers.by_name.items())
            ],
            "epoch": self.epoch,
            "lastPosition": list(NOT_STORED),
            "corruptions": [],
            "subscriptions": [_subscription(name) for name in self.followers.subscriptions],
            "hasReaders": self.followers.has_readers,
            "diskLow": False,
            "deduplicationStatus": "Disabled",
            **NO_QUOTA,
            "topicEpoch": NO_EPOCH,
            "waitingPublishers": 0,
        }

    def _publisher(self, producer: ProducerEndpoint) -> dict[str, Any]:
        drops = self._drops.get(producer.incarnation) or Drops(self._clock.monotonic_ms())
        return {**describe_publisher(producer), **drops.describe()}

    async def gather_stats(self) -> dict[str, Any]:
        """As `stats`: there are no cursors to read first."""
        return self.stats()

    async def report(self) -> ActorReport:
        """Return the figures of the partition for the metrics of its node."""
        figures = publishing_figures(self.intake, self.producers)
        return ActorReport(kind=PARTITION, topic=self._topic, figures=figures)

    # --- sleeping ---------------------------------------------------------------------------------

    def activity(self) -> Hashable | None:
        """See `SleepingServer.activity`."""
        if self._host.is_working or self.producers.hold_places:
            return None
        return self._uses, len(self.producers.by_name), self.producers.admitted

    async def settle(self) -> None:
        """Do nothing: nothing is kept."""

    async def fall_asleep(self) -> Retired:
        """Do nothing: time brings nothing to a topic that stores nothing."""
        return Retired()

    async def close(self) -> None:
        """There is nothing to write."""


def _subscription(name: str) -> dict[str, Any]:
    """Describe a subscription as the partition knows it: its dispatcher follows."""
    return {
        "number": 0,
        "name": name,
        "durable": True,
        "hold": list(NOT_STORED),
        "subscriptionProperties": {},
        "isServed": True,
        "markDeletePosition": list(NOT_STORED),
        "individuallyDeletedRanges": 0,
        "individuallyDeletedEntries": 0,
        "individuallyDeletedMessages": "[]",
        "problem": "",
    }


class _NoDisk:
    """Where nothing is written, nothing waits for a thread."""

    is_idle = True

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `work` here and now."""
        done(work(), None)
