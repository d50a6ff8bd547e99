"""The rows and panels of the Grafana dashboard: titles, meanings and queries."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pulsar_ray.model.metric_catalogue import (
    ACK_HOLES,
    ACTOR_RESTARTS,
    BACKLOG_AGE_SECONDS,
    BACKLOG_BYTES,
    BACKLOG_MESSAGES,
    BLOCKED_CONSUMERS,
    BLOCKED_HASHES,
    BYTES_IN,
    BYTES_OUT,
    CLIENT_PENDING_MESSAGES,
    CLIENT_RECEIVED_MESSAGES,
    CLIENT_REDELIVERED_MESSAGES,
    CLIENT_SEND_LATENCY,
    COMMIT_BLOCKS,
    COMPACTED_BYTES,
    COMPACTING_PARTITIONS,
    COMPACTION_READ_BYTES,
    COMPACTION_SECONDS,
    COMPACTION_WRITTEN_BYTES,
    COMPACTIONS,
    CONSUMERS,
    CRASHED_CONSUMERS,
    DEAD_LETTERED_MESSAGES,
    DELAYED_MESSAGES,
    DISK_FREE_BYTES,
    DISK_TOTAL_BYTES,
    DROPPED_MESSAGES,
    END_TO_END_LATENCY,
    FAILED_COMPACTIONS,
    FSYNC_SECONDS,
    MESSAGES_IN,
    MESSAGES_OUT,
    OFFLOAD_CACHE_BYTES,
    OFFLOAD_CACHE_HITS,
    OFFLOAD_CACHE_MISSES,
    OFFLOADED_BYTES,
    PARTITION_MOVES,
    PARTITIONS_AWAY,
    PRODUCERS,
    PUBLISH_LATENCY,
    RECEIVER_QUEUE_MESSAGES,
    RECOVERY_SECONDS,
    REDELIVERED_MESSAGES,
    REFUSED_PUBLISHES,
    REMOTE_AWAY,
    REMOTE_ENDED,
    REMOTE_ERRORS,
    REMOTE_GETS,
    REMOTE_LAG_BOUND_SECONDS,
    REMOTE_LAG_SECONDS,
    REMOTE_LISTS,
    REMOTE_PUT_BYTES,
    REMOTE_PUTS,
    REMOTE_WAITING_BYTES,
    STORAGE_BYTES,
    TOPICS,
    UNACKED_MESSAGES,
    Kind,
    Metric,
)

VARIABLES = {"SessionName": TOPICS, "namespace": MESSAGES_IN, "topic": MESSAGES_IN, "subscription": CONSUMERS}
"""Labels whose values the reader can choose, and the metrics that offer the values.

Ray itself adds the name of its session to each metric.
"""
TOPIC = "topic"
SUBSCRIPTION = "topic, subscription"


@dataclass(frozen=True)
class Query:
    """A PromQL expression, and how its series are named: a fixed text, or `{{label}}`s."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel.

    `unit` is Grafana's id of a unit. `is_stat`: one figure in place of a graph. From the figure's `warn` on
    it is orange, from `alarm` on red.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    is_stat: bool = False
    warn: float | None = None
    alarm: float | None = None


@dataclass(frozen=True)
class Row:
    """Panels under a title; folded: opened by a click."""

    title: str
    panels: tuple[Panel, ...]
    is_folded: bool = False


def _chosen(metric: Metric, *, series: str = "") -> str:
    """The metric's series that belong to what the dashboard's reader has chosen."""
    labels = [name for name in VARIABLES if name == "SessionName" or name in metric.labels]
    matchers = ", ".join(f'{name}=~"${name}"' for name in labels)
    return f"{metric.query_name}{series}{{{matchers}}}"


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""


def _legend(labels: str) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in labels.split(", ")) if labels else "all"


def _now(metric: Metric, labels: str = "", how: str = "sum") -> Query:
    """A gauge, over all processes that export parts of it."""
    return Query(f"{how}{_by(labels)} ({_chosen(metric)})", _legend(labels))


def _rate(metric: Metric, labels: str = "") -> Query:
    """A counter's increase a second."""
    assert metric.kind is Kind.COUNTER
    return Query(f"sum{_by(labels)} (rate({_chosen(metric)}[$__rate_interval]))", _legend(labels))


def _in_an_hour(metric: Metric, what: str) -> Query:
    """A counter's increase in the last hour, by topic."""
    return Query(f"sum by (topic) (increase({_chosen(metric)}[1h]))", f"{{{{topic}}}} {what}")


def _quantile(part: float, metric: Metric, labels: str = "") -> Query:
    assert metric.kind is Kind.HISTOGRAM
    by = ", ".join(filter(None, (labels, "le")))
    rates = f"sum by ({by}) (rate({_chosen(metric, series='_bucket')}[$__rate_interval]))"
    name = f"p{part * 100:g}"
    return Query(f"histogram_quantile({part}, {rates})", f"{_legend(labels)} {name}" if labels else name)


def _mean(metric: Metric, labels: str) -> Query:
    total, count = (
        f"sum{_by(labels)} (rate({_chosen(metric, series=series)}[$__rate_interval]))"
        for series in ("_sum", "_count")
    )
    return Query(f"{total} / {count}", f"{_legend(labels)} mean")


def _latency(metric: Metric) -> tuple[Query, ...]:
    return tuple(_quantile(part, metric) for part in (0.5, 0.99, 0.999))


_DISK_USED = Query(
    f"1 - min by (store) ({_chosen(DISK_FREE_BYTES)}) / min by (store) ({_chosen(DISK_TOTAL_BYTES)})",
    "{{store}}",
)

ROWS = (
    Row(
        "At a glance",
        (
            Panel("In", "Messages published each second.", "cps", (_rate(MESSAGES_IN),), is_stat=True),
            Panel(
                "Out", "Messages sent to consumers each second.", "cps", (_rate(MESSAGES_OUT),), is_stat=True
            ),
            Panel(
                "Backlog",
                "Entries that subscriptions have not acknowledged; a batch counts once.",
                "short",
                (_now(BACKLOG_MESSAGES),),
                is_stat=True,
            ),
            Panel(
                "Oldest message",
                "Age of the oldest message that a subscription has not acknowledged.",
                "s",
                (_now(BACKLOG_AGE_SECONDS, how="max"),),
                is_stat=True,
                warn=600,
                alarm=3600,
            ),
            Panel(
                "Unacked",
                "Messages that consumers have and did not acknowledge.",
                "short",
                (_now(UNACKED_MESSAGES),),
                is_stat=True,
            ),
            Panel(
                "Partitions away",
                "Partitions whose store no running node holds: nobody can use them.",
                "short",
                (_now(PARTITIONS_AWAY, how="max"),),
                is_stat=True,
                alarm=1,
            ),
            Panel(
                "Fullest disk",
                "Used part of the fullest disk that a store lies on.",
                "percentunit",
                (Query(f"max ({_DISK_USED.expr})", "all"),),
                is_stat=True,
                warn=0.8,
                alarm=0.95,
            ),
            Panel(
                "Restarts",
                "Restarts of the broker's actors in the last hour.",
                "short",
                (Query(f"sum (increase({_chosen(ACTOR_RESTARTS)}[1h]))", "all"),),
                is_stat=True,
                warn=1,
                alarm=10,
            ),
        ),
    ),
    Row(
        "Traffic",
        (
            Panel("Messages in", "Published each second.", "cps", (_rate(MESSAGES_IN, TOPIC),)),
            Panel(
                "Messages out",
                "Sent to consumers each second, repeats included.",
                "cps",
                (_rate(MESSAGES_OUT, SUBSCRIPTION),),
            ),
            Panel("Bytes in", "Published each second, as stored.", "Bps", (_rate(BYTES_IN, TOPIC),)),
            Panel("Bytes out", "Sent to consumers each second.", "Bps", (_rate(BYTES_OUT, SUBSCRIPTION),)),
            Panel(
                "Publish latency",
                "From a block's arrival at its partition to its receipt, which follows the write to disk.",
                "s",
                _latency(PUBLISH_LATENCY),
            ),
            Panel(
                "End-to-end latency",
                "From the moment at which a partition stores a block to its first way out to a consumer: the "
                "time for which a message waited because no consumer had room is in it.",
                "s",
                _latency(END_TO_END_LATENCY),
            ),
            Panel(
                "Refused publishes",
                "Blocks each second that partitions refused, by the reason.",
                "cps",
                (_rate(REFUSED_PUBLISHES, "topic, reason"),),
            ),
            Panel(
                "Dropped",
                "Messages of non-persistent topics each second that a subscription had no room for.",
                "cps",
                (_rate(DROPPED_MESSAGES, TOPIC),),
            ),
        ),
    ),
    Row(
        "Backlog and storage",
        (
            Panel("Backlog", "Entries not acknowledged.", "short", (_now(BACKLOG_MESSAGES, SUBSCRIPTION),)),
            Panel(
                "Oldest message",
                "Age of the oldest message not acknowledged.",
                "s",
                (_now(BACKLOG_AGE_SECONDS, SUBSCRIPTION, how="max"),),
            ),
            Panel(
                "Backlog in bytes", "Bytes not acknowledged.", "bytes", (_now(BACKLOG_BYTES, SUBSCRIPTION),)
            ),
            Panel(
                "Storage",
                "Bytes of a topic's ledgers on the disk: its backlogs, what retention keeps, and the rest of "
                "ledgers that are needed in part.",
                "bytes",
                (_now(STORAGE_BYTES, TOPIC),),
            ),
            Panel(
                "Compacted forms",
                "Bytes of a topic's compacted form: the latest message of each key.",
                "bytes",
                (_now(COMPACTED_BYTES, TOPIC),),
            ),
            Panel(
                "Compacted each second",
                "Bytes that compactions have read, and bytes that they kept, counted as they end.",
                "Bps",
                tuple(
                    replace(_rate(metric, TOPIC), legend=f"{{{{topic}}}} {what}")
                    for metric, what in ((COMPACTION_READ_BYTES, "read"), (COMPACTION_WRITTEN_BYTES, "kept"))
                ),
            ),
            Panel(
                "Compactions",
                "Partitions that are being compacted, and compactions of the last hour. Of those that failed "
                "`pulsar-ray topics compaction-status` says why.",
                "short",
                (
                    replace(_now(COMPACTING_PARTITIONS, TOPIC), legend="{{topic}} now"),
                    _in_an_hour(COMPACTIONS, "succeeded"),
                    _in_an_hour(FAILED_COMPACTIONS, "failed"),
                ),
            ),
            Panel(
                "Time of compactions",
                "How long the successful compactions of the last hour took in all.",
                "s",
                (_in_an_hour(COMPACTION_SECONDS, "in an hour"),),
            ),
        ),
    ),
    Row(
        "Subscriptions",
        (
            Panel(
                "Unacked",
                "Messages that consumers have and did not acknowledge. One that holds too many is blocked.",
                "short",
                (_now(UNACKED_MESSAGES, SUBSCRIPTION),),
            ),
            Panel(
                "Room in receiver queues",
                "Messages that consumers still have room for; at 0 with a backlog, consumers are the limit.",
                "short",
                (_now(RECEIVER_QUEUE_MESSAGES, SUBSCRIPTION),),
            ),
            Panel(
                "Consumers",
                "Connected consumers, once for each partition.",
                "short",
                (_now(CONSUMERS, SUBSCRIPTION),),
            ),
            Panel(
                "Producers",
                "Connected producers, once for each partition.",
                "short",
                (_now(PRODUCERS, TOPIC),),
            ),
            Panel(
                "Blocked",
                "Consumers that get nothing because they hold too many unacked messages, and Key_Shared "
                "hashes that wait for another consumer's acknowledgments.",
                "short",
                (
                    Query(_now(BLOCKED_CONSUMERS, SUBSCRIPTION).expr, "{{topic}} {{subscription}} consumers"),
                    Query(_now(BLOCKED_HASHES, SUBSCRIPTION).expr, "{{topic}} {{subscription}} hashes"),
                ),
            ),
            Panel(
                "Ack holes",
                "Acknowledged ranges behind the first message that is not: many of them mean that one "
                "message is stuck.",
                "short",
                (_now(ACK_HOLES, SUBSCRIPTION),),
            ),
            Panel(
                "Redelivered and dead-lettered",
                "Messages each second that were sent again, and that were moved to a dead letter topic.",
                "cps",
                (
                    Query(_rate(REDELIVERED_MESSAGES, SUBSCRIPTION).expr, "{{topic}} {{subscription}} again"),
                    Query(
                        _rate(DEAD_LETTERED_MESSAGES, SUBSCRIPTION).expr, "{{topic}} {{subscription}} dead"
                    ),
                ),
            ),
            Panel(
                "Delayed",
                "Messages that wait for their time.",
                "short",
                (_now(DELAYED_MESSAGES, SUBSCRIPTION),),
            ),
            Panel(
                "Crashed consumers",
                "Consumers whose process died in the last five minutes.",
                "short",
                (
                    Query(
                        f"sum by ({SUBSCRIPTION}) (increase({_chosen(CRASHED_CONSUMERS)}[5m]))",
                        _legend(SUBSCRIPTION),
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Stores",
        (
            Panel(
                "fsync",
                "Time of one commit's write and fdatasync.",
                "s",
                (_quantile(0.5, FSYNC_SECONDS, "store"), _quantile(0.99, FSYNC_SECONDS, "store")),
            ),
            Panel(
                "Blocks in a commit",
                "How many blocks one write and fdatasync are shared by, in the mean.",
                "short",
                (_mean(COMMIT_BLOCKS, "store"),),
            ),
            Panel(
                "Disk free",
                "Publishing stops at max(1 GiB, 2 % of the disk), or at disk_low_water_mark_bytes.",
                "bytes",
                (_now(DISK_FREE_BYTES, "store", how="min"),),
            ),
            Panel("Disk used", "Used part of the disk that a store lies on.", "percentunit", (_DISK_USED,)),
        ),
    ),
    Row(
        "Object store (with `--remote`)",
        (
            Panel(
                "Lag",
                "Age of the oldest byte that is synced and not in the object store. Behind the bound "
                "receipts wait; with `sync` they wait for every byte.",
                "s",
                (
                    _now(REMOTE_LAG_SECONDS, "store", how="max"),
                    Query(_now(REMOTE_LAG_BOUND_SECONDS, how="max").expr, "bound"),
                ),
            ),
            Panel(
                "Waiting",
                "Bytes that are synced and not in the object store.",
                "bytes",
                (_now(REMOTE_WAITING_BYTES, "store", how="max"),),
            ),
            Panel("Shipped", "Bytes each second.", "Bps", (_rate(REMOTE_PUT_BYTES, "store"),)),
            Panel(
                "Requests",
                "Requests each second, of all stores. PUTs and LISTs cost most.",
                "reqps",
                (
                    Query(_rate(REMOTE_PUTS).expr, "PUT"),
                    Query(_rate(REMOTE_GETS).expr, "GET"),
                    Query(_rate(REMOTE_LISTS).expr, "LIST"),
                    Query(_rate(REMOTE_ERRORS).expr, "failed"),
                ),
            ),
            Panel(
                "Only in the object store",
                "Bytes of topics that left the disk.",
                "bytes",
                (_now(OFFLOADED_BYTES, TOPIC),),
            ),
            Panel(
                "Read from there",
                "Pieces of offloaded segments each second: found in the node's cache, or waited for.",
                "ops",
                (
                    Query(_rate(OFFLOAD_CACHE_HITS).expr, "found"),
                    Query(_rate(OFFLOAD_CACHE_MISSES).expr, "waited for"),
                ),
            ),
            Panel(
                "Cache of offloaded segments",
                "Bytes that nodes keep of what was read.",
                "bytes",
                (_now(OFFLOAD_CACHE_BYTES, "store", how="max"),),
            ),
            Panel(
                "Away and ended",
                "Stores whose object store does not answer or refuses them, and those whose journal was "
                "ended.",
                "short",
                (
                    Query(_now(REMOTE_AWAY, "store", how="max").expr, "{{store}} away"),
                    Query(_now(REMOTE_ENDED, "store", how="max").expr, "{{store}} ended"),
                ),
            ),
        ),
        is_folded=True,
    ),
    Row(
        "Processes",
        (
            Panel(
                "Restarts",
                "Restarts of the broker's actors in the last five minutes, by their kind.",
                "short",
                (Query(f"sum by (kind) (increase({_chosen(ACTOR_RESTARTS)}[5m]))", "{{kind}}"),),
            ),
            Panel(
                "Recovery",
                "Time from an actor's start until it serves: of those that started within the last hour, the "
                "slowest in a hundred.",
                "s",
                (
                    Query(
                        "histogram_quantile(0.99, sum by (kind, le) "
                        f"(increase({_chosen(RECOVERY_SECONDS, series='_bucket')}[1h])))",
                        "{{kind}} p99",
                    ),
                ),
            ),
            Panel("Topics", "Topics that run and that sleep.", "short", (_now(TOPICS, "state", how="max"),)),
            Panel(
                "Partitions away",
                "Partitions whose store no running node holds.",
                "short",
                (_now(PARTITIONS_AWAY, how="max"),),
            ),
            Panel(
                "Partitions moving",
                "Moves of partitions to other nodes that are asked for or run.",
                "short",
                (_now(PARTITION_MOVES, how="max"),),
            ),
        ),
    ),
    Row(
        "Clients (those that have their metrics switched on)",
        (
            Panel(
                "Pending sends",
                "Messages that producers sent and have no receipt for.",
                "short",
                (_now(CLIENT_PENDING_MESSAGES, TOPIC),),
            ),
            Panel(
                "Send latency",
                "From a block's sending by a client to its receipt there.",
                "s",
                _latency(CLIENT_SEND_LATENCY),
            ),
            Panel(
                "Received", "Messages each second.", "cps", (_rate(CLIENT_RECEIVED_MESSAGES, SUBSCRIPTION),)
            ),
            Panel(
                "Received again",
                "Messages each second that had been delivered before.",
                "cps",
                (_rate(CLIENT_REDELIVERED_MESSAGES, SUBSCRIPTION),),
            ),
        ),
        is_folded=True,
    ),
)
