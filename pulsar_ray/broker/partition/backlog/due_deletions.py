"""Deletes what is due in a partition: expired, evicted, unused, or kept long enough."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterable, Set
from typing import Any

from pulsar_ray.broker.partition.backlog.backlog_quota import BacklogQuota
from pulsar_ray.broker.partition.backlog.message_expiry import MessageExpiry
from pulsar_ray.broker.partition.followers import Followers
from pulsar_ray.broker.partition.manifest_writer import ManifestWriter
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.publishing.connected_producers import ConnectedProducers
from pulsar_ray.broker.partition.publishing.producer_opening import ProducerOpening
from pulsar_ray.broker.partition.publishing.publish_intake import PublishIntake
from pulsar_ray.broker.partition.sleeping_cursors import SleepingCursors
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.clock import Clock
from pulsar_ray.errors import BrokerPersistenceError
from pulsar_ray.managed_ledger.log.commit import ManifestChange
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.manifest.manifest_records import WHOLE_TOPIC
from pulsar_ray.managed_ledger.store.wake_times import look_again_ms

logger = logging.getLogger(__name__)


class TopicUse:
    """Knows a partition's dispatchers and producers, and counts uses.

    Belongs to the owner loop.
    """

    def __init__(
        self,
        followers: Followers,
        producers: ConnectedProducers,
        opening: ProducerOpening,
        intake: PublishIntake,
    ) -> None:
        self._followers = followers
        self._producers = producers
        self._opening = opening
        self._intake = intake
        self._requests = 0

    def count_request(self) -> None:
        """Note that a client asked for something."""
        self._requests += 1

    def followed(self) -> Set[int]:
        """The numbers of the subscriptions whose dispatchers run."""
        return self._followers.numbers

    def has_producers(self) -> bool:
        """Whether one is connected, or waits to be."""
        return bool(self._producers.by_name or self._opening.waiting)

    def counts(self) -> Hashable:
        """Return something that changes with each use."""
        return self._requests, self._producers.admitted, self._intake.commits


class UnusedTime:
    """Counts by the monotonic clock, and notes by the one on the wall (ADR 0064).

    So a jump of the clock on the wall counts only while the partition sleeps.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def since_ms(self, noted_ms: int) -> int:
        """When a noted time began, by the monotonic clock; now if none is noted."""
        now_ms = self._clock.monotonic_ms()
        return now_ms - max(0, self._clock.now_ms() - noted_ms) if noted_ms else now_ms

    def to_note_ms(self, since_ms: int) -> int:
        """How a time is noted that began then, by the monotonic clock.

        Never as 0, which stands for none.
        """
        return max(1, since_ms + self._clock.now_ms() - self._clock.monotonic_ms())


MINUTE_MS = 60_000


class SubscriptionExpiry:
    """Knows since when the dispatcher of each durable subscription has not run.

    It does not run when no consumer is connected. `followed` gives the numbers of those that run. The time is
    durable, so it counts through sleeps and crashes: it is noted once a dispatcher has been away for a minute
    while the partition was awake, or when the partition falls asleep and no consumer is parked. Consumers
    that are come back within that minute when the partition wakes. Belongs to the owner loop.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        writer: ManifestWriter,
        policies: PartitionPolicies,
        clock: Clock,
        followed: Callable[[], Set[int]],
        cursors: SleepingCursors,
    ) -> None:
        self._ledger = ledger
        self._writer = writer
        self._policies = policies
        self._clock = clock
        self._followed = followed
        self._cursors = cursors
        self._unused_since_ms: dict[int, int] = {}
        """By the monotonic clock."""
        self._time = UnusedTime(clock)
        self._noted: set[int] = set()
        """Those whose note is durable, or on its way."""
        self._is_off = False
        """Whether nothing is left of a policy that does not hold any more."""

    @property
    def _limit_ms(self) -> int:
        return self._policies.settings.subscription_expiration_time_minutes * MINUTE_MS

    def used(self, number: int) -> None:
        """Count anew: the dispatcher of a subscription is starting."""
        self._unused_since_ms.pop(number, None)
        self._writer.submit(self._note_used([number]))

    def tick(self) -> None:
        """Delete what nobody has used for long enough; once a second."""
        self._look()
        self._writer.submit(self._remove_old())
        if self._limit_ms:
            before_ms = self._clock.monotonic_ms() - MINUTE_MS
            self._writer.submit(
                self._note_unused(n for n, since in self._unused_since_ms.items() if since <= before_ms)
            )

    async def settle(self) -> None:
        """Delete, durably, what nobody has used for long enough. Raises BrokerPersistenceError."""
        self._look()
        await self._writer.durable(self._remove_old())

    async def leave(self) -> None:
        """Note what nobody uses while the partition sleeps. Raises BrokerPersistenceError.

        All dispatchers have left; those whose cursors know consumers have some that are parked.
        """
        if not self._limit_ms:
            return
        unused = [s for s in self._ledger.changes.durable_subscriptions() if s.number not in self._noted]
        await self._cursors.learn(unused)
        left = [s.number for s in unused if not self._cursors.may_have_consumers(s.number)]
        now_ms = self._clock.monotonic_ms()
        self._unused_since_ms = dict.fromkeys(left, now_ms) | self._unused_since_ms
        await self._writer.durable(self._note_unused(left))

    def next_due_ms(self) -> int | None:
        """Return when a partition that sleeps is to look again; None: never."""
        limit_ms = self._limit_ms
        durable = self._ledger.changes.durable_subscriptions()
        noted = [s.unused_since_ms for s in durable if s.unused_since_ms]
        if not limit_ms or not noted:
            return None
        return look_again_ms(min(noted), limit_ms)

    def _look(self) -> None:
        """Take in who is used; without the policy nothing counts."""
        if self._is_off and not self._limit_ms:
            return
        self._is_off = not self._limit_ms
        durable = self._ledger.changes.durable_subscriptions()
        used = self._followed() if self._limit_ms else {s.number for s in durable}
        self._noted |= {s.number for s in durable if s.unused_since_ms}
        if returned := [s.number for s in durable if s.number in used and s.number in self._noted]:
            self._writer.submit(self._note_used(returned))
        known = self._unused_since_ms
        self._unused_since_ms = {
            s.number: known[s.number] if s.number in known else self._time.since_ms(s.unused_since_ms)
            for s in durable
            if s.number not in used
        }

    def _remove_old(self) -> ManifestChange | None:
        limit_ms, now_ms = self._limit_ms, self._clock.monotonic_ms()
        old = [number for number, since in self._unused_since_ms.items() if now_ms - since >= limit_ms]
        for number in old:
            del self._unused_since_ms[number]
            subscription = self._ledger.changes.subscription(number)
            logger.info(
                "subscription %r of %s is deleted: nobody has used it for %d minutes",
                subscription.name if subscription is not None else number,
                self._ledger.identity.topic,
                self._policies.settings.subscription_expiration_time_minutes,
            )
        return self._ledger.changes.remove_subscriptions(old) if old else None

    def _note_unused(self, numbers: Iterable[int]) -> ManifestChange | None:
        """Note since when subscriptions are unused."""
        time, unused = self._time, self._unused_since_ms
        since = {n: time.to_note_ms(unused[n]) for n in numbers if n not in self._noted}
        self._noted |= set(since)
        return self._ledger.changes.note_unused(since) if since else None

    def _note_used(self, numbers: Iterable[int]) -> ManifestChange | None:
        used = {n: 0 for n in numbers if n in self._noted or self._has_note(n)}
        self._noted -= set(used)
        return self._ledger.changes.note_unused(used) if used else None

    def _has_note(self, number: int) -> bool:
        known = self._ledger.changes.subscription(number)
        return known is not None and known.unused_since_ms > 0


REPORT_AGAIN_MS = 60_000
CAUGHT_UP = "delete_when_subscriptions_caught_up"
PARKED = -1
"""Noted in place of a time: producers were parked when the partition fell asleep."""


class TopicInactivity:
    """Counts the time without producers, dispatchers, and subscriptions or their backlog.

    The time is durable as that of unused subscriptions is (ADR 0064): it is noted once it has lasted for a
    minute while the partition was awake, and when the partition falls asleep. `uses` changes with each use,
    `has_producers` says whether one is connected, `followed` gives the numbers of dispatchers that run.
    `report` is called when the time is over, and again as long as the topic is there. Belongs to the owner
    loop.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        writer: ManifestWriter,
        policies: PartitionPolicies,
        clock: Clock,
        uses: Callable[[], Hashable],
        has_producers: Callable[[], bool],
        followed: Callable[[], Set[int]],
        cursors: SleepingCursors,
        report: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._writer = writer
        self._policies = policies
        self._clock = clock
        self._uses = uses
        self._has_producers = has_producers
        self._followed = followed
        self._cursors = cursors
        self._report = report
        self._used = uses()
        self._since_ms: int | None = None
        """By the monotonic clock; None while it is used."""
        self._time = UnusedTime(clock)
        noted_ms = ledger.changes.unused_since_ms
        self._is_noted = noted_ms != 0
        self._is_parked = noted_ms == PARKED
        """Whether producers are parked, which have not come back since."""
        if noted_ms > 0:
            self._since_ms = self._time.since_ms(noted_ms)
        self._reported_ms: int | None = None

    def tick(self) -> None:
        """Look who uses the topic; once a second."""
        self._look()
        now_ms = self._clock.monotonic_ms()
        if self._is_over():
            if self._reported_ms is None or now_ms - self._reported_ms >= REPORT_AGAIN_MS:
                self._reported_ms = now_ms
                self._report()
        elif self._since_ms is not None and now_ms - self._since_ms >= MINUTE_MS:
            self._writer.submit(self._noted())

    def is_over(self) -> bool:
        """Whether nobody uses the topic, and has not for long enough."""
        self._look()
        return self._is_over()

    async def leave(self) -> None:
        """Note that nobody uses the topic while the partition sleeps. Raises BrokerPersistenceError.

        All dispatchers have left; those whose cursors know consumers have some that are parked. So are
        producers that are connected: that is noted, for a start that only looks after the topic sees none.
        """
        self._look()
        if self._since_ms is None:
            if self._has_producers():
                self._is_noted = True
                await self._writer.durable(self._ledger.changes.note_unused({WHOLE_TOPIC: PARKED}))
            return
        durable = self._ledger.changes.durable_subscriptions()
        await self._cursors.learn(durable)
        if any(self._cursors.may_have_consumers(s.number) for s in durable):
            self._since_ms = None
            await self._writer.durable(self._not_noted())
        else:
            await self._writer.durable(self._noted())

    def next_due_ms(self) -> int | None:
        """Return when a partition that sleeps is to look again; None: never."""
        limit_ms, noted_ms = self._limit_ms, self._ledger.changes.unused_since_ms
        if limit_ms is None or noted_ms <= 0:
            return None
        return look_again_ms(noted_ms, limit_ms)

    @property
    def _limit_ms(self) -> int | None:
        """For how long nobody must have used the topic; None: it is kept whatever happens."""
        policies = self._policies
        if not policies.inactive_delete_mode or policies.retention_ms < 0:
            return None
        return max(policies.inactive_delete_ms, policies.retention_ms)

    def _is_over(self) -> bool:
        limit_ms = self._limit_ms
        if limit_ms is None or self._since_ms is None:
            return False
        return self._clock.monotonic_ms() - self._since_ms >= limit_ms

    def _look(self) -> None:
        uses = self._uses()
        was_used, self._used = uses != self._used, uses
        self._is_parked = self._is_parked and not was_used
        if self._is_parked:
            return
        if self._limit_ms is None or self._is_used():
            self._since_ms = self._reported_ms = None
            self._writer.submit(self._not_noted())
        elif was_used or self._since_ms is None:
            self._since_ms, self._reported_ms = self._clock.monotonic_ms(), None
            self._writer.submit(self._not_noted())

    def _is_used(self) -> bool:
        if self._has_producers() or self._followed():
            return True
        durable = self._ledger.changes.durable_subscriptions()
        if self._policies.inactive_delete_mode == CAUGHT_UP:
            return any(s.hold < self._ledger.last_position for s in durable)
        return bool(durable)

    def _noted(self) -> ManifestChange | None:
        """Note since when nobody uses the topic."""
        if self._is_noted or self._since_ms is None:
            return None
        self._is_noted = True
        return self._ledger.changes.note_unused({WHOLE_TOPIC: self._time.to_note_ms(self._since_ms)})

    def _not_noted(self) -> ManifestChange | None:
        if not self._is_noted:
            return None
        self._is_noted = False
        return self._ledger.changes.note_unused({WHOLE_TOPIC: 0})


class DueDeletions:
    """Deletes messages, subscriptions and ledgers that policies keep no longer.

    While it is not known whether the policies are current, nothing goes but what the backlog quota evicts,
    which asks for itself. `spawn` runs a coroutine beside the rest; `on_unused` is called when the topic
    itself is due. Belongs to the owner loop.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        writer: ManifestWriter,
        in_force: PoliciesInForce,
        policies: PartitionPolicies,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        messages: MessageExpiry,
        quota: BacklogQuota,
        cursors: SleepingCursors,
        use: TopicUse,
        on_unused: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._writer = writer
        self._in_force = in_force
        self._clock = clock
        self._loop = loop
        self._spawn = spawn
        self._messages = messages
        self._quota = quota
        self._subscriptions = SubscriptionExpiry(ledger, writer, policies, clock, use.followed, cursors)
        self._topic = TopicInactivity(
            ledger,
            writer,
            policies,
            clock,
            use.counts,
            use.has_producers,
            use.followed,
            cursors,
            on_unused,
        )
        self._trimmed_at = loop.time()

    @property
    def is_topic_due(self) -> bool:
        """Whether nobody has used the topic for so long that its policies have it deleted."""
        return self._in_force.are_current and self._topic.is_over()

    def is_used(self, subscription_number: int) -> None:
        """Count anew for a subscription: its dispatcher is starting."""
        self._subscriptions.used(subscription_number)

    def tick(self, trim_interval_s: float) -> None:
        """Begin what is due; once a second."""
        if self._in_force.are_current and self._messages.is_due():
            self._spawn(self._expire())
        if self._quota.is_due():
            self._quota.decide_again()
        if not self._in_force.are_current:
            return
        self._subscriptions.tick()
        self._topic.tick()
        if self._loop.time() - self._trimmed_at >= trim_interval_s:
            self._trimmed_at = self._loop.time()
            self._writer.submit(self._ledger.changes.trim(self._clock.now_ms()))

    async def _expire(self) -> None:
        """Acknowledge what is too old; a disk that refuses is asked again."""
        try:
            await self._messages.run()
        except BrokerPersistenceError as error:
            logger.warning("%s", error)

    async def settle(self) -> None:
        """Delete, durably, all that is due. Raises BrokerPersistenceError."""
        if self._in_force.are_current:
            await self._subscriptions.settle()
            await self._messages.run()
            await self._quota.look()
        await self._writer.durable(self._ledger.changes.trim(self._clock.now_ms(), is_leaving=True))

    async def leave(self) -> None:
        """Note since when the topic and its subscriptions are unused, which counts on in sleep.

        Where a disk refuses, the time counts from the next sleep on.
        """
        if self._in_force.are_current:
            with contextlib.suppress(BrokerPersistenceError):
                await self._subscriptions.leave()
                await self._topic.leave()

    async def next_due_ms(self) -> int | None:
        """When a partition that sleeps has something to delete; None if time alone brings nothing."""
        due_ms = [
            self._ledger.changes.next_trim_ms(),
            self._subscriptions.next_due_ms(),
            self._topic.next_due_ms(),
            await self._messages.next_due_ms(),
            await self._quota.next_due_ms(),
        ]
        return min((time_ms for time_ms in due_ms if time_ms is not None), default=None)
