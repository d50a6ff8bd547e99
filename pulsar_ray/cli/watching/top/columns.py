"""The columns of each table.

They have a title, a width, and a value by which rows are sorted. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pulsar_ray.broker.serving.logs.log_lines import one_line
from pulsar_ray.model.short_numbers import age, count, size

Row = Mapping[str, Any]
"""A topic, a subscription or a consumer, with field names of the overview or stats."""


class View(Enum):
    """Which table is shown."""

    TOPICS = "topics"
    SUBSCRIPTIONS = "subscriptions"
    CONSUMERS = "consumers"


@dataclass(frozen=True)
class Column:
    """One column; `width` 0 takes what the others leave.

    `least_width` is the width of the terminal from which on it is shown. Rows are sorted by `value`, the
    largest first if it is a number.
    """

    name: str
    title: str
    width: int
    value: Callable[[Row], Any]
    text: Callable[[Row], str]
    least_width: int = 0
    is_number: bool = True


def _number(name: str, title: str, field: str, width: int = 7, least_width: int = 0) -> Column:
    return Column(
        name, title, width, lambda row: row.get(field) or 0, lambda row: count(row.get(field)), least_width
    )


def _bytes(name: str, title: str, field: str, least_width: int = 0) -> Column:
    return Column(
        name, title, 7, lambda row: row.get(field) or 0, lambda row: size(row.get(field)), least_width
    )


def _age(field: str) -> Column:
    return Column("age", "AGE", 5, lambda row: _known(row.get(field)), lambda row: age(row.get(field)))


def _known(number: float | None) -> float:
    return -1 if number is None else number


def _text(name: str, title: str, field: str, width: int = 0, least_width: int = 0) -> Column:
    def shown(row: Row) -> str:
        return one_line(str(row.get(field) or ""))

    return Column(name, title, width, shown, shown, least_width, is_number=False)


def _short_topic(row: Row) -> str:
    """A topic as a user types it."""
    return one_line(str(row["name"]).removeprefix("persistent://").removeprefix("public/default/"))


def _schema(row: Row) -> str:
    """The type of a topic's values, and its version."""
    return f"{row['schemaType']} v{row['schemaVersion']}" if row.get("schemaType") else ""


COLUMNS: Mapping[View, Sequence[Column]] = {
    View.TOPICS: (
        Column("topic", "TOPIC", 0, _short_topic, _short_topic, is_number=False),
        _number("in", "IN/s", "msgRateIn"),
        _bytes("bytes-in", "B-IN/s", "msgThroughputIn", 100),
        _number("out", "OUT/s", "msgRateOut"),
        _bytes("bytes-out", "B-OUT/s", "msgThroughputOut", 100),
        _number("backlog", "BACKLOG", "msgBacklog", 8),
        _age("oldestBacklogMessageAgeSeconds"),
        _number("unacked", "UNACK", "unackedMessages", 6),
        _number("subscriptions", "SUBS", "subscriptionCount", 5),
        _number("producers", "PROD", "producers", 5, 100),
        _number("consumers", "CONS", "consumers", 5),
        _bytes("stored", "STORED", "storageSize", 110),
        _bytes("compacted", "COMPACT", "compactedSize", 150),
        _bytes("offloaded", "OFFLOAD", "offloadedStorageSize", 160),
        Column("schema", "SCHEMA", 12, _schema, _schema, 140, is_number=False),
        _text("state", "STATE", "state", 8),
        _text("problem", "PROBLEM", "problem", 0, 130),
    ),
    View.SUBSCRIPTIONS: (
        _text("subscription", "SUBSCRIPTION", "name"),
        _text("type", "TYPE", "type", 11),
        _number("consumers", "CONS", "consumerCount", 5),
        _number("out", "OUT/s", "msgRateOut"),
        _number("redelivered", "REDEL/s", "msgRateRedeliver", 8, 100),
        _number("unacked", "UNACK", "unackedMessages", 6),
        _number("delayed", "DELAYED", "msgDelayed", 8, 110),
        _number("backlog", "BACKLOG", "msgBacklog", 8),
        _age("oldestAgeSeconds"),
        _text("blocked", "BLOCKED BY", "blocked", 0),
    ),
    View.CONSUMERS: (
        _text("consumer", "CONSUMER", "consumerName"),
        _number("out", "OUT/s", "msgRateOut"),
        _number("acks", "ACK/s", "messageAckRate", 7, 100),
        _number("unacked", "UNACK", "unackedMessages", 6),
        _number("permits", "PERMITS", "availablePermits", 8),
        _number("redelivered", "REDEL/s", "msgRateRedeliver", 8, 100),
        _number("draining", "DRAIN", "drainingHashesCount", 6),
        _text("blocked", "BLOCKED BY", "blocked", 0),
    ),
}

DEFAULT_SORT = {View.TOPICS: "backlog", View.SUBSCRIPTIONS: "backlog", View.CONSUMERS: "consumer"}


def shown_columns(view: View, width: int) -> list[Column]:
    """The columns for which a terminal of this width has room."""
    return [column for column in COLUMNS[view] if column.least_width <= width]


def name_of(view: View, row: Row) -> str:
    """The name that tells a row from all others of its table."""
    return str(row["consumerName" if view is View.CONSUMERS else "name"])


def sorted_rows(view: View, rows: Sequence[Row], sort: str, *, is_reversed: bool) -> list[Row]:
    """Rows by a column: the largest number first, or the first name."""
    column = next(column for column in COLUMNS[view] if column.name == sort)
    by_name = sorted(rows, key=lambda row: name_of(view, row))
    return sorted(by_name, key=column.value, reverse=column.is_number != is_reversed)
