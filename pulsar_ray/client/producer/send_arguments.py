"""Checks the arguments of `send` and `send_async` beside the content."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pulsar_ray.client.options.checks import (
    MAX_SEQUENCE_ID,
    check_flag,
    check_optional,
    check_optional_number,
    check_optional_text,
    check_properties,
    refuse,
)

LAST_TIME_MS = 253_402_300_799_999
"""The end of the year 9999."""


def check_send_arguments(
    properties: Mapping[str, str] | None,
    partition_key: str | None,
    ordering_key: str | None,
    sequence_id: int | None,
    replication_clusters: list[str] | None,
    disable_replication: bool | None,
    event_timestamp: int | None,
    deliver_at: int | None,
    deliver_after: timedelta | None,
) -> None:
    """Check the arguments beside the content.

    Raises ValueError for a wrong type or range.

    Replication arguments are accepted without effect: there is one cluster. Not needed when nothing was
    given.
    """
    check_properties("properties", properties)
    check_optional_text("partition_key", partition_key)
    check_optional_text("ordering_key", ordering_key)
    check_optional_number("sequence_id", sequence_id, 0, MAX_SEQUENCE_ID)
    _check_clusters(replication_clusters)
    if disable_replication is not None:
        check_flag("disable_replication", disable_replication)
    check_optional_number("event_timestamp", event_timestamp, 0, 2**63 - 1)
    check_optional_number("deliver_at", deliver_at, -(2**63), 2**63 - 1)
    check_optional("deliver_after", deliver_after, timedelta, "a timedelta")
    if deliver_at is not None and deliver_after is not None:
        raise ValueError("give deliver_at or deliver_after, not both")
    check_not_absurd("deliver_at", deliver_at)


def _check_clusters(clusters: Any) -> None:
    if clusters is None:
        return
    if not isinstance(clusters, list) or not all(isinstance(cluster, str) for cluster in clusters):
        raise refuse("replication_clusters", clusters, "a list of str or None")


def message_fields(
    partition_key: str | None,
    ordering_key: str | None,
    properties: Mapping[str, str] | None,
    event_timestamp: int | None,
    sequence_id: int | None,
    deliver_at: int | None = None,
    deliver_after: timedelta | None = None,
) -> tuple[Any, ...] | None:
    """The `fields` of `enqueue`; None when there are none."""
    due_ms = due_time(deliver_at, deliver_after)
    if (
        partition_key
        or ordering_key
        or properties
        or event_timestamp is not None
        or sequence_id is not None
        or due_ms is not None
    ):
        return (
            partition_key or None,
            ordering_key or None,
            properties or None,
            # Bools pass as ints, and are none to Arrow and msgspec.
            int(event_timestamp) if event_timestamp else None,
            None if sequence_id is None else int(sequence_id),
            due_ms,
        )
    return None


def check_not_absurd(name: str, deliver_at: int | None) -> None:
    """Raise ValueError for a time that nobody means: microseconds are a thousand times ours."""
    if deliver_at is not None and deliver_at > LAST_TIME_MS:
        raise ValueError(
            f"Argument {name}={deliver_at} is beyond the year 9999: give milliseconds since 1970"
        )


def due_time(deliver_at: int | None, deliver_after: timedelta | None) -> int | None:
    """When a message is due, in ms since 1970; None for at once.

    Raises ValueError for a delay that ends beyond the year 9999.
    """
    if deliver_at is None and deliver_after is None:
        return None
    now_ms = time.time_ns() // 1_000_000
    if deliver_after is not None:
        deliver_at = now_ms + deliver_after // timedelta(milliseconds=1)
        if deliver_at > LAST_TIME_MS:
            raise ValueError(f"Argument deliver_after={deliver_after!r} ends beyond the year 9999")
    assert deliver_at is not None
    return int(deliver_at) if deliver_at > now_ms else None
