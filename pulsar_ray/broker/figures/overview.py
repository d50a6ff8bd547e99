"""Makes an overview of a node's topics out of reports.

Pure. It has the largest topics, and sums over all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pulsar_ray.broker.figures.actor_report import NO_TIME, READERS, ActorReport
from pulsar_ray.broker.figures.node_figures import DISPATCHER, PARTITION, NodeFigures, RestingPartition
from pulsar_ray.model import metric_catalogue as metrics
from pulsar_ray.model.topic_name import is_system_name, whole_topic

MAX_TOPICS = 1000
"""More are in no answer."""
SORTS = {
    "topic": "name",
    "in": "msgRateIn",
    "bytes-in": "msgThroughputIn",
    "out": "msgRateOut",
    "bytes-out": "msgThroughputOut",
    "backlog": "msgBacklog",
    "age": "oldestBacklogMessageAgeSeconds",
    "unacked": "unackedMessages",
    "subscriptions": "subscriptionCount",
    "producers": "producers",
    "consumers": "consumers",
    "stored": "storageSize",
    "compacted": "compactedSize",
    "offloaded": "offloadedStorageSize",
    "schema": "schemaType",
    "state": "state",
    "problem": "problem",
}
"""The fields by which topics are sorted.

The largest come first, names and texts in their order. Schemas are known of the topics that are shown: a
sorting by them orders those, the first by their names.
"""
_TEXTS = ("name", "schemaType", "state")
_SUMS = (
    "partitions", "awake", "msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut", "msgBacklog",
    "backlogSize", "unackedMessages", "storageSize", "compactedSize",
    "offloadedStorageSize",
)  # fmt: skip
_LARGEST = ("subscriptionCount", "producers", "consumers")
"""A producer or consumer of a topic has a connection to each of its partitions."""
RUNNING, ASLEEP = "running", "asleep"


class _Subscription:
    """One subscription on the partitions of a topic."""

    def __init__(self) -> None:
        self.entries = 0
        self.size_bytes = 0
        self.oldest_ms = NO_TIME
        self.consumers = 0

    def has(self, entries: int, size_bytes: int, oldest_ms: int) -> None:
        """Add a partition's backlog."""
        self.entries += entries
        self.size_bytes += size_bytes
        if entries and oldest_ms != NO_TIME:
            self.oldest_ms = oldest_ms if self.oldest_ms == NO_TIME else min(self.oldest_ms, oldest_ms)

    def age_s(self, now_ms: int) -> float | None:
        """How old its oldest message is; None without a backlog."""
        return None if self.oldest_ms == NO_TIME else max(0, now_ms - self.oldest_ms) / 1000


class _Topic:
    """The sums over the partitions of a topic and their dispatchers."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = dict.fromkeys(_SUMS, 0)
        self.producers = 0
        self.problems: list[str] = []
        self.subscriptions: defaultdict[str, _Subscription] = defaultdict(_Subscription)

    def add(self, **values: float) -> None:
        """Add to the sums."""
        for name, value in values.items():
            self.sums[name] += value

    def describe(self, name: str, now_ms: int) -> dict[str, Any]:
        """Return the row of the overview."""
        largest = max(self.subscriptions.values(), key=lambda each: each.entries, default=_Subscription())
        ages = [age for each in self.subscriptions.values() if (age := each.age_s(now_ms)) is not None]
        return {
            "name": name,
            "schemaType": "",
            "state": RUNNING if self.sums["awake"] else ASLEEP,
            **self.sums,
            "msgBacklog": largest.entries,
            "backlogSize": largest.size_bytes,
            "oldestBacklogMessageAgeSeconds": max(ages, default=None),
            "subscriptionCount": len(self.subscriptions),
            "producers": self.producers,
            "consumers": sum(each.consumers for each in self.subscriptions.values()),
            "problem": "; ".join(dict.fromkeys(filter(None, self.problems))),
        }


def node_overview(
    figures: NodeFigures, text: str, sort: str, limit: int, names: Sequence[str] | None, now_ms: int
) -> dict[str, Any]:
    """Return the first `limit` topics whose names contain a text, and sums over all.

    Topics of the broker's own are left out unless the text or `names` asks for them. `names` are the topics
    that are described, whatever the text says, with the backlog of each `subscriptions`.
    """
    topics = _topics(figures, None if names is None else frozenset(names))
    wanted = text.lower()
    shown = {
        name: topic
        for name, topic in topics.items()
        if (
            name in names
            if names is not None
            else wanted in name.lower() and ("__" in wanted or not is_system_name(name))
        )
    }
    rows = [topic.describe(name, now_ms) for name, topic in shown.items()]
    if names is not None:
        for row in rows:
            row["subscriptions"] = {
                name: {"msgBacklog": each.entries, "oldestAgeSeconds": each.age_s(now_ms)}
                for name, each in shown[row["name"]].subscriptions.items()
            }
    limit = min(limit, MAX_TOPICS)
    return {
        "topics": first_rows(rows, sort, limit),
        "topicsNotShown": max(len(rows) - limit, 0),
        "msgRateIn": sum(topic.sums["msgRateIn"] for topic in topics.values()),
        "msgRateOut": sum(topic.sums["msgRateOut"] for topic in topics.values()),
        "restarts": figures.restarts,
    }


def _topics(figures: NodeFigures, names: frozenset[str] | None) -> dict[str, _Topic]:
    """Return all topics; of those that rest only `names`, if they are given."""
    topics: defaultdict[str, _Topic] = defaultdict(_Topic)
    served = {
        (report.topic, report.subscription): report.acknowledged
        for report in figures.live_reports
        if report.kind == DISPATCHER and report.subscription != READERS
    }
    for report in figures.live_reports:
        if report.kind == PARTITION:
            topic = topics[whole_topic(report.topic)]
            _add_partition(topic, report)
            _add_backlogs(topic, RestingPartition(report.topic, 0, report.backlogs), served)
        elif report.kind == DISPATCHER:
            _add_dispatcher(topics[whole_topic(report.topic)], report)
    for partition in figures.resting_partitions:
        name = whole_topic(partition.topic)
        if names is None or name in names:
            topics[name].add(partitions=1, storageSize=partition.storage_bytes)
            _add_backlogs(topics[name], partition, served)
    return dict(topics)


def _add_partition(topic: _Topic, report: ActorReport) -> None:
    gauges, rates = report.figures.gauges, report.figures.rates
    topic.add(
        partitions=1,
        awake=1,
        storageSize=gauges.get(metrics.STORAGE_BYTES.name, 0),
        compactedSize=gauges.get(metrics.COMPACTED_BYTES.name, 0),
        offloadedStorageSize=gauges.get(metrics.OFFLOADED_BYTES.name, 0),
        msgRateIn=rates.get(metrics.MESSAGES_IN.name, 0),
        msgThroughputIn=rates.get(metrics.BYTES_IN.name, 0),
    )
    topic.producers = max(topic.producers, int(gauges.get(metrics.PRODUCERS.name, 0)))
    topic.problems.append(report.problem)


def _add_dispatcher(topic: _Topic, report: ActorReport) -> None:
    gauges, rates = report.figures.gauges, report.figures.rates
    topic.add(
        msgRateOut=rates.get(metrics.MESSAGES_OUT.name, 0),
        msgThroughputOut=rates.get(metrics.BYTES_OUT.name, 0),
        unackedMessages=gauges.get(metrics.UNACKED_MESSAGES.name, 0),
    )
    one = topic.subscriptions[report.subscription]
    one.consumers = max(one.consumers, int(gauges.get(metrics.CONSUMERS.name, 0)))
    if report.problem:
        topic.problems.append(f"{report.subscription}: {report.problem}")


def _add_backlogs(topic: _Topic, partition: RestingPartition, served: Mapping[tuple[str, str], int]) -> None:
    for name, backlog in partition.backlogs.items():
        left = backlog.less(served.get((partition.topic, name), 0))
        topic.subscriptions[name].has(left.entries, left.size_bytes, left.oldest_ms)


def first_rows(rows: Iterable[dict[str, Any]], sort: str, limit: int) -> list[dict[str, Any]]:
    """The first rows by a sorting of `SORTS`."""
    field = SORTS[sort]
    by_name = sorted(rows, key=lambda row: row["name"])
    if field in _TEXTS:
        return sorted(by_name, key=lambda row: row[field])[:limit]
    if field == "problem":
        return sorted(by_name, key=lambda row: not row[field])[:limit]
    return sorted(by_name, key=lambda row: -1 if row[field] is None else row[field], reverse=True)[:limit]


def merged(overviews: Sequence[Mapping[str, Any]], sort: str, limit: int) -> dict[str, Any]:
    """Put the overviews of several nodes together.

    A topic whose partitions lie on several of them has the sums; its backlog is the sum of each node's
    largest one.
    """
    rows: dict[str, dict[str, Any]] = {}
    for overview in overviews:
        for row in overview["topics"]:
            _merge(rows.setdefault(row["name"], {}), row)
    return {
        "topics": first_rows(rows.values(), sort, limit),
        "topicsNotShown": sum(each["topicsNotShown"] for each in overviews) + max(len(rows) - limit, 0),
        **{name: sum(each[name] for each in overviews) for name in ("msgRateIn", "msgRateOut", "restarts")},
    }


def _merge(total: dict[str, Any], row: Mapping[str, Any]) -> None:
    if not total:
        total.update(row)
        return
    for name in _SUMS:
        total[name] += row[name]
    for name in _LARGEST:
        total[name] = max(total[name], row[name])
    ages = (total["oldestBacklogMessageAgeSeconds"], row["oldestBacklogMessageAgeSeconds"])
    total["oldestBacklogMessageAgeSeconds"] = max((age for age in ages if age is not None), default=None)
    total["state"] = RUNNING if RUNNING in (total["state"], row["state"]) else ASLEEP
    total["problem"] = "; ".join(dict.fromkeys(filter(None, (total["problem"], row["problem"]))))
    for name, one in row.get("subscriptions", {}).items():
        other = total.setdefault("subscriptions", {}).setdefault(name, one)
        if other is not one:
            known = [age for age in (other["oldestAgeSeconds"], one["oldestAgeSeconds"]) if age is not None]
            total["subscriptions"][name] = {
                "msgBacklog": other["msgBacklog"] + one["msgBacklog"],
                "oldestAgeSeconds": max(known, default=None),
            }
