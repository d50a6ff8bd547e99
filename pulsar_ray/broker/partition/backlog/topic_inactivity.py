"""Counts for how long nobody has used a partition (ADR 0074)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Set

from pulsar_ray.broker.partition.backlog.unused_time import UnusedTime, look_again_ms
from pulsar_ray.broker.partition.manifest_writer import ManifestWriter
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.sleeping_cursors import SleepingCursors
from pulsar_ray.clock import Clock
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.manifest.manifest_change import ManifestChange
from pulsar_ray.managed_ledger.log.manifest.manifest_records import WHOLE_TOPIC

MINUTE_MS = 60_000
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
