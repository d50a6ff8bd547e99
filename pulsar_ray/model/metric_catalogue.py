"""The metrics that a broker and its clients export: names, labels, meanings.

Names are as in a PromQL query, but for the `ray_` that Ray puts before them (`Metric.query_name`).
The exporter, the documentation and all queries read this list, so that none names a metric that is not there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

PREFIX_OF_RAY = "ray_"
"""Ray puts this before the name of every metric in its endpoint."""
OTHER = "other"
"""The value of `topic` and `subscription` for all that have no labels of their own."""


class Kind(Enum):
    """Kinds of metrics, by Prometheus' names."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


LATENCY_BUCKETS_SECONDS = (0.0005, 0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0, 300.0)
"""Upper ends of the buckets of latencies; what is longer is in `+Inf`."""
COMMIT_BUCKETS_BLOCKS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Upper ends of the buckets of how many blocks one commit wrote."""


@dataclass(frozen=True, eq=False)
class Metric:
    """A metric has a name, a kind, labels and a help text.

    A counter's name ends in `_total`. A histogram `x` is three series: `x_bucket` with the label `le`,
    `x_sum` and `x_count`; `buckets` are the upper ends of its buckets, without `+Inf`.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()

    @property
    def query_name(self) -> str:
        """Return its name in Ray's endpoint; a histogram's series add suffixes to it."""
        return PREFIX_OF_RAY + self.name

    @property
    def series_names(self) -> tuple[str, ...]:
        """Return the names of its series in Ray's endpoint."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(self.query_name + suffix for suffix in ("_bucket", "_sum", "_count"))
        return (self.query_name,)


SampleKey = tuple[Metric, tuple[str, ...]]
"""A metric and the values of its labels, in their order."""


@dataclass
class Samples:
    """The values of metrics at one moment; a histogram's are as in `BucketCounts.numbers`."""

    counters: dict[SampleKey, float] = field(default_factory=dict)
    gauges: dict[SampleKey, float] = field(default_factory=dict)
    histograms: dict[SampleKey, list[float]] = field(default_factory=dict)


_TOPIC = ("namespace", "topic")
_SUBSCRIPTION = (*_TOPIC, "subscription")


def _counter(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(f"pulsar_ray_{name}_total", Kind.COUNTER, labels, text)


def _gauge(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(f"pulsar_ray_{name}", Kind.GAUGE, labels, text)


def _latency(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(f"pulsar_ray_{name}_seconds", Kind.HISTOGRAM, labels, text, LATENCY_BUCKETS_SECONDS)


MESSAGES_IN = _counter("messages_in", _TOPIC, "Messages stored, or passed on by a non-persistent topic.")
BYTES_IN = _counter("bytes_in", _TOPIC, "Bytes of these messages, as stored: compressed, with headers.")
PUBLISH_LATENCY = _latency(
    "publish_latency", _TOPIC,
    "Time from a block's arrival at its partition to its receipt, once for each block.",
)  # fmt: skip
REFUSED_PUBLISHES = _counter(
    "refused_publishes", (*_TOPIC, "reason"), "Blocks of messages that a partition refused, by the reason."
)
STORAGE_BYTES = _gauge("storage_bytes", _TOPIC, "Bytes of the topic's ledgers, offloaded ones too.")
OFFLOADED_BYTES = _gauge(
    "offloaded_bytes", _TOPIC, "Those bytes of the topic's ledgers that are only in the object store."
)
PRODUCERS = _gauge("producers", _TOPIC, "Producers that are connected, once for each partition.")
COMPACTIONS = _counter("compactions", _TOPIC, "Compactions of a partition that have succeeded.")
FAILED_COMPACTIONS = _counter(
    "failed_compactions", _TOPIC, "Compactions of a partition that ended with an error."
)
COMPACTION_SECONDS = _counter("compaction_seconds", _TOPIC, "Time that the successful ones took.")
COMPACTION_READ_BYTES = _counter("compaction_read_bytes", _TOPIC, "Bytes of what they compacted.")
COMPACTION_WRITTEN_BYTES = _counter("compaction_written_bytes", _TOPIC, "Bytes of what they kept.")
COMPACTING_PARTITIONS = _gauge(
    "compacting_partitions", _TOPIC, "Partitions that are being compacted, of topics that ever were."
)
COMPACTED_BYTES = _gauge(
    "compacted_bytes", _TOPIC, "Bytes of the compacted form, beside the topic's ledgers."
)

MESSAGES_OUT = _counter("messages_out", _SUBSCRIPTION, "Messages sent to consumers, repeats included.")
BYTES_OUT = _counter("bytes_out", _SUBSCRIPTION, "Bytes of these messages, as stored.")
END_TO_END_LATENCY = _latency(
    "end_to_end_latency", _SUBSCRIPTION,
    "Time from the publish time to the first way out to a consumer, once for each block.",
)  # fmt: skip
BACKLOG_MESSAGES = _gauge(
    "backlog_messages", _SUBSCRIPTION, "Entries not acknowledged: a batch counts once, as in Pulsar."
)
BACKLOG_BYTES = _gauge(
    "backlog_bytes", _SUBSCRIPTION, "Stored bytes not acknowledged, shared out evenly within a ledger."
)
BACKLOG_AGE_SECONDS = _gauge(
    "backlog_age_seconds", _SUBSCRIPTION, "Age of the oldest message not acknowledged; 0 without a backlog."
)
UNACKED_MESSAGES = _gauge(
    "unacked_messages", _SUBSCRIPTION, "Messages that consumers have and did not acknowledge."
)
DELAYED_MESSAGES = _gauge("delayed_messages", _SUBSCRIPTION, "Messages that wait for their time.")
ACK_HOLES = _gauge(
    "ack_holes", _SUBSCRIPTION, "Acknowledged ranges above the mark-delete position (Pulsar's ack holes)."
)
BLOCKED_HASHES = _gauge(
    "blocked_hashes", _SUBSCRIPTION,
    "Key_Shared hashes whose messages wait for another consumer's acknowledgments.",
)  # fmt: skip
REDELIVERED_MESSAGES = _counter(
    "redelivered_messages", _SUBSCRIPTION, "Messages sent that had been sent before."
)
DEAD_LETTERED_MESSAGES = _counter(
    "dead_lettered_messages", _SUBSCRIPTION, "Messages that consumers moved to a dead letter topic."
)
CRASHED_CONSUMERS = _counter(
    "crashed_consumers", _SUBSCRIPTION, "Consumers whose process died without closing them."
)
DROPPED_MESSAGES = _counter(
    "dropped_messages", _SUBSCRIPTION,
    "Messages of non-persistent topics that a subscription lost for want of room.",
)  # fmt: skip
CONSUMERS = _gauge("consumers", _SUBSCRIPTION, "Consumers that are connected, once for each partition.")
BLOCKED_CONSUMERS = _gauge(
    "blocked_consumers",
    _SUBSCRIPTION,
    "Consumers that get nothing because they hold too many unacked messages.",
)
RECEIVER_QUEUE_MESSAGES = _gauge(
    "receiver_queue_messages",
    _SUBSCRIPTION,
    "Messages that consumers still have room for (Pulsar's permits).",
)

FSYNC_SECONDS = Metric(
    "pulsar_ray_fsync_seconds", Kind.HISTOGRAM, ("store",),
    "Time of one commit's write and fdatasync, all partitions of the store.", LATENCY_BUCKETS_SECONDS,
)  # fmt: skip
COMMIT_BLOCKS = Metric(
    "pulsar_ray_commit_blocks", Kind.HISTOGRAM, ("store",),
    "Blocks that one commit wrote, all partitions of the store.", COMMIT_BUCKETS_BLOCKS,
)  # fmt: skip
DISK_FREE_BYTES = _gauge("disk_free_bytes", ("store",), "Free bytes of the disk that the store lies on.")
DISK_TOTAL_BYTES = _gauge(
    "disk_total_bytes", ("store",), "Size of the disk that the store lies on, in bytes."
)

REMOTE_LAG_SECONDS = _gauge(
    "remote_lag_seconds", ("store",), "Age of the oldest byte that is synced and not in the object store."
)
REMOTE_LAG_BOUND_SECONDS = _gauge(
    "remote_lag_bound_seconds",
    ("store",),
    "The setting `remote_lag_seconds`: older than this, receipts wait.",
)
REMOTE_WAITING_BYTES = _gauge(
    "remote_waiting_bytes", ("store",), "Bytes that are synced and not in the object store."
)
REMOTE_AWAY = _gauge(
    "remote_away", ("store",), "1 while the object store does not answer the store, or refuses it."
)
REMOTE_ENDED = _gauge(
    "remote_ended", ("store",), "1 if the store's journal was ended, so that nothing of it is served."
)
OFFLOAD_CACHE_BYTES = _gauge(
    "offload_cache_bytes", ("store",), "Bytes of offloaded segments that the node keeps for readers."
)
OFFLOAD_CACHE_HITS = _counter(
    "offload_cache_hits", ("store",), "Pieces of offloaded segments that a reader found on the node."
)
OFFLOAD_CACHE_MISSES = _counter(
    "offload_cache_misses", ("store",), "Pieces of offloaded segments that a reader waited for."
)
REMOTE_PUTS = _counter("remote_puts", ("store",), "Objects that the store asked the object store to write.")
REMOTE_PUT_BYTES = _counter("remote_put_bytes", ("store",), "Bytes of those that were answered.")
REMOTE_GETS = _counter("remote_gets", ("store",), "Objects that the store asked for.")
REMOTE_LISTS = _counter("remote_lists", ("store",), "Lists of objects that the store asked for.")
REMOTE_ERRORS = _counter(
    "remote_errors", ("store",), "Requests to the object store that failed; they are repeated."
)

ACTOR_RESTARTS = _counter("actor_restarts", ("kind",), "Restarts of the broker's actors, by their kind.")
RECOVERY_SECONDS = _latency(
    "recovery", ("kind",), "Time from an actor's start until it serves, by the kind of actor."
)
TOPICS = _gauge("topics", ("state",), "Topics that run, and topics that sleep, by their state.")
PARTITIONS_AWAY = _gauge("partitions_away", (), "Partitions whose store no running node holds.")
PARTITION_MOVES = _gauge(
    "partition_moves", (), "Moves of partitions to other nodes that are asked for or run."
)

CLIENT_PENDING_MESSAGES = _gauge(
    "client_pending_messages", _TOPIC, "Messages that a client's producers sent and have no receipt for."
)
CLIENT_SEND_LATENCY = _latency(
    "client_send_latency",
    _TOPIC,
    "Time from a block's sending by a client to its receipt there, once for each block.",
)
CLIENT_RECEIVED_MESSAGES = _counter(
    "client_received_messages", _SUBSCRIPTION, "Messages that a client's consumers received."
)
CLIENT_REDELIVERED_MESSAGES = _counter(
    "client_redelivered_messages", _SUBSCRIPTION, "Those of them that had been delivered before."
)

BROKER_METRICS = (
    MESSAGES_IN, BYTES_IN, PUBLISH_LATENCY, REFUSED_PUBLISHES, STORAGE_BYTES, OFFLOADED_BYTES, PRODUCERS,
    COMPACTIONS, FAILED_COMPACTIONS, COMPACTION_SECONDS, COMPACTION_READ_BYTES, COMPACTION_WRITTEN_BYTES,
    COMPACTING_PARTITIONS, COMPACTED_BYTES,
    MESSAGES_OUT, BYTES_OUT, END_TO_END_LATENCY, BACKLOG_MESSAGES, BACKLOG_BYTES, BACKLOG_AGE_SECONDS,
    UNACKED_MESSAGES, DELAYED_MESSAGES, ACK_HOLES, BLOCKED_HASHES, REDELIVERED_MESSAGES,
    DEAD_LETTERED_MESSAGES, CRASHED_CONSUMERS, DROPPED_MESSAGES, CONSUMERS, BLOCKED_CONSUMERS,
    RECEIVER_QUEUE_MESSAGES, FSYNC_SECONDS, COMMIT_BLOCKS, DISK_FREE_BYTES, DISK_TOTAL_BYTES,
    REMOTE_LAG_SECONDS, REMOTE_LAG_BOUND_SECONDS, REMOTE_WAITING_BYTES, REMOTE_AWAY, REMOTE_ENDED,
    OFFLOAD_CACHE_BYTES, OFFLOAD_CACHE_HITS, OFFLOAD_CACHE_MISSES,
    REMOTE_PUTS, REMOTE_PUT_BYTES, REMOTE_GETS, REMOTE_LISTS, REMOTE_ERRORS,
    ACTOR_RESTARTS, RECOVERY_SECONDS, TOPICS, PARTITIONS_AWAY, PARTITION_MOVES,
)  # fmt: skip
"""Exported by the actors of a broker."""
CLIENT_METRICS = (
    CLIENT_PENDING_MESSAGES, CLIENT_SEND_LATENCY, CLIENT_RECEIVED_MESSAGES, CLIENT_REDELIVERED_MESSAGES,
)  # fmt: skip
"""Exported by clients that have them switched on."""
ALL_METRICS = (*BROKER_METRICS, *CLIENT_METRICS)

SERIES_NAMES = frozenset(name for metric in ALL_METRICS for name in metric.series_names)
"""The names of all series that a query may use."""
