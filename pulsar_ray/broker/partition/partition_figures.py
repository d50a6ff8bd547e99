"""Gathers the figures that a partition reports to the metrics of its node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from pathlib import Path

from pulsar_ray.broker.figures.actor_report import NO_TIME, Figures, StoredBacklog
from pulsar_ray.broker.figures.node_figures import RestingPartition
from pulsar_ray.broker.figures.resting_note import write_resting_note
from pulsar_ray.broker.partition.backlog.backlog_ages import MOST_SEARCHES, BacklogAges
from pulsar_ray.broker.partition.followers import Followers
from pulsar_ray.broker.partition.publishing.connected_producers import ConnectedProducers
from pulsar_ray.broker.partition.publishing.publish_intake import PublishIntake
from pulsar_ray.broker.partition.sleeping_cursors import SleepingCursors
from pulsar_ray.broker.partition.topic_compaction import TopicCompaction
from pulsar_ray.broker.partition.topic_offload import TopicOffload
from pulsar_ray.managed_ledger.log.log_sizes import LogSizes, ledger_sizes
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Subscription
from pulsar_ray.model import metric_catalogue as metrics
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.metric_catalogue import OTHER

MAX_BACKLOGS = 500
"""Subscriptions that are told one by one; the rest is summed up as `other`."""
_SLICE = 100
"""Subscriptions described in one go: well below a millisecond."""


def publishing_figures(intake: PublishIntake, producers: ConnectedProducers) -> Figures:
    """Return what is counted as blocks come in."""
    figures = intake.figures
    rates = intake.traffic.describe()
    refused = f"{metrics.REFUSED_PUBLISHES.name}:"
    return Figures(
        {
            metrics.MESSAGES_IN.name: intake.traffic.messages,
            metrics.BYTES_IN.name: intake.traffic.bytes,
            **{refused + reason: blocks for reason, blocks in figures.refused.items()},
        },
        {metrics.PRODUCERS.name: len(producers.by_name)},
        {metrics.PUBLISH_LATENCY.name: figures.latency.numbers()},
        {metrics.MESSAGES_IN.name: rates["msgRateIn"], metrics.BYTES_IN.name: rates["msgThroughputIn"]},
    )


class PartitionFigures:
    """Runs on the owner loop, which others get between two slices of subscriptions."""

    def __init__(
        self,
        ledger: ManagedLedger,
        intake: PublishIntake,
        producers: ConnectedProducers,
        followers: Followers,
        cursors: SleepingCursors,
        compaction: TopicCompaction,
        offload: TopicOffload,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._ledger = ledger
        self._intake = intake
        self._producers = producers
        self._followers = followers
        self._cursors = cursors
        self._compaction = compaction
        self._offload = offload
        self._has_offloaded = False
        self._ages = BacklogAges(ledger, loop)

    async def gather(self) -> tuple[Figures, dict[str, StoredBacklog]]:
        """Return the partition's figures, and the backlogs of its durable subscriptions."""
        figures = publishing_figures(self._intake, self._producers)
        published = self._intake.figures
        figures.gauges[metrics.STORAGE_BYTES.name] = self._storage_bytes()
        offloaded = self._offload.offloaded_bytes
        if offloaded or self._has_offloaded:
            self._has_offloaded = True  # and 0 from now on, if all is here again
            figures.gauges[metrics.OFFLOADED_BYTES.name] = offloaded
        counters, gauges = self._compaction.figures()
        figures.counters.update(counters)
        figures.gauges.update(gauges)
        figures.histograms[metrics.FSYNC_SECONDS.name] = published.write_seconds.numbers()
        figures.histograms[metrics.COMMIT_BLOCKS.name] = published.commit_blocks.numbers()
        return figures, await self._backlogs(self._followers.numbers)

    async def write_note(self) -> None:
        """Leave the backlogs beside the data, for a partition that falls asleep. Raises OSError."""
        ledger = self._ledger
        for number in self._followers.numbers:
            # Its dispatcher has left by now, or will have to write its cursor anew.
            self._cursors.woke(number)
        backlogs = await self._backlogs(frozenset(), most_searches=MAX_BACKLOGS)
        partition = RestingPartition(ledger.identity.topic, self._storage_bytes(), backlogs)
        write_resting_note(Path(ledger.directory), partition)

    def _storage_bytes(self) -> int:
        return sum(size for _, _, size in ledger_sizes(self._ledger.segments()))

    async def _backlogs(
        self, followed: Set[int], most_searches: int = MOST_SEARCHES
    ) -> dict[str, StoredBacklog]:
        """Return the backlogs; of subscriptions that are not followed the cursors are read."""
        durable = [s for s in self._ledger.changes.subscriptions() if s.is_durable]
        await self._cursors.learn([s for s in durable if s.number not in followed])
        marks = {s.number: self._mark(s) for s in durable[:MAX_BACKLOGS]}
        await self._ages.learn(marks, most=most_searches)
        log = LogSizes(ledger_sizes(self._ledger.segments()))
        told = {s.name: self._backlog(s, log) for s in durable[:_SLICE]}
        for start in range(_SLICE, min(len(durable), MAX_BACKLOGS), _SLICE):
            await asyncio.sleep(0)
            told.update((s.name, self._backlog(s, log)) for s in durable[start : start + _SLICE])
        if len(durable) > MAX_BACKLOGS:
            told[OTHER] = await self._rest(durable[MAX_BACKLOGS:], log, told.get(OTHER))
        return told

    async def _rest(
        self, subscriptions: Sequence[Subscription], log: LogSizes, former: StoredBacklog | None
    ) -> StoredBacklog:
        """Sum up subscriptions that are not told one by one, without their ages."""
        entries, size, oldest_ms, holes = former or StoredBacklog(0, 0, NO_TIME)
        for start in range(0, len(subscriptions), _SLICE):
            await asyncio.sleep(0)
            for subscription in subscriptions[start : start + _SLICE]:
                backlog = self._backlog(subscription, log)
                entries += backlog.entries
                size += backlog.size_bytes
                holes += backlog.holes
        return StoredBacklog(entries, size, oldest_ms, holes)

    def _mark(self, subscription: Subscription) -> Position:
        return Position(*self._cursors.describe(subscription)["markDeletePosition"])

    def _backlog(self, subscription: Subscription, log: LogSizes) -> StoredBacklog:
        known = self._cursors.describe(subscription)
        mark = Position(*known["markDeletePosition"])
        entries, size = log.above(mark, known["individuallyDeletedEntries"])
        oldest_ms = self._ages.oldest_ms(subscription.number) if entries else None
        age = NO_TIME if oldest_ms is None else oldest_ms
        return StoredBacklog(entries, size, age, known["individuallyDeletedRanges"])
