"""Samples reach Ray as gauges with Prometheus' names."""

from __future__ import annotations

from typing import Any

from pulsar_ray.model import metric_catalogue as metrics
from pulsar_ray.model.metric_catalogue import Samples
from pulsar_ray.transport.ray_metrics import RayMetrics, histogram_series

LABELS = ("public/default", "persistent://public/default/orders")


class StubRay:
    """What was set since the last look, by name and labels."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[str, tuple[str, ...]]] = {}
        self.shown: dict[tuple[str, tuple[str, ...]], float] = {}

    def gauge(self, name: str, text: str, keys: tuple[str, ...]) -> Any:
        assert name not in self.made, "one gauge for each name"
        self.made[name] = (text, keys)
        ray = self

        class StubGauge:
            def set(self, value: float, tags: dict[str, str]) -> None:
                assert tuple(tags) == keys
                ray.shown[name, tuple(tags.values())] = value

        return StubGauge()

    def take(self) -> dict[tuple[str, tuple[str, ...]], float]:
        taken, self.shown = self.shown, {}
        return taken


def test_counters_keep_their_names_and_are_seen_at_0() -> None:
    ray = StubRay()
    RayMetrics(ray.gauge).export(Samples(counters={(metrics.MESSAGES_IN, LABELS): 0}))
    assert ray.take() == {("pulsar_ray_messages_in_total", LABELS): 0.0}
    assert ray.made["pulsar_ray_messages_in_total"] == (metrics.MESSAGES_IN.help, ("namespace", "topic"))


def test_a_counter_never_falls() -> None:
    ray = StubRay()
    exporter = RayMetrics(ray.gauge)
    seen: list[float] = []
    for value in (5, 3, 6):
        exporter.export(Samples(counters={(metrics.MESSAGES_IN, LABELS): value}))
        seen += ray.take().values()
    assert seen == [5, 5, 6]


def test_all_values_are_set_again_each_time() -> None:
    ray = StubRay()
    exporter = RayMetrics(ray.gauge)
    samples = Samples(
        counters={(metrics.MESSAGES_IN, LABELS): 2}, gauges={(metrics.PRODUCERS, LABELS): 1}, histograms={}
    )
    exporter.export(samples)
    first = ray.take()
    exporter.export(samples)
    assert ray.take() == first
    assert len(first) == 2


def test_a_gauge_that_is_gone_is_set_to_0_once() -> None:
    ray = StubRay()
    exporter = RayMetrics(ray.gauge)
    exporter.export(Samples(gauges={(metrics.PRODUCERS, LABELS): 3}))
    ray.take()
    exporter.export(Samples())
    assert ray.take() == {("pulsar_ray_producers", LABELS): 0.0}
    exporter.export(Samples())
    assert ray.take() == {}


def test_a_histogram_is_cumulative_buckets_a_sum_and_a_count() -> None:
    numbers = [0.0] * (len(metrics.PUBLISH_LATENCY.buckets) + 2)
    numbers[0], numbers[2], numbers[-2], numbers[-1] = 4, 3, 1, 9.5
    series = list(histogram_series(metrics.PUBLISH_LATENCY, LABELS, numbers))
    buckets = {labels[-1]: value for name, _, labels, value in series if name.endswith("_bucket")}
    assert list(buckets)[:4] == ["0.0005", "0.001", "0.005", "0.02"]
    assert [buckets[end] for end in ("0.0005", "0.001", "0.005", "300", "+Inf")] == [4, 4, 7, 7, 8]
    assert len(buckets) == len(metrics.PUBLISH_LATENCY.buckets) + 1
    rest = {name: (names, labels, value) for name, names, labels, value in series if "bucket" not in name}
    assert rest == {
        "pulsar_ray_publish_latency_seconds_sum": (("namespace", "topic"), LABELS, 9.5),
        "pulsar_ray_publish_latency_seconds_count": (("namespace", "topic"), LABELS, 8),
    }
    assert all(names[-1] == "le" for name, names, _, _ in series if name.endswith("_bucket"))
