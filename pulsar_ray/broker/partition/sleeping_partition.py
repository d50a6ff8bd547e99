"""Describes a partition that sleeps, from its files alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pulsar_ray.broker.partition.backlog.expired_counts import describe_expired, read_expired_note
from pulsar_ray.broker.partition.partition_stats import describe_compaction, describe_subscriptions
from pulsar_ray.broker.partition.sleeping_cursors import SleepingCursors
from pulsar_ray.managed_ledger.log.log_sizes import ledger_sizes
from pulsar_ray.managed_ledger.log.manifest.manifest_log import read_manifest
from pulsar_ray.model.message_id import EARLIEST
from pulsar_ray.model.traffic import IncomingTraffic
from pulsar_ray.session.requests import NO_EPOCH

NO_QUOTA = {
    "backlogQuotaLimitSize": -1,
    "backlogQuotaLimitTime": -1,
    "backlogQuotaPolicy": "",
    "backlogQuotaExceeded": "",
    "oldestBacklogMessageAgeSeconds": -1,
    "oldestBacklogMessageSubscriptionName": "",
    "slowestSubscriptionBacklogSize": 0,
}
"""Of a partition that measures no backlog."""


def describe_unstored() -> dict[str, Any]:
    """Describe a partition that has stored nothing, in the shape of a running one's stats."""
    return {
        "msgInCounter": 0,
        "bytesInCounter": 0,
        **IncomingTraffic(0).describe(),
        "commits": 0,
        "storageSize": 0,
        "ledgers": [],
        "producers": [],
        "publishers": [],
        "epoch": 0,
        "isTerminated": False,
        "lastPosition": list(EARLIEST),
        "lastBatchSize": 0,
        "corruptions": [],
        "hasReaders": False,
        "subscriptions": [],
        "diskLow": False,
        "deduplicationStatus": "Disabled",
        "topicEpoch": NO_EPOCH,
        "waitingPublishers": 0,
        "compaction": describe_compaction(None),
        **NO_QUOTA,
        "pid": 0,
    }


def describe_sleeping(directory: Path) -> dict[str, Any] | None:
    """Describe a partition by its manifest and its cursors, in the shape of its stats.

    None if the files do not say all of it, because its last owner did not end in order. Reads only, so that
    an owner that starts meanwhile is not disturbed. Raises OSError if such a one has just replaced a file,
    CorruptData, UnsupportedFormatVersion.
    """
    content = read_manifest(directory)
    if content is None or any(ledger.is_open for ledger in content.manifest.ledgers.values()):
        return None
    manifest = content.manifest
    segments = [
        segment
        for ledger in manifest.ledgers.values()
        for segment in ledger.segments
        if segment.last_entry_id >= segment.first_entry_id
    ]
    sizes = ledger_sizes(segments)
    subscriptions = list(manifest.subscriptions.values())
    cursors = SleepingCursors(directory)
    cursors.learn_now([each for each in subscriptions if each.is_durable])
    return {
        **describe_unstored(),
        "storageSize": sum(size for _, _, size in sizes),
        "ledgers": [list(size) for size in sizes],
        "epoch": content.epoch,
        "isTerminated": manifest.terminated is not None,
        "lastPosition": list(manifest.last_position),
        "lastBatchSize": manifest.last_batch_size,
        "deduplicationStatus": "Disabled" if content.sequences.switched_on is None else "Enabled",
        "topicEpoch": manifest.topic_epoch.epoch,
        "compaction": describe_compaction(
            manifest.compacted, "NOT_RUN" if manifest.compacted is None else "SUCCESS"
        ),
        "subscriptions": describe_subscriptions(
            subscriptions, cursors, set(), partial(describe_expired, read_expired_note(directory))
        ),
    }
