"""Answers of a feed, as a broker gives them."""

from __future__ import annotations

from typing import Any


def topic_row(name: str, **fields: Any) -> dict[str, Any]:
    """A topic of the overview."""
    return {
        "name": f"persistent://public/default/{name}",
        "state": "running",
        "msgRateIn": 0.0,
        "msgThroughputIn": 0.0,
        "msgRateOut": 0.0,
        "msgThroughputOut": 0.0,
        "msgBacklog": 0,
        "backlogSize": 0,
        "oldestBacklogMessageAgeSeconds": None,
        "unackedMessages": 0,
        "subscriptionCount": 1,
        "producers": 1,
        "consumers": 1,
        "storageSize": 0,
        "compactedSize": 0,
        "offloadedStorageSize": 0,
        "problem": "",
        **fields,
    }


def overview(*topics: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """An overview of these topics."""
    return {
        "topics": list(topics),
        "topicsNotShown": 0,
        "counts": {"running": len(topics), "sleeping": 12},
        "msgRateIn": sum(topic["msgRateIn"] for topic in topics),
        "msgRateOut": sum(topic["msgRateOut"] for topic in topics),
        "stores": [
            {
                "host": "a",
                "path": "/data/pulsar-ray",
                "freeBytes": 80 * 10**9,
                "totalBytes": 100 * 10**9,
                "diskState": "ok",
            },
        ],
        "partitionsAway": 0,
        "restarts": 0,
        **fields,
    }


def answer(*topics: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """An answer with an overview of these topics."""
    return {"topic": "", "subscription": "", "overview": overview(*topics), **fields}
