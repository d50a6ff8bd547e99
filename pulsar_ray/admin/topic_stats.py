"""Puts the counters of a partition and its dispatchers into Pulsar's shape of topic stats.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pulsar_ray.managed_ledger.log.log_sizes import LogSizes
from pulsar_ray.model.message_id import LATEST, Position

_RATES_OUT = ("msgRateOut", "msgThroughputOut")
_COUNTERS_OUT = ("msgOutCounter", "bytesOutCounter")
_CHUNKS = ("chunkedMessageRate", "incompleteChunkedMessages", "droppedChunkedMessages")
_RATES_IN = ("msgRateIn", "msgThroughputIn")
_TOPIC_SUMS = (
    *_RATES_IN, *_RATES_OUT, "msgInCounter", "bytesInCounter", *_COUNTERS_OUT, "storageSize", "backlogSize",
    "chunkedMessageRate",
)  # fmt: skip
_SUBSCRIPTION_SUMS = (
    *_RATES_OUT, *_COUNTERS_OUT, "msgRateRedeliver", "messageAckRate", "msgRateExpired", "totalMsgExpired",
    "msgBacklog", "msgDelayed", "msgBacklogNoDelayed", "backlogSize", "unackedMessages",
    "nonContiguousDeletedMessagesRanges", "deadLetteredMessages", *_CHUNKS,
)  # fmt: skip
_SUBSCRIPTION_TIMES = (
    "lastAckedTimestamp", "lastConsumedTimestamp", "lastConsumedFlowTimestamp", "lastExpireTimestamp",
    "lastMarkDeleteAdvancedTimestamp",
)  # fmt: skip
_KEY_SHARED_SUMS = (
    "drainingHashesCount", "drainingHashesClearedTotal", "drainingHashesUnackedMessages", "msgInReplay",
)  # fmt: skip
_KEY_SHARED_FIELDS = ("keySharedMode", "allowOutOfOrderDelivery", *_KEY_SHARED_SUMS)
_PUBLISHER_SUMS = (*_RATES_IN, "msgInCounter", "bytesInCounter", "chunkedMessageRate")
_PUBLISHING = ("deduplicationStatus", "topicEpoch", "waitingPublishers")
_QUOTA = (
    "backlogQuotaLimitSize", "backlogQuotaLimitTime", "backlogQuotaPolicy", "backlogQuotaExceeded",
    "oldestBacklogMessageAgeSeconds", "oldestBacklogMessageSubscriptionName",
    "slowestSubscriptionBacklogSize",
)  # fmt: skip
_STORED = {"compaction", "offloadedStorageSize"}
"""Non-persistent topics do not have them."""
_DROPS = ("msgDropRate", "msgDropCounter")
"""Only non-persistent topics have them."""


def partition_stats(
    partition: Mapping[str, Any], durable: Mapping[str, Any], readers: Mapping[str, Any]
) -> dict[str, Any]:
    """Stats of one partition.

    `durable` and `readers` are stats by subscription name, of the dispatchers that run.

    A durable subscription that has none there is described from the partition's own knowledge. A partition
    that cannot serve has `refused` with the reason.
    """
    if "refused" in partition:
        zeros = dict.fromkeys((*_TOPIC_SUMS, "averageMsgSize"), 0)
        return {**zeros, "msgChunkPublished": False, "publishers": [], "subscriptions": {}, **partition}
    log = LogSizes(partition["ledgers"])
    subscriptions = {
        known["name"]: _subscription(_running(known, durable) or _asleep(known, log), log, is_durable=True)
        for known in partition["subscriptions"]
        if known["durable"]
    }
    for name, stats in readers.items():
        # A durable and another subscription may share a name.
        shown = f"{name} (NonDurable)" if name in subscriptions else name
        subscriptions[shown] = _subscription(stats, log, is_durable=False)
    kept = [s["backlogSize"] for s in subscriptions.values() if s["isDurable"]]
    sums = {field: sum(s[field] for s in subscriptions.values()) for field in (*_RATES_OUT, *_COUNTERS_OUT)}
    copied = (
        *_RATES_IN, "averageMsgSize", "msgInCounter", "bytesInCounter", "storageSize", "publishers",
        "lastPosition", "epoch", "corruptions", "diskLow", "pid", "chunkedMessageRate", "msgChunkPublished",
        *_PUBLISHING, *_QUOTA,
    )  # fmt: skip
    return {
        **{field: partition[field] for field in (*copied, *sorted(_STORED & partition.keys()))},
        **sums,
        "backlogSize": max(kept, default=0),
        **_drops(subscriptions.values()),
        "subscriptions": subscriptions,
    }


def _compaction(partitions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum up the last compactions of partitions; times are those of the last."""
    known = [partition["compaction"] for partition in partitions if "compaction" in partition]
    if not known:
        return {}
    sums = ("lastCompactionRemovedEventCount", "compactedSize", "compactedEntries")
    times = (
        "lastCompactionSucceedTimestamp",
        "lastCompactionFailedTimestamp",
        "lastCompactionDurationTimeInMills",
    )
    return {
        "compaction": {
            **{field: sum(each[field] for each in known) for field in sums},
            **{field: max(each[field] for each in known) for field in times},
        }
    }


def _running(known: Mapping[str, Any], durable: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a dispatcher's stats with all that has expired; None without one."""
    stats = durable.get(known["name"])
    if not stats:
        return None
    return {
        **stats,
        "totalMsgExpired": stats["totalMsgExpired"] + known.get("totalMsgExpired", 0),
        "lastExpireTimestamp": max(stats["lastExpireTimestamp"], known.get("lastExpireTimestamp", 0)),
    }


def _asleep(known: Mapping[str, Any], log: LogSizes) -> dict[str, Any]:
    """A subscription whose dispatcher does not run, so that nobody is connected."""
    mark_delete = Position(*known["markDeletePosition"])
    entries, _ = log.above(mark_delete, known["individuallyDeletedEntries"])
    return {
        **dict.fromkeys(_SUBSCRIPTION_SUMS, 0),
        **dict.fromkeys(_SUBSCRIPTION_TIMES, 0),
        "type": "",
        "activeConsumerName": "",
        "deadLetterError": "",
        "blockedSubscriptionOnUnackedMsgs": False,
        **known,
        "msgBacklog": entries,
        "readPosition": list(mark_delete.next()),
        "consumers": [],
    }


def _subscription(stats: Mapping[str, Any], log: LogSizes, *, is_durable: bool) -> dict[str, Any]:
    mark_delete = Position(*stats["markDeletePosition"])
    _, size = log.above(mark_delete, stats["individuallyDeletedEntries"])
    # A dispatcher hears of the newest entries a moment after their producers have had the receipts.
    heard_of = max(mark_delete, Position(*stats.get("logEnd", LATEST)))
    backlog = stats["msgBacklog"] + log.above(heard_of)[0]
    copied = (
        *_RATES_OUT, *_COUNTERS_OUT, "msgRateRedeliver", "messageAckRate", "msgRateExpired",
        "totalMsgExpired", "unackedMessages", "blockedSubscriptionOnUnackedMsgs", "type",
        "activeConsumerName", *_SUBSCRIPTION_TIMES, "subscriptionProperties", "markDeletePosition",
        "readPosition", "problem", "deadLetteredMessages", "deadLetterError",
    )  # fmt: skip
    return {
        **{field: stats[field] for field in copied},
        **{field: stats[field] for field in _KEY_SHARED_FIELDS if field in stats},
        "stuckForMs": stats.get("stuckForMs", 0),
        "stuckReason": stats.get("stuckReason", ""),
        **{field: stats[field] for field in _DROPS if field in stats},
        **{field: stats.get(field, 0) for field in _CHUNKS},
        "msgDelayed": (delayed := stats.get("msgDelayed", 0)),
        "msgBacklog": backlog,
        "msgBacklogNoDelayed": backlog - delayed,
        "backlogSize": size,
        "durable": stats.get("isDurable", is_durable),
        "isDurable": stats.get("isDurable", is_durable),
        "nonContiguousDeletedMessagesRanges": stats["individuallyDeletedRanges"],
        "consumers": list(stats["consumers"]),
    }


def sum_of_partitions(partitions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up the stats of a partitioned topic's partitions.

    `refused` says of how many nothing is known, and why of the first: the sums are of the others.
    """
    subscriptions: dict[str, dict[str, Any]] = {}
    for partition in partitions:
        for name, stats in partition["subscriptions"].items():
            if name in subscriptions:
                _add_subscription(subscriptions[name], stats)
            else:
                subscriptions[name] = _first_subscription(stats)
    totals = {field: sum(partition[field] for partition in partitions) for field in _TOPIC_SUMS}
    rate = totals["msgRateIn"]
    return {
        **totals,
        "averageMsgSize": totals["msgThroughputIn"] / rate if rate else 0.0,
        "msgChunkPublished": any(partition["msgChunkPublished"] for partition in partitions),
        "publishers": _publishers(p for partition in partitions for p in partition["publishers"]),
        **_drops(subscriptions.values()),
        "subscriptions": subscriptions,
        **_publishing([partition for partition in partitions if "refused" not in partition]),
        "metadata": {"partitions": len(partitions)},
        "offloadedStorageSize": sum(partition.get("offloadedStorageSize", 0) for partition in partitions),
        **_compaction(partitions),
        **_refused(partitions),
    }


def _refused(partitions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    refusals = [partition["refused"] for partition in partitions if "refused" in partition]
    if not refusals:
        return {}
    return {
        "refused": f"nothing is known of {len(refusals)} of {len(partitions)} partitions: {refusals[0]}",
        "away": all(partition.get("away", False) for partition in partitions if "refused" in partition),
    }


def _publishing(partitions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum up how producers publish to the partitions that serve.

    A producer takes the topic's partitions one after the other, and waits for one at a time.
    """
    if not partitions:
        return {}
    statuses = {partition["deduplicationStatus"] for partition in partitions}
    return {
        "deduplicationStatus": statuses.pop() if len(statuses) == 1 else "Mixed",
        "topicEpoch": max(partition["topicEpoch"] for partition in partitions),
        "waitingPublishers": sum(partition["waitingPublishers"] for partition in partitions),
        **_quota(partitions),
    }


def _quota(partitions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Give the quota, and the oldest backlog of all partitions."""
    oldest = max(partitions, key=lambda partition: partition["oldestBacklogMessageAgeSeconds"])
    sizes = [partition["slowestSubscriptionBacklogSize"] for partition in partitions]
    exceeded = [p["backlogQuotaExceeded"] for p in partitions if p["backlogQuotaExceeded"]]
    return {
        **{field: oldest[field] for field in _QUOTA},
        "backlogQuotaExceeded": exceeded[0] if exceeded else "",
        "slowestSubscriptionBacklogSize": max(sizes),
    }


def _drops(counted: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    having = [stats for stats in counted if _DROPS[0] in stats]
    return {field: sum(stats[field] for stats in having) for field in _DROPS} if having else {}


def _first_subscription(stats: Mapping[str, Any]) -> dict[str, Any]:
    # Positions are of one partition, and nobody is active on all of them.
    left_out = ("markDeletePosition", "readPosition", "activeConsumerName")
    total = {field: value for field, value in stats.items() if field not in left_out}
    return {**total, "consumers": list(stats["consumers"])}


def _add_subscription(total: dict[str, Any], stats: Mapping[str, Any]) -> None:
    for field in _SUBSCRIPTION_SUMS:
        total[field] += stats[field]
    total.update(_drops((total, stats)))
    for field in _SUBSCRIPTION_TIMES:
        total[field] = max(total[field], stats[field])
    for field in ("type", "problem", "deadLetterError", "blockedSubscriptionOnUnackedMsgs"):
        total[field] = total[field] or stats[field]
    total["stuckForMs"] = max(total["stuckForMs"], stats["stuckForMs"])
    total["stuckReason"] = total["stuckReason"] or stats["stuckReason"]
    for field in _KEY_SHARED_FIELDS:
        if field in stats:
            is_sum = field in _KEY_SHARED_SUMS
            total[field] = total.get(field, 0) + stats[field] if is_sum else total.get(field) or stats[field]
    total["consumers"] += stats["consumers"]


def _publishers(publishers: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A producer has one connection to each partition, all with its name."""
    found: dict[str, dict[str, Any]] = {}
    for publisher in publishers:
        total = found.get(publisher["producerName"])
        if total is None:
            found[publisher["producerName"]] = dict(publisher)
            continue
        total.update({field: total[field] + publisher[field] for field in _PUBLISHER_SUMS})
        total["msgChunkPublished"] = total["msgChunkPublished"] or publisher["msgChunkPublished"]
        total.update(_drops((total, publisher)))
    for total in found.values():
        rate = total["msgRateIn"]
        total["averageMsgSize"] = total["msgThroughputIn"] / rate if rate else 0.0
    return list(found.values())


def internal_stats(partition: Mapping[str, Any], cursors: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Describe the ledgers and cursors of one partition, as Pulsar's stats-internal.

    `cursors` are the ones whose dispatchers run, by subscription; the partition knows the others.
    """
    ledgers = partition["ledgers"]
    log = LogSizes(ledgers)
    _, entries, size = ledgers[-1] if ledgers else (-1, 0, 0)
    described = {
        known["name"]: _cursor(cursors.get(known["name"], known), log, known["name"] in cursors)
        for known in partition["subscriptions"]
        if known["durable"]
    }
    return {
        "numberOfEntries": log.total_entries,
        "totalSize": log.total_bytes,
        "currentLedgerEntries": entries,
        "currentLedgerSize": size,
        "lastConfirmedEntry": _text(partition["lastPosition"]),
        "epoch": partition["epoch"],
        "state": "Terminated" if partition.get("isTerminated") else "LedgerOpened",
        "ledgers": [
            {"ledgerId": ledger_id, "entries": held, "size": held_bytes}
            for ledger_id, held, held_bytes in ledgers
        ],
        "compactedLedger": _compacted(partition.get("compaction")),
        "cursors": described,
        "corruptions": partition["corruptions"],
    }


def _compacted(compaction: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The compacted form, beside the ledgers; None without one."""
    if not compaction or not compaction["number"]:
        return None
    return {
        "number": compaction["number"],
        "entries": compaction["compactedEntries"],
        "size": compaction["compactedSize"],
        "ledgers": compaction["ledgers"],
        "horizon": _text(compaction["compactionHorizon"]),
    }


def _cursor(stats: Mapping[str, Any], log: LogSizes, is_served: bool) -> dict[str, Any]:
    mark_delete = Position(*stats["markDeletePosition"])
    above, _ = log.above(mark_delete)
    return {
        "markDeletePosition": _text(mark_delete),
        "readPosition": _text(stats.get("readPosition", mark_delete.next())),
        "individuallyDeletedMessages": stats["individuallyDeletedMessages"],
        "totalNonContiguousDeletedMessagesRange": stats["individuallyDeletedRanges"],
        "numberOfEntriesSinceFirstNotAckedMessage": above,
        "state": "Open" if is_served else "Asleep",
        "active": is_served and bool(stats["consumers"]),
        "properties": {},
        "problem": stats["problem"],
    }


def _text(position: Any) -> str:
    ledger_id, entry_id = position
    return f"{ledger_id}:{entry_id}"
