"""The catalogue of metrics keeps Prometheus' conventions."""

from __future__ import annotations

import re

import pytest

from pulsar_ray.model.metric_catalogue import (
    ALL_METRICS,
    BACKLOG_BYTES,
    MESSAGES_IN,
    PUBLISH_LATENCY,
    SERIES_NAMES,
    Kind,
    Metric,
)


@pytest.mark.parametrize("metric", ALL_METRICS, ids=lambda metric: metric.name)
def test_names_labels_and_texts_are_as_prometheus_advises(metric: Metric) -> None:
    assert re.fullmatch(r"pulsar_ray_[a-z][a-z_]*[a-z]", metric.name)
    assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER)
    assert not re.search(r"_(ms|millis|milliseconds|kib|mib)\b", metric.name), "base units only"
    assert metric.help.endswith(".")
    assert len(set(metric.labels)) == len(metric.labels)
    assert "le" not in metric.labels
    if "topic" in metric.labels:
        assert metric.labels[0] == "namespace"


@pytest.mark.parametrize("metric", ALL_METRICS, ids=lambda metric: metric.name)
def test_histograms_have_rising_buckets_and_others_none(metric: Metric) -> None:
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert bool(metric.buckets) is (metric.kind is Kind.HISTOGRAM)


def test_every_name_is_there_once() -> None:
    names = [metric.name for metric in ALL_METRICS]
    assert len(set(names)) == len(names)


def test_series_are_named_as_in_rays_endpoint() -> None:
    assert MESSAGES_IN.series_names == ("ray_pulsar_ray_messages_in_total",)
    assert BACKLOG_BYTES.series_names == ("ray_pulsar_ray_backlog_bytes",)
    assert PUBLISH_LATENCY.series_names == (
        "ray_pulsar_ray_publish_latency_seconds_bucket",
        "ray_pulsar_ray_publish_latency_seconds_sum",
        "ray_pulsar_ray_publish_latency_seconds_count",
    )
    assert len(SERIES_NAMES) == sum(len(metric.series_names) for metric in ALL_METRICS)
