"""The size of a scrape has a bound that does not depend on how many topics a node has or had."""

from __future__ import annotations

from functools import cache
from typing import Any

from pulsar_ray.broker.figures.actor_report import ActorReport, Figures, StoredBacklog
from pulsar_ray.broker.figures.label_limiter import MOST_LIVES
from pulsar_ray.broker.figures.node_figures import NodeFigures
from pulsar_ray.model import metric_catalogue as metrics
from pulsar_ray.model.metric_catalogue import BROKER_METRICS, Kind, Metric
from pulsar_ray.transport.ray_metrics import RayMetrics

NOW_MS = 1_700_000_000_000
TOPICS = 10_000
REASONS = (
    "disk_space",
    "backlog_quota",
    "terminated",
    "too_large",
    "delayed_too_long",
    "not_stored",
    "other",
)
DIGITS = 20
"""Characters of a value, at most."""
OF_RAY = 200
"""Characters of the labels that Ray adds to each series, about."""


class StubEndpoint:
    """Counts the series that Ray was ever told of, and the characters of their lines."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, tuple[str, ...]], int] = {}

    def gauge(self, name: str, _text: str, keys: tuple[str, ...]) -> Any:
        endpoint = self

        class StubGauge:
            def set(self, value: float, tags: dict[str, str]) -> None:
                labels = ",".join(f'{key}="{tags[key]}"' for key in keys)
                line = len(f"ray_{name}{{{labels}}} ") + DIGITS + OF_RAY
                endpoint.lines[name, tuple(tags.values())] = line

        return StubGauge()


@cache
def figures_of(*labels: str) -> Figures:
    """Every metric that has these labels, and perhaps a reason."""
    found = Figures()
    for metric in BROKER_METRICS:
        if metric.labels[: len(labels)] != labels or set(metric.labels) - {*labels, "reason"}:
            continue
        for name in (
            [f"{metric.name}:{reason}" for reason in REASONS] if "reason" in metric.labels else [metric.name]
        ):
            if metric.kind is Kind.HISTOGRAM:
                found.histograms[name] = [1.0] * (len(metric.buckets) + 2)
            else:
                (found.counters if metric.kind is Kind.COUNTER else found.gauges)[name] = 1.0
    return found


def series_of(*labels: str) -> int:
    """Series that each holder of these labels has."""

    def count(metric: Metric) -> int:
        if metric.kind is Kind.HISTOGRAM:
            return len(metric.buckets) + 3
        return len(REASONS) if "reason" in metric.labels else 1

    return sum(count(metric) for metric in BROKER_METRICS if set(metric.labels) - {"reason"} == set(labels))


OF_TOPIC = ("namespace", "topic")
OF_SUBSCRIPTION = (*OF_TOPIC, "subscription")


def comes(node: NodeFigures, number: int, name: str) -> None:
    """A topic with a subscription runs, and tells all that can be told."""
    node.reported(
        ActorReport(
            kind="partition",
            life=2 * number + 1,
            topic=name,
            number=number + 1,
            figures=figures_of(*OF_TOPIC),
            backlogs={"audit": StoredBacklog(1, 100, NOW_MS - 1000)},
        )
    )
    node.reported(
        ActorReport(
            kind="dispatcher",
            life=2 * number + 2,
            topic=name,
            subscription="audit",
            figures=figures_of(*OF_SUBSCRIPTION),
        )
    )


def goes(node: NodeFigures, number: int) -> None:
    """The topic is deleted."""
    node.removed(number + 1)
    node.ended(2 * number + 1)
    node.ended(2 * number + 2)


def long_name(number: int) -> str:
    """A name as long as a label may be."""
    return f"persistent://public/default/{number:05}-".ljust(200, "x")


def test_ten_thousand_topics_at_the_default_limits_make_the_series_that_are_promised() -> None:
    limit = 200
    node, endpoint = NodeFigures("s", limit, limit), StubEndpoint()
    for number in range(TOPICS):
        comes(node, number, long_name(number))
    samples = node.collect(NOW_MS)
    RayMetrics(endpoint.gauge).export(samples)
    expected = (limit + 1) * (series_of(*OF_TOPIC) + series_of(*OF_SUBSCRIPTION))
    of_topics = {key for key in endpoint.lines if "recovery" not in key[0] and "restarts" not in key[0]}
    assert len(of_topics) == expected
    # docs/metrics.md promises it.
    assert (series_of(*OF_TOPIC), series_of(*OF_SUBSCRIPTION)) == (34, 31)
    assert expected < 13_100
    assert sum(endpoint.lines.values()) < 7_000_000
    # Nothing is lost: what has no label of its own is in `other`.
    counted = {key: value for key, value in samples.counters.items() if key[0] is metrics.MESSAGES_IN}
    assert sum(counted.values()) == TOPICS
    assert counted[metrics.MESSAGES_IN, ("public/default", "other")] == TOPICS - limit


def test_ten_thousand_topics_that_come_and_go_leave_as_few() -> None:
    limit, at_once = 20, 500
    node, endpoint = NodeFigures("s", limit, limit), StubEndpoint()
    ray = RayMetrics(endpoint.gauge)
    for first in range(0, TOPICS, at_once):
        for number in range(first, first + at_once):
            comes(node, number, long_name(number))
        ray.export(node.collect(NOW_MS))
        for number in range(first, first + at_once):
            goes(node, number)
    samples = node.collect(NOW_MS)
    ray.export(samples)
    most = (MOST_LIVES * limit + 1) * (series_of(*OF_TOPIC) + series_of(*OF_SUBSCRIPTION))
    of_topics = {key for key in endpoint.lines if "recovery" not in key[0] and "restarts" not in key[0]}
    assert len(of_topics) <= most
    counted = [value for key, value in samples.counters.items() if key[0] is metrics.MESSAGES_IN]
    assert sum(counted) == TOPICS


def test_many_namespaces_are_bounded_as_well() -> None:
    node, endpoint = NodeFigures("s", 10, 10), StubEndpoint()
    for number in range(1100):
        comes(node, number, f"persistent://tenant/n{number}/t")
    RayMetrics(endpoint.gauge).export(node.collect(NOW_MS))
    namespaces = {labels[0] for name, labels in endpoint.lines if name == metrics.MESSAGES_IN.name}
    assert len(namespaces) == 1001
