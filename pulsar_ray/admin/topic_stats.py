"""From the counters of a partition and its dispatchers to topic stats in Pulsar's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_TOPIC_SUMS = (
    "msgInCounter", "bytesInCounter", "msgOutCounter", "bytesOutCounter", "storageSize",
)  # fmt: skip
_SUBSCRIPTION_SUMS = (
    "msgBacklog", "unackedMessages", "msgOutCounter", "bytesOutCounter", "nonContiguousDeletedMessagesRanges",
)  # fmt: skip


def partition_stats(
    partition: Mapping[str, Any], durable: Mapping[str, Any], readers: Mapping[str, Any]
) -> dict[str, Any]:
    """Stats of one partition. `durable` and `readers` are dispatchers' stats by subscription name.

    A partition that cannot serve has `refused` with the reason.
    """
    if "refused" in partition:
        return {**dict.fromkeys(_TOPIC_SUMS, 0), "publishers": [], "subscriptions": {}, **partition}
    subscriptions = {name: _subscription(stats, is_durable=True) for name, stats in durable.items()}
    for name, stats in readers.items():
        subscriptions.setdefault(name, _subscription(stats, is_durable=False))
    return {
        "msgInCounter": partition["msgInCounter"],
        "bytesInCounter": partition["bytesInCounter"],
        "msgOutCounter": sum(s["msgOutCounter"] for s in subscriptions.values()),
        "bytesOutCounter": sum(s["bytesOutCounter"] for s in subscriptions.values()),
        "storageSize": partition["storageSize"],
        "publishers": [{"producerName": name} for name in partition["producers"]],
        "subscriptions": subscriptions,
        "lastPosition": partition["lastPosition"],
        "epoch": partition["epoch"],
        "corruptions": partition["corruptions"],
        "diskLow": partition["diskLow"],
        "pid": partition["pid"],
    }


def refused_cursor(reason: str) -> dict[str, Any]:
    """What stands for the stats of a dispatcher that cannot serve."""
    return {
        "msgBacklog": 0,
        "unackedMessages": 0,
        "individuallyDeletedRanges": 0,
        "markDeletePosition": [-1, -1],
        "readPosition": [-1, -1],
        "problem": reason,
        "consumers": [],
    }


def _subscription(stats: Mapping[str, Any], *, is_durable: bool) -> dict[str, Any]:
    consumers = list(stats["consumers"])
    return {
        "msgBacklog": stats["msgBacklog"],
        "unackedMessages": stats["unackedMessages"],
        "msgOutCounter": sum(consumer["msgOutCounter"] for consumer in consumers),
        "bytesOutCounter": sum(consumer["bytesOutCounter"] for consumer in consumers),
        "isDurable": is_durable,
        "nonContiguousDeletedMessagesRanges": stats["individuallyDeletedRanges"],
        "markDeletePosition": stats["markDeletePosition"],
        "readPosition": stats["readPosition"],
        "problem": stats["problem"],
        "consumers": consumers,
    }


def sum_of_partitions(partitions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a partitioned topic's partitions come to together."""
    subscriptions: dict[str, dict[str, Any]] = {}
    for partition in partitions:
        for name, stats in partition["subscriptions"].items():
            if name not in subscriptions:
                subscriptions[name] = {
                    **dict.fromkeys(_SUBSCRIPTION_SUMS, 0),
                    "isDurable": stats["isDurable"],
                    "consumers": [],
                }
            total = subscriptions[name]
            for field in _SUBSCRIPTION_SUMS:
                total[field] += stats[field]
            total["consumers"] += stats["consumers"]
    publishers = {p["producerName"]: p for partition in partitions for p in partition["publishers"]}
    return {
        **{field: sum(partition[field] for partition in partitions) for field in _TOPIC_SUMS},
        "publishers": list(publishers.values()),
        "subscriptions": subscriptions,
        "metadata": {"partitions": len(partitions)},
    }
