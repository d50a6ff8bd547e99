"""Checks and holds the fields of a message beside its value."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from pulsar_ray.client.options.checks import (
    MAX_SEQUENCE_ID,
    check_flag,
    check_number,
    check_optional,
    check_optional_number,
    check_optional_text,
    check_properties,
    refuse,
)
from pulsar_ray.format.metadata import BlockMetadata

LAST_TIME_MS = 253_402_300_799_999
"""The end of the year 9999."""


class MessageFields(NamedTuple):
    """All that a message may have beside its value, checked; times are ms since 1970.

    A message that has nothing of it needs none. A time of delivery may have passed: whether it has is seen
    where the message is added to a block.
    """

    key: str | None = None
    ordering_key: str | None = None
    properties: Mapping[str, str] | None = None
    event_time: int | None = None
    sequence_id: int | None = None
    deliver_at: int | None = None

    def metadata(
        self, producer_name: str | None = None, schema_version: bytes | None = None
    ) -> BlockMetadata:
        """Return the metadata of a block that has this message alone, due at once."""
        return BlockMetadata(
            producer_name=producer_name,
            key=self.key,
            ordering_key=self.ordering_key,
            event_time=self.event_time,
            properties=dict(self.properties) if self.properties else None,
            schema_version=schema_version,
        )


def message_fields(
    properties: Mapping[str, str] | None,
    partition_key: str | None,
    ordering_key: str | None,
    sequence_id: int | None,
    replication_clusters: list[str] | None,
    disable_replication: bool | None,
    event_timestamp: int | None,
    deliver_at: int | None,
    deliver_after: timedelta | None,
) -> MessageFields | None:
    """Check the arguments of a send beside the content, and gather them.

    Returns None if none of them says anything. Raises ValueError for a wrong type or range.

    Replication arguments are accepted without effect: there is one cluster.
    """
    if properties is not None:
        check_properties("properties", properties)
    # A text of ASCII is one that UTF-8 can hold: most keys need no call.
    if partition_key is not None and not (type(partition_key) is str and partition_key.isascii()):
        check_optional_text("partition_key", partition_key)
    if ordering_key is not None and not (type(ordering_key) is str and ordering_key.isascii()):
        check_optional_text("ordering_key", ordering_key)
    if sequence_id is not None:
        check_optional_number("sequence_id", sequence_id, 0, MAX_SEQUENCE_ID)
        sequence_id = int(sequence_id)  # Bools pass as ints, and are none to Arrow and msgspec.
    if replication_clusters is not None:
        _check_clusters(replication_clusters)
    if disable_replication is not False and disable_replication is not None:
        check_flag("disable_replication", disable_replication)
    if event_timestamp is not None:
        check_optional_number("event_timestamp", event_timestamp, 0, 2**63 - 1)
        event_timestamp = int(event_timestamp) or None
    is_usual = deliver_at is None or (type(deliver_at) is int and _FIRST_MS < deliver_at <= LAST_TIME_MS)
    if deliver_after is not None or not is_usual:
        deliver_at = _due_ms(deliver_at, deliver_after)
    fields = (
        partition_key or None,
        ordering_key or None,
        properties or None,
        event_timestamp,
        sequence_id,
        deliver_at,
    )
    return None if fields == _NO_FIELDS else _new(MessageFields, fields)


_NO_FIELDS = MessageFields()
_FIRST_MS = -(2**63)
# As MessageFields(*fields), without another call of Python's: it is made for every message that has a key.
_new = tuple.__new__


def _check_clusters(clusters: Any) -> None:
    if not isinstance(clusters, list) or not all(isinstance(cluster, str) for cluster in clusters):
        raise refuse("replication_clusters", clusters, "a list of str or None")


def _due_ms(deliver_at: int | None, deliver_after: Any) -> int:
    if deliver_at is None:
        check_optional("deliver_after", deliver_after, timedelta, "a timedelta")
        after_ms: int = deliver_after // timedelta(milliseconds=1)
        deliver_at = time.time_ns() // 1_000_000 + after_ms
        if deliver_at > LAST_TIME_MS:
            raise ValueError(f"Argument deliver_after={deliver_after!r} ends beyond the year 9999")
        return deliver_at
    check_delivery_time("deliver_at", deliver_at)
    if deliver_after is not None:
        raise ValueError("give deliver_at or deliver_after, not both")
    return int(deliver_at)


def check_delivery_time(name: str, deliver_at: Any) -> None:
    """Check a time; refuses one that nobody means: microseconds are a thousand times ours."""
    check_number(name, deliver_at, _FIRST_MS, 2**63 - 1)
    if deliver_at > LAST_TIME_MS:
        raise ValueError(
            f"Argument {name}={deliver_at} is beyond the year 9999: give milliseconds since 1970"
        )
