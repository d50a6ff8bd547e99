"""A partition's stats: arithmetic over what its owner has in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any

from pulsar_ray.broker.partition.publishing.connected_producers import ConnectedProducers
from pulsar_ray.broker.partition.publishing.producer_endpoint import ProducerEndpoint
from pulsar_ray.broker.partition.publishing.publish_intake import PublishIntake
from pulsar_ray.broker.partition.sleeping_cursors import SleepingCursors
from pulsar_ray.managed_ledger.log.log_sizes import ledger_sizes
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Compacted, Subscription
from pulsar_ray.model.message_id import EARLIEST


def describe_subscriptions(
    subscriptions: Iterable[Subscription],
    cursors: SleepingCursors,
    followed: Set[int],
    expired: Callable[[int], dict[str, int]],
) -> list[dict[str, Any]]:
    """Registered subscriptions; of those whose dispatchers do not run (`followed` do) how far they are.

    `expired` describes what has expired for one, by its number, while no dispatcher ran.
    """
    return [
        {
            "number": s.number,
            "name": s.name,
            "durable": s.is_durable,
            "hold": list(s.hold),
            "subscriptionProperties": dict(s.properties),
            "isServed": s.number in followed,
            **cursors.describe(s),
            **expired(s.number),
        }
        for s in subscriptions
    ]


def describe_partition(
    ledger: ManagedLedger, intake: PublishIntake, producers: ConnectedProducers, followed: Set[int]
) -> dict[str, Any]:
    """Counters since the actor started, rates, storage and producers."""
    sizes = ledger_sizes(ledger.segments())
    numbers = {s.number for s in ledger.changes.subscriptions()}
    return {
        "msgInCounter": intake.traffic.messages,
        "bytesInCounter": intake.traffic.bytes,
        **intake.traffic.describe(),
        "commits": intake.commits,
        "storageSize": sum(size for _, _, size in sizes),
        "ledgers": [list(size) for size in sizes],
        "producers": sorted(producers.by_name),
        "publishers": [describe_publisher(producer) for _, producer in sorted(producers.by_name.items())],
        "epoch": ledger.epoch,
        "isTerminated": ledger.changes.terminated is not None,
        "lastPosition": list(ledger.readable_position),
        "corruptions": [str(c) for c in ledger.corruptions],
        "hasReaders": any(number not in numbers for number in followed),
    }


def describe_found(ledger: ManagedLedger) -> str:
    """Say in words what a partition found on its disk when it started."""
    sizes = ledger_sizes(ledger.segments())
    entries, stored = sum(held for _, held, _ in sizes), sum(size for *_, size in sizes)
    subscriptions = sum(1 for each in ledger.changes.subscriptions() if each.is_durable)
    damage = f", {len(ledger.corruptions)} DAMAGED RANGES" if ledger.corruptions else ""
    return (
        f"{entries:,} entries in {len(sizes)} ledgers of {stored:,} bytes, {subscriptions} subscriptions, "
        f"epoch {ledger.epoch}{damage}"
    )


def describe_publisher(producer: ProducerEndpoint) -> dict[str, Any]:
    """A connected producer, in Pulsar's names."""
    carrier = producer.session.carrier
    return {
        "accessMode": producer.access_mode.name,
        "producerName": producer.name,
        "producerId": producer.producer_id,
        **producer.traffic.describe(),
        "msgInCounter": producer.traffic.messages,
        "bytesInCounter": producer.traffic.bytes,
        "connectedSince": producer.connected_ms,
        "address": producer.session.client_id,
        "metadata": dict(producer.metadata),
        "carrier": carrier.kind if carrier is not None else "none",
    }


def describe_compaction(
    compacted: Compacted | None, status: str = "NOT_RUN", failed_ms: int = 0
) -> dict[str, Any]:
    """Describe the last compaction, with Pulsar's names where Pulsar has one."""
    if compacted is None:
        compacted = Compacted(0, *EARLIEST, (), (-1, -1, -1, 0), 0, 0, 0, 0)
    return {
        "status": status,
        "lastCompactionRemovedEventCount": compacted.removed,
        "lastCompactionSucceedTimestamp": compacted.ended_ms,
        "lastCompactionFailedTimestamp": failed_ms,
        "lastCompactionDurationTimeInMills": compacted.ended_ms - compacted.began_ms,
        "compactedSize": compacted.written_bytes,
        "compactedEntries": sum(segment[5] for segment in compacted.segments),
        "compactionHorizon": list(compacted.horizon),
        "number": compacted.number,
        "ledgers": len(compacted.segments),
    }
