"""`stats_internal` in Pulsar's shape: the ledgers and cursors of one partition. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pulsar_ray.managed_ledger.log.log_sizes import LogSizes
from pulsar_ray.model.position import Position


def internal_stats(partition: Mapping[str, Any], cursors: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`cursors` are the ones whose dispatchers run, by subscription; the partition knows the others."""
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
        "ledgers": [
            {"ledgerId": ledger_id, "entries": held, "size": held_bytes}
            for ledger_id, held, held_bytes in ledgers
        ],
        "cursors": described,
        "corruptions": partition["corruptions"],
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
