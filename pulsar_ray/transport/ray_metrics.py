"""Hands samples to Ray, which shows them in each node's metrics endpoint (ADR 0056).

All series go as gauges of Ray, counters and the series of histograms too: so names and values are exact with
every Ray, a counter is seen at 0 before it counts, and costs do not follow the number of values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from ray.util.metrics import Gauge

from pulsar_ray.model.metric_catalogue import Metric, SampleKey, Samples

Series = tuple[str, tuple[str, ...]]
"""A name without Ray's prefix, and the values of its labels."""


class RayMetrics:
    """Has the gauges of this process at Ray.

    `export` may run in any thread, one call at a time. A gauge that is no longer exported is set to 0 once:
    newer versions of Ray then forget the series, older ones go on showing it. Counters and histograms never
    fall.
    """

    def __init__(self, make_gauge: Callable[[str, str, tuple[str, ...]], Gauge] = Gauge) -> None:
        self._make_gauge = make_gauge
        self._gauges: dict[str, Gauge] = {}
        self._highest: dict[Series, float] = {}
        self._former: frozenset[SampleKey] = frozenset()

    def export(self, samples: Samples) -> None:
        """Let Ray show these values from now on.

        All of them are set: Ray forgets what was not set for some 20 seconds.
        """
        for (metric, labels), value in samples.gauges.items():
            self._show(metric, metric.name, metric.labels, labels, value)
        for metric, labels in self._former - samples.gauges.keys():
            self._show(metric, metric.name, metric.labels, labels, 0.0)
        self._former = frozenset(samples.gauges)
        for (metric, labels), value in samples.counters.items():
            self._raise(metric, metric.name, metric.labels, labels, value)
        for (metric, labels), numbers in samples.histograms.items():
            for name, names, values, value in histogram_series(metric, labels, numbers):
                self._raise(metric, name, names, values, value)

    def _raise(
        self, metric: Metric, name: str, names: tuple[str, ...], labels: tuple[str, ...], value: float
    ) -> None:
        highest = max(value, self._highest.get((name, labels), 0.0))
        self._highest[name, labels] = highest
        self._show(metric, name, names, labels, highest)

    def _show(
        self, metric: Metric, name: str, names: tuple[str, ...], labels: tuple[str, ...], value: float
    ) -> None:
        gauge = self._gauges.get(name)
        if gauge is None:
            gauge = self._gauges[name] = self._make_gauge(name, metric.help, names)
        gauge.set(float(value), dict(zip(names, labels, strict=True)))


def histogram_series(
    metric: Metric, labels: tuple[str, ...], numbers: Sequence[float]
) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...], float]]:
    """Give a histogram's series as Prometheus has them: name, names of labels, labels, value.

    `numbers` are those of `BucketCounts.numbers`; the buckets of Prometheus are cumulative.
    """
    *counts, total = numbers
    ends = (*(f"{end:g}" for end in metric.buckets), "+Inf")
    below = list(accumulate(counts))
    for end, count in zip(ends, below, strict=True):
        yield f"{metric.name}_bucket", (*metric.labels, "le"), (*labels, end), count
    yield f"{metric.name}_sum", metric.labels, labels, total
    yield f"{metric.name}_count", metric.labels, labels, below[-1]
