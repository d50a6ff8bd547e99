"""Adds up what the actors of a node report, those that sleep included. Pure.

Counters go on where an actor that ended left them. The backlogs of a partition stay as it last told them,
asleep or between a crash and its restart: a backlog does not vanish with its process (ADR 0057).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple

from pulsar_ray.broker.figures.actor_report import NO_TIME, READERS, ActorReport, StoredBacklog
from pulsar_ray.broker.figures.label_limiter import LabelLimiter
from pulsar_ray.model import metric_catalogue as metrics
from pulsar_ray.model.metric_catalogue import ALL_METRICS, OTHER, Metric, SampleKey, Samples
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.model.traffic import BucketCounts, add_numbers

MAX_NAMESPACES = 1000
"""More have no labels of their own."""
MAX_ENDED_LIVES = 1000
"""Ended processes that are remembered: one of them may only have been cut off."""
PARTITION = "partition"
DISPATCHER = "dispatcher"

_BY_NAME = {metric.name: metric for metric in ALL_METRICS}
_SHOWN_AT_ZERO = (metrics.CONSUMERS, metrics.UNACKED_MESSAGES)
"""Gauges of subscriptions that nobody serves: alerts compare them with the backlog."""


class RestingPartition(NamedTuple):
    """A partition that does not run: asleep, or between a crash and its restart."""

    topic: str
    storage_bytes: float
    backlogs: Mapping[str, StoredBacklog]


class _Place(NamedTuple):
    namespace: str
    topic: str


class NodeFigures:
    """Holds the newest figures of every actor of a node.

    The label of what is counted for all of a store is its id. At most `max_topics` topics and
    `max_subscriptions` subscriptions have labels of their own.
    """

    def __init__(self, store: str, max_topics: int, max_subscriptions: int) -> None:
        self._store = store
        self._namespaces = LabelLimiter(MAX_NAMESPACES)
        self._topics = LabelLimiter(max_topics)
        self._subscriptions = LabelLimiter(max_subscriptions)
        self._places: dict[str, _Place] = {}
        self._claimants: set[str] = set()
        """Partitions whose topics may take labels: in use, or with a backlog."""
        self._live: dict[int, ActorReport] = {}
        self._ended = Samples()
        self._ended_lives: OrderedDict[int, ActorReport] = OrderedDict()
        self._restarts: dict[str, int] = {}
        self._recovery: dict[str, BucketCounts] = {}
        self._resting: dict[int, RestingPartition] = {}
        self._removed: deque[int] = deque(maxlen=MAX_ENDED_LIVES)

    # --- what happens -----------------------------------------------------------------------------

    def reported(self, report: ActorReport) -> None:
        """Take the newest figures of an actor in place of its former ones."""
        if report.life not in self._live:
            former = self._ended_lives.pop(report.life, None)
            if former is None:
                self._began(report)
            else:
                self._add_counts(self._ended, former, sign=-1)
        self._live[report.life] = report
        self._claimants.add(report.topic)
        if report.kind == PARTITION:
            self._resting.pop(report.number, None)

    def _began(self, report: ActorReport) -> None:
        self._restarts[report.kind] = self._restarts.get(report.kind, 0) + report.is_restarted
        if report.recovery_s > 0:
            counts = self._recovery.setdefault(report.kind, BucketCounts(metrics.RECOVERY_SECONDS.buckets))
            counts.observe(report.recovery_s)

    def ended(self, life: int) -> None:
        """An actor is gone, or cut off; a partition's backlogs stay."""
        report = self._live.pop(life, None)
        if report is None:
            return
        self._add_counts(self._ended, report)
        self._ended_lives[life] = report
        while len(self._ended_lives) > MAX_ENDED_LIVES:
            self._ended_lives.popitem(last=False)
        if report.kind == PARTITION and report.number and report.number not in self._removed:
            storage = report.figures.gauges.get(metrics.STORAGE_BYTES.name, 0)
            self._resting[report.number] = RestingPartition(report.topic, storage, report.backlogs)

    def rests(self, number: int, partition: RestingPartition) -> None:
        """Take what a partition that sleeps has written down, unless it runs again."""
        if all(report.number != number or report.kind != PARTITION for report in self._live.values()):
            self._resting[number] = partition

    def removed(self, number: int) -> None:
        """Forget a partition that was deleted, also one whose actor is only about to end."""
        self._resting.pop(number, None)
        self._removed.append(number)

    # --- what is known of now ---------------------------------------------------------------------

    @property
    def live_reports(self) -> Collection[ActorReport]:
        """The newest report of each actor that runs."""
        return self._live.values()

    @property
    def resting_partitions(self) -> Collection[RestingPartition]:
        """The partitions that do not run."""
        return self._resting.values()

    @property
    def restarts(self) -> int:
        """How many actors Ray has started again."""
        return sum(self._restarts.values())

    # --- samples ----------------------------------------------------------------------------------

    def collect(self, now_ms: int) -> Samples:
        """Return the samples of now."""
        self._look_at_names()
        samples = Samples(
            dict(self._ended.counters), {}, {key: list(of) for key, of in self._ended.histograms.items()}
        )
        for report in self._live.values():
            self._add_counts(samples, report)
            for name, value in report.figures.gauges.items():
                metric, extra = _metric_of(name)
                self._add(samples.gauges, metric, report.topic, report.subscription, value, extra)
        self._add_backlogs(samples.gauges, now_ms)
        for kind, restarts in self._restarts.items():
            samples.counters[metrics.ACTOR_RESTARTS, (kind,)] = restarts
        for kind, counts in self._recovery.items():
            samples.histograms[metrics.RECOVERY_SECONDS, (kind,)] = counts.numbers()
        return samples

    def _add_counts(self, samples: Samples, report: ActorReport, sign: int = 1) -> None:
        for name, value in report.figures.counters.items():
            metric, extra = _metric_of(name)
            self._add(samples.counters, metric, report.topic, report.subscription, sign * value, extra)
        for name, numbers in report.figures.histograms.items():
            metric, extra = _metric_of(name)
            key = self._key(metric, report.topic, report.subscription, extra)
            signed = numbers if sign == 1 else [-number for number in numbers]
            samples.histograms[key] = add_numbers(samples.histograms.get(key), signed)

    def _add_backlogs(self, gauges: dict[SampleKey, float], now_ms: int) -> None:
        served = {
            (report.topic, report.subscription): report.acknowledged
            for report in self._live.values()
            if report.kind == DISPATCHER and report.subscription != READERS
        }
        for report in self._live.values():
            if report.kind == PARTITION:
                self._add_backlogs_of(gauges, report.topic, report.backlogs, served, now_ms)
        for partition in self._resting.values():
            topic = partition.topic
            labels = self._labels_of_topic(topic)
            storage = (metrics.STORAGE_BYTES, labels)
            gauges[storage] = gauges.get(storage, 0) + partition.storage_bytes
            gauges.setdefault((metrics.PRODUCERS, labels), 0)
            self._add_backlogs_of(gauges, topic, partition.backlogs, served, now_ms)

    def _add_backlogs_of(
        self,
        gauges: dict[SampleKey, float],
        topic: str,
        backlogs: Mapping[str, StoredBacklog],
        served: Mapping[tuple[str, str], int],
        now_ms: int,
    ) -> None:
        # There may be ten thousand of them: labels are looked up once for each.
        for name, backlog in backlogs.items():
            labels = self._labels_of_subscription(topic, name)
            acknowledged = served.get((topic, name))
            known = backlog if acknowledged is None else backlog.less(acknowledged)
            entries, size, oldest_ms, holes = known
            if acknowledged is None:
                key = (metrics.ACK_HOLES, labels)
                gauges[key] = gauges.get(key, 0) + holes
                for metric in _SHOWN_AT_ZERO:
                    gauges.setdefault((metric, labels), 0)
            key = (metrics.BACKLOG_MESSAGES, labels)
            gauges[key] = gauges.get(key, 0) + entries
            key = (metrics.BACKLOG_BYTES, labels)
            gauges[key] = gauges.get(key, 0) + size
            key = (metrics.BACKLOG_AGE_SECONDS, labels)
            age_s = max(0, now_ms - oldest_ms) / 1000 if entries and oldest_ms != NO_TIME else 0.0
            gauges[key] = max(gauges.get(key, 0.0), age_s)

    def _add(
        self,
        samples: dict[SampleKey, float],
        metric: Metric,
        topic: str,
        subscription: str,
        value: float,
        extra: str = "",
    ) -> None:
        key = self._key(metric, topic, subscription, extra)
        samples[key] = samples.get(key, 0) + value

    # --- labels -----------------------------------------------------------------------------------

    def _key(self, metric: Metric, topic: str, subscription: str, extra: str) -> SampleKey:
        labels = metric.labels
        if labels[:1] != ("namespace",):
            return metric, (self._store,) if labels == ("store",) else (extra,) * len(labels)
        if "subscription" in labels:
            return metric, self._labels_of_subscription(topic, subscription)
        values = self._labels_of_topic(topic)
        return metric, values if len(values) == len(labels) else (*values, extra)

    def _labels_of_topic(self, topic: str) -> tuple[str, str]:
        place = self._place(topic)
        label = self._topics.label(place.topic, place.topic, may_take=topic in self._claimants)
        return self._namespaces.label(place.namespace, place.namespace), label

    def _labels_of_subscription(self, topic: str, subscription: str) -> tuple[str, str, str]:
        namespace, label = self._labels_of_topic(topic)
        if label == OTHER:
            return namespace, label, OTHER
        key = (self._place(topic).topic, subscription)
        return namespace, label, self._subscriptions.label(key, subscription)

    def _place(self, topic: str) -> _Place:
        place = self._places.get(topic)
        if place is None:
            name = TopicName.parse(topic)
            place = self._places[topic] = _Place(name.namespace_name, name.partitioned_full)
        return place

    def _look_at_names(self) -> None:
        """Let deleted topics and subscriptions give their labels back, for those that may take some."""
        live = self._live.values()
        self._claimants = {report.topic for report in live}
        for partition in self._resting.values():
            if any(backlog.entries for backlog in partition.backlogs.values()):
                self._claimants.add(partition.topic)
        used = {report.topic for report in live if report.topic}
        used.update(partition.topic for partition in self._resting.values())
        self._places = {topic: place for topic, place in self._places.items() if topic in used}
        places = {self._place(topic) for topic in used}
        self._topics.keep_only({place.topic for place in places})
        self._namespaces.keep_only({place.namespace for place in places})
        subscriptions: set[Hashable] = set()
        for report in live:
            if report.topic:
                names = (*report.backlogs, *filter(None, (report.subscription,)))
                subscriptions.update((self._place(report.topic).topic, name) for name in names)
        for partition in self._resting.values():
            topic = self._place(partition.topic).topic
            subscriptions.update((topic, name) for name in partition.backlogs)
        self._subscriptions.keep_only(subscriptions)


def _metric_of(name: str) -> tuple[Metric, str]:
    plain, _, extra = name.partition(":")
    return _BY_NAME[plain], extra


def check_names(report: ActorReport) -> None:
    """Raise ValueError if a report has a metric that is not in the catalogue."""
    figures = report.figures
    groups: Sequence[Mapping[str, object]] = (figures.counters, figures.gauges, figures.histograms)
    unknown = [name for group in groups for name in group if name.partition(":")[0] not in _BY_NAME]
    if unknown:
        raise ValueError(f"no metric of the catalogue: {unknown[0]}")
